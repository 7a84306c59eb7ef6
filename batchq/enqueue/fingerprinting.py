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

__all__ = ["Fingerprinting", "Stage", "as_it_lies", "chunks", "refuse"]

MAX_SOURCE_ID = 2_000
"""Bytes. Longer ones don't fit into an index entry of PostgreSQL, with the version."""

CHUNK_FILES, CHUNK_BYTES = 250, 8 << 20
"""What one thread fingerprints at a time: many small documents, or one large one."""


def chunks(sources: Iterable[Source]) -> Iterator[tuple[str, list[Found | Skipped]]]:
    """What the sources list, a chunk for a thread at a time, with the root it lies under."""
    for source in sources:
        chunk: list[Found | Skipped] = []
        size = 0
        for each in source.list():
            chunk.append(each)
            size += each.size if isinstance(each, Found) else 0
            if len(chunk) >= CHUNK_FILES or size >= CHUNK_BYTES:
                yield source.root, chunk
                chunk, size = [], 0
        if chunk:
            yield source.root, chunk


def refuse(each: Found | Skipped) -> Rejection | None:
    """Why this cannot become an item, known without reading it; or none."""
    if isinstance(each, Skipped):
        return Rejection(each.source, each.reason)
    # A character has up to four bytes, so that most need not be counted.
    if len(each.source_id) > MAX_SOURCE_ID // 4 and len(each.source_id.encode()) > MAX_SOURCE_ID:
        return Rejection(each.source_id, f"its source id is longer than {MAX_SOURCE_ID:,} bytes")
    return None


Stage = Callable[[str, str], str]
"""From a locator and the version found there to the locator that workers will use."""


def as_it_lies(locator: str, source_version: str) -> str:
    """Workers read the document where it lies."""
    return locator


@dataclass(frozen=True, slots=True)
class _Job:
    root: str
    chunk: list[Found | Skipped]
    outcome: Future[tuple[list[NewItem], list[Rejection]]]


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

    def in_order(
        self, chunks: Iterable[tuple[str, list[Found | Skipped]]]
    ) -> Iterator[tuple[list[NewItem], list[Rejection]]]:
        """The items and the rejections of each chunk, in order."""
        pending: deque[_Job] = deque()
        for root, chunk in chunks:
            job = _Job(root, chunk, Future())
            self._jobs.put(job)
            pending.append(job)
            if len(pending) > self._ahead:
                yield pending.popleft().outcome.result()
        while pending:
            yield pending.popleft().outcome.result()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None and not self._stopping:
            try:
                job.outcome.set_result(self._fingerprint(job.root, job.chunk))
            except BaseException as error:
                job.outcome.set_exception(error)

    def _fingerprint(
        self, root: str, chunk: list[Found | Skipped]
    ) -> tuple[list[NewItem], list[Rejection]]:
        items, rejected = [], []
        for each in chunk:
            if self._stopping:
                break
            refusal = refuse(each)
            if refusal is not None:
                rejected.append(refusal)
            elif isinstance(each, Found):
                version, size = each.source_version, each.size
                if version is None:
                    try:
                        version, size = self._reader.fingerprint(each.locator)
                    except DocumentError as error:
                        reason = f"{error.cause}: {error.message}"
                        rejected.append(Rejection(each.source_id, reason))
                        continue
                try:
                    locator = self._stage(each.locator, version)
                except DocumentError as error:
                    rejected.append(Rejection(each.source_id, f"{error.cause}: {error.message}"))
                    continue
                items.append(NewItem(each.source_id, version, size, locator, root))
        return items, rejected
