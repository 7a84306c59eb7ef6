"""Parquet: the same results as a table, vectors as vectors, and nothing lost on the way."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchq.errors import UsageError
from batchq.inference.vectors import shortest_floats
from batchq.results import documents, parquet
from tests.unit.archive import Archive

EMBED = {"processor": "embed"}


def vectors(count: int, dimension: int = 24) -> Any:
    values = numpy.random.default_rng(7).standard_normal((count, dimension)).astype(numpy.float32)
    values[0, :4] = [0.0, -0.0, 1e-38, 3.4e38]
    values[1, :3] = [1e-45, 16777216.0, -0.1]
    return values


def exported(archive: Archive, folder: Path) -> pa.Table:
    path = folder / "all.parquet"
    archive.export(path, force=True)
    return pq.read_table(path)


@pytest.mark.parametrize("layout", ["item", "shard"])
def test_embeddings_come_back_bit_by_bit(tmp_path: Path, layout: str) -> None:
    """Float32 to decimals to frames to a fixed-size list of float32, zeros' signs included."""
    given = vectors(30)
    archive = Archive(tmp_path, shortest_floats(given), layout, manifest=EMBED)

    table = exported(archive, tmp_path)

    assert pa.list_(pa.float32(), 24) == table.schema.field("output").type
    numbers = table.column("output").combine_chunks().flatten().to_numpy()
    assert given.tobytes() == numbers.tobytes()


def test_a_table_says_what_the_documents_say(tmp_path: Path) -> None:
    """Every column against what a program reads."""
    archive = Archive(tmp_path, [[0.5, -1.0], None, [2.0, 1e-9]], "shard", manifest=EMBED)

    rows = exported(archive, tmp_path).to_pylist()

    read = list(documents(archive.ledger, archive.run, archive.store))
    assert len(rows) == len(read) == 3
    for row, document in zip(rows, read, strict=True):
        if document["output"] is not None:
            expected = numpy.array(document["output"], numpy.float32).tolist()
            assert expected == row["output"]
        else:
            assert row["output"] is None
        assert document["provenance"] == json.loads(row["provenance"])
        for name in ("source_id", "source_version", "processing_version", "item_key", "stored"):
            assert document[name] == row[name]
        assert (document["tokens_total"], document["tokens_used"]) == (3, 2)
        assert (row["tokens_total"], row["tokens_used"]) == (3, 2)


def test_vectors_of_another_processor_keep_every_digit(tmp_path: Path) -> None:
    """Only what is known to be float32 is made float32."""
    given = [[0.1234567890123, 2.0], [1 / 3, -1e300]]
    archive = Archive(tmp_path, given)

    table = exported(archive, tmp_path)

    assert pa.list_(pa.float64(), 2) == table.schema.field("output").type
    assert given == table.column("output").to_pylist()


def test_what_a_double_holds_exactly_stays_a_vector(tmp_path: Path) -> None:
    """Integers up to 2**53, and decimals of any size."""
    given = [[2**53, -(2**53)], [1e300, 0.5], [1e16, 1]]
    archive = Archive(tmp_path, given)

    column = exported(archive, tmp_path).column("output")

    assert pa.list_(pa.float64(), 2) == column.type
    assert given == column.to_pylist()


@pytest.mark.parametrize(
    "outputs",
    [
        [{"words": 3}, None, {"words": 4, "größe": ["ü", 1.5]}],
        ["text", "[1.0,2.0]"],
        [[[0.5, 1.0]], [[0.5, 1.0]]],
        [[], [1.0]],
        [[0.5], [], [0.25]],
        [None, None],
        [True, 5],
    ],
)
def test_other_outputs_are_json_text(tmp_path: Path, outputs: list[Any]) -> None:
    """Whatever JSON can say comes back, and no text is a null."""
    archive = Archive(tmp_path, outputs, manifest=EMBED)

    column = exported(archive, tmp_path).column("output")

    assert pa.string() == column.type
    assert outputs == [None if text is None else json.loads(text) for text in column.to_pylist()]


