"""Bundles: ready items that wait together, so that one row in the queue stands for fifty.

An entry for each item in an index would cost two writes of its index: one to come, one to go.
Instead, whatever makes an item ready at a revision writes it into a new bundle in the same
transaction, and a claim takes it out in the transaction that announces the claim. A bundle
never grows. It may name an item that is at another revision by now: a claim of that finds
nothing to take.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from batchq.ledger.dynamodb.calls import Calls
from batchq.ledger.dynamodb.keys import Keys, Ranks
from batchq.ledger.dynamodb.wire import Key, Wire, absent, equal, write

__all__ = ["BUNDLE", "Bundle", "offer", "rows_for", "walk"]

BUNDLE = 48
"""Items in a bundle at most: its row stays below a KB, which is the unit of writing."""

PAGE = 8
"""Bundles that are read beyond those which would do if all were full."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """Items that can be claimed, as entries (see `fleet.entry`), in their place in the queue."""

    place: Key
    entries: frozenset[bytes]
    rev: int

    @property
    def rank(self) -> int:
        return int(self.place[1], 16)

    @classmethod
    def unpack(cls, row: Mapping[str, Any]) -> Bundle:
        return cls((row["pk"], row["sk"]), row["rd"], row["rev"])

    def without(self, table: str, taken: frozenset[bytes]) -> dict[str, Wire]:
        """What leaves the rest, or no row where there is none."""
        only_if = [equal("rev", self.rev)]
        if rest := self.entries - taken:
            return write(table, self.place, set={"rd": rest, "rev": self.rev + 1}, only_if=only_if)
        return write(table, self.place, delete=True, only_if=only_if)


def rows_for(items: int) -> int:
    """The bundles that so many items take."""
    return -(-items // BUNDLE)


def offer(table: str, keys: Keys, ranks: Ranks, entries: Iterable[bytes]) -> list[dict[str, Wire]]:
    """What puts these into new bundles."""
    in_order = sorted(entries)
    return [
        write(
            table,
            keys.bundle(ranks.next()),
            put={"rd": frozenset(in_order[at : at + BUNDLE]), "rev": 1},
            only_if=[absent()],
        )
        for at in range(0, len(in_order), BUNDLE)
    ]


def walk(calls: Calls, keys: Keys, cursor: int, items: int) -> Iterator[Bundle]:
    """The bundles from the cursor round the ring of all ranks, once, to find so many items."""
    first, shards = keys.ring(cursor), keys.shards
    arcs = [(first, "#s > :a")]
    arcs += [((first + step) % shards, "") for step in range(1, shards)]
    arcs += [(first, "#s <= :a")]
    for shard, condition in arcs:
        bounds = [keys.bundle(cursor)[1]] if condition else []
        rows = calls.query(keys.bundles(shard), condition, *bounds, limit=rows_for(items) + PAGE)
        yield from map(Bundle.unpack, rows)
