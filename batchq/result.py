"""Results: the envelope written to the store, and what the ledger keeps of it."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from json.encoder import encode_basestring
from typing import Any

from batchq.item import item_key

__all__ = [
    "ENVELOPE_SCHEMA",
    "Envelope",
    "InvalidEnvelope",
    "Line",
    "Result",
    "Stored",
    "canonical_json",
    "marker_key",
    "result_key",
    "sha256_hex",
    "slug",
]

ENVELOPE_SCHEMA = "batchq/1"

MAX_DEPTH = 500
"""Lists and dicts within each other. Python reads about a thousand, less those that the calls
of a program take up: a result must be readable wherever it is read, and not just here."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Where bytes lie: `offset` and `length` in the object's bytes, their SHA-256 in hex."""

    key: str
    offset: int
    length: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Result:
    """A verified result on its way to the commit.

    `empty`: the document held no text. `adopted`: it was found in the store and
    not computed. `divergent`: this attempt's output differed from the stored one.
    """

    item_id: int
    token: str
    stored: Stored
    empty: bool = False
    adopted: bool = False
    divergent: bool = False


class InvalidEnvelope(ValueError):
    """The bytes are no envelope: truncated, altered or something else altogether."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """One item's output with its identity, as it is written to the store.

    `output` is JSON, or null for a document without text. `tokens_used` falls short
    of `tokens_total` only where the processor says that it leaves text out.
    """

    source_id: str
    source_version: str
    processing_version: str
    output: Any
    tokens_total: int
    tokens_used: int
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def item_key(self) -> str:
        return item_key(self.source_id, self.source_version, self.processing_version)

    def output_sha256(self) -> str:
        return sha256_hex(canonical_json(self.output))

    def to_bytes(self) -> bytes:
        """One line of canonical JSON. Raises ValueError as `canonical_json` does."""
        return self._line(canonical_json(self.output))

    def _line(self, output: bytes) -> bytes:
        """The line around `output`, which is serialised once: it is nearly all of the bytes."""
        opening = _opening(self.source_id, self.source_version, self.processing_version)
        tail = {
            "output_sha256": sha256_hex(output),
            "tokens_total": self.tokens_total,
            "tokens_used": self.tokens_used,
            "provenance": dict(self.provenance),
        }
        return b"".join((opening, output, b",", canonical_json(tail)[1:], b"\n"))

    @classmethod
    def from_bytes(cls, data: bytes) -> Envelope:
        """Parse and check what is inside. Raises InvalidEnvelope, saying what is wrong.

        Bytes altered anywhere but in the values of the token counts and the provenance
        are found here; those the digest covers that the ledger keeps.
        """
        try:
            raw = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise InvalidEnvelope(f"not JSON: {error}") from None
        if not isinstance(raw, dict) or raw.get("schema") != ENVELOPE_SCHEMA:
            raise InvalidEnvelope(f"not a {ENVELOPE_SCHEMA} envelope")
        try:
            envelope = cls(
                source_id=str(raw["source_id"]),
                source_version=str(raw["source_version"]),
                processing_version=str(raw["processing_version"]),
                output=raw["output"],
                tokens_total=int(raw["tokens_total"]),
                tokens_used=int(raw["tokens_used"]),
                provenance=dict(raw["provenance"]),
            )
            output = canonical_json(envelope.output)
            keys = raw["item_key"], envelope.item_key
            digests = raw["output_sha256"], sha256_hex(output)
            line = envelope._line(output)
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidEnvelope(f"missing or malformed field: {error}") from None
        if keys[0] != keys[1]:
            raise InvalidEnvelope("its item key does not follow from its identity")
        if digests[0] != digests[1]:
            raise InvalidEnvelope("its output does not match its output_sha256")
        if line != data:
            raise InvalidEnvelope("it is not in canonical form, so its bytes were altered")
        return envelope


@dataclass(frozen=True, slots=True)
class Line:
    """An envelope as it is stored, taken apart and not parsed: numbers are most of it."""

    whole: bytes
    _start: int
    _end: int

    @property
    def output(self) -> bytes:
        """Canonical JSON."""
        return self.whole[self._start : self._end]

    @property
    def closing(self) -> bytes:
        """What follows the output, from the comma to the newline."""
        return self.whole[self._end :]

    @classmethod
    def of(
        cls, data: bytes, *, source_id: str, source_version: str, processing_version: str
    ) -> Line | None:
        """`data` as the envelope of this item, or none if it begins as no envelope of it.

        Raises InvalidEnvelope if its output is not that of its `output_sha256`.
        """
        start = _opening(source_id, source_version, processing_version)
        if not data.startswith(start):
            return None
        mark = b',"output_sha256":"'
        # From behind: a provenance may hold the mark too, but then the digest is not there.
        end = data.rfind(mark)
        while end >= len(start):
            digest = end + len(mark)
            if data[digest : digest + 64] == sha256_hex(data[len(start) : end]).encode():
                return cls(data, len(start), end)
            end = data.rfind(mark, 0, end)
        raise InvalidEnvelope("its output does not match its output_sha256")


_CANONICAL = json.JSONEncoder(
    ensure_ascii=False, sort_keys=True, allow_nan=False, separators=(",", ":")
)


def _opening(source_id: str, source_version: str, processing_version: str) -> bytes:
    """An envelope's line as far as its output: it follows from the item.

    Spelt out, since this is made for every result of an export.
    """
    text = encode_basestring
    return (
        f'{{"item_key":"{item_key(source_id, source_version, processing_version)}",'
        f'"processing_version":{text(processing_version)},"schema":"{ENVELOPE_SCHEMA}",'
        f'"source_id":{text(source_id)},"source_version":{text(source_version)},"output":'
    ).encode()


def canonical_json(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys and no spaces; numbers as Python prints them.

    Raises ValueError where JSON cannot say it (NaN, infinity, lone surrogates, keys that
    are no text, lists within more than MAX_DEPTH others), and TypeError on an object that is
    no JSON at all.
    """
    _require_text_keys(value, MAX_DEPTH)
    try:
        return _CANONICAL.encode(value).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"text that is not valid Unicode: {error}") from None


def _require_text_keys(value: Any, depth: int) -> None:
    """A key 10 sorts after 2 but "10" before "2": the bytes would not survive a reading."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"the key {key!r} is no text")
        inside: Iterable[Any] = value.values()
    elif isinstance(value, (list, tuple)):
        inside = value
    else:
        return
    if depth == 0:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
    for inner in inside:
        # Vectors are long, and their numbers need no look.
        if inner.__class__ is not float:
            _require_text_keys(inner, depth - 1)


def sha256_hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


_UNSAFE = re.compile(r"[^a-z0-9]+")


def slug(text: str, limit: int = 40) -> str:
    """At most `limit` characters of [a-z0-9-] that remind a reader of `text`."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return _UNSAFE.sub("-", plain)[-limit:].strip("-") or "item"


def marker_key(run_prefix: str) -> str:
    """The object which says that a store is the one of a run."""
    return f"{run_prefix}/run.json"


def result_key(run_prefix: str, key: str, source_id: str, generation: int) -> str:
    """Layout `item`: `<run>-<id>/<2 hex>/<32 hex>-<slug>[.g2].json`.

    `key` is the item key. No character of the source id reaches the name but
    through the slug, so a hostile name cannot leave the run's folder.
    """
    suffix = "" if generation == 1 else f".g{generation}"
    return f"{run_prefix}/{key[:2]}/{key[:32]}-{slug(source_id)}{suffix}.json"
