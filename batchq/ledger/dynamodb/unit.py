"""Rows that move together: items, the leases they leave and the tallies, in one transaction.

Every row is written on condition that it is still what was read. So a unit either takes
effect whole, or raises ConditionFailed and is made anew from what the rows say then.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from batchq.clock import random_hex
from batchq.ledger.dynamodb import bundles, ended
from batchq.ledger.dynamodb.calls import Calls
from batchq.ledger.dynamodb.fleet import LeaseRow, entry
from batchq.ledger.dynamodb.items import ItemRow, committed
from batchq.ledger.dynamodb.keys import Keys, RandomRanks, Ranks, document_of
from batchq.ledger.dynamodb.refusals import ConditionFailed
from batchq.ledger.dynamodb.wire import Condition, Key, absent, equal, write
from batchq.ledger.records import State

__all__ = ["PER_PROCESS", "Unit", "current_rows", "read_items", "together", "unit_items"]

T = TypeVar("T")


PLACES = 2
"""Where a version may lie: in its document's place, or apart."""

PER_PROCESS = 2
"""Rows that a process may take: its own, and the sum if it was put away."""


def unit_items(calls: Calls) -> int:
    """Items to move in one transaction: each takes a row and perhaps a lease, or a place in
    a bundle, beside the rows of two processes."""
    return (calls.transaction - 2 * PER_PROCESS) // 2


def current_rows(calls: Calls, keys: Keys, digests: Iterable[int]) -> dict[int, ItemRow]:
    """The current rows of those documents that are there, by digest."""
    rows = calls.get_all(keys.document(digest) for digest in digests)
    return {row.digest: row for row in map(ItemRow.unpack, rows.values())}


def read_items(calls: Calls, keys: Keys, ids: Iterable[int]) -> dict[int, ItemRow]:
    """The rows of those items that are there, by id."""
    wanted = list(dict.fromkeys(ids))
    found: dict[int, ItemRow] = {}
    left = wanted
    # A version that changes places between the two looks is missed by both, once.
    for _ in range(PLACES):
        current = current_rows(calls, keys, map(document_of, left))
        found.update((row.id, row) for row in current.values())
        apart = [i for i in left if i not in found and document_of(i) in current]
        rows = calls.get_all(map(keys.version, apart)) if apart else {}
        found.update((row.id, row) for row in map(ItemRow.unpack, rows.values()))
        left = [i for i in apart if i not in found]
        if not left:
            break
    return {i: found[i] for i in wanted if i in found}


