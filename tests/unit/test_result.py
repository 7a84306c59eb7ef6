"""Envelopes, canonical JSON, slugs and result keys."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchq.item import item_key
from batchq.result import Envelope, InvalidEnvelope, canonical_json, result_key, sha256_hex, slug

TEXT = st.text(st.characters(codec="utf-8"), max_size=30)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
ENVELOPES = st.builds(
    Envelope,
    source_id=TEXT,
    source_version=TEXT,
    processing_version=TEXT,
    output=JSON,
    tokens_total=st.integers(0, 2**40),
    tokens_used=st.integers(0, 2**40),
    provenance=st.dictionaries(TEXT, JSON, max_size=4),
)
EXAMPLE = Envelope(
    source_id="docs/größe.md",
    source_version="sha256:" + "ab" * 32,
    processing_version="embed-0123456789ab",
    output={"vector": [0.1, -2.5e-7, 3.0], "label": "\u4e2d"},
    tokens_total=120,
    tokens_used=100,
    provenance={"attempt": 2, "worker": "w1"},
)


@given(ENVELOPES)
def test_an_envelope_comes_back_as_it_was_written(envelope: Envelope) -> None:
    """Bytes to envelope to bytes, for every output that JSON can say."""
    data = envelope.to_bytes()
    again = Envelope.from_bytes(data)
    assert again == envelope
    assert again.to_bytes() == data


def test_an_envelope_is_one_line_of_json_with_these_fields() -> None:
    """Readable by hand and by other programs."""
    data = EXAMPLE.to_bytes()
    assert data.endswith(b"}\n")
    assert data.count(b"\n") == 1
    raw = json.loads(data)
    assert raw.keys() == {
        "schema",
        "item_key",
        "source_id",
        "source_version",
        "processing_version",
        "output",
        "output_sha256",
        "tokens_total",
        "tokens_used",
        "provenance",
    }
    assert raw["schema"] == "batchq/1"
    assert raw["item_key"] == item_key(
        EXAMPLE.source_id, EXAMPLE.source_version, EXAMPLE.processing_version
    )
    assert raw["output_sha256"] == sha256_hex(canonical_json(EXAMPLE.output))


def test_every_truncation_is_refused() -> None:
    """Wherever a write was torn, also just before the final newline."""
    data = EXAMPLE.to_bytes()
    for length in range(len(data)):
        with pytest.raises(InvalidEnvelope):
            Envelope.from_bytes(data[:length])


def test_every_flipped_bit_is_refused_or_lies_in_an_unhashed_value() -> None:
    """Only the values of token counts and provenance are left to the ledger's digest."""
    data = EXAMPLE.to_bytes()
    accepted = set()
    for position in range(len(data)):
        for bit in range(8):
            altered = bytearray(data)
            altered[position] ^= 1 << bit
            try:
                Envelope.from_bytes(bytes(altered))
            except InvalidEnvelope:
                continue
            accepted.add(position)
    values = {p for m in re.finditer(rb'"provenance":\{.*?\}', data) for p in range(*m.span())} | {
        p for m in re.finditer(rb'"tokens_(total|used)":\d+', data) for p in range(*m.span())
    }
    assert accepted
    assert accepted <= values


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not JSON"),
        (b"\x00" * 100, "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"null\n", "not a batchq/1 envelope"),
        (b"[]\n", "not a batchq/1 envelope"),
        (b"{}\n", "not a batchq/1 envelope"),
        (EXAMPLE.to_bytes().replace(b"batchq/1", b"batchq/2"), "not a batchq/1 envelope"),
        (EXAMPLE.to_bytes() + b" ", "canonical"),
        (EXAMPLE.to_bytes() * 2, "not JSON"),
        (EXAMPLE.to_bytes().replace(b'"tokens_used":100', b'"tokens_used":"100"'), "canonical"),
        (EXAMPLE.to_bytes().replace(b'"tokens_used":100', b'"tokens_used":100.0'), "canonical"),
        (EXAMPLE.to_bytes().replace(b'"tokens_used":100', b'"tokens_used":1e999'), "malformed"),
        (EXAMPLE.to_bytes().replace(b"-2.5e-07", b"NaN"), "malformed"),
        (EXAMPLE.to_bytes().replace(b'"label"', b'"babel"'), "output_sha256"),
        (EXAMPLE.to_bytes().replace("größe".encode(), b"grosse"), "item key"),
        (EXAMPLE.to_bytes().replace(b'"provenance":{', b'"provenance":7,"x":{'), "malformed"),
    ],
)
def test_what_is_no_envelope_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    """Empty, foreign, altered or of another schema: each says so."""
    with pytest.raises(InvalidEnvelope, match=reason):
        Envelope.from_bytes(data)


