"""Counts, processes, and the pages of results and dead letters.

The tallies of the processes, and of those that were put away, add up to the run's: what a claim
wants counts as leased from its intent on, and what leaves a lease is counted when the lease is.
As long as one is open the sum may lag behind the items, so it is exact only where none is.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import Any

from batchq.ledger.dynamodb.calls import Calls
from batchq.ledger.dynamodb.fleet import Beat, LeaseRow, Process
from batchq.ledger.dynamodb.items import ItemRow
from batchq.ledger.dynamodb.keys import INDEX, Keys, document_of, item_id
from batchq.ledger.dynamodb.unit import current_rows, read_items
from batchq.ledger.records import (
    COUNTED,
    TALLY_NAMES,
    CommittedResult,
    Counts,
    DeadLetter,
    ItemState,
    Role,
    State,
    Tallies,
    WorkerState,
    WorkerStatus,
)

__all__ = ["counts", "dead_letters", "recount", "results", "states", "workers"]

PROCESSES, EVERYTHING = ("1", "3"), ("0", "5")
"""From which sort key to which: beats and tallies; what was said at first, leases, and those
that were put away, too."""

PAGE = 100
"""Rows looked through with one request, at least."""


class _Fleet:
    """All processes of a run, as their rows stood within a moment."""

    def __init__(self, calls: Calls, keys: Keys, first: str, end: str) -> None:
        def shard(number: int) -> list[dict[str, Any]]:
            return list(calls.query(keys.fleet(number), "#s BETWEEN :a AND :b", first, end))

        self.beats: dict[str, Beat] = {}
        self.leases: list[LeaseRow] = []
        self.processes: list[Process] = []
        self.about: dict[str, str] = {}
        self._sum: Counter[str] = Counter()
        for rows in calls.each(shard, range(keys.shards)):
            for row in rows:
                self._sort_in(row)

    def _sort_in(self, row: dict[str, Any]) -> None:
        kind, _, name = row["sk"].partition("#")
        if kind == "1beat":
            self.beats[name] = Beat.unpack(row)
        elif kind == "3lease":
            self.leases.append(LeaseRow.unpack(row))
        elif kind in ("2process", "4ended"):
            self.processes.append(Process.unpack(row))
        elif kind == "2sum":
            self._sum.update({name: row[name] for name in TALLY_NAMES if name in row})
        elif kind == "0about":
            self.about[name] = row["about"]

    def tallies(self) -> Tallies:
        sum_ = Counter(self._sum)
        for process in self.processes:
            sum_.update(process.tally)
        return Tallies(**{name: sum_[name] for name in TALLY_NAMES})

    def same(self, other: _Fleet) -> bool:
        """Whether nothing moved, nobody came and nobody was put away between the two."""
        return (
            {process.name for process in self.processes}
            == {process.name for process in other.processes}
            and self.beats.keys() == other.beats.keys()
            and self.tallies() == other.tallies()
        )


def counts(calls: Calls, keys: Keys, now: int) -> Counts:
    fleet = _Fleet(calls, keys, *PROCESSES)
    tallies = fleet.tallies()
    exact = tallies.leased == 0
    if exact:
        # The rows were not read in one moment, and this sum may end a run.
        exact = fleet.same(_Fleet(calls, keys, *PROCESSES))
    alive = Counter(beat.role for beat in fleet.beats.values() if beat.alive(now))
    due = _first(calls, keys.all_delayed) if tallies.delayed else None
    oldest = _first(calls, keys.all_leased) if tallies.leased else None
    return Counts(
        tallies,
        workers_alive=alive[Role.WORKER.value],
        enqueuers_alive=alive[Role.ENQUEUER.value],
        now=now / 1000,
        oldest_lease_s=None if oldest is None else max(0, now - oldest) / 1000,
        next_due_s=None if due is None else max(0, due - now) / 1000,
        exact=exact,
    )


def _first(calls: Calls, partition: str) -> int | None:
    """The earliest time in this part of the queue, in milliseconds."""
    row = next(calls.query(partition, index=INDEX, limit=1), None)
    return None if row is None else int(row["r"][:15])


def workers(calls: Calls, keys: Keys, now: int) -> list[WorkerStatus]:
    fleet = _Fleet(calls, keys, *EVERYTHING)
    held: Counter[str] = Counter()
    for lease in fleet.leases:
        held[lease.holder] += len(lease.ready) + len(lease.delayed)
    listed = []
    for process in sorted(fleet.processes, key=lambda p: (p.registered_at, p.name)):
        beat = fleet.beats.get(process.name)
        live = process.state is WorkerState.LIVE
        listed.append(
            WorkerStatus(
                name=process.name,
                role=process.role,
                state=process.state,
                alive=live and beat is not None and beat.alive(now),
                held=held[process.name],
                committed=process.committed,
                registered_at=process.registered_at / 1000,
                beat_at=(beat.at if live and beat else process.beat_at) / 1000,
                stop_reason=process.stop_reason,
                about=json.loads(fleet.about.get(process.name, "{}")),
            )
        )
    return listed


def recount(calls: Calls, keys: Keys) -> Tallies:
    """Items in each state, by looking at all of them."""
    counted: Counter[str] = Counter()

    def shard(number: int) -> Counter[str]:
        tally: Counter[str] = Counter()
        for row in map(ItemRow.unpack, calls.query(keys.items(number))):
            tally.update(COUNTED[State(row.state)])
            tally["empty"] += row.state == State.COMPLETED and row.empty
        return tally

    for tally in calls.each(shard, range(keys.shards)):
        counted.update(tally)
    return Tallies(**counted)


def states(
    calls: Calls, keys: Keys, asked: Sequence[tuple[int, str, str]]
) -> list[ItemState | None]:
    """The items of these (digest, source id, source version), current or not."""
    current = current_rows(calls, keys, (digest for digest, _, _ in asked))
    ids: list[int | None] = []
    for digest, source_id, version in asked:
        row = current.get(digest)
        known = row.ordinals() if row is not None and row.source_id == source_id else {}
        ids.append(item_id(digest, known[version]) if version in known else None)
    # Read anew: a version may have changed places since.
    found = read_items(calls, keys, (i for i in ids if i is not None))
    return [None if i is None or i not in found else found[i].item_state() for i in ids]


def results(
    calls: Calls, keys: Keys, after: int, limit: int, *, current_only: bool
) -> list[CommittedResult]:
    completed = (
        row.result()
        for row in _by_id(calls, keys, after, limit)
        if not (current_only and row.apart)
    )
    return list(islice(completed, limit))


def _by_id(calls: Calls, keys: Keys, after: int, limit: int) -> Iterator[ItemRow]:
    """Completed items with ids above `after`, in their order."""
    start = document_of(max(0, after))
    for shard in range(keys.shard_of(start), keys.shards):
        rows = calls.query(
            keys.items(shard),
            "#s >= :a",
            f"{start:020x}",
            # The one of `after` comes first, and the next one shows that a document is over.
            limit=max(limit + 2, PAGE),
            state=State.COMPLETED.value,
        )
        # The current version of a document comes before the older ones.
        for digest, group in groupby(map(ItemRow.unpack, rows), key=lambda row: row.digest):
            versions = list(group)
            if len({row.id for row in versions}) < len(versions):
                versions = _completed_versions(calls, keys, digest)
            yield from sorted((v for v in versions if v.id > after), key=lambda row: row.id)


def _completed_versions(calls: Calls, keys: Keys, digest: int) -> list[ItemRow]:
    """Those of one document, each once, though an enqueue makes them change places."""
    partition, start = keys.document(digest)
    while True:
        rows = list(map(ItemRow.unpack, calls.query(partition, "begins_with(#s, :a)", start)))
        known = rows[0].ordinals().values()
        if sorted(row.ordinal for row in rows) == sorted(known):
            return [row for row in rows if row.state == State.COMPLETED]


def dead_letters(calls: Calls, keys: Keys, after: int, limit: int) -> list[DeadLetter]:
    found: list[DeadLetter] = []
    while len(found) < limit:
        rows = calls.query(
            keys.all_dead, "#s > :a", f"{max(0, after):024x}", index=INDEX, limit=limit
        )
        page = list(islice(rows, limit))
        current = calls.get_all((row["pk"], row["sk"]) for row in page)
        for row in page:
            after = int(row["r"], 16)
            item = current.get((row["pk"], row["sk"]))
            # The index may be a moment behind.
            if item is not None and len(found) < limit:
                one = ItemRow.unpack(item)
                if one.id == after and one.state == State.DEAD_LETTERED:
                    found.append(one.dead_letter())
        if len(page) < limit:
            break
    return found
