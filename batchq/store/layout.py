"""Layouts: how a run's results become objects, and what the ledger keeps of each.

`item`: one object for each, readable by hand, under a key that follows from the item, so
that a later attempt finds and adopts what an earlier one left. `shard`: many results in
one object under a random key, for millions of small documents at a hundredth of the
requests; what an earlier attempt left there is found by nobody, and computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from batchq.clock import Clock, random_hex
from batchq.item import Item, item_key
from batchq.result import Envelope, Stored, result_key, sha256_hex
from batchq.store.base import Store
from batchq.store.frames import packed
from batchq.store.verified import Written, find_result, write_result, write_whole

__all__ = ["ItemLayout", "Layout", "Made", "ShardLayout", "layout_named"]


@dataclass(frozen=True, slots=True)
class Made:
    """A result that was made, in the bytes that are to be stored."""

    item: Item
    envelope: Envelope
    data: bytes


class Layout(Protocol):
    """Verified writes of results; see `store.verified` for what that means."""

    gathers: bool
    """Whether results are worth waiting for each other: several make one object."""

    def make(self, item: Item, envelope: Envelope) -> Made:
        """Raises ValueError, TypeError or RecursionError if the output is not JSON."""
        ...

    def find(self, item: Item) -> Written | None:
        """What an earlier attempt left, asked before inference. Raises as `find_result`."""
        ...

    def write(self, made: Sequence[Made]) -> list[Written]:
        """Store them, one answer each, in order. Raises as `write_result`.

        Where `gathers` is false there is one at a time.
        """
        ...


class ItemLayout:
    """`<run>-<id>/<2 hex>/<32 hex>-<slug>[.g2].json`, one object for each item."""

    gathers = False

    def __init__(self, store: Store, prefix: str, processing_version: str, clock: Clock) -> None:
        self._store = store
        self._prefix = prefix
        self._processing_version = processing_version
        self._clock = clock

    def make(self, item: Item, envelope: Envelope) -> Made:
        return Made(item, envelope, envelope.to_bytes())

    def find(self, item: Item) -> Written | None:
        return find_result(
            self._store,
            self._key(item),
            source_id=item.source_id,
            source_version=item.source_version,
            processing_version=self._processing_version,
        )

    def write(self, made: Sequence[Made]) -> list[Written]:
        return [
            write_result(
                self._store, self._key(each.item), each.envelope, data=each.data, clock=self._clock
            )
            for each in made
        ]

    def _key(self, item: Item) -> str:
        key = item_key(item.source_id, item.source_version, self._processing_version)
        return result_key(self._prefix, key, item.source_id, item.generation)


class ShardLayout:
    """`<run>-<id>/shards/<random>.jsonl.zst`, one object for each `write`."""

    gathers = True

    def __init__(self, store: Store, prefix: str, clock: Clock) -> None:
        self._store = store
        self._prefix = prefix
        self._clock = clock

    def make(self, item: Item, envelope: Envelope) -> Made:
        return Made(item, envelope, packed(envelope.to_bytes()))

    def find(self, item: Item) -> Written | None:
        """None: no key follows from an item."""
        return None

    def write(self, made: Sequence[Made]) -> list[Written]:
        data = b"".join(each.data for each in made)
        key = write_whole(self._store, self._new_key, data, clock=self._clock)
        written, offset = [], 0
        for each in made:
            stored = Stored(key, offset, len(each.data), sha256_hex(each.data))
            offset += stored.length
            empty = each.envelope.output is None
            written.append(Written(stored, adopted=False, divergent=False, empty=empty))
        return written

    def _new_key(self) -> str:
        return f"{self._prefix}/shards/{random_hex()}.jsonl.zst"


def layout_named(
    name: str, store: Store, *, prefix: str, processing_version: str, clock: Clock
) -> Layout:
    """The layout of a run whose keys begin with `prefix`."""
    if name == "shard":
        return ShardLayout(store, prefix, clock)
    return ItemLayout(store, prefix, processing_version, clock)
