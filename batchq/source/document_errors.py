"""What is wrong with a document, where readers and parsers say the same of it."""

from __future__ import annotations

from batchq.errors import DocumentError

__all__ = ["changed", "too_large"]


def too_large(has: str, limit: str) -> DocumentError:
    """The error for a document with more of something than it may have."""
    return DocumentError("too_large", f"{has}, more than {limit}", final=True)


def changed(locator: str, expected: str, found: str) -> DocumentError:
    """The error for a document that is not what was enqueued."""
    return DocumentError(
        "source_changed",
        f"{locator} no longer holds the bytes that were enqueued ({expected}, now {found})",
        final=True,
        hint="enqueue it again",
    )
