"""Rows of tables as documents.

A row's bytes are canonical JSON of its text and of its other columns. Their SHA-256 is
its source version, so a row is proven like any document, and one that another row was put
before is still the same.

Its locator is that of its file, and behind `#` what a reader needs to find it there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import parse_qsl, urlencode

from batchq.errors import DocumentError
from batchq.item import Document, Item
from batchq.result import canonical_json
from batchq.source.base import Extractor, Reader
from batchq.source.text import clean

__all__ = [
    "Base64",
    "Place",
    "is_row",
    "load_document",
    "no_column",
    "place_of",
    "row_bytes",
    "row_locator",
]

MEDIA_TYPE = "text/plain"

SHOWN_COLUMNS, SHOWN_NAME = 10, 40
"""How many columns an error names, and how much of each: a row may have any number."""

_MARK = "#table="


class Base64(str):
    """Bytes as JSON says them. They are no text, though they look it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row lies: its file's locator, the kind of table, the text's column, and `at`,
    numbers that only that kind of table knows how to read."""

    file: str
    table: str
    text_column: str
    at: Mapping[str, int]


def row_locator(place: Place) -> str:
    numbers = {name: str(number) for name, number in place.at.items()}
    found = {"table": place.table, "text": place.text_column, **numbers}
    return f"{place.file}#{urlencode(found)}"


def is_row(locator: str) -> bool:
    """Whether a locator leads to a row. Locators of files have their `#` escaped."""
    return _MARK in locator


def place_of(locator: str) -> Place:
    """Raises DocumentError for a locator that `row_locator` did not make."""
    file, _, fragment = locator.partition("#")
    found = dict(parse_qsl(fragment, keep_blank_values=True))
    try:
        table, text_column = found.pop("table"), found.pop("text")
        at = {name: int(number) for name, number in found.items()}
    except (KeyError, ValueError):
        raise DocumentError("source_unreadable", f"not a row: {locator}", final=True) from None
    return Place(file, table, text_column, at)


def row_bytes(columns: Mapping[str, Any], text_column: str) -> bytes:
    """The row as a document. Raises ValueError, saying why it is none."""
    if text_column not in columns:
        raise no_column(text_column, columns)
    text = columns[text_column]
    if text is None:
        text = ""
    if not isinstance(text, str) or isinstance(text, Base64):
        what = "bytes" if isinstance(text, Base64) else type(text).__name__
        raise ValueError(f"its column {text_column!r} holds no text but {what}")
    others = {name: value for name, value in columns.items() if name != text_column}
    return canonical_json({"columns": others, "text": text})


def no_column(name: str, columns: Mapping[str, Any]) -> ValueError:
    """Why a row without the column `name` is no document, and which columns it has."""
    if not columns:
        return ValueError(f"it has no column {name!r}, nor any other")
    shown = ", ".join(repr(_cut(column)) for column in islice(columns, SHOWN_COLUMNS))
    more = len(columns) - SHOWN_COLUMNS
    rest = f" and {more:,} more" if more > 0 else ""
    return ValueError(f"it has no column {name!r}; there are: {shown}{rest}")


def _cut(name: str) -> str:
    return name if len(name) <= SHOWN_NAME else f"{name[: SHOWN_NAME - 1]}…"


def load_document(item: Item, reader: Reader, extractor: Extractor, limit: int) -> Document:
    """The item's document, its bytes proven and turned into text.

    Raises DocumentError, SourceUnavailable and AccessDenied; above `limit` bytes it is
    `too_large`.
    """
    data = reader.read(item.locator, item.source_version, limit)
    if is_row(item.locator):
        row = json.loads(data)
        return Document(
            item.source_id, item.source_version, MEDIA_TYPE, clean(row["text"]), row["columns"]
        )
    media_type, text = extractor.extract(data, item.source_id)
    return Document(item.source_id, item.source_version, media_type, text)
