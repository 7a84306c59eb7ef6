"""Documents on their way from a source to items: listed, read and digested, in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from batchq.enqueue.ahead import Ahead
from batchq.errors import DocumentError
from batchq.item import NewItem
from batchq.ledger.base import Rejection
from batchq.source.base import Found, Reader, Skipped, Source

__all__ = ["Chunk", "Fingerprinting", "Portion", "Stage", "as_it_lies", "chunks"]

MAX_SOURCE_ID = 2_000
"""Bytes. Longer ones don't fit into an index entry of PostgreSQL, with the version."""

CHUNK_FILES, CHUNK_BYTES = 250, 8 << 20
"""What one thread fingerprints at a time: many small documents, or one large one."""

SMALL = 64 << 10
"""Bytes. Digesting larger documents takes long, and is done without Python's lock."""

MEASURED_S, BUSY = 0.2, 0.6
"""Over so many seconds a process that used less of them than that share was waiting."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of what a source lists, for one thread: documents below `root`, and refusals."""

    root: str
    found: list[Found]
    rejected: list[Rejection]


def chunks(sources: Iterable[Source]) -> Iterator[Chunk]:
    """What the sources list, in order, a chunk at a time."""
    for source in sources:
        found: list[Found] = []
        rejected: list[Rejection] = []
        size = 0
        for each in source.list():
            if isinstance(each, Skipped):
                rejected.append(Rejection(each.source, each.reason))
            # A character has up to four bytes, so that most need not be counted.
            elif len(each.source_id) > MAX_SOURCE_ID // 4 and _too_long(each.source_id):
                reason = f"its source id is longer than {MAX_SOURCE_ID:,} bytes"
                rejected.append(Rejection(each.source_id, reason))
            else:
                found.append(each)
                size += each.size
            if size >= CHUNK_BYTES or len(found) + len(rejected) >= CHUNK_FILES:
                yield Chunk(source.root, found, rejected)
                found, rejected, size = [], [], 0
        if found or rejected:
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
    """What a chunk came to: the items of those documents that could be read, and refusals."""

    items: list[NewItem]
    rejected: list[Rejection]


class Fingerprinting:
    """Reads and digests the documents of chunks, in threads where that is faster.

    Small documents that the system holds in memory are read faster by one thread than by
    several, which would pass Python's lock to and fro at every call of the system (13 µs a
    document against 31 where this was measured). So the caller's own thread reads them, as
    long as this process is seen to compute and not to wait.
    """

    def __init__(self, reader: Reader, threads: int, stage: Stage = as_it_lies) -> None:
        self._reader = reader
        self._stage = stage
        self._ahead = Ahead(
            self._fingerprint, threads=threads, ahead=2 * threads + 2, name="fingerprint"
        )
        self._stopping = False
        self._waits = False
        self._since = os.times()

    def __enter__(self) -> Fingerprinting:
        self._ahead.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping = True
        self._ahead.__exit__(*exc)

    def in_order(self, chunks: Iterable[Chunk]) -> Iterator[Portion]:
        """What each chunk came to, in order."""
        return self._ahead.each(chunks, here=self._is_quick)

    def _is_quick(self, chunk: Chunk) -> bool:
        now = os.times()
        if now.elapsed - self._since.elapsed >= MEASURED_S:
            used = now.user + now.system - self._since.user - self._since.system
            self._waits = used < BUSY * (now.elapsed - self._since.elapsed)
            self._since = now
        small = sum([found.size for found in chunk.found]) <= SMALL * len(chunk.found)
        return small and not self._waits and chunk.root.startswith("file:")

    def _fingerprint(self, chunk: Chunk) -> Portion:
        items: list[NewItem] = []
        rejected = list(chunk.rejected)
        for found in chunk.found:
            if self._stopping:
                break
            version, size, locator = found.source_version, found.size, found.locator
            try:
                if version is None:
                    version, size = self._reader.fingerprint(locator)
                locator = self._stage(locator, version)
            except DocumentError as error:
                rejected.append(Rejection(found.source_id, f"{error.cause}: {error.message}"))
                continue
            items.append(NewItem(found.source_id, version, size, locator, chunk.root))
        return Portion(items, rejected)
