"""From a document's bytes to its text.

Text in UTF-8 or marked UTF-16 is decoded here. Everything that needs a parser or a guess
goes to a process that can be killed (`children`).
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

from batchq.clock import Clock, SystemClock
from batchq.errors import BatchqError, DocumentError
from batchq.source import office
from batchq.source.children import Children
from batchq.source.document_errors import too_large
from batchq.source.limits import ExtractLimits
from batchq.source.media import Kind, recognise
from batchq.source.text import clean, decode_plain, is_binary
from batchq.words import pip_install

__all__ = ["ExtractLimits", "Extractor", "extractor_manifest"]

RULES = 1
"""Raised whenever the code here makes another text of the same bytes."""

_LIBRARIES = ("charset-normalizer", "pypdfium2", "selectolax")


def extractor_manifest() -> dict[str, Any]:
    """Everything that shapes an extracted text: `rules` and the version of each library.

    `kreuzberg` is null where it is not installed. Imports none of them. Raises
    BatchqError if one is missing that must be there.
    """
    try:
        versions: dict[str, Any] = {name: importlib.metadata.version(name) for name in _LIBRARIES}
    except importlib.metadata.PackageNotFoundError as error:
        raise BatchqError(
            f"the library {error.name} is not installed", hint="install batchq again"
        ) from None
    kreuzberg = importlib.metadata.version(office.LIBRARY) if office.available() else None
    return {"rules": RULES, **versions, office.LIBRARY: kreuzberg}


class Extractor:
    """Turns documents into text. Safe for threads: each may extract at the same time."""

    def __init__(self, limits: ExtractLimits | None = None, *, clock: Clock | None = None) -> None:
        self._limits = limits or ExtractLimits()
        self._children = Children(self._limits, clock or SystemClock())

    def extract(self, data: bytes, source_id: str) -> tuple[str, str]:
        """The media type and the text, empty where there is none.

        Raises DocumentError: `too_large`, `unsupported`, `encrypted`, `extract_failed`,
        `extract_memory`, all final; `extract_timeout`, `extract_crashed`, which are not.
        """
        limits = self._limits
        if len(data) > limits.document_bytes:
            raise too_large(f"{len(data):,} bytes", f"{limits.document_bytes:,}")
        media_type, kind = recognise(data, source_id)
        if kind is Kind.NONE:
            raise DocumentError("unsupported", f"no text in {media_type}", final=True)
        if kind is Kind.OFFICE and not office.available():
            raise DocumentError(
                "unsupported",
                f"{media_type} needs the library {office.LIBRARY}",
                final=True,
                hint=f"{pip_install('docs')}, and enqueue as a new run",
            )
        text = self._plain_text(data) if kind is Kind.TEXT else None
        if text is None:
            text = self._children.extract(kind.value, media_type, data)
        if len(text) > limits.characters:
            raise too_large(f"{len(text):,} characters", f"{limits.characters:,}")
        return media_type, clean(text)

    def close(self) -> None:
        """End the extraction processes. Repeating it changes nothing."""
        self._children.close()

    def _plain_text(self, data: bytes) -> str | None:
        if is_binary(data):
            raise DocumentError("unsupported", "binary data, no text", final=True)
        return decode_plain(data)
