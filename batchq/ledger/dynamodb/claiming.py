"""Claim: an intent that names what is wanted, then each item on condition that it is free.

The intent is a lease row, written in one transaction with the worker's own row, so none can
be written once the worker is marked as reaped. It names each item with the revision at
which it was seen. Whoever ends the lease gives an item that the claim has not reached yet
another revision, and a claim that lands late finds nothing to take.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from batchq.errors import WorkerReaped
from batchq.lease import Lease
from batchq.ledger.dynamodb.calls import Calls, ConditionFailed
from batchq.ledger.dynamodb.fleet import LeaseRow, Process, entry, entry_id, entry_rev
from batchq.ledger.dynamodb.items import ItemRow
from batchq.ledger.dynamodb.keys import INDEX, Keys, document_of, item_id
from batchq.ledger.dynamodb.unit import read_items, shrink
from batchq.ledger.dynamodb.wire import absent, equal, write
from batchq.ledger.records import ISOLATED_LOSSES, State, WorkerState, lease_cap

__all__ = ["Candidate", "Claiming"]

ROUNDS = 20
"""Claims that found everything taken by others, before this one gives up."""

PAGE = 100


@dataclass(frozen=True, slots=True)
class Candidate:
    """An item as the queue shows it. `rank` is none for a delayed one."""

    id: int
    rev: int
    losses: int
    rank: int | None

    @property
    def entry(self) -> bytes:
        return entry(self.id, self.rev)


class Claiming:
    """One worker's claims. `cursor` is the rank after which the next one looks."""

    def __init__(self, calls: Calls, keys: Keys, worker: str, cursor: int) -> None:
        self._calls = calls
        self._keys = keys
        self._worker = worker
        self.cursor = cursor

    def claim(
        self, process: Process, token: str, limit: int, now: int, *, alone: bool
    ) -> Lease | None:
        if process.state is not WorkerState.LIVE:
            raise over(process)
        if token == process.last_token:
            return self._again(token, process.committed)
        for _ in range(ROUNDS):
            candidates = self._choose(limit, now, alone)
            if not candidates:
                return None
            if not self._intend(token, candidates, now):
                return self._again(token, process.committed)
            rows = self._take(token, [c.entry for c in candidates], candidates, process.committed)
            if rows:
                return _lease(token, rows)
        return None

    # -- choosing ------------------------------------------------------------------------

    def _choose(self, limit: int, now: int, alone: bool) -> list[Candidate]:
        due = self._due(limit, now, alone)
        if due and due[0].losses:
            return due
        ready = list(islice(self._ready(limit - len(due)), limit - len(due)))
        if ready:
            self.cursor = ready[-1].rank or 0
        return due + ready

    def _due(self, limit: int, now: int, alone: bool) -> list[Candidate]:
        """Delayed items whose time has come: as many losses as the first, as many as may be."""
        chosen: list[Candidate] = []
        # A time is followed by a mark that sorts below the one used here.
        rows = self._calls.query(
            self._keys.all_delayed, "#s < :a", f"{now:015d}~", index=INDEX, limit=max(PAGE, limit)
        )
        for row in rows:
            one = _candidate(row, None)
            if one.losses >= ISOLATED_LOSSES and not alone:
                continue
            if not chosen or one.losses == chosen[0].losses:
                chosen.append(one)
            if len(chosen) == lease_cap(chosen[0].losses, limit):
                break
        return chosen

    def _ready(self, number: int) -> Iterator[Candidate]:
        """From the cursor round the ring of all ranks, once."""
        if number <= 0:
            return
        cursor = self.cursor
        first, shards = self._keys.ring(cursor), self._keys.shards
        arcs = [(first, "#s > :a")]
        arcs += [((first + step) % shards, "") for step in range(1, shards)]
        arcs += [(first, "#s <= :a")]
        for shard, condition in arcs:
            bounds = [f"{cursor:016x}"] if condition else []
            partition = self._keys.ready_shard(shard)
            for row in self._calls.query(partition, condition, *bounds, index=INDEX, limit=number):
                yield _candidate(row, int(row["r"], 16))

    # -- taking --------------------------------------------------------------------------

    def _intend(self, token: str, candidates: list[Candidate], now: int) -> bool:
        """Write down what this claim wants; false if the token has been used already."""
        lease = LeaseRow(
            self._worker,
            token,
            now,
            frozenset(c.entry for c in candidates if c.rank is not None),
            frozenset(c.entry for c in candidates if c.rank is None),
            1,
        )
        table, keys = self._calls.table, self._keys
        announced = keys.lease(self._worker, token)
        try:
            self._calls.transact(
                [
                    write(table, announced, put=lease.pack(), only_if=[absent()]),
                    write(
                        table,
                        keys.process(self._worker),
                        set={"token": token},
                        only_if=[equal("state", WorkerState.LIVE.value)],
                    ),
                ]
            )
        except ConditionFailed:
            row = self._calls.get(keys.process(self._worker))
            process = None if row is None else Process.unpack(row)
            if process is None or process.state is not WorkerState.LIVE:
                raise over(process, self._worker) from None
            return False
        return True

    def _take(
        self, token: str, entries: list[bytes], candidates: list[Candidate], committed: int
    ) -> list[ItemRow]:
        """Claim each; those that others have taken leave the lease."""
        delayed = {c.entry for c in candidates if c.rank is None}
        rows = self._calls.each(
            lambda one: self._take_one(token, one, one in delayed, committed), entries
        )
        lost = [one for one, row in zip(entries, rows, strict=True) if row is None]
        if lost:
            self._give_up(token, lost)
        return [row for row in rows if row is not None]

    def _take_one(self, token: str, one: bytes, delayed: bool, committed: int) -> ItemRow | None:
        item = entry_id(one)
        key = self._keys.document(document_of(item))
        changes: dict[str, object] = {
            "st": State.LEASED.value,
            "tok": token,
            "hold": self._worker,
            "was": (State.DELAYED if delayed else State.READY).value,
            "hc": committed,
        }
        try:
            row = self._calls.write(
                key,
                set=changes,
                add={"v": 1, "att": 1},
                remove=("q", "r"),
                only_if=[equal("v", entry_rev(one))],
            )
        except ConditionFailed:
            # Perhaps by this claim, whose answer was lost.
            row = self._calls.get(key) or {}
            if row.get("tok") != token:
                return None
        taken = ItemRow.unpack(row)
        return taken if taken.id == item and taken.held_under(token) else None

    def _give_up(self, token: str, lost: list[bytes]) -> None:
        key = self._keys.lease(self._worker, token)
        while (row := self._calls.get(key)) is not None:
            lease = LeaseRow.unpack(row)
            try:
                self._calls.transact([shrink(self._calls.table, key, lease, lost)])
            except ConditionFailed:
                continue
            return

    # -- asked again ---------------------------------------------------------------------

    def _again(self, token: str, committed: int) -> Lease | None:
        """What the token holds, having claimed what its first call has not reached yet."""
        row = self._calls.get(self._keys.lease(self._worker, token))
        if row is None:
            return None
        lease = LeaseRow.unpack(row)
        found = read_items(self._calls, self._keys, lease.entries)
        held = [item for item in found.values() if item.held_under(token)]
        open_ = [
            lease.entries[item.id]
            for item in found.values()
            if item.rev == entry_rev(lease.entries[item.id])
        ]
        more = self._calls.each(
            lambda one: self._take_one(token, one, one in lease.delayed, committed), open_
        )
        return _lease(token, held + [item for item in more if item is not None])


def _candidate(row: dict[str, object], rank: int | None) -> Candidate:
    digest = int(str(row["sk"]), 16)
    return Candidate(
        item_id(digest, int(str(row["n"]))), int(str(row["v"])), int(str(row.get("ls", 0))), rank
    )


def _lease(token: str, rows: list[ItemRow]) -> Lease | None:
    items = tuple(row.item() for row in sorted(rows, key=lambda row: row.id))
    return Lease(token, items) if items else None


def over(process: Process | None, name: str = "") -> WorkerReaped:
    """The refusal of a process that has ended."""
    ended = process.state.value if process else "unknown"
    return WorkerReaped(
        f"worker {process.name if process else name} is {ended}: its leases are over",
        hint="register under a new name",
    )