def test_a_missing_field_is_named() -> None:
    """For each of the fields."""
    raw = json.loads(EXAMPLE.to_bytes())
    for name in raw.keys() - {"schema"}:
        rest = {key: value for key, value in raw.items() if key != name}
        with pytest.raises(InvalidEnvelope, match=name):
            Envelope.from_bytes(canonical_json(rest))


@given(st.binary(max_size=200))
def test_no_bytes_whatever_raise_anything_else(data: bytes) -> None:
    """Whoever reads a store meets InvalidEnvelope alone."""
    with pytest.raises(InvalidEnvelope):
        Envelope.from_bytes(data)


@pytest.mark.parametrize(
    "output", [math.nan, [math.inf], {"a": -math.inf}, "\ud800", {2: "a"}, {"a": [{None: 1}]}]
)
def test_what_json_cannot_say_is_refused_before_it_is_written(output: object) -> None:
    """Not a number, half a surrogate pair, a key that is no text."""
    with pytest.raises(ValueError, match=r"JSON compliant|valid Unicode|no text"):
        Envelope("a", "v", "p", output, 1, 1).to_bytes()


def test_an_object_that_is_no_json_is_a_type_error() -> None:
    """An array of another library has to be made into lists."""
    with pytest.raises(TypeError):
        canonical_json({"a": object()})


def test_what_is_written_can_be_read_from_deep_within_a_program() -> None:
    """Python's parser takes up the same stack as the calls that lead to it."""
    deepest: Any = 0
    for _ in range(500):
        deepest = [deepest]
    written = canonical_json(deepest)

    def read(below: int) -> Any:
        return read(below - 1) if below else json.loads(written)

    assert read(300) == deepest
    for deeper in ([deepest], {"a": deepest}):
        with pytest.raises(ValueError, match="nested more than 500 deep"):
            canonical_json(deeper)


def test_canonical_json_does_not_depend_on_the_order_of_keys() -> None:
    """Equal values, equal bytes; text stays readable."""
    assert canonical_json({"b": 1, "a": [1.0, True, None, "ü"]}) == canonical_json(
        {"a": [1.0, True, None, "ü"], "b": 1}
    )
    assert canonical_json({"b": 1, "a": "ü"}) == '{"a":"ü","b":1}'.encode()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("docs/guide/Intro.md", "docs-guide-intro-md"),
        ("Größe & Maß.txt", "groe-ma-txt"),
        ("../../etc/passwd", "etc-passwd"),
        ("\u4e2d\u6587", "item"),
        ("", "item"),
        ("---", "item"),
        ("a\x00b\nc", "a-b-c"),
        ("-rf", "rf"),
    ],
)
def test_slugs_remind_of_a_name_and_are_harmless(text: str, expected: str) -> None:
    """Whatever the name, the slug is letters, digits and dashes."""
    assert expected == slug(text)


@given(st.text(max_size=300), st.integers(1, 80))
def test_every_slug_is_short_and_plain(text: str, limit: int) -> None:
    """At most `limit` characters of [a-z0-9-], never empty, no dash at either end."""
    short = slug(text, limit)
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", short)
    assert len(short) <= max(limit, len("item"))


def test_a_slug_keeps_the_end_of_a_long_name() -> None:
    """The end tells files apart; the folders they share do not."""
    assert slug("a/" * 100 + "report-7.pdf").endswith("report-7-pdf")


def test_a_result_key_names_run_item_and_generation() -> None:
    """The first generation is plain, the next ones are numbered."""
    key = item_key("docs/a.md", "v", "p")
    first = result_key("run-12345678", key, "docs/a.md", 1)
    assert first == f"run-12345678/{key[:2]}/{key[:32]}-docs-a-md.json"
    assert result_key("run-12345678", key, "docs/a.md", 2) == first[:-5] + ".g2.json"


@given(st.text(max_size=300), st.text(max_size=300), st.integers(1, 10**9))
def test_no_name_leads_out_of_the_runs_folder(name: str, run: str, generation: int) -> None:
    """Two folders, a file, nothing but plain characters, and within 255 bytes each."""
    source_id = name.encode(errors="replace").decode()
    key = result_key(
        f"{slug(run)}-0123456789abcdef", item_key(source_id, "v", "p"), name, generation
    )
    assert re.fullmatch(r"[a-z0-9-]+/[0-9a-f]{2}/[a-z0-9.-]+\.json", key)
    parts = key.split("/")
    assert all(len(part.encode()) <= 255 for part in parts)
    assert len(key.encode()) <= 255
    assert not any(part.startswith((".", "-")) for part in parts)


def test_generations_and_items_have_keys_of_their_own() -> None:
    """A new generation writes elsewhere, so nothing is ever replaced."""
    one, other = item_key("a", "v1", "p"), item_key("a", "v2", "p")
    keys = {result_key("r", k, "a", g) for k in (one, other) for g in (1, 2, 3)}
    assert len(keys) == 6
