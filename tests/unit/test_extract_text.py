"""From bytes to text: kinds, encodings, and what must not be in a text."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchq.errors import DocumentError
from batchq.result import Envelope
from batchq.source.extract import ExtractLimits, Extractor, extractor_manifest
from batchq.source.media import Kind, recognise
from batchq.source.text import clean, decode_detected, decode_plain, is_binary

GERMAN = "Grüße aus München: schöne Straßen, größere Häuser, süße Äpfel.\n"
RUSSIAN = "Это русский текст, и довольно длинный, полный разных букв.\n"
JAPANESE = "これは日本語の文章です。文字コードを当てるには長さが要ります。\n"


@pytest.fixture(scope="module")
def extractor() -> Iterator[Extractor]:
    """One for all: its processes are used again."""
    made = Extractor(ExtractLimits(processes=1))
    yield made
    made.close()


@pytest.mark.parametrize(
    ("name", "data", "media_type", "kind"),
    [
        ("a.md", b"# x", "text/markdown", Kind.TEXT),
        ("A.PY", b"x = 1", "text/x-python", Kind.TEXT),
        ("a.json", b"{}", "application/json", Kind.TEXT),
        ("LICENSE", b"free", "text/plain", Kind.TEXT),
        ("folder.html/README", b"free", "text/plain", Kind.TEXT),
        ("a.html", b"<p>x", "text/html", Kind.HTML),
        ("a", b"\xef\xbb\xbf\n<!DOCTYPE html><p>x", "text/html", Kind.HTML),
        # A page that explains HTML, and a template in PHP, are read as they are.
        ("a.md", b"<html> is a tag", "text/markdown", Kind.TEXT),
        ("a.php", b"<html><?php", "text/x-php", Kind.TEXT),
        ("a.pdf", b"%PDF-1.4", "application/pdf", Kind.PDF),
        ("a", b"%PDF-1.4", "application/pdf", Kind.PDF),
        ("a.pdf", b"mail header\r\n%PDF-1.4", "application/pdf", Kind.PDF),
        ("a.md", b"the signature %PDF-1.4", "text/markdown", Kind.TEXT),
        # An error page saved under the name of what was asked for.
        ("a.pdf", b"<html><p>404", "text/html", Kind.HTML),
        ("a.txt", b"\x89PNG\r\n\x1a\n\0", "image/png", Kind.NONE),
        ("a.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "application/msword", Kind.OFFICE),
        ("a.msi", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "application/x-ole-storage", Kind.NONE),
        ("a", b"{\\rtf1 x}", "application/rtf", Kind.OFFICE),
        ("a.zip", b"PK\x03\x04", "application/zip", Kind.NONE),
        ("a.webp", b"RIFF\x10\0\0\0WEBPVP8 ", "application/x-riff", Kind.NONE),
    ],
)
def test_the_bytes_decide_before_the_name(
    name: str, data: bytes, media_type: str, kind: Kind
) -> None:
    """Signatures first; names tell apart what has none."""
    assert (media_type, kind) == recognise(data, f"docs/{name}")


@pytest.mark.parametrize(
    ("member", "extension"), [(b"word/x", "wordprocessingml"), (b"xl/x", "spreadsheetml")]
)
def test_an_office_document_shows_by_what_is_inside(member: bytes, extension: str) -> None:
    """Downloads often have no extension."""
    data = b"PK\x03\x04" + b"." * 26 + b"[Content_Types].xml" + member
    media_type, kind = recognise(data, "docs/download")
    assert kind is Kind.OFFICE
    assert extension in media_type


def test_an_open_document_shows_by_its_first_member() -> None:
    """OpenDocument and EPUB keep their media type there, uncompressed."""
    media_type = "application/vnd.oasis.opendocument.text"
    data = b"PK\x03\x04" + b"." * 26 + b"mimetype" + media_type.encode()
    assert (media_type, Kind.OFFICE) == recognise(data, "docs/download")


@pytest.mark.parametrize("bom_encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_settles_the_encoding(bom_encoding: str) -> None:
    """And is no part of the text."""
    assert decode_plain(RUSSIAN.encode(bom_encoding)) == RUSSIAN


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_unmarked_utf16_shows_by_its_zeros(encoding: str) -> None:
    """In Latin scripts every second byte is zero."""
    data = GERMAN.encode(encoding)
    assert decode_plain(data) == GERMAN
    assert not is_binary(data)


def test_broken_utf8_stays_utf8() -> None:
    """One cut character in a long text does not make Cyrillic of it, or Latin."""
    data = (RUSSIAN * 20).encode()
    assert decode_plain(data[:-1] + b"\xd0") == (RUSSIAN * 20)[:-1] + "\ufffd"


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (GERMAN, "cp1252"),
        (GERMAN, "iso-8859-1"),
        (RUSSIAN, "koi8-r"),
        (RUSSIAN, "cp1251"),
        (JAPANESE, "shift_jis"),
        (JAPANESE, "euc_jp"),
    ],
)
def test_other_encodings_are_detected(text: str, encoding: str) -> None:
    """The text is the author's, whatever the encoding was called."""
    data = (text * 10).encode(encoding)
    assert decode_plain(data) is None
    assert text * 10 == decode_detected(data)


