"""All committed results of a run, in the order of their items, at the speed of the store.

The ledger's pages are read ahead, and so are the objects, several at a time. Frames that
lie beside each other in a shard are read in one request. What is in memory is bounded.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from batchq.ledger.base import CommittedResult, Ledger, Run
from batchq.result import Line
from batchq.results.checked import Checked, judge, read_checked
from batchq.store.base import Store, StoreError
from batchq.store.committed import DamagedResult
from batchq.store.frames import unpacked_together

__all__ = ["committed_portions", "documents"]

PAGE = 1024
"""Results asked of the ledger at once."""

PORTION_BYTES = 8 * 1024 * 1024
"""Stored bytes handed on at once, unless one result has more."""

AHEAD = 3
"""Portions being read while one is in use."""

READERS = 8
"""Requests at once: a remote store answers each in tens of milliseconds."""

GAP = 64 * 1024
"""Bytes of others between two frames that are cheaper read than left out."""


def documents(
    ledger: Ledger, run: Run, store: Store, *, current_only: bool = False
) -> Iterator[dict[str, Any]]:
    """The envelope of each committed result, with where it is "stored".

    Raises BatchqError naming the first document whose object is missing or altered.
    """
    with closing(committed_portions(ledger, run, store, current_only=current_only)) as portions:
        for portion in portions:
            for checked in portion:
                yield checked.document()


def committed_portions(
    ledger: Ledger, run: Run, store: Store, *, after: int = 0, current_only: bool = False
) -> Generator[list[Checked]]:
    """Every committed result with an item id above `after`, each once, by id.

    `current_only` leaves out versions of documents that were replaced. Raises as
    `documents`.
    """
    pool = ThreadPoolExecutor(READERS, thread_name_prefix="results")
    reading: deque[_Portion] = deque()
    try:
        for rows in _portions(_pages(ledger, run, after, current_only, pool)):
            reading.append(_Portion(rows, _start(pool, run, store, rows)))
            if len(reading) > AHEAD:
                yield reading.popleft().wait(run, store)
        while reading:
            yield reading.popleft().wait(run, store)
    finally:
        pool.shutdown(cancel_futures=True)


def _pages(
    ledger: Ledger, run: Run, after: int, current_only: bool, pool: ThreadPoolExecutor
) -> Iterator[list[CommittedResult]]:
    """The next page is asked for while one is in use."""

    def ask(after: int) -> Future[list[CommittedResult]]:
        return pool.submit(ledger.results, run, after, PAGE, current_only=current_only)

    page = ask(after).result()
    while page:
        following = ask(page[-1].item_id)
        yield page
        page = following.result()


def _portions(pages: Iterator[list[CommittedResult]]) -> Iterator[list[CommittedResult]]:
    """The same rows in pieces of a bounded number of bytes."""
    for page in pages:
        portion: list[CommittedResult] = []
        size = 0
        for row in page:
            if portion and size + row.stored.length > PORTION_BYTES:
                yield portion
                portion, size = [], 0
            portion.append(row)
            size += row.stored.length
        yield portion


@dataclass(frozen=True, slots=True)
class _Request:
    """Rows whose bytes are read at once, in the order of their places."""

    rows: Sequence[CommittedResult]
    answer: Future[_Answer | None]


@dataclass(frozen=True, slots=True)
class _Answer:
    """What was read, and the line of each row in it, where all could be unpacked."""

    data: bytes
    lines: Sequence[bytes | None]


@dataclass(frozen=True, slots=True)
class _Portion:
    rows: Sequence[CommittedResult]
    requests: Sequence[_Request]

    def wait(self, run: Run, store: Store) -> list[Checked]:
        """By id. What could not be read with its neighbours is read by itself, in order.

        Judged here and not where it was read: threads that take turns on Python's lock for
        each small frame took twice the time of one.
        """
        lines: dict[int, Line] = {}
        for request in self.requests:
            _judge(run, request.rows, request.answer.result(), lines)
        return [
            Checked(row, lines.get(row.item_id) or read_checked(run, store, row))
            for row in self.rows
        ]


def _start(
    pool: ThreadPoolExecutor, run: Run, store: Store, rows: Sequence[CommittedResult]
) -> list[_Request]:
    together = [[row] for row in rows] if run.layout == "item" else _ranges(rows)
    return [_Request(each, pool.submit(_read, run, store, each)) for each in together]


def _ranges(rows: Sequence[CommittedResult]) -> Iterator[list[CommittedResult]]:
    """Rows whose frames lie close together in one object, in the order of their places."""
    by_key: dict[str, list[CommittedResult]] = defaultdict(list)
    for row in rows:
        by_key[row.stored.key].append(row)
    for frames in by_key.values():
        frames.sort(key=lambda row: row.stored.offset)
        near = frames[:1]
        for row in frames[1:]:
            last = near[-1].stored
            if row.stored.offset - (last.offset + last.length) > GAP:
                yield near
                near = []
            near.append(row)
        yield near


def _read(run: Run, store: Store, rows: Sequence[CommittedResult]) -> _Answer | None:
    first, last = rows[0].stored, rows[-1].stored
    length = last.offset + last.length - first.offset
    try:
        # An object of layout `item` must hold nothing else, so all of it is read.
        data = store.read(first.key, first.offset, None if run.layout == "item" else length)
    except StoreError:
        return None
    lines: Sequence[bytes | None] | None = None
    if run.layout != "item":
        places = ((row.stored.offset - first.offset, row.stored.length) for row in rows)
        lines = unpacked_together(data, places)
    return _Answer(data, lines or [None] * len(rows))


def _judge(
    run: Run, rows: Sequence[CommittedResult], answer: _Answer | None, lines: dict[int, Line]
) -> None:
    """Add what was read for `rows` to `lines`, but for what it brought damaged."""
    if answer is None:
        return
    for row, content in zip(rows, answer.lines, strict=True):
        begin = row.stored.offset - rows[0].stored.offset
        end = None if run.layout == "item" else begin + row.stored.length
        try:
            lines[row.item_id] = judge(run, row, answer.data[begin:end], content)
        except DamagedResult:
            continue
