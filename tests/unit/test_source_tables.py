"""Rows of tables: each a document that is found again without the rows before it."""

from __future__ import annotations

import csv
import datetime
import decimal
import hashlib
import io
import json
import os
import random
import sys
import tracemalloc
import zoneinfo
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchq.clock import ManualClock
from batchq.errors import DocumentError
from batchq.item import Document, Item
from batchq.result import canonical_json
from batchq.source import s3 as source_s3
from batchq.source.base import Found, Skipped, SourceUnavailable
from batchq.source.directory import DirectorySource
from batchq.source.ranges import LocalRanges
from batchq.source.readers import AnyReader
from batchq.source.rows import is_row, load_document
from batchq.source.s3 import S3Source
from batchq.source.table import TableReader, TableSource
from batchq.source.table_formats import BadRow, Row, Table, open_table
from tests.faults.s3_state import Stored
from tests.faults.strict_s3 import Fault
from tests.s3 import BUCKET, strict_server
from tests.unit.descriptors import open_files

ENOUGH = 1 << 20

ROWS = [
    {"id": "first", "body": "one line", "stars": "5"},
    {"id": "second", "body": 'two\nlines, a comma and a "quote"', "stars": "4"},
    {"id": "third", "body": "ünïcödé 日本 🎈", "stars": ""},
    {"id": "fourth", "body": "", "stars": "3"},
]


def jsonl(rows: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def separated(rows: Sequence[dict[str, Any]], delimiter: str = ",") -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, rows[0], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def parquet(rows: Sequence[dict[str, Any]], group: int = 2) -> bytes:
    made = io.BytesIO()
    table = pyarrow.Table.from_pylist(list(rows))
    pyarrow.parquet.write_table(table, made, row_group_size=group)
    return made.getvalue()


KINDS: dict[str, Callable[[Sequence[dict[str, Any]]], bytes]] = {
    "t.jsonl": jsonl,
    "t.csv": separated,
    "t.tsv": lambda rows: separated(rows, "\t"),
    "t.parquet": parquet,
}


def source(path: Path, **columns: str) -> TableSource:
    files = DirectorySource(path, prefix="data")
    return TableSource(files, LocalRanges, **{"text_column": "body", **columns})


def listed(path: Path, **columns: str) -> list[Found | Skipped]:
    return list(source(path, **columns).list())


def rows_of(path: Path, **columns: str) -> list[Found]:
    found = listed(path, **columns)
    assert not [each for each in found if isinstance(each, Skipped)]
    return [each for each in found if isinstance(each, Found)]


def reasons(path: Path, **columns: str) -> dict[str, str]:
    return {e.source: e.reason for e in listed(path, **columns) if isinstance(e, Skipped)}


def item(found: Found) -> Item:
    assert found.source_version is not None
    assert found.size is not None
    return Item(1, found.source_id, found.source_version, found.size, found.locator, 1, 1, 0, 0)


class NoExtractor:
    """A row is text already."""

    def extract(self, data: bytes, source_id: str) -> tuple[str, str]:
        raise AssertionError(source_id)


def load(found: Found, reader: AnyReader | None = None) -> Document:
    return load_document(item(found), reader or AnyReader(), NoExtractor(), ENOUGH)


# -- each kind -------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_each_row_is_a_document_with_its_text_and_its_other_columns(
    tmp_path: Path, name: str
) -> None:
    """Found again from its locator alone, in any order, and each by itself."""
    (tmp_path / name).write_bytes(KINDS[name](ROWS))
    found = rows_of(tmp_path)
    assert [f"data/{name}#{number}" for number in (1, 2, 3, 4)] == [f.source_id for f in found]
    for each, row in reversed(list(zip(found, ROWS, strict=True))):
        document = load(each)
        assert document.text == row["body"]
        assert document.row == {"id": row["id"], "stars": row["stars"]}
        assert (document.source_id, document.source_version) == (
            each.source_id,
            each.source_version,
        )


