"""Documents on their way from a source to items: listed, read and digested, in order."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from batchq.enqueue.ahead import Ahead
from batchq.errors import DocumentError
from batchq.item import NewItem
from batchq.ledger.base import Rejection
from batchq.source.base import Found, Reader, Skipped, Source

__all__ = ["Chunk", "Fingerprinting", "Portion", "Stage", "as_it_lies", "chunks"]

MAX_SOURCE_ID = 2_000
"""Bytes. Longer ones don't fit into an index entry of PostgreSQL, with the version."""

CHUNK_FILES, THREAD_FILES = 250, 8
"""What is listed and read at a time, and what one thread takes of it at a time."""

SMALL = 64 << 10
"""Bytes. Digesting larger documents takes long, and is done without Python's lock.

Of a chunk so many times its documents are read in place.
"""

MEASURED_S, BUSY = 0.2, 0.6
"""Twice over so many seconds a process that used less of them than that share was waiting.

Once may be a machine that stood still, or a ledger's disk.
"""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of what a source lists: documents below `root`, and refusals."""

    root: str
    found: Sequence[Found]
    rejected: Sequence[Rejection]


def chunks(sources: Iterable[Source], *, sized: bool) -> Iterator[Chunk]:
    """What the sources list, in order, a chunk at a time; for `sized` see `Source.list`."""
    for source in sources:
        listing = source.list(sized=sized)
        while listed := list(islice(listing, CHUNK_FILES)):
            found: list[Found] = []
            rejected: list[Rejection] = []
            for each in listed:
                if isinstance(each, Skipped):
                    rejected.append(Rejection(each.source, each.reason))
                # A character has up to four bytes, so that most need not be counted.
                elif len(each.source_id) > MAX_SOURCE_ID // 4 and _too_long(each.source_id):
                    reason = f"its source id is longer than {MAX_SOURCE_ID:,} bytes"
                    rejected.append(Rejection(each.source_id, reason))
                else:
                    found.append(each)
            yield Chunk(source.root, found, rejected)


def _too_long(source_id: str) -> bool:
    return len(source_id.encode()) > MAX_SOURCE_ID


Stage = Callable[[str, str], str]
"""From a locator and the version found there to the locator that workers will use."""


def as_it_lies(locator: str, source_version: str) -> str:
    """Workers read the document where it lies."""
    return locator


@dataclass(frozen=True, slots=True)
class Portion:
    """What documents came to: the items of those that could be read, and refusals."""

    items: list[NewItem]
    rejected: list[Rejection]


class Fingerprinting:
    """Reads and digests the documents of chunks, in threads where that is faster.

    Small documents that the system holds in memory are read faster by one thread than by
    several, which would pass Python's lock to and fro at every call of the system (13 µs a
    document against 31 where this was measured). So the caller's own thread reads them, as
    long as this process is seen to compute and not to wait. How large documents are shows
    when they are opened: those listed beside large ones are left for threads.
    """

    def __init__(self, reader: Reader, threads: int, stage: Stage = as_it_lies) -> None:
        self._reader = reader
        self._stage = stage
        self._ahead = Ahead(
            self._read_whole, threads=threads, ahead=2 * threads + 2, name="fingerprint"
        )
        self._stopping = False
        self._waited = self._waits = False
        self._since = _Elapsed.now()

    def __enter__(self) -> Fingerprinting:
        self._ahead.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping = True
        self._ahead.__exit__(*exc)

    def in_order(self, chunks: Iterable[Chunk]) -> Iterator[Portion]:
        """What the documents of the chunks came to, in order."""
        return self._ahead.each(self._pieces(chunks))

    def _pieces(self, chunks: Iterable[Chunk]) -> Iterator[Chunk | Future[Portion]]:
        """What was read in place, and what is left for threads."""
        for chunk in chunks:
            read = 0
            if self._is_quick(chunk):
                portion, read = self._read(chunk, SMALL * len(chunk.found))
            else:
                portion = Portion([], list(chunk.rejected))
            done: Future[Portion] = Future()
            done.set_result(portion)
            yield done
            for first in range(read, len(chunk.found), THREAD_FILES):
                yield Chunk(chunk.root, chunk.found[first : first + THREAD_FILES], ())

    def _is_quick(self, chunk: Chunk) -> bool:
        now = _Elapsed.now()
        if now.elapsed - self._since.elapsed >= MEASURED_S:
            used = now.used - self._since.used
            waited = used < BUSY * (now.elapsed - self._since.elapsed)
            self._waits, self._waited = waited and self._waited, waited
            self._since = now
        return not self._waits and chunk.root.startswith("file:")

    def _read_whole(self, chunk: Chunk) -> Portion:
        return self._read(chunk)[0]

    def _read(self, chunk: Chunk, enough: float = math.inf) -> tuple[Portion, int]:
        """Read the first documents, until they had more than `enough` bytes; and how many."""
        root, stage, fingerprint = chunk.root, self._stage, self._reader.fingerprint
        items: list[NewItem] = []
        rejected = list(chunk.rejected)
        read = total = 0
        for source_id, locator, told, version in chunk.found:
            if self._stopping or total > enough:
                break
            read += 1
            size = told or 0
            try:
                if version is None:
                    version, size = fingerprint(locator)
                if stage is not as_it_lies:
                    locator = stage(locator, version)
            except DocumentError as error:
                rejected.append(Rejection(source_id, f"{error.cause}: {error.message}"))
                continue
            items.append(NewItem(source_id, version, size, locator, root))
            total += size
        return Portion(items, rejected), read


class _Elapsed(NamedTuple):
    """Seconds since some start: in all, and those in which this process used or wanted a core."""

    elapsed: float
    used: float

    @classmethod
    def now(cls) -> _Elapsed:
        times = os.times()
        return cls(times.elapsed, times.user + times.system + _kept_from_cores())


def _kept_from_cores() -> float:
    """Seconds that this thread could have run in, had others not; 0 where nothing tells."""
    try:
        with open("/proc/thread-self/schedstat") as told:
            return int(told.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