class Unit:
    """What one transaction writes. Leases are read when they are first named.

    A ready item can be claimed through the bundle that names it at its revision. So whatever
    a unit makes ready, or leaves ready at another revision, it also offers in a new bundle.
    `away` are processes that were put away; those that a unit finds so are added.
    """

    def __init__(
        self, calls: Calls, keys: Keys, away: set[str], ranks: Ranks | None = None
    ) -> None:
        self._calls = calls
        self._keys = keys
        self._away = away
        self._ranks = ranks or RandomRanks()
        self._items: dict[Key, tuple[ItemRow, int | None]] = {}
        self._deleted: dict[Key, int] = {}
        self._kept: dict[Key, dict[str, object]] = {}
        self._leases: dict[Key, LeaseRow | None] = {}
        self._left: defaultdict[Key, set[bytes]] = defaultdict(set)
        self._processes: dict[str, tuple[dict[str, object], list[Condition]]] = {}
        self._tallies: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def has_room(self, rows: int) -> bool:
        """Whether so many rows of items and leases more would fit, and the bundles of all."""
        processes = {*self._processes, *self._tallies}
        others = len(self._deleted) + len(self._left) + PER_PROCESS * max(1, len(processes))
        wanted = len(self._items) + rows
        return wanted + bundles.rows_for(wanted) + others <= self._calls.transaction

    def tally(self, name: str) -> Counter[str]:
        """What is to be added to the tallies of a process."""
        return self._tallies[name]

    def put(self, row: ItemRow, was: int | None) -> None:
        """Write `row` in its place, if what lies there is of revision `was`, or nothing."""
        key = row.lies_at(self._keys)
        before = self._items.get(key)
        self._items[key] = row, was if before is None else before[1]

    def keep(self, key: Key, row: ItemRow) -> None:
        """Keep a copy of the row as it is now, for the history."""
        self._kept[key] = {n: v for n, v in row.pack(self._keys).items() if n not in ("q", "r")}

    def delete(self, key: Key, was: int) -> None:
        """Delete an item's row of that revision, unless this unit would write it."""
        if key in self._items and self._items[key][1] is None:
            del self._items[key]
        else:
            self._deleted[key] = was

    def process(
        self, name: str, set: Mapping[str, object], only_if: Iterable[Condition] = ()
    ) -> None:
        """Change the row of a process along with the rest."""
        self._processes[name] = dict(set), list(only_if)

    # -- leases --------------------------------------------------------------------------

    def read_leases(self, rows: Iterable[ItemRow]) -> None:
        """Read the leases of these items at once."""
        keys = {self._keys.lease(row.holder, row.token) for row in rows if row.token}
        found = self._calls.get_all(keys - self._leases.keys())
        for key in keys - self._leases.keys():
            self._leases[key] = LeaseRow.unpack(found[key]) if key in found else None

    def leave(self, row: ItemRow) -> bool:
        """Take the item out of the lease in its row; whether it was counted in there."""
        self.read_leases([row])
        key = self._keys.lease(row.holder, row.token)
        lease = self._leases[key]
        one = lease.entries.get(row.id) if lease else None
        if one is None or one in self._left[key]:
            return False
        self._left[key].add(one)
        return True

    def drop(self, holder: str, token: str, item: int) -> None:
        """Take an entry out of a lease that never came to hold it, and off what it counts."""
        key = self._keys.lease(holder, token)
        if key not in self._leases:
            row = self._calls.get(key)
            self._leases[key] = None if row is None else LeaseRow.unpack(row)
        now = self._leases[key]
        one = None if now is None else now.entries.get(item)
        if now is not None and one is not None and one not in self._left[key]:
            self._left[key].add(one)
            self._tallies[holder].subtract(now.taken([one]))

    def settle(self, row: ItemRow) -> None:
        """Count a commit that is in the row, to the worker that held it, if nobody has yet."""
        if self.leave(row):
            self._tallies[row.holder].update(committed(row))

    def _ready(self) -> list[bytes]:
        """What can be claimed at a revision at which no bundle names it yet."""
        return [
            entry(row.id, row.rev)
            for row, was in self._items.values()
            if row.state == State.READY and row.rev != was
        ]

    # -- writing -------------------------------------------------------------------------

    def write(self) -> None:
        """Raises ConditionFailed if a row is no longer what it was, or has been put away."""
        table = self._calls.table
        actions = [
            write(
                table,
                key,
                put=row.pack(self._keys),
                only_if=[absent() if was is None else equal("v", was)],
            )
            for key, (row, was) in self._items.items()
        ]
        actions += [
            write(table, key, delete=True, only_if=[equal("v", was)])
            for key, was in self._deleted.items()
        ]
        actions += [write(table, key, put=copy) for key, copy in self._kept.items()]
        actions += bundles.offer(table, self._keys, self._ranks, self._ready())
        for key, gone in self._left.items():
            lease = self._leases[key]
            if lease is not None and gone:
                actions.append(shrink(table, key, self._keys, lease, gone))
        receipt = None
        call = random_hex(64)
        names = sorted({*self._processes, *self._tallies})
        for name in names:
            changed, only_if = self._processes.get(name, ({}, []))
            add = {tally: number for tally, number in self._tallies[name].items() if number}
            if changed or add:
                away = name in self._away
                receipt = self._keys.ended(name) if away else self._keys.process(name), call
                changed = {**changed, "call": call}
                actions += ended.count(table, self._keys, name, changed, add, only_if, away=away)
        try:
            if actions:
                self._calls.transact(actions, receipt=receipt)
        except ConditionFailed:
            for name in names:
                if name not in self._away and ended.was_put_away(self._calls, self._keys, name):
                    self._away.add(name)
            raise


def together(calls: Calls, keys: Keys, work: Callable[[Unit], T]) -> T:
    """Make a unit and write it, again from the rows as they are until it takes effect."""
    away: set[str] = set()
    while True:
        unit = Unit(calls, keys, away)
        answer = work(unit)
        try:
            unit.write()
        except ConditionFailed:
            continue
        return answer


def shrink(
    table: str, key: Key, keys: Keys, lease: LeaseRow, gone: Iterable[bytes]
) -> dict[str, Any]:
    """The lease without what is gone; without the row where nothing is left."""
    rest = lease.without(gone)
    only_if = [equal("rev", lease.rev)]
    if rest.ready or rest.delayed:
        return write(table, key, put=rest.pack(keys), only_if=only_if)
    return write(table, key, delete=True, only_if=only_if)
