"""The ledgers that the suite runs on, behind one way to open clients of each."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from batchq.clock import Clock, ManualClock, random_hex
from batchq.ledger.base import Ledger, Policy
from batchq.ledger.memory import MemoryLedger
from batchq.ledger.sql import SqlLedger
from tests.postgres import empty_database

__all__ = ["Backend", "MemoryBackend", "SqlBackend", "postgres_backend", "sqlite_backend"]


class Backend(Protocol):
    """One empty ledger, whose clock is set by hand."""

    name: str
    clock: ManualClock

    def client(self, clock: Clock | None = None, policy: Policy | None = None) -> Ledger:
        """Another client of it. `clock.monotonic` is that client's, by default the ledger's."""
        ...


class MemoryBackend:
    name = "memory"

    def __init__(self) -> None:
        self.clock = ManualClock()
        self._first: MemoryLedger | None = None

    def client(self, clock: Clock | None = None, policy: Policy | None = None) -> Ledger:
        if self._first is None:
            self._first = MemoryLedger(policy=policy, clock=self.clock)
        return self._first.client(clock)


class SqlBackend:
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
def postgres_backend(url: str) -> Iterator[SqlBackend]:
    """The database at `url`, which holds the schema, emptied: faster than another one."""
    empty_database(url, keep=("batchq_version",))
    backend = SqlBackend("postgresql", url)
    try:
        yield backend
    finally:
        backend.close()
