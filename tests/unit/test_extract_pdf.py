"""Text of PDF documents, good and hostile."""

from __future__ import annotations

import pytest

from batchq.errors import DocumentError
from batchq.source.pdf import pdf_text
from tests.unit.pdfs import pdf, pdf_of_objects, protected_pdf, text_page


def text_of(data: bytes, *, max_pages: int = 100, max_characters: int = 100_000) -> str:
    return pdf_text(data, max_pages=max_pages, max_characters=max_characters)


def failure(data: bytes, *, max_pages: int = 100, max_characters: int = 100_000) -> DocumentError:
    """What the document fails with; it must be for good."""
    with pytest.raises(DocumentError) as error:
        text_of(data, max_pages=max_pages, max_characters=max_characters)
    assert error.value.final
    return error.value


def test_pages_are_apart_and_lines_below_each_other() -> None:
    """A word that was hyphenated at the end of a line is whole again."""
    data = pdf(text_page("The exam-", "ple begins", "here."), b"", text_page("Page three"))
    assert text_of(data) == "The example begins\nhere.\n\nPage three"


def test_a_document_of_images_is_empty() -> None:
    """It ends `empty`; there is nothing to embed."""
    assert text_of(pdf(b"0 0 100 100 re f")) == ""


def test_a_document_that_needs_a_password_says_so() -> None:
    """Nobody is there to type it."""
    assert failure(protected_pdf("secret", b"password")).cause == "encrypted"


def test_a_document_that_only_restricts_its_use_is_read() -> None:
    """Such files open without a password, as every reader shows them."""
    assert text_of(protected_pdf("public", b"")) == "public"


@pytest.mark.parametrize(
    "data",
    [
        b"%PDF-1.7",
        b"%PDF-1.7\n" + bytes(range(256)) * 50,
        pdf(text_page("cut in the middle"))[:200],
        # Its only page is the list of pages.
        pdf_of_objects([b"<</Type/Catalog/Pages 2 0 R>>", b"<</Kids[2 0 R]/Count 5>>"]),
        # The second page is not there.
        pdf(text_page("one of two"), count=2),
    ],
    ids=["only-a-signature", "noise", "truncated", "circle", "missing-page"],
)
def test_a_broken_document_fails_whole(data: bytes) -> None:
    """Half a document would pass for all of it."""
    assert failure(data).cause == "extract_failed"


def test_too_many_pages_are_refused_before_they_are_read() -> None:
    """A thousand pages cost no more than one to refuse."""
    error = failure(pdf(*[text_page("x")] * 1000), max_pages=999)
    assert error.cause == "too_large"
    assert "1,000 pages" in error.message


def test_a_claim_of_billions_of_pages_is_not_believed() -> None:
    """The number is the document's own word."""
    assert text_of(pdf(text_page("x"), count=2_147_483_647)) == "x"


def test_text_that_unfolds_beyond_the_limit_is_refused() -> None:
    """Two kilobytes can hold a quarter of a million characters."""
    data = pdf(text_page("x" * 100) * 2000, compress=True)
    assert len(data) < 2500
    assert failure(data).cause == "too_large"