@pytest.mark.parametrize(
    "odd", [[1.0], [1.0, 2.0, 3.0], ["a", "b"], [None, 1.0], {"vector": [1.0, 2.0]}, "1.0,2.0"]
)
def test_one_output_that_is_no_vector_makes_all_of_them_text(
    tmp_path: Path, odd: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The export begins anew, says which document it was, and loses nothing."""
    given = [[0.25, 0.5], [1.0, 2.0], odd]
    archive = Archive(tmp_path, given)

    with caplog.at_level(logging.WARNING):
        column = exported(archive, tmp_path).column("output")

    assert given == [json.loads(text) for text in column.to_pylist()]
    assert "docs/2.md" in caplog.text


@pytest.mark.parametrize("large", [2**53 + 1, -(2**64), 10**400])
def test_an_integer_that_a_double_rounds_makes_all_of_them_text(
    tmp_path: Path, large: int, caplog: pytest.LogCaptureFixture
) -> None:
    """An identifier among numbers comes back as it was given."""
    given = [[1, 0.5], None, [large, 1]]
    archive = Archive(tmp_path, given)

    with caplog.at_level(logging.WARNING):
        column = exported(archive, tmp_path).column("output")

    assert given == [None if text is None else json.loads(text) for text in column.to_pylist()]
    assert "docs/2.md" in caplog.text


def test_no_results_are_an_empty_table(tmp_path: Path) -> None:
    """With its columns."""
    table = exported(Archive(tmp_path, 0), tmp_path)
    assert (table.num_rows, table.num_columns) == (0, 9)


def test_row_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than one of them is in memory while the file is written."""
    monkeypatch.setattr(parquet, "ROW_GROUP_BYTES", 2_000)
    monkeypatch.setattr("batchq.results.reading.PAGE", 5)
    archive = Archive(tmp_path, shortest_floats(vectors(50)), manifest=EMBED)
    path = tmp_path / "all.parquet"
    archive.export(path)
    assert pq.ParquetFile(path).num_row_groups > 3
    assert [f"docs/{n}.md" for n in range(50)] == pq.read_table(path)["source_id"].to_pylist()


def test_without_the_library_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON lines need nothing."""
    archive = Archive(tmp_path, 1)
    monkeypatch.setitem(sys.modules, "pyarrow.compute", None)
    with pytest.raises(UsageError, match="pyarrow") as caught:
        archive.export(tmp_path / "all.parquet")
    assert caught.value.hint == "pip install '.[parquet]' in batchq's source folder"
    assert archive.export(tmp_path / "all.jsonl").written == 1


READS = """
import json, sys
import batchq
assert not {"sqlalchemy", "typer", "zstandard"} & set(sys.modules), "import batchq is not cheap"
import pyarrow
found = list(batchq.read_results("words", ledger="sqlite:///ledger.db", results="out"))
print(json.dumps([each["source_id"] for each in found]))
print(pyarrow.Table.from_pylist(found).num_rows)
try:
    list(batchq.read_results("none", ledger="sqlite:///ledger.db"))
except batchq.errors.UsageError as error:
    print(error.message)
"""


def test_a_program_reads_a_run_by_its_settings(tmp_path: Path) -> None:
    """As pandas, Polars and datasets take them: an iterator of dicts."""
    (tmp_path / "docs").mkdir()
    for name in ("a", "b"):
        (tmp_path / "docs" / f"{name}.txt").write_text(f"some words of {name}")
    root = str(Path(__file__).parents[2])
    place = ["--run", "words", "--ledger", "sqlite:///ledger.db", "--results", "out"]
    for command in (
        ["-m", "batchq", "enqueue", "docs", "--processor", "stats", "--layout", "shard", *place],
        ["-m", "batchq", "worker", *place],
        ["-c", READS],
    ):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env={"PYTHONPATH": root, "PATH": "", "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
    names, number, refused = done.stdout.splitlines()
    assert json.loads(names) == ["docs/a.txt", "docs/b.txt"]
    assert number == "2"
    assert "there is no run 'none'" in refused
