"""The ledgers that the suite runs on, behind one way to open clients of each."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from batchq.clock import Clock, ManualClock, random_hex
from batchq.ledger.base import Ledger, Policy
from batchq.ledger.dynamodb import DynamoLedger
from batchq.ledger.memory import MemoryLedger
from batchq.ledger.sql import SqlLedger
from tests.dynamodb import TRANSACTION, ListingOrder, client
from tests.postgres import empty_database

__all__ = [
    "Backend",
    "DynamoBackend",
    "MemoryBackend",
    "SqlBackend",
    "dynamo_backend",
    "postgres_backend",
    "sqlite_backend",
]


class Backend(Protocol):
    """One empty ledger, whose clock is set by hand."""

    name: str
    clock: ManualClock
    swift: bool
    """Whether a request takes less than milliseconds."""
    counts_content: bool
    """Whether `duplicates` is a number."""
    settles_at_once: bool
    """Whether `counts` is exact while leases are open."""
    expires_by_ledger_clock: bool
    """Whether a jump of the ledger's clock by itself moves the moment of a death."""
    in_order: bool
    """Whether claims and reaps take what comes first by worker and id, and all of it."""

    def client(self, clock: Clock | None = None, policy: Policy | None = None) -> Ledger:
        """Another client of it. `clock.monotonic` is that client's, by default the ledger's."""
        ...


class DynamoBackend:
    """A table of its own in an emulator, its items in listing order."""

    swift = counts_content = settles_at_once = expires_by_ledger_clock = in_order = False

    def __init__(self, name: str, endpoint: str) -> None:
        self.name = name
        self.endpoint = endpoint
        self.table = f"ledger-{random_hex(64)}"
        self.clock = ManualClock()
        self.sdk = client(endpoint)
        self._ranks = ListingOrder()
        self._open: list[Ledger] = []

    def client(self, clock: Clock | None = None, policy: Policy | None = None) -> DynamoLedger:
        return self.open(clock=clock or self.clock, policy=policy)

    def open(self, **arguments: Any) -> DynamoLedger:
        """A client with arguments of its own."""
        given: dict[str, Any] = {
            "ledger_clock": self.clock,
            "clock": self.clock,
            "ranks": self._ranks,
            # The emulators take one request after the other.
            "parallel": 1,
            "client": self.sdk,
        }
        transaction = TRANSACTION[self.name]
        url = f"dynamodb://{self.table}?region=us-east-1&transaction={transaction}"
        ledger = DynamoLedger(url, **{**given, **arguments})
        self._open.append(ledger)
        return ledger

    def close(self) -> None:
        for ledger in self._open:
            ledger.close()


class MemoryBackend:
    name = "memory"
    swift = counts_content = settles_at_once = expires_by_ledger_clock = in_order = True

    def __init__(self) -> None:
        self.clock = ManualClock()
        self._first: MemoryLedger | None = None

    def client(self, clock: Clock | None = None, policy: Policy | None = None) -> Ledger:
        if self._first is None:
            self._first = MemoryLedger(policy=policy, clock=self.clock)
        return self._first.client(clock)


class SqlBackend:
    swift = counts_content = settles_at_once = expires_by_ledger_clock = in_order = True

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.url = url
        self.clock = ManualClock()
        self._open: list[Ledger] = []

    def client(self, clock: Clock | None = None, policy: Policy | None = None) -> Ledger:
        ledger = SqlLedger(
            self.url,
            policy=policy or Policy(),
            clock=clock or self.clock,
            ledger_clock=self.clock,
        )
        self._open.append(ledger)
        return ledger

    def close(self) -> None:
        for ledger in self._open:
            ledger.close()


@contextmanager
def sqlite_backend(template: Path, folder: Path) -> Iterator[SqlBackend]:
    """A copy of the SQLite file `template`, which holds the schema."""
    path = folder / f"{random_hex(32)}.db"
    shutil.copy(template, path)
    backend = SqlBackend("sqlite", f"sqlite:///{path}")
    try:
        yield backend
    finally:
        backend.close()


@contextmanager
def dynamo_backend(name: str, endpoint: str, shards: int = 1) -> Iterator[DynamoBackend]:
    """A new table in the emulator at `endpoint`, deleted afterwards."""
    backend = DynamoBackend(name, endpoint)
    backend.open(shards=shards).initialise()
    try:
        yield backend
    finally:
        backend.close()
        backend.sdk.delete_table(TableName=backend.table)


@contextmanager
def postgres_backend(url: str) -> Iterator[SqlBackend]:
    """The database at `url`, which holds the schema, emptied: faster than another one."""
    empty_database(url, keep=("batchq_version",))
    backend = SqlBackend("postgresql", url)
    try:
        yield backend
    finally:
        backend.close()
