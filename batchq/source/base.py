"""Sources: what there is to process, and how its bytes are read again later."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from batchq.errors import BatchqError

__all__ = [
    "MAX_DOCUMENT_BYTES",
    "Extractor",
    "Found",
    "Reader",
    "Skipped",
    "Source",
    "SourceAbsent",
    "SourceUnavailable",
]


MAX_DOCUMENT_BYTES = 256 * 1024 * 1024
"""Of a document that a worker loads, and so of one that is staged for it."""


class SourceUnavailable(BatchqError):
    """Where the documents lie gave no answer. It says nothing about any document."""


class SourceAbsent(BatchqError):
    """What was enqueued is not on this machine at all. It says nothing about any document."""


class Found(NamedTuple):
    """A document met while listing, not read yet.

    `size` in bytes as listed, and `source_version`, where the listing itself tells them; else
    ask `Reader.fingerprint`. Where a version is told, so is the size. A tuple, since a frozen
    dataclass takes twice as long to make, and there are millions.
    """

    source_id: str
    locator: str
    size: int | None
    source_version: str | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something met while listing that cannot be a document, and why."""

    source: str
    reason: str


class Source(Protocol):
    """One SOURCE argument of `enqueue`."""

    root: str
    """Where it starts, as a locator."""

    def list(self, *, sized: bool = True) -> Iterator[Found | Skipped]:
        """Every document below the root, in a stable order, holding none in memory.

        Unless `sized`, no size is told that would be asked for document by document.
        """
        ...


class Reader(Protocol):
    """Reads documents by locator. Safe for threads.

    Each verb raises SourceUnavailable where there was no answer; AccessDenied where no
    document can be read with these credentials, and SourceAbsent where none is here.
    """

    def fingerprint(self, locator: str) -> tuple[str, int]:
        """The source version and size in bytes, streaming.

        `sha256:<hex>`, or the strongest that is known without the bytes (`version:<id>`,
        `etag:<etag>`). Raises DocumentError (`source_missing`, `source_unreadable`).
        """
        ...

    def read(self, locator: str, source_version: str, limit: int) -> bytes:
        """The bytes, proven to be those of `source_version`.

        Raises DocumentError: `source_missing`, `source_changed`, `too_large` (above
        `limit` bytes), each final; `source_unreadable` (an I/O error), which is not.
        """
        ...


class Extractor(Protocol):
    """Turns a document's bytes into text, surviving whatever they do to a parser."""

    def extract(self, data: bytes, source_id: str) -> tuple[str, str]:
        """The media type and the text, empty where there is none. Raises DocumentError."""
        ...