@pytest.mark.parametrize("line", [GERMAN, "Grüße aus Köln\n", "Seán\n"])
def test_one_foreign_line_in_a_long_source_is_enough(line: str) -> None:
    """Kilobytes of ASCII before it say nothing about the encoding."""
    source = "x = 1 # name\n" * 5000 + line
    assert source == decode_detected(source.encode("cp1252"))


@given(st.binary(max_size=300))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    """No input makes the decoders themselves fail."""
    text = decode_plain(data)
    if text is not None:
        clean(text).encode()


@given(st.text(alphabet=st.characters(), max_size=300))
def test_a_clean_text_fits_into_an_envelope(text: str) -> None:
    """Whatever a parser makes of a document can be written and read back."""
    cleaned = clean(text + "\0\ud800x")
    envelope = Envelope("docs/a", "sha256:00", "stats-0", {"text": cleaned}, 1, 1)
    assert cleaned == Envelope.from_bytes(envelope.to_bytes()).output["text"]
    assert "\0" not in cleaned


def test_text_stays_as_it_is(extractor: Extractor) -> None:
    """Markup, source code and JSON are for the processor to judge, line ends included."""
    source = "# Title\r\n\r\n* `x`\t<b>\n"
    assert ("text/markdown", source) == extractor.extract(source.encode(), "docs/a.md")
    record = json.dumps({"b": [1, 2], "a": "é"}, indent=1)
    assert ("application/json", record) == extractor.extract(record.encode(), "docs/a.json")


def test_an_encoding_is_detected_in_a_process(extractor: Extractor) -> None:
    """From the outside it makes no difference."""
    data = (GERMAN * 3).encode("cp1252")
    assert extractor.extract(data, "docs/a.txt") == ("text/plain", GERMAN * 3)


@pytest.mark.parametrize("name", ["a.txt", "a.json", "a.html", "a.pdf", "a.docx", "a"])
def test_an_empty_document_has_an_empty_text(extractor: Extractor, name: str) -> None:
    """It ends `empty`, not as a failure."""
    assert extractor.extract(b"", f"docs/{name}")[1] == ""


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("zeros.txt", b"\0" * 5000),
        ("noise.txt", bytes(range(256)) * 20),
        ("table.bin", bytes(range(128, 256)) * 40),
        ("image.txt", b"\x89PNG\r\n\x1a\n" + b"x" * 100),
        ("archive.zip", b"PK\x03\x04" + b"x" * 100),
    ],
)
def test_what_is_no_text_is_unsupported_for_good(
    extractor: Extractor, name: str, data: bytes
) -> None:
    """Trying again cannot help."""
    with pytest.raises(DocumentError) as error:
        extractor.extract(data, f"docs/{name}")
    assert (error.value.cause, error.value.final) == ("unsupported", True)


def test_a_stray_zero_does_not_make_a_text_binary(extractor: Extractor) -> None:
    """It is replaced, so that whatever reads the results need not trip over it."""
    text = extractor.extract(b"a long enough text with\0 one zero in it", "docs/a.txt")[1]
    assert text == "a long enough text with\ufffd one zero in it"


def test_coloured_logs_are_text(extractor: Extractor) -> None:
    """Escape sequences are control characters that texts do have."""
    log = "\x1b[31mERROR\x1b[0m\n" * 10
    assert log == extractor.extract(log.encode(), "docs/a.log")[1]


@pytest.mark.parametrize("limits", [ExtractLimits(document_bytes=9), ExtractLimits(characters=9)])
def test_a_document_above_a_limit_is_refused_not_cut(limits: ExtractLimits) -> None:
    """A result of half a document would pass for one of the whole."""
    extractor = Extractor(limits)
    assert extractor.extract(b"123456789", "docs/a.txt")[1] == "123456789"
    with pytest.raises(DocumentError) as error:
        extractor.extract(b"1234567890", "docs/a.txt")
    assert (error.value.cause, error.value.final) == ("too_large", True)
    assert "10" in error.value.message
    extractor.close()


def test_the_manifest_names_every_library_that_shapes_a_text() -> None:
    """And is JSON, for the processing version."""
    manifest = extractor_manifest()
    assert {"rules", "charset-normalizer", "pypdfium2", "selectolax", "kreuzberg"} == set(manifest)
    assert manifest == json.loads(json.dumps(manifest))
    assert all(isinstance(manifest[name], str) for name in ("pypdfium2", "selectolax"))
