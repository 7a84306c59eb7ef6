"""Text of PDF documents. Runs in an extraction process."""

from __future__ import annotations

from typing import Any

from batchq.errors import DocumentError
from batchq.source.document_errors import too_large

__all__ = ["pdf_text"]

# FPDF_ERR_PASSWORD and FPDF_ERR_SECURITY of fpdfview.h.
_ENCRYPTED = (4, 5)

# PDFium's mark for a hyphen at the end of a line, where it has already joined the word.
_JOINED = "\ufffe"


def pdf_text(data: bytes, *, max_pages: int, max_characters: int) -> str:
    """The text of all pages, a blank line between them; empty if there are but images.

    A page that cannot be read fails the document, so that none is missing in silence.
    Raises DocumentError: `encrypted`, `too_large`, `extract_failed`, each final.
    """
    import pypdfium2

    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        if error.err_code in _ENCRYPTED:
            raise DocumentError("encrypted", "the PDF needs a password", final=True) from None
        raise DocumentError("extract_failed", f"no readable PDF: {error}", final=True) from None
    try:
        pages = len(document)
        if pages > max_pages:
            raise too_large(f"{pages:,} pages", f"{max_pages:,}")
        texts, characters = [], 0
        for number in range(pages):
            try:
                text = _page_text(document, number)
            except pypdfium2.PdfiumError as error:
                raise DocumentError(
                    "extract_failed", f"page {number + 1} of {pages}: {error}", final=True
                ) from None
            characters += len(text)
            if characters > max_characters:
                raise too_large(f"{characters:,} characters or more", f"{max_characters:,}")
            texts.append(text)
    finally:
        document.close()
    return "\n\n".join(text for text in texts if text)


def _page_text(document: Any, number: int) -> str:
    page = document[number]
    try:
        content = page.get_textpage()
        try:
            text: str = content.get_text_range()
        finally:
            content.close()
    finally:
        page.close()
    return text.replace(_JOINED, "").replace("\r\n", "\n").strip()
