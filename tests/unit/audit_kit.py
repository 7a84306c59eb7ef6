"""A run with results in a store, for audits: what the commands would have left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from batchq.clock import ManualClock
from batchq.item import NewItem
from batchq.lease import Lease, new_token
from batchq.ledger.base import CommittedResult, Ledger, Role
from batchq.ledger.memory import MemoryLedger
from batchq.result import Envelope, Result, Stored, result_key, sha256_hex
from batchq.store.base import Store
from batchq.store.frames import packed
from batchq.store.memory import MemoryStore
from batchq.verify import Journal, Report, audit

__all__ = ["Audited", "flip", "truncate"]

VERSION = "stats-0123456789ab"


def flip(data: bytes) -> bytes:
    """One bit of the middle byte."""
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


def truncate(data: bytes) -> bytes:
    return data[: len(data) // 2]


class Audited:
    """A run, in memory or in `ledger`, whose results are committed as a worker commits them."""

    def __init__(
        self,
        folder: Path,
        layout: str = "item",
        ledger: Ledger | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self.clock = clock or ManualClock()
        self.memory = MemoryLedger(clock=self.clock)
        self.ledger: Ledger = ledger or self.memory
        self.run = self.ledger.create_run("run", VERSION, {"kind": "stats"}, layout)
        self.objects = MemoryStore()
        self.store: Store = self.objects
        self.path = folder / "journal.db"
        self.worker = self.register("worker")
        marker = b"{}"
        self.objects.put_if_absent(f"{self.run.prefix}/run.json", marker, sha256_hex(marker))

    def register(self, name: str, role: Role = Role.WORKER) -> str:
        self.ledger.register(self.run, name, 60.0, role, {})
        return name

    def enqueue(self, *names: str, version: str = "sha256:1") -> None:
        enqueuer = self.register(f"enqueuer-{new_token()}", Role.ENQUEUER)
        items = [NewItem(name, version, 1, f"file:///{name}", "file:///") for name in names]
        self.ledger.enqueue(enqueuer, 1, items)
        self.ledger.stop(enqueuer, "end")

    def claim(self, worker: str = "worker", limit: int = 1000) -> Lease:
        lease = self.ledger.claim(worker, new_token(), limit, alone=True)
        assert lease is not None
        return lease

    def put(self, lease: Lease, worker: str = "worker", output: Any = None) -> list[Result]:
        """Write the lease's results into the store, in this run's layout."""
        envelopes = [
            Envelope(
                item.source_id,
                item.source_version,
                VERSION,
                output or {"of": item.source_id},
                1,
                1,
                {"worker": worker, "generation": item.generation},
            )
            for item in lease.items
        ]
        results = []
        if self.run.layout == "item":
            for item, each in zip(lease.items, envelopes, strict=True):
                key = result_key(self.run.prefix, each.item_key, item.source_id, item.generation)
                self.lay(key, each.to_bytes())
                stored = Stored(key, 0, len(each.to_bytes()), sha256_hex(each.to_bytes()))
                results.append(Result(item.id, lease.token, stored))
            return results
        frames = [packed(each.to_bytes()) for each in envelopes]
        key = f"{self.run.prefix}/shards/{new_token()}.jsonl.zst"
        self.lay(key, b"".join(frames))
        offset = 0
        for item, frame in zip(lease.items, frames, strict=True):
            stored = Stored(key, offset, len(frame), sha256_hex(frame))
            results.append(Result(item.id, lease.token, stored))
            offset += len(frame)
        return results

    def complete(self, number: int, each: int = 1000) -> list[CommittedResult]:
        """Documents d000, d001, ... with committed results, `each` a flush."""
        self.enqueue(*(f"d{n:03}" for n in range(number)))
        while (lease := self.ledger.claim("worker", new_token(), each, alone=True)) is not None:
            self.ledger.commit("worker", self.put(lease))
        return self.results

    @property
    def results(self) -> list[CommittedResult]:
        return self.ledger.results(self.run, 0, 10_000)

    # -- the store behind the ledger ---------------------------------------------

    def lay(self, key: str, data: bytes) -> None:
        assert self.objects.put_if_absent(key, data, sha256_hex(data))

    def replace(self, key: str, data: bytes) -> None:
        self.objects.delete(key)
        self.lay(key, data)

    def spoil(self, row: CommittedResult, how: Any) -> None:
        """Alter the bytes of one result in place, or delete its object where `how` is none."""
        stored = row.stored
        data = self.objects.read(stored.key)
        end = stored.offset + stored.length
        self.objects.delete(stored.key)
        if how is not None:
            self.lay(
                stored.key, data[: stored.offset] + how(data[stored.offset : end]) + data[end:]
            )

    # -- auditing ----------------------------------------------------------------

    def audit(self, *, repair: bool = False, **options: Any) -> Report:
        journal = Journal(self.path, f"audit {options.get('sample')}")
        finished = False
        try:
            operator = self.operator if repair else None
            report = audit(
                self.ledger, self.run, self.store, journal, repair_as=operator, **options
            )
            finished = True
        finally:
            journal.close(finished=finished)
        return report

    @contextmanager
    def operator(self) -> Iterator[str]:
        name = self.register(f"verify-{new_token()}", Role.OPERATOR)
        yield name
        self.ledger.stop(name, "end")

    def damaged(self, report: Report) -> Sequence[tuple[str, str]]:
        return [(damage.result.source_id, damage.kind) for damage in report.damage]
