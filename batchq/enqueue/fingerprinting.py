"""Documents on their way from a source to items: listed, read and digested, in order."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from batchq.errors import DocumentError
from batchq.item import NewItem
from batchq.ledger.base import Rejection
from batchq.source.base import Found, Reader, Skipped, Source

__all__ = ["Chunk", "Fingerprinting", "Stage", "as_it_lies", "chunks"]

MAX_SOURCE_ID = 2_000
"""Bytes. Longer ones don't fit into an index entry of PostgreSQL, with the version."""

CHUNK_FILES, CHUNK_BYTES = 250, 8 << 20
"""What one thread fingerprints at a time: many small documents, or one large one."""


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


Items = tuple[list[NewItem], list[Rejection]]
_Job = tuple[Chunk, Future[Items]]


class Fingerprinting:
    """Threads that read and digest documents, a few chunks ahead of who wants the items.

    They are daemons: one that reads a slow disk must not hold up a Ctrl-C.
    """

    def __init__(self, reader: Reader, threads: int, stage: Stage = as_it_lies) -> None:
        self._reader = reader
        self._stage = stage
        self._ahead = 2 * threads + 2
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._work, name=f"fingerprint-{n}", daemon=True)
            for n in range(threads)
        ]

    def __enter__(self) -> Fingerprinting:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping = True
        for _ in self._threads:
            self._jobs.put(None)

    def in_order(self, chunks: Iterable[Chunk]) -> Iterator[Items]:
        """The items and the rejections of each chunk, in order."""
        pending: deque[Future[Items]] = deque()
        for chunk in chunks:
            outcome: Future[Items] = Future()
            self._jobs.put((chunk, outcome))
            pending.append(outcome)
            if len(pending) > self._ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None and not self._stopping:
            chunk, outcome = job
            try:
                outcome.set_result(self._fingerprint(chunk))
            except BaseException as error:
                outcome.set_exception(error)

    def _fingerprint(self, chunk: Chunk) -> Items:
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
        return items, rejected
