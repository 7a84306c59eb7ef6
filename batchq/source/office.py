"""Text of office formats, where kreuzberg is installed. Runs in an extraction process."""

from __future__ import annotations

import importlib
import importlib.util

from batchq.errors import DocumentError

__all__ = ["LIBRARY", "available", "office_text"]

LIBRARY = "kreuzberg"


def available() -> bool:
    """Whether the library is installed: the extra `docs`."""
    return importlib.util.find_spec(LIBRARY) is not None


def office_text(data: bytes, media_type: str) -> str:
    """The document as plain text. Raises DocumentError: `extract_failed`, final."""
    library = importlib.import_module(LIBRARY)
    config = library.ExtractionConfig(
        use_cache=False, disable_ocr=True, output_format=library.OutputFormat.PLAIN
    )
    try:
        result = library.extract_bytes_sync(data, media_type, config)
    except library.KreuzbergError as error:
        raise DocumentError("extract_failed", str(error), final=True) from None
    return str(result.content)
