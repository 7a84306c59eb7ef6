"""Committed results read back, in both layouts: what is missing or altered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from batchq.ledger.base import CommittedResult, Run
from batchq.store.base import ObjectMissing, Store
from batchq.store.committed import (
    DamagedResult,
    MissingResult,
    judge_committed,
    read_committed,
)
from batchq.verify.journal import Damage

__all__ = ["find_damage"]


def find_damage(
    readers: ThreadPoolExecutor, store: Store, run: Run, rows: Sequence[CommittedResult]
) -> list[Damage]:
    """Those of `rows` whose results failed two reads, in their order.

    Raises StoreError where the store gave no answer, which says nothing of any result.
    """
    suspects: list[CommittedResult] = []
    for found in readers.map(lambda group: _suspects(store, run, group), _by_object(rows)):
        suspects += found
    # Once more, each by itself: a read that was spoilt on its way is no damage.
    again = readers.map(lambda row: _damage(store, run, row), sorted(suspects, key=_id))
    return [damage for damage in again if damage is not None]


def _id(row: CommittedResult) -> int:
    return row.item_id


def _by_object(rows: Sequence[CommittedResult]) -> Iterator[list[CommittedResult]]:
    """In layout `shard`, neighbours mostly lie in one object: it is read once for them."""
    groups: defaultdict[str, list[CommittedResult]] = defaultdict(list)
    for row in rows:
        groups[row.stored.key].append(row)
    return iter(groups.values())


def _suspects(store: Store, run: Run, rows: list[CommittedResult]) -> list[CommittedResult]:
    if len(rows) == 1:
        return rows if _damage(store, run, rows[0]) else []
    start = min(row.stored.offset for row in rows)
    end = max(row.stored.offset + row.stored.length for row in rows)
    try:
        span = store.read(rows[0].stored.key, start, end - start)
    except ObjectMissing:
        return rows
    return [row for row in rows if not _is_whole(run, row, span, start)]


def _is_whole(run: Run, row: CommittedResult, span: bytes, start: int) -> bool:
    stored = row.stored
    data = span[stored.offset - start : stored.offset - start + stored.length]
    try:
        judge_committed(
            data,
            run.layout,
            stored,
            source_id=row.source_id,
            source_version=row.source_version,
            processing_version=run.processing_version,
        )
    except DamagedResult:
        return False
    return True


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
