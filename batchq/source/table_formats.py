"""JSON Lines, CSV and Parquet: all rows in a stream, and one row without the others.

Each kind says where a row lies in numbers: where its bytes begin and how many they are,
or its row group and its place in that.
"""

from __future__ import annotations

import base64
import csv
import datetime
import decimal
import io
import json
import math
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from batchq.errors import UsageError
from batchq.source.ranges import RangeFile, Ranges
from batchq.source.rows import Base64
from batchq.words import pip_install

__all__ = ["BadRow", "Row", "Table", "kind_of", "open_table"]

MAX_ROW = 100 << 20
"""Bytes. A longer line is damage: a quote that was never closed, a file that is no table."""

_STREAM, _HEADER = 8 << 20, 64 << 10
"""Bytes read at once: of a whole file, and to look at its beginning."""

_BOM = b"\xef\xbb\xbf"
_BATCH = 1_000
_CACHED = 256 << 20

_UTC = "+00:00"
"""By its name it would be looked up in a database of time zones, which containers lack."""


@dataclass(frozen=True, slots=True)
class Row:
    """`number` counts from 1 for people, `at` is for `Table.read`."""

    number: int
    at: Mapping[str, int]
    columns: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be read, and why; `last` if nothing behind it can be either."""

    number: int
    reason: str
    last: bool = False


class Table(Protocol):
    """One open file. Safe for threads."""

    def rows(self) -> Iterator[Row | BadRow]:
        """Every row in order, holding a few in memory. Raises ValueError: it is no table."""
        ...

    def read(self, at: Mapping[str, int]) -> Mapping[str, Any]:
        """One row's columns. Raises ValueError or KeyError if there is none such."""
        ...


def kind_of(name: str) -> str | None:
    """The kind of table that a name promises (`jsonl`, `csv`, `tsv`, `parquet`), or none."""
    ending = name.rpartition(".")[2].lower()
    return "jsonl" if ending == "ndjson" else ending if ending in _KINDS else None


def open_table(kind: str, file: Ranges) -> Table:
    """Raises ValueError if the file is none of that kind, KeyError for an unknown kind."""
    return _KINDS[kind](file)


# -- lines -----------------------------------------------------------------------


class _Lines:
    """The lines of a file with their ends, each with where it begins."""

    def __init__(self, file: Ranges, buffer: int) -> None:
        self._stream = io.BufferedReader(RangeFile(file), buffer)
        self.at = 0

    def __iter__(self) -> Iterator[bytes]:
        while line := self._stream.readline(MAX_ROW + 1):
            if len(line) > MAX_ROW:
                raise ValueError(f"a line is longer than {MAX_ROW:,} bytes")
            if self.at == 0 and line.startswith(_BOM):
                self.at, line = len(_BOM), line[len(_BOM) :]
            yield line
            self.at += len(line)


class JsonLines:
    """One JSON object a line. A row's number is that of its line."""

    def __init__(self, file: Ranges) -> None:
        self._file = file

    def rows(self) -> Iterator[Row | BadRow]:
        lines = _Lines(self._file, _STREAM)
        number = 0
        try:
            for line in lines:
                number += 1
                if not line.strip():
                    continue
                try:
                    columns = _json_object(line)
                except ValueError as error:
                    yield BadRow(number, str(error))
                else:
                    yield Row(number, {"at": lines.at, "bytes": len(line)}, columns)
        except ValueError as error:
            yield BadRow(number + 1, str(error), last=True)

    def read(self, at: Mapping[str, int]) -> Mapping[str, Any]:
        return _json_object(self._file.read(at["at"], at["bytes"]))


