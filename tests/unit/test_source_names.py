"""Names: what a path's bytes become in source ids and locators."""

from __future__ import annotations

import os
import unicodedata
from urllib.parse import quote_from_bytes, unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchq.errors import DocumentError, UsageError
from batchq.source.names import (
    checked_prefix,
    from_locator,
    locator_below,
    root_of,
    to_locator,
    to_name,
    to_names,
    to_quoted,
    without_mark,
)

file_names = st.binary(min_size=1, max_size=255).filter(
    lambda name: b"/" not in name and b"\0" not in name
)


@given(file_names)
def test_a_name_is_valid_unicode_in_nfc(raw: bytes) -> None:
    """Whatever the bytes, the ledger and the envelope can hold the name."""
    name = to_name(raw)
    assert unicodedata.is_normalized("NFC", name)
    assert name.encode("utf-8")
    assert "/" not in name


@given(st.lists(file_names, min_size=1, max_size=5))
def test_names_together_are_shown_as_each_alone(raws: list[bytes]) -> None:
    """What is done at once for plain names leaves nothing out."""
    assert to_names(raws) == [to_name(raw) for raw in raws]
    assert to_quoted(raws) == [quote_from_bytes(raw, safe="") for raw in raws]


@given(file_names, file_names)
def test_names_are_alike_only_where_their_unicode_forms_are(one: bytes, other: bytes) -> None:
    """Two names with one source id differ in nothing but NFC; escapes never collide."""
    if to_name(one) == to_name(other):
        forms = [
            unicodedata.normalize("NFC", raw.decode("utf-8", "surrogateescape"))
            for raw in (one, other)
        ]
        assert forms[0] == forms[1]


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (b"a.md", "a.md"),
        (b"-rf", "-rf"),
        (b"two\nlines", "two\nlines"),
        ("é".encode(), "é"),
        (unicodedata.normalize("NFD", "é").encode(), "é"),
        (b"a\xff.md", "a%FF.md"),
        # The surrogate U+D800, as careless encoders write it, is no UTF-8.
        (b"\xed\xa0\x80", "%ED%A0%80"),
        (b"100%.md", "100%.md"),
        (b"a%20b.md", "a%20b.md"),
    ],
)
def test_names_read_as_one_expects(raw: bytes, name: str) -> None:
    """Plain names stay; Unicode is composed; bytes that are no UTF-8 are escaped."""
    assert name == to_name(raw)


@pytest.mark.parametrize(
    ("literal", "escaped"),
    [(b"a%FF.md", b"a\xff.md"), (b"a%25FF.md", b"a%FF.md"), (b"%2525FF", b"%25FF")],
)
def test_a_name_that_looks_escaped_is_told_from_one_that_is(literal: bytes, escaped: bytes) -> None:
    """A literal `%FF` and the byte 0xFF are two documents."""
    assert to_name(literal) != to_name(escaped)


@given(file_names)
def test_a_locator_leads_back_to_the_very_bytes(raw: bytes) -> None:
    """Percent-encoding keeps what NFC and escapes lose."""
    path = b"/folder/" + raw
    locator = to_locator(path)
    assert locator.isascii()
    assert locator == to_locator(b"/folder/") + to_quoted([raw])[0]
    assert path == from_locator(locator)
    assert unquote_to_bytes(locator[len("file://") :]) == path


@pytest.mark.parametrize("root", [b"/mnt/\xff docs", b"/mnt", b"/"])
def test_a_locator_tells_its_root_from_what_is_below(root: bytes) -> None:
    """To the file system it is the same path."""
    path = os.path.join(root, b"a/%2F/\xfe.md")
    locator = locator_below(root, path)
    assert root_of(locator) == (None if root == b"/" else root)
    assert os.path.normpath(from_locator(locator)) == os.path.normpath(path)
    assert root_of(to_locator(path)) is None
    assert without_mark(locator) == to_locator(path)


def test_only_local_locators_are_read() -> None:
    """What this machine cannot read is refused by name."""
    with pytest.raises(DocumentError, match="not a local document: s3://bucket/key"):
        from_locator("s3://bucket/key")
    with pytest.raises(DocumentError):
        from_locator("file://other-host/a.md")


@pytest.mark.parametrize(
    ("given_prefix", "kept"), [("docs", "docs"), ("team/docs/", "team/docs"), ("e\u0301", "é")]
)
def test_a_prefix_is_normalised(given_prefix: str, kept: str) -> None:
    """A prefix is the beginning of a POSIX path in NFC."""
    assert kept == checked_prefix(given_prefix)


@pytest.mark.parametrize("bad", ["", "/", "a//b", "..", "a/../b", ".", "a\0b", "\ud800"])
def test_a_prefix_that_is_no_path_is_refused(bad: str) -> None:
    """Source ids begin with plain names only."""
    with pytest.raises(UsageError, match="--prefix"):
        checked_prefix(bad)


def test_a_locator_names_the_file_system_path_of_this_machine() -> None:
    """What `os.fsencode` gives for a path is what the locator holds."""
    assert to_locator(os.fsencode("/tmp/é x")) == "file:///tmp/%C3%A9%20x"
