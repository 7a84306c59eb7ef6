"""Office formats, with and without the library that reads them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator

import pytest

from batchq.errors import DocumentError
from batchq.source import office
from batchq.source.extract import ExtractLimits, Extractor, extractor_manifest

# `make test` installs it; without it the refusals below are what there is to test.
needs_library = pytest.mark.skipif(not office.available(), reason="the extra `docs` is absent")

RTF = rb"{\rtf1\ansi Hello {\b bold} world}"


@pytest.fixture(scope="module")
def extractor() -> Iterator[Extractor]:
    """One for all: its process is used again."""
    made = Extractor(ExtractLimits(processes=1))
    yield made
    made.close()


def archive(**members: str) -> bytes:
    """A ZIP archive; a member's name with `__` for a slash."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name.replace("__", "/"), content)
    return buffer.getvalue()


def docx(body: str) -> bytes:
    """A minimal document of a word processor."""
    office_ns = "http://schemas.openxmlformats.org"
    return archive(
        **{
            "[Content_Types].xml": f'<Types xmlns="{office_ns}/package/2006/content-types">'
            '<Default Extension="rels" ContentType='
            '"application/vnd.openxmlformats-package.relationships+xml"/>'
            '<Override PartName="/word/document.xml" ContentType="application/vnd.'
            'openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>',
            "_rels__.rels": f'<Relationships xmlns="{office_ns}/package/2006/relationships">'
            f'<Relationship Id="r1" Type="{office_ns}/officeDocument/2006/relationships/'
            'officeDocument" Target="word/document.xml"/></Relationships>',
            "word__document.xml": f'<w:document xmlns:w="{office_ns}/wordprocessingml/2006/main">'
            f"<w:body>{body}</w:body></w:document>",
        }
    )


@needs_library
def test_a_word_processors_document_gives_its_paragraphs(extractor: Extractor) -> None:
    """By its name, or without one by what is inside."""
    data = docx("".join(f"<w:p><w:r><w:t>{word}</w:t></w:r></w:p>" for word in ("One", "Two")))
    for name in ("a.docx", "download"):
        media_type, text = extractor.extract(data, f"docs/{name}")
        assert media_type.endswith("wordprocessingml.document")
        assert text.split() == ["One", "Two"]


@needs_library
def test_rich_text_gives_its_words(extractor: Extractor) -> None:
    """And none of its control words."""
    assert (
        (found := extractor.extract(RTF, "docs/a.rtf"))[0],
        found[1].split(),
    ) == ("application/rtf", ["Hello", "bold", "world"])


@needs_library
def test_the_manifest_has_the_librarys_version() -> None:
    """Another version may make another text."""
    assert isinstance(extractor_manifest()["kreuzberg"], str)


@needs_library
@pytest.mark.parametrize("cut", [30, 200])
def test_a_damaged_document_fails_for_good(extractor: Extractor, cut: int) -> None:
    """And the process goes on."""
    with pytest.raises(DocumentError) as error:
        extractor.extract(docx("<w:p/>")[:cut], "docs/a.docx")
    assert (error.value.cause, error.value.final) == ("extract_failed", True)
    test_rich_text_gives_its_words(extractor)


def swollen(data: bytes, name: str, middle: bytes, mebibytes: int) -> bytes:
    """The archive with the one `middle` in that member repeated until it is so large."""
    times = (mebibytes << 20) // len(middle)
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as old,
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as new,
    ):
        for member in old.namelist():
            before, found, after = old.read(member).partition(middle)
            with new.open(member, "w") as file:
                file.write(before)
                for _ in range(times if member == name else 1):
                    file.write(found)
                file.write(after)
    return buffer.getvalue()


@needs_library
def test_an_archive_that_unfolds_without_end_is_stopped() -> None:
    """A few megabytes that claim to be half a gigabyte of text."""
    text = "x" * (1 << 20)
    small = docx(f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>")
    data = swollen(small, "word/document.xml", text.encode(), mebibytes=400)
    assert len(data) < 4 << 20
    extractor = Extractor(ExtractLimits(processes=1, memory_bytes=512 << 20))
    with pytest.raises(DocumentError) as error:
        extractor.extract(data, "docs/a.docx")
    extractor.close()
    assert error.value.cause in ("extract_failed", "extract_memory", "too_large")
    assert error.value.final


def test_without_the_library_it_is_unsupported_and_says_what_to_install(
    extractor: Extractor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a text full of control words."""
    monkeypatch.setattr(office, "LIBRARY", "no_such_library")
    assert extractor_manifest()["no_such_library"] is None
    with pytest.raises(DocumentError) as error:
        extractor.extract(RTF, "docs/a.rtf")
    assert (error.value.cause, error.value.final) == ("unsupported", True)
    assert ".[docs]" in str(error.value.hint)