def _json_object(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("no JSON object")
    return found


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


class Separated:
    """CSV and TSV with a header, in UTF-8; a quoted field may hold line ends.

    A row's number does not count the header.
    """

    def __init__(self, file: Ranges, delimiter: str) -> None:
        # For the whole process, since the module knows no other way; 128 KiB is no text.
        csv.field_size_limit(MAX_ROW)
        self._file = file
        self._delimiter = delimiter
        self._header = self._read_header()

    def rows(self) -> Iterator[Row | BadRow]:
        number = -1
        try:
            for number, (at, length, fields) in enumerate(self._records(_STREAM)):
                if number == 0:
                    continue
                try:
                    columns = self._columns(fields)
                except ValueError as error:
                    yield BadRow(number, str(error))
                else:
                    yield Row(number, {"at": at, "bytes": length}, columns)
        except ValueError as error:
            yield BadRow(number + 1, str(error), last=True)

    def read(self, at: Mapping[str, int]) -> Mapping[str, Any]:
        text = self._file.read(at["at"], at["bytes"]).decode()
        # In the lines that the listing has: a carriage return alone ends none.
        lines = io.StringIO(text, newline="\n")
        try:
            [fields] = csv.reader(lines, delimiter=self._delimiter, strict=True)
        except csv.Error as error:
            raise ValueError(str(error)) from None
        return self._columns(fields)

    def _records(self, buffer: int) -> Iterator[tuple[int, int, list[str]]]:
        """Where each record begins, its length in bytes, and its fields."""
        lines = _Lines(self._file, buffer)
        start, length = 0, 0

        def decoded() -> Iterator[str]:
            nonlocal start, length
            for line in lines:
                start = start if length else lines.at
                length += len(line)
                if length > MAX_ROW:
                    raise ValueError(f"a row is longer than {MAX_ROW:,} bytes")
                try:
                    text = line.decode()
                except UnicodeDecodeError:
                    raise ValueError("it is not UTF-8") from None
                yield text

        try:
            # It takes no more lines than the record needs.
            for fields in csv.reader(decoded(), delimiter=self._delimiter, strict=True):
                if fields:
                    yield start, length, fields
                length = 0
        except csv.Error as error:
            raise ValueError(f"not CSV: {error}") from None

    def _read_header(self) -> list[str]:
        header = next((fields for _, _, fields in self._records(_HEADER)), [])
        _refuse_twice(header)
        return header

    def _columns(self, fields: list[str]) -> dict[str, str]:
        if len(fields) != len(self._header):
            raise ValueError(f"{len(fields)} fields, and the header has {len(self._header)}")
        return dict(zip(self._header, fields, strict=True))


def _refuse_twice(names: Sequence[str]) -> None:
    twice = {name for name, count in Counter(names).items() if count > 1}
    if twice:
        raise ValueError(f"its header names {min(twice)!r} twice")


# -- Parquet ---------------------------------------------------------------------


class Parquet:
    """Rows are read by row group: one that is asked for again is kept, up to 256 MiB."""

    def __init__(self, file: Ranges) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise UsageError(
                "Parquet files need the library pyarrow",
                hint=pip_install("parquet"),
            ) from None
        try:
            # Said, so that no release of the library takes identifiers (UUID) for mere bytes.
            self._file = pyarrow.parquet.ParquetFile(RangeFile(file), arrow_extensions_enabled=True)
        except (pyarrow.ArrowException, OSError) as error:
            raise ValueError(f"not Parquet: {error}") from None
        _refuse_twice(self._file.schema_arrow.names)
        self._schema = pyarrow.schema(
            [field.with_type(_portable(pyarrow, field.type)) for field in self._file.schema_arrow]
        )
        self._broken = pyarrow.ArrowException
        self._groups: OrderedDict[int, Any] = OrderedDict()
        self._lock = threading.Lock()

    def rows(self) -> Iterator[Row | BadRow]:
        number = 0
        for group in range(self._file.num_row_groups):
            place = 0
            try:
                for batch in self._file.iter_batches(_BATCH, row_groups=[group]):
                    for columns in _each(batch.cast(self._schema, safe=False)):
                        number += 1
                        if isinstance(columns, str):
                            yield BadRow(number, columns)
                        else:
                            yield Row(number, {"group": group, "row": place}, columns)
                        place += 1
            except (self._broken, OSError) as error:
                yield BadRow(number + 1, f"row group {group}: {error}", last=True)
                return

    def read(self, at: Mapping[str, int]) -> Mapping[str, Any]:
        with self._lock:
            rows = _each(self._group(at["group"]).slice(at["row"], 1))
        if not rows:
            raise ValueError("there is no such row")
        if isinstance(rows[0], str):
            raise ValueError(rows[0])
        return rows[0]

    def _group(self, number: int) -> Any:
        if number not in self._groups:
            try:
                group = self._file.read_row_group(number)
                self._groups[number] = group.cast(self._schema, safe=False)
            except (self._broken, OSError, IndexError) as error:
                raise ValueError(str(error)) from None
        self._groups.move_to_end(number)
        while len(self._groups) > 1 and sum(g.nbytes for g in self._groups.values()) > _CACHED:
            self._groups.popitem(last=False)
        return self._groups[number]


def _each(rows: Any) -> list[dict[str, Any] | str]:
    """Each row as JSON says it, or why it cannot be said: Python knows no year 10000."""
    try:
        return [_plain(columns) for columns in rows.to_pylist()]
    except (ValueError, OverflowError) as error:
        if len(rows) == 1:
            return [str(error)]
    return [each for place in range(len(rows)) for each in _each(rows.slice(place, 1))]


def _portable(pyarrow: Any, kind: Any) -> Any:
    """A type whose values are the same in Python everywhere, with or without pandas (which
    nanoseconds would need) and whatever the machine knows of time zones."""
    types = pyarrow.types

    def inner(field: Any) -> Any:
        return field.with_type(_portable(pyarrow, field.type))

    if types.is_timestamp(kind):
        return pyarrow.timestamp(_unit(kind), None if kind.tz is None else _UTC)
    if types.is_duration(kind):
        return pyarrow.duration(_unit(kind))
    if types.is_struct(kind):
        return pyarrow.struct([inner(field) for field in kind])
    if types.is_map(kind):
        return pyarrow.map_(inner(kind.key_field), inner(kind.item_field), kind.keys_sorted)
    if types.is_list(kind):
        return pyarrow.list_(inner(kind.value_field))
    if types.is_large_list(kind):
        return pyarrow.large_list(inner(kind.value_field))
    if types.is_fixed_size_list(kind):
        return pyarrow.list_(inner(kind.value_field), kind.list_size)
    return pyarrow.time64("us") if types.is_time64(kind) else kind


def _unit(kind: Any) -> str:
    """Coarser ones stay: what does not fit into microseconds would become another time."""
    return "us" if kind.unit == "ns" else str(kind.unit)


def _plain(value: Any) -> Any:
    """As JSON says it: times in ISO 8601, decimals as text, bytes in base64, NaN as null."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {str(name): _plain(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case bytes():
            return Base64(base64.b64encode(value).decode())
        case datetime.date() | datetime.time():
            return value.isoformat()
        case datetime.timedelta():
            return value.total_seconds()
        case decimal.Decimal():
            return str(value)
        case None | str() | int():
            return value
    return str(value)


_KINDS: dict[str, Callable[[Ranges], Table]] = {
    "jsonl": JsonLines,
    "csv": lambda file: Separated(file, ","),
    "tsv": lambda file: Separated(file, "\t"),
    "parquet": Parquet,
}
