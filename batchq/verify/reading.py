"""Committed results read back, in both layouts: what is missing or altered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from batchq.ledger.base import CommittedResult, Run
from batchq.store.base import ObjectMissing, Store
from batchq.store.committed import (
    DamagedResult,
    MissingResult,
    judge_committed,
    read_committed,
)
from batchq.store.frames import unpacked_together
from batchq.verify.journal import Damage

__all__ = ["Reading"]


class Reading:
    """`rows` being read; threads of `readers` are at it from now on."""

    def __init__(
        self,
        readers: ThreadPoolExecutor,
        store: Store,
        run: Run,
        rows: Sequence[CommittedResult],
    ) -> None:
        self._readers = readers
        self._store = store
        self._run = run
        self._groups = list(_by_object(rows))
        self._spans = readers.map(partial(_read, store, run), self._groups)

    def damage(self) -> list[Damage]:
        """Those of the rows whose results failed two reads, in their order.

        Raises StoreError where the store gave no answer, which says nothing of any result.
        """
        suspects: list[CommittedResult] = []
        # Judged here and not where they were read: threads that hand Python's lock on after
        # each small result took more than twice the time.
        for group, span in zip(self._groups, self._spans, strict=True):
            suspects += [row for row in group if span is None or not span.is_whole(self._run, row)]
        # Once more, each by itself: a read that was spoilt on its way is no damage.
        again = self._readers.map(
            partial(_damage, self._store, self._run), sorted(suspects, key=_id)
        )
        return [damage for damage in again if damage is not None]


def _id(row: CommittedResult) -> int:
    return row.item_id


def _by_object(rows: Sequence[CommittedResult]) -> Iterator[list[CommittedResult]]:
    """In layout `shard`, neighbours mostly lie in one object: it is read once for them."""
    groups: defaultdict[str, list[CommittedResult]] = defaultdict(list)
    for row in rows:
        groups[row.stored.key].append(row)
    return iter(groups.values())


@dataclass(frozen=True, slots=True)
class _Span:
    """What was read of an object from `start` on, and the lines in it, by item id.

    `lines` is empty where not all could be unpacked.
    """

    data: bytes
    start: int
    lines: Mapping[int, bytes]

    def is_whole(self, run: Run, row: CommittedResult) -> bool:
        stored = row.stored
        begin = stored.offset - self.start
        # In layout `item` the object is the result: what was appended to it counts too.
        end = None if run.layout == "item" else begin + stored.length
        try:
            judge_committed(
                self.data[begin:end],
                run.layout,
                stored,
                source_id=row.source_id,
                source_version=row.source_version,
                processing_version=run.processing_version,
                content=self.lines.get(row.item_id),
            )
        except DamagedResult:
            return False
        return True


def _read(store: Store, run: Run, rows: list[CommittedResult]) -> _Span | None:
    """What the rows name of their object, in one request; none if it is missing."""
    key = rows[0].stored.key
    try:
        if run.layout == "item":
            return _Span(store.read(key), 0, {})
        start = min(row.stored.offset for row in rows)
        end = max(row.stored.offset + row.stored.length for row in rows)
        data = store.read(key, start, end - start)
    except ObjectMissing:
        return None
    places = [(row.stored.offset - start, row.stored.length) for row in rows]
    lines = unpacked_together(data, places) or ()
    return _Span(data, start, {row.item_id: line for row, line in zip(rows, lines, strict=False)})


def _damage(store: Store, run: Run, row: CommittedResult) -> Damage | None:
    try:
        read_committed(
            store,
            run.layout,
            row.stored,
            source_id=row.source_id,
            source_version=row.source_version,
            processing_version=run.processing_version,
        )
    except DamagedResult as damage:
        kind = "missing" if isinstance(damage, MissingResult) else "corrupt"
        return Damage(row, kind, damage.what)
    return None
