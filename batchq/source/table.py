"""Tables as a SOURCE: each row of a JSON Lines, CSV or Parquet file is a document."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from batchq.errors import DocumentError
from batchq.source.base import Found, Skipped, Source
from batchq.source.document_errors import too_large
from batchq.source.ranges import Ranges
from batchq.source.rows import Place, no_column, place_of, row_bytes, row_locator
from batchq.source.table_formats import BadRow, Row, Table, kind_of, open_table

__all__ = ["TableReader", "TableSource"]

OpenRanges = Callable[[str], Ranges]
"""Opens the file at a locator. Raises DocumentError, SourceUnavailable, AccessDenied."""

_OPEN_TABLES = 16


class TableSource:
    """The rows of every table that `files` lists.

    A row's source id is `<file's source id>#<value>`, the value that of `id_column` or, by
    default, the row's number. Its text is that of `text_column`; the other columns reach
    the processor as `Document.row`. A file that is no table, or has no such column, and a
    row that cannot be a document, are passed over by name.
    """

    def __init__(
        self,
        files: Source,
        open_ranges: OpenRanges,
        *,
        text_column: str,
        id_column: str | None = None,
    ) -> None:
        self.root = files.root
        self._files = files
        self._open_ranges = open_ranges
        self._text_column = text_column
        self._id_column = id_column

    def list(self, *, sized: bool = True) -> Iterator[Found | Skipped]:
        """Rows in the order of their file, files in the order of their listing."""
        for file in self._files.list(sized=False):
            if isinstance(file, Skipped):
                yield file
                continue
            kind = kind_of(file.source_id)
            if kind is None:
                yield Skipped(file.source_id, "no table: not .jsonl, .csv, .tsv or .parquet")
                continue
            try:
                table = open_table(kind, self._open_ranges(file.locator))
                for row in table.rows():
                    yield self._found(file, kind, row)
            except DocumentError as error:
                yield Skipped(file.source_id, f"not read to its end: {error.message}")
            except ValueError as error:
                yield Skipped(file.source_id, str(error))

    def _found(self, file: Found, kind: str, row: Row | BadRow) -> Found | Skipped:
        named = f"{file.source_id}#{row.number}"
        if isinstance(row, BadRow):
            rest = "; what follows it was not read" if row.last else ""
            return Skipped(named, row.reason + rest)
        try:
            data = row_bytes(row.columns, self._text_column)
            source_id = f"{file.source_id}#{self._id(row)}"
        except (ValueError, TypeError) as error:
            return Skipped(named, str(error))
        place = Place(file.locator, kind, self._text_column, row.at)
        return Found(source_id, row_locator(place), len(data), _version(data))

    def _id(self, row: Row) -> int | str:
        if self._id_column is None:
            return row.number
        if self._id_column not in row.columns:
            raise no_column(self._id_column, row.columns)
        value = row.columns[self._id_column]
        if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
            raise ValueError(f"its id is {value!r}, neither text nor a whole number")
        if "\0" in str(value):
            raise ValueError("its id holds a NUL")
        return value


class TableReader:
    """Reads rows by their locators, each without the rows before it. Safe for threads."""

    def __init__(self, open_ranges: OpenRanges) -> None:
        self._open_ranges = open_ranges
        self._tables: OrderedDict[tuple[str, str], Table] = OrderedDict()
        self._lock = threading.Lock()

    def fingerprint(self, locator: str) -> tuple[str, int]:
        """The source version and size in bytes of a row. Raises as `read` does."""
        place = place_of(locator)
        data = _row(locator, place, self._table(place)[0])
        return _version(data), len(data)

    def read(self, locator: str, source_version: str, limit: int) -> bytes:
        """The row's bytes (see `rows`), proven to be those of `source_version`.

        Raises DocumentError (`source_missing`, `source_changed`, `too_large`, each final;
        `source_unreadable`, which is not), SourceUnavailable and AccessDenied.
        """
        place = place_of(locator)
        table, old = self._table(place)
        try:
            return self._proven(locator, place, table, source_version, limit)
        except DocumentError as error:
            # What was opened long ago may have been replaced, and enqueued anew.
            if not old or error.cause not in ("source_changed", "source_missing"):
                raise
        self._forget(place, table)
        return self._proven(locator, place, self._table(place)[0], source_version, limit)

    def _proven(
        self, locator: str, place: Place, table: Table, source_version: str, limit: int
    ) -> bytes:
        data = _row(locator, place, table)
        found = _version(data)
        if found != source_version:
            raise _changed(locator, f"{source_version}, now {found}")
        if len(data) > limit:
            raise too_large(f"{locator} has {len(data):,} bytes", f"{limit:,}")
        return data

    def _table(self, place: Place) -> tuple[Table, bool]:
        """The open table, and whether it was open before."""
        key = place.file, place.table
        with self._lock:
            old = key in self._tables
            if not old:
                try:
                    self._tables[key] = open_table(place.table, self._open_ranges(place.file))
                except (ValueError, KeyError) as error:
                    raise _changed(place.file, str(error)) from None
                if len(self._tables) > _OPEN_TABLES:
                    self._tables.popitem(last=False)
            self._tables.move_to_end(key)
            return self._tables[key], old

    def _forget(self, place: Place, table: Table) -> None:
        key = place.file, place.table
        with self._lock:
            if self._tables.get(key) is table:
                del self._tables[key]


def _row(locator: str, place: Place, table: Table) -> bytes:
    try:
        columns: Mapping[str, Any] = table.read(place.at)
        return row_bytes(columns, place.text_column)
    except (ValueError, KeyError, TypeError) as error:
        # It was a row when it was enqueued.
        raise _changed(locator, str(error)) from None


def _version(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _changed(locator: str, how: str) -> DocumentError:
    return DocumentError(
        "source_changed",
        f"{locator} does not hold what was enqueued ({how})",
        final=True,
        hint="enqueue the table again",
    )
