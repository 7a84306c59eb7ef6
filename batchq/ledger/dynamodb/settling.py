"""Commit, fail, release; retry and reopen: how items leave their leases, and come back.

A commit is one conditional write an item; the lease and the tallies follow in a transaction
for the whole call. Until then the lease counts as open, and whoever ends it counts what it
finds committed. The other ways out are rare, and move all their rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import TypeVar

from batchq.clock import random_hex
from batchq.lease import Failure, Held, ReleaseReason
from batchq.ledger.dynamodb import ended, items
from batchq.ledger.dynamodb.calls import Calls
from batchq.ledger.dynamodb.fleet import Process
from batchq.ledger.dynamodb.items import ItemRow
from batchq.ledger.dynamodb.keys import INDEX, Keys, document_of, ordinal_of
from batchq.ledger.dynamodb.refusals import ConditionFailed
from batchq.ledger.dynamodb.unit import Unit, read_items, together, unit_items
from batchq.ledger.dynamodb.wire import Key, absent, equal, write
from batchq.ledger.records import Committed, CommittedResult, Failed, Policy, State
from batchq.result import Result

__all__ = ["Settling"]

T = TypeVar("T")


class Settling:
    """How items leave their leases, at the word of one process."""

    def __init__(self, calls: Calls, keys: Keys, policy: Policy, worker: str, now: int) -> None:
        self._calls = calls
        self._keys = keys
        self._policy = policy
        self._worker = worker
        self._now = now

    # -- commit --------------------------------------------------------------------------

    def commit(self, results: Sequence[Result]) -> Committed:
        in_turn = sorted(enumerate(results), key=lambda one: (one[1].item_id, one[0]))
        groups = [
            [result for _, result in group]
            for _, group in groupby(in_turn, key=lambda one: one[1].item_id)
        ]
        answers = [a for of_one in self._calls.each(self._commit_in_turn, groups) for a in of_one]
        accepted = [row for _, row in answers if row is not None]
        accepted.sort(key=_lease)
        leases = [list(rows) for _, rows in groupby(accepted, key=_lease)]
        for page in pages(leases, self._calls.transaction - 1):
            self._settle([row for rows in page for row in rows])
        fenced = {(result.item_id, result.token) for result, row in answers if row is None}
        self._calls.each(self._count_fenced, sorted(fenced))
        return Committed(
            tuple(sorted({row.id for row in accepted})), tuple(sorted({i for i, _ in fenced}))
        )

    def _commit_in_turn(self, results: list[Result]) -> list[tuple[Result, ItemRow | None]]:
        return [(result, self._commit_one(result)) for result in results]

    def _commit_one(self, result: Result) -> ItemRow | None:
        """The item's row with this result in it, or none if it was refused."""
        key = self._keys.document(document_of(result.item_id))
        row = self._complete(key, result)
        if row is not None:
            return row
        # It may be this very result that is there already, or lie apart, or have lain apart
        # until an enqueue brought its version back.
        found = read_items(self._calls, self._keys, [result.item_id]).get(result.item_id)
        if found is None:
            return None
        if found.held_under(result.token):
            return self._complete(found.lies_at(self._keys), result) or self._commit_one(result)
        if found.committed_under(result.token) and found.sha256 == result.stored.sha256:
            return found
        return None

    def _complete(self, key: Key, result: Result) -> ItemRow | None:
        """Write the result into the row there, if it is that of the item and still held."""
        try:
            row = self._calls.write(
                key,
                set={
                    "st": State.COMPLETED.value,
                    "at": self._now,
                    **items.result_fields(result),
                },
                add={"v": 1},
                only_if=[
                    equal("n", ordinal_of(result.item_id)),
                    equal("st", State.LEASED.value),
                    equal("tok", result.token),
                ],
            )
        except ConditionFailed:
            return None
        return ItemRow.unpack(row)

    def _settle(self, rows: Sequence[ItemRow]) -> None:
        def count(unit: Unit) -> None:
            unit.read_leases(rows)
            for row in rows:
                if unit.leave(row):
                    unit.tally(self._worker).update(items.committed(row))

        self._together(count)

    def _count_fenced(self, refused: tuple[int, str]) -> None:
        """Once for each item and token."""
        key = self._keys.fenced(*refused)
        away = False
        while self._calls.get(key) is None:
            changed = {"call": random_hex(64)}
            counted = ended.count(
                self._calls.table, self._keys, self._worker, changed, {"fenced": 1}, away=away
            )
            once = write(self._calls.table, key, put={}, only_if=[absent()])
            try:
                self._calls.transact([once, *counted])
            except ConditionFailed:
                away = ended.was_put_away(self._calls, self._keys, self._worker)

    # -- fail and release --------------------------------------------------------------------

    def fail(self, failures: Sequence[Failure]) -> Failed:
        outcomes: dict[Held, State | None] = {}

        def charge(unit: Unit, row: ItemRow, failure: Failure) -> None:
            items.charge(
                row,
                unit.tally(self._worker),
                self._policy,
                self._now,
                failure.cause,
                failure.error,
                final=failure.final,
            )

        for failure, row in self._move_held(failures, lambda failure: failure.held, charge):
            outcomes.setdefault(failure.held, None)
            if row is not None:
                outcomes[failure.held] = State(row.state)

        def ids(state: State | None) -> tuple[int, ...]:
            return tuple(sorted({held.item_id for held, s in outcomes.items() if s is state}))

        return Failed(ids(State.DELAYED), ids(State.DEAD_LETTERED), ids(None))

    def release(self, held: Sequence[Held], reason: ReleaseReason) -> int:
        committed: dict[str, int] = {}

        def give_back(unit: Unit, row: ItemRow, _: Held) -> None:
            if reason in (ReleaseReason.CANCELLED, ReleaseReason.STORE):
                committed.setdefault(row.holder, self._committed_by(row.holder))
            items.release(
                row,
                unit.tally(self._worker),
                self._policy,
                self._now,
                reason,
                committed.get(row.holder, 0),
            )

        moved = self._move_held(held, lambda one: one, give_back)
        return sum(row is not None for _, row in moved)

    def _committed_by(self, name: str) -> int:
        row = ended.find(self._calls, self._keys, name)
        return Process.unpack(row).committed if row else 0

    def _move_held(
        self,
        asked: Sequence[T],
        held: Callable[[T], Held],
        move: Callable[[Unit, ItemRow, T], None],
    ) -> list[tuple[T, ItemRow | None]]:
        """`move` each item whose token holds it; its row then, or none if it was fenced."""
        answers: list[tuple[T, ItemRow | None]] = []
        for page in pages(asked, unit_items(self._calls)):

            def work(unit: Unit, page: Sequence[T] = page) -> list[tuple[T, ItemRow | None]]:
                found = read_items(self._calls, self._keys, (held(one).item_id for one in page))
                unit.read_leases(row for row in found.values() if row.state == State.LEASED)
                done: list[tuple[T, ItemRow | None]] = []
                for one in page:
                    row = found.get(held(one).item_id)
                    if row is None or not row.held_under(held(one).token):
                        done.append((one, None))
                        continue
                    was = row.rev
                    unit.leave(row)
                    move(unit, row, one)
                    unit.put(row, was)
                    done.append((one, row))
                return done

            answers += self._together(work)
        return answers

    # -- retry -------------------------------------------------------------------------------

    def retry(self, digests: Sequence[int] | None, names: set[str], cause: str | None) -> int:
        """Send dead letters back: those of these documents, or all where none are named."""
        sent_back = 0
        places = self._all_dead(cause) if digests is None else self._versions(digests)
        for page in pages(places, unit_items(self._calls)):

            def work(unit: Unit, page: Sequence[Key] = page) -> int:
                moved = 0
                for row in map(ItemRow.unpack, self._calls.get_all(page).values()):
                    named = not names or row.source_id in names
                    dead = row.state == State.DEAD_LETTERED
                    if dead and named and cause in (None, row.cause):
                        was = row.rev
                        items.begin_anew(row, unit.tally(self._worker), self._now)
                        unit.put(row, was)
                        moved += 1
                return moved

            sent_back += self._together(work)
        return sent_back

    def _all_dead(self, cause: str | None) -> Iterator[Key]:
        for row in self._calls.query(self._keys.all_dead, index=INDEX):
            if cause in (None, row.get("cause", "")):
                yield row["pk"], row["sk"]

    def _versions(self, digests: Sequence[int]) -> Iterator[Key]:
        for digest in digests:
            partition, start = self._keys.document(digest)
            for row in self._calls.query(partition, "begins_with(#s, :a)", start):
                yield row["pk"], row["sk"]

    # -- reopen ------------------------------------------------------------------------------

    def reopen(self, broken: Sequence[CommittedResult]) -> int:
        """Take back results that are still what is given; how many."""
        reopened = 0
        # Each writes a row of the history too.
        for page in pages(broken, max(1, unit_items(self._calls) // 2)):

            def work(unit: Unit, page: Sequence[CommittedResult] = page) -> int:
                found = read_items(self._calls, self._keys, (one.item_id for one in page))
                unit.read_leases(found.values())
                moved = 0
                for one in page:
                    row = found.get(one.item_id)
                    given = one.generation, one.stored.sha256
                    if row is None or row.state != State.COMPLETED:
                        continue
                    if (row.generation, row.sha256) == given:
                        was = row.rev
                        unit.settle(row)
                        unit.keep(self._keys.history(row.id, row.generation), row)
                        items.reopen(row, unit.tally(self._worker), self._now)
                        unit.put(row, was)
                        moved += 1
                return moved

            reopened += self._together(work)
        return reopened

    def _together(self, work: Callable[[Unit], T]) -> T:
        return together(self._calls, self._keys, work)


def _lease(row: ItemRow) -> tuple[str, str]:
    return row.holder, row.token


def pages(things: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(things)
    while page := list(islice(rest, size)):
        yield page