@pytest.mark.parametrize("name", KINDS)
def test_the_version_is_the_digest_of_the_row_and_of_nothing_else(
    tmp_path: Path, name: str
) -> None:
    """The same row in another kind of table, behind others, is the same document."""
    (tmp_path / name).write_bytes(KINDS[name]([ROWS[3], *ROWS[:3]]))
    [_, *found] = rows_of(tmp_path, id_column="id")
    for each, row in zip(found, ROWS, strict=False):
        others = {"id": row["id"], "stars": row["stars"]}
        data = canonical_json({"columns": others, "text": row["body"]})
        assert f"sha256:{hashlib.sha256(data).hexdigest()}" == each.source_version
        assert len(data) == each.size
        assert (each.source_version, each.size) == AnyReader().fingerprint(each.locator)


@pytest.mark.parametrize("name", KINDS)
def test_the_id_column_names_the_documents(tmp_path: Path, name: str) -> None:
    """So that a row put before them does not make others of them."""
    (tmp_path / name).write_bytes(KINDS[name](ROWS))
    found = rows_of(tmp_path, id_column="id")
    assert [f"data/{name}#{row['id']}" for row in ROWS] == [f.source_id for f in found]


@pytest.mark.parametrize("name", KINDS)
def test_one_row_is_read_without_the_others(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a table of 4 MB a worker that wants the last row reads less than a tenth."""
    rows = [
        {"id": str(n), "body": random.Random(n).randbytes(500).hex(), "stars": "1"}
        for n in range(4_000)
    ]
    path = tmp_path / name
    path.write_bytes(parquet(rows, group=50) if name == "t.parquet" else KINDS[name](rows))
    last = rows_of(path)[-1]
    read = 0
    real = LocalRanges.read

    def counting(self: LocalRanges, offset: int, length: int) -> bytes:
        nonlocal read
        data = real(self, offset, length)
        read += len(data)
        return data

    monkeypatch.setattr(LocalRanges, "read", counting)
    assert rows[-1]["body"] == load(last).text
    assert 0 < read < path.stat().st_size / 10


@pytest.mark.parametrize("name", ["t.jsonl", "t.csv", "t.parquet"])
def test_a_table_is_read_in_a_stream(tmp_path: Path, name: str) -> None:
    """Memory does not grow with the number of rows."""
    path = tmp_path / name
    rows = [{"id": str(n), "body": f"{n} " * 1_500, "stars": "1"} for n in range(6_000)]
    path.write_bytes(parquet(rows, group=200) if name == "t.parquet" else KINDS[name](rows))
    size = sum(len(row["body"]) for row in rows)
    del rows
    tracemalloc.start()
    seen = sum(isinstance(each, Found) for each in source(path).list())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seen == 6_000
    assert peak < 24 << 20 < size


# -- whatever is in them ---------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


@given(
    st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=6),
    # The last is what text mode on Windows makes of the first.
    st.sampled_from(["\r\n", "\n", "\r\r\n"]),
)
def test_any_fields_of_csv_are_found_again(
    tmp_path_factory: pytest.TempPathFactory, fields: list[tuple[str, str]], end: str
) -> None:
    """Quotes, commas, line ends of every kind within fields."""
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator=end, quoting=csv.QUOTE_ALL)
        writer.writerow(["body", "other"])
        writer.writerows(fields)
    found = rows_of(path)
    assert fields == [
        (document.text, document.row["other"])
        for document in map(load, found)
        if document.row is not None
    ]


def test_a_mark_at_the_beginning_and_empty_lines_are_no_rows(tmp_path: Path) -> None:
    """What spreadsheets and editors leave behind; a last line needs no end."""
    (tmp_path / "t.jsonl").write_bytes(b'\xef\xbb\xbf{"body":"a"}\n\n  \r\n{"body":"b"}')
    (tmp_path / "t.csv").write_bytes(b"\xef\xbb\xbfbody\r\n\r\na\r\nb")
    found = rows_of(tmp_path)
    assert [load(each).text for each in found] == ["a", "b", "a", "b"]
    assert [f.source_id for f in found] == [
        "data/t.csv#1",
        "data/t.csv#2",
        "data/t.jsonl#1",
        "data/t.jsonl#4",
    ]


def test_values_of_every_type_reach_the_row_as_json(tmp_path: Path) -> None:
    """The same on every machine, whatever libraries and time zones it has."""
    noon = datetime.datetime(2025, 6, 15, 12, tzinfo=datetime.UTC)
    columns = {
        "body": pyarrow.array(["text"]),
        "float": pyarrow.array([0.1]),
        "nan": pyarrow.array([float("nan")]),
        "none": pyarrow.array([None], pyarrow.int64()),
        "bytes": pyarrow.array([b"\x00\xff"]),
        "decimal": pyarrow.array([decimal.Decimal("1.10")]),
        "date": pyarrow.array([noon.date()]),
        "zoned": pyarrow.array([noon], pyarrow.timestamp("ns", "America/New_York")),
        "plain": pyarrow.array([1_750_000_000_123_456_789], pyarrow.timestamp("ns")),
        "long": pyarrow.array([1_500_000_000], pyarrow.duration("ns")),
        "list": pyarrow.array([[1, 2]]),
        "struct": pyarrow.array([{"a": {"b": [None, True]}}]),
        "nested": pyarrow.array(
            [{"at": [1_750_000_000_123_456_789]}],
            pyarrow.struct([("at", pyarrow.list_(pyarrow.timestamp("ns")))]),
        ),
        "category": pyarrow.array(["x"]).dictionary_encode(),
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    [found] = rows_of(tmp_path)
    assert load(found).row == {
        "float": 0.1,
        "nan": None,
        "none": None,
        "bytes": "AP8=",
        "decimal": "1.10",
        "date": "2025-06-15",
        "zoned": "2025-06-15T12:00:00+00:00",
        "plain": "2025-06-15T15:06:40.123456",
        "long": 1.5,
        "list": [1, 2],
        "struct": {"a": {"b": [None, True]}},
        "nested": {"at": ["2025-06-15T15:06:40.123456"]},
        "category": "x",
    }


def test_times_need_no_database_of_time_zones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slim containers have none: wherever a time lies in a row, it is the same there."""
    zoned = pyarrow.timestamp("us", "America/New_York")
    at = 1_750_000_000_123_456
    columns = {
        "body": pyarrow.array(["text"]),
        "plain": pyarrow.array([at], zoned),
        "list": pyarrow.array([[at]], pyarrow.list_(zoned)),
        "large": pyarrow.array([[at]], pyarrow.large_list(zoned)),
        "fixed": pyarrow.array([[at]], pyarrow.list_(zoned, 1)),
        "map": pyarrow.array([[("a", at)]], pyarrow.map_(pyarrow.string(), zoned)),
        "keys": pyarrow.array([[(at, "a")]], pyarrow.map_(zoned, pyarrow.string())),
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")

    def unknown(name: str) -> None:
        raise zoneinfo.ZoneInfoNotFoundError(name)

    monkeypatch.setitem(sys.modules, "pytz", None)
    monkeypatch.setattr(zoneinfo, "ZoneInfo", unknown)
    [found] = rows_of(tmp_path)
    shown = "2025-06-15T15:06:40.123456+00:00"
    assert load(found).row == {
        "plain": shown,
        "list": [shown],
        "large": [shown],
        "fixed": [shown],
        "map": [["a", shown]],
        "keys": [[shown, "a"]],
    }


def test_nanoseconds_are_cut_wherever_they_lie(tmp_path: Path) -> None:
    """Only with pandas would Python show them."""
    columns = {
        "body": pyarrow.array(["text"]),
        "large": pyarrow.array([[1]], pyarrow.large_list(pyarrow.timestamp("ns"))),
        "fixed": pyarrow.array([[1]], pyarrow.list_(pyarrow.timestamp("ns"), 1)),
        "map": pyarrow.array([[("a", 1)]], pyarrow.map_(pyarrow.string(), pyarrow.duration("ns"))),
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    [found] = rows_of(tmp_path)
    shown = "1970-01-01T00:00:00"
    assert load(found).row == {"large": [shown], "fixed": [shown], "map": [["a", 0.0]]}


def test_identifiers_are_text_whoever_wrote_them(tmp_path: Path) -> None:
    """Other tools than Arrow leave no schema of its beside the file's own."""
    for stores_schema in (True, False):
        columns = {
            "body": pyarrow.array(["text"]),
            "id": pyarrow.array([bytes(range(16))], pyarrow.uuid()),
        }
        path = tmp_path / "t.parquet"
        pyarrow.parquet.write_table(pyarrow.table(columns), path, store_schema=stores_schema)
        [found] = rows_of(tmp_path)
        assert load(found).row == {"id": "00010203-0405-0607-0809-0a0b0c0d0e0f"}


def test_a_row_without_text_is_a_document_without_text(tmp_path: Path) -> None:
    """Null is as empty as nothing between two commas."""
    (tmp_path / "t.jsonl").write_bytes(b'{"body":null}\n{"body":""}\n')
    assert [load(each).text for each in rows_of(tmp_path)] == ["", ""]


def test_text_that_cannot_be_written_is_cleaned_for_the_processor(tmp_path: Path) -> None:
    """As in any document; the version is that of the row as it is."""
    (tmp_path / "t.jsonl").write_bytes(b'{"body":"a\\u0000b"}\n')
    [found] = rows_of(tmp_path)
    assert load(found).text == "a�b"


# -- what is no document ---------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not JSON"),
        (b"[1]", "no JSON object"),
        (b"\xff", "not JSON"),
        (b'{"other":"x"}', "no column 'body'"),
        (b'{"body":7}', "holds no text but int"),
        (b'{"body":"\\ud800"}', "not valid Unicode"),
        (b'{"body":"x","n":NaN}', "NaN"),
        (b'{"body":"x","n":1e999}', "JSON"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_line_that_is_no_row_is_named_and_harms_no_other(
    tmp_path: Path, line: bytes, reason: str
) -> None:
    """By its number, with the reason."""
    (tmp_path / "t.jsonl").write_bytes(b'{"body":"a"}\n' + line + b'\n{"body":"c"}\n')
    found = listed(tmp_path)
    assert [getattr(each, "source_id", None) for each in found] == [
        "data/t.jsonl#1",
        None,
        "data/t.jsonl#3",
    ]
    [(name, said)] = reasons(tmp_path).items()
    assert name == "data/t.jsonl#2"
    assert reason in said


@pytest.mark.parametrize(
    ("value", "reason"),
    [("null", "None"), ('""', "''"), ("1.5", "1.5"), ("true", "True"), ('"a\\u0000"', "NUL")],
)
def test_an_id_that_names_nothing_is_refused(tmp_path: Path, value: str, reason: str) -> None:
    """Only text and whole numbers name a document."""
    (tmp_path / "t.jsonl").write_text(f'{{"body":"a","id":{value}}}\n{{"body":"b","id":7}}\n')
    found = listed(tmp_path, id_column="id")
    assert isinstance(found[0], Skipped)
    assert found[0].source == "data/t.jsonl#1"
    assert reason in found[0].reason
    assert isinstance(found[1], Found)
    assert found[1].source_id == "data/t.jsonl#7"


def test_a_table_without_the_column_says_so_for_each_row(tmp_path: Path) -> None:
    """Nothing of it is taken for a document."""
    for name, write in KINDS.items():
        (tmp_path / name).write_bytes(write(ROWS))
    said = reasons(tmp_path, text_column="text")
    assert len(said) == 4 * len(ROWS)
    assert set(said.values()) == {"it has no column 'text'; there are: 'id', 'body', 'stars'"}


def test_many_columns_and_long_names_are_told_in_part(tmp_path: Path) -> None:
    """A reason is a line that somebody reads."""
    names = ["n" * 1_000, *(f"c{number}" for number in range(50))]
    (tmp_path / "t.jsonl").write_text(json.dumps(dict.fromkeys(names, "")) + "\n{}\n")
    many, none = reasons(tmp_path).values()
    assert many.startswith(f"it has no column 'body'; there are: '{'n' * 39}…', 'c0', ")
    assert many.endswith(" 'c8' and 41 more")
    assert none == "it has no column 'body', nor any other"


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("t.txt", b"hello", "no table"),
        ("t.csv", b"body,a,a\nx,1,2\n", "names 'a' twice"),
        ("t.csv", b"body,a\nx\n", "1 fields, and the header has 2"),
        ("t.csv", b"body,a\nx,\xff\n", "not UTF-8"),
        ("t.csv", b'body,a\nx,"1\n', "not CSV"),
        ("t.csv", b'body,a\nx,"1"2\n', "not CSV"),
        ("t.parquet", b"PAR1 and nothing else", "not Parquet"),
        ("t.parquet", b"", "not Parquet"),
    ],
)
def test_a_file_that_is_no_table_is_named(
    tmp_path: Path, name: str, data: bytes, reason: str
) -> None:
    """With what is wrong with it."""
    (tmp_path / name).write_bytes(data)
    [said] = reasons(tmp_path).values()
    assert reason in said


def test_text_in_parquet_must_be_text_of_one_column(tmp_path: Path) -> None:
    """Bytes would be processed as their base64, and of two columns nobody said which."""
    table = pyarrow.table({"body": pyarrow.array([b"some words"])})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    texts = [pyarrow.array(["one"]), pyarrow.array(["two"])]
    table = pyarrow.Table.from_arrays(texts, names=["body", "body"])
    pyarrow.parquet.write_table(table, tmp_path / "b.parquet")
    assert reasons(tmp_path) == {
        "data/a.parquet#1": "its column 'body' holds no text but bytes",
        "data/b.parquet": "its header names 'body' twice",
    }


def test_empty_tables_have_no_rows(tmp_path: Path) -> None:
    """Neither documents nor complaints."""
    (tmp_path / "t.jsonl").write_bytes(b"")
    (tmp_path / "t.csv").write_bytes(b"")
    (tmp_path / "u.csv").write_bytes(b"body,id\n")
    (tmp_path / "t.parquet").write_bytes(parquet([{"body": "x"}])[:0] + parquet([{"body": "x"}]))
    assert [load(each).text for each in rows_of(tmp_path)] == ["x"]


def test_a_time_that_python_cannot_say_costs_its_own_row(tmp_path: Path) -> None:
    """Neither the table nor the enqueue, and no other time stands in for it."""
    for name, far in {
        "a": pyarrow.array([0, 10**8], pyarrow.date32()),
        "b": pyarrow.array([0, 10**18], pyarrow.timestamp("us")),
        "c": pyarrow.array([0, 2**60], pyarrow.timestamp("ms")),
        "d": pyarrow.array([0, 2**62], pyarrow.duration("s")),
    }.items():
        table = pyarrow.table({"body": pyarrow.array(["now", "then"]), "far": far})
        pyarrow.parquet.write_table(table, tmp_path / f"{name}.parquet")
    found = [each for each in listed(tmp_path) if isinstance(each, Found)]
    assert [load(each).text for each in found] == ["now"] * 4
    assert list(reasons(tmp_path)) == [f"data/{name}.parquet#2" for name in "abcd"]


def test_columns_nested_as_deep_as_python_goes_cost_their_own_row(tmp_path: Path) -> None:
    """At no depth is what can be parsed, and then not written, an error of the whole enqueue."""
    depths = range(450, 1_000, 10)
    lines = [f'{{"body":"x","n":{"[" * depth}{"]" * depth}}}' for depth in depths]
    (tmp_path / "t.jsonl").write_text("\n".join([*lines, '{"body":"last"}']))
    found = listed(tmp_path)
    assert len(found) == len(depths) + 1
    assert isinstance(found[-1], Found)


def broken_footer() -> bytes:
    data = bytearray(parquet(ROWS))
    length = int.from_bytes(data[-8:-4], "little")
    data[-8 - length : 12 - length] = b"\xff" * 20
    return bytes(data)


def test_a_table_whose_footer_was_damaged_is_named_and_ends_no_worker(tmp_path: Path) -> None:
    """Whoever reads a row of it is told of that row alone."""
    (tmp_path / "t.parquet").write_bytes(parquet(ROWS))
    [first, *_] = rows_of(tmp_path)
    (tmp_path / "t.parquet").write_bytes(broken_footer())
    assert cause(first, AnyReader()) == ("source_changed", True)
    [(name, reason)] = reasons(tmp_path).items()
    assert name == "data/t.parquet"
    assert "not Parquet" in reason


def test_a_damaged_row_group_ends_its_table_only(tmp_path: Path) -> None:
    """The rows before it and the other files are taken up, and where it ends is said."""
    data = bytearray(parquet(ROWS, group=1))
    at = data.index("ünïcödé".encode())
    data[at - 40 : at] = b"\xff" * 40
    (tmp_path / "a.parquet").write_bytes(data)
    (tmp_path / "b.jsonl").write_bytes(jsonl(ROWS))
    found = listed(tmp_path)
    assert [each.source_id for each in found if isinstance(each, Found)] == [
        "data/a.parquet#1",
        "data/a.parquet#2",
        *(f"data/b.jsonl#{number}" for number in (1, 2, 3, 4)),
    ]
    [(name, reason)] = reasons(tmp_path).items()
    assert name == "data/a.parquet#3"
    assert "what follows it was not read" in reason


def test_a_row_that_never_ends_is_not_held_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quote that was never closed, or a file that is no table at all."""
    monkeypatch.setattr("batchq.source.table_formats.MAX_ROW", 1000)
    (tmp_path / "t.csv").write_bytes(b'body\nx\n"' + b"x\n" * 1000)
    (tmp_path / "t.jsonl").write_bytes(b'{"body":"a"}\n{"body":"' + b"x" * 2000)
    said = reasons(tmp_path)
    assert set(said) == {"data/t.csv#2", "data/t.jsonl#2"}
    assert all("longer than 1,000 bytes" in reason for reason in said.values())


# -- read again ------------------------------------------------------------------


def cause(found: Found, reader: AnyReader, limit: int = ENOUGH) -> tuple[str, bool]:
    with pytest.raises(DocumentError) as caught:
        load_document(item(found), reader, NoExtractor(), limit)
    return caught.value.cause, caught.value.final


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("opened_before", [True, False])
def test_a_row_that_changed_is_never_read_for_the_old_one(
    tmp_path: Path, name: str, opened_before: bool
) -> None:
    """Whether the file was replaced, cut short or lost, and whether it was open by then."""
    path = tmp_path / name
    path.write_bytes(KINDS[name](ROWS))
    found, reader = rows_of(tmp_path)[1], AnyReader()
    if opened_before:
        load(found, reader)
    changed = [ROWS[0], {**ROWS[1], "stars": "1"}, *ROWS[2:]]
    for data in (KINDS[name](changed), KINDS[name](ROWS[:1]), b"", b"\xff" * 10_000):
        path.write_bytes(data)
        assert cause(found, AnyReader()) == ("source_changed", True)
    path.unlink()
    (tmp_path / "other").touch()
    assert cause(found, AnyReader()) == ("source_missing", True)


@pytest.mark.parametrize("name", KINDS)
def test_a_table_that_was_replaced_and_enqueued_again_is_opened_again(
    tmp_path: Path, name: str
) -> None:
    """A worker that holds the old file open must not call the new rows changed."""
    path = tmp_path / name
    path.write_bytes(KINDS[name](ROWS))
    reader = AnyReader()
    load(rows_of(tmp_path)[1], reader)
    new = tmp_path / "new"
    new.write_bytes(KINDS[name]([{**row, "stars": "9"} for row in ROWS]))
    os.replace(new, path)
    assert [row["body"] for row in ROWS] == [load(each, reader).text for each in rows_of(tmp_path)]


def test_a_row_above_the_limit_is_too_large(tmp_path: Path) -> None:
    """Final, as for any document."""
    (tmp_path / "t.jsonl").write_bytes(jsonl(ROWS))
    assert cause(rows_of(tmp_path)[0], AnyReader(), limit=10) == ("too_large", True)


@pytest.mark.parametrize(
    "locator",
    [
        "file:///a#table=jsonl",
        "file:///a#table=jsonl&text=b&at=x",
        "file:///a#table=odd&text=b&at=1",
    ],
)
def test_a_locator_that_leads_to_no_row_is_no_crash(tmp_path: Path, locator: str) -> None:
    """It comes from a damaged ledger."""
    assert is_row(locator)
    with pytest.raises(DocumentError):
        TableReader(lambda file: LocalRanges(f"file://{__file__}")).fingerprint(locator)


def test_more_tables_than_are_kept_open(tmp_path: Path) -> None:
    """Files are closed when others are opened, and opened again."""
    for number in range(40):
        (tmp_path / f"{number:02d}.jsonl").write_bytes(jsonl(ROWS))
    found, reader = rows_of(tmp_path), AnyReader()
    before = open_files()
    for each in [*found, *found]:
        load(each, reader)
    assert len(open_files() - before) <= 20


def test_a_table_says_where_its_rows_are(tmp_path: Path) -> None:
    """`read` gives what `rows` gave, for each kind."""
    for name, write in KINDS.items():
        path = tmp_path / name
        path.write_bytes(write(ROWS))
        table: Table = open_table(path.suffix[1:], LocalRanges(path.as_uri()))
        for row in table.rows():
            assert not isinstance(row, BadRow)
            assert isinstance(row, Row)
            assert table.read(row.at) == row.columns


# -- in S3 -----------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("versioned", [True, False])
def test_tables_in_s3_are_read_by_parts(
    monkeypatch: pytest.MonkeyPatch, name: str, versioned: bool
) -> None:
    """One part serves many rows, and a part that is lost is asked for again."""
    monkeypatch.setattr(source_s3, "SystemClock", ManualClock)
    with strict_server(monkeypatch, versioned=versioned) as server:
        rows = [{"id": str(n), "body": f"text {n}", "stars": "1"} for n in range(500)]
        data = KINDS[name](rows)
        etag = f'"{hashlib.md5(data).hexdigest()}"'
        server.state.put(BUCKET, f"data/{name}", Stored(data, etag), create_only=False)
        reader = AnyReader()
        files = S3Source(f"s3://{BUCKET}/data")
        tables = TableSource(files, reader.open_ranges, text_column="body", id_column="id")
        found = [each for each in tables.list() if isinstance(each, Found)]
        assert [f"s3://{BUCKET}/data/{name}#{n}" for n in range(500)] == [
            f.source_id for f in found
        ]
        worker, before = AnyReader(), server.count("GetObject")
        server.inject("GetObject", Fault.CUT_BODY)
        for each, row in zip(found, rows, strict=True):
            assert row["body"] == load(each, worker).text
        if name != "t.parquet":
            assert server.count("GetObject") - before <= 3
        server.inject("GetObject", *[Fault.CUT_BODY] * 9)
        with pytest.raises(SourceUnavailable):
            load(found[0], AnyReader())
