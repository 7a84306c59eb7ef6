"""A bad night: results lost, cut short and altered behind the ledger, found and mended."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.test_commands import Desk
from tests.faults.s3_state import Stored
from tests.faults.strict_s3 import StrictS3
from tests.s3 import BUCKET, strict_server
from tests.unit.audit_kit import flip, truncate

DOCUMENTS = 120
DAMAGED = 100


@dataclass
class Rig:
    """A desk with a finished run, and a way to its objects past every command."""

    desk: Desk
    read: Callable[[str], bytes]
    write: Callable[[str, bytes], None]
    delete: Callable[[str], None]

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        with sqlite3.connect(self.desk.folder / "batchq-data" / "ledger.db") as lite:
            return lite.execute(
                f"SELECT i.source_id, t.object_key, t.byte_offset, t.byte_length, t.sha256 "
                f"FROM {table} AS t JOIN items AS i ON i.id = t.id ORDER BY t.id"
            ).fetchall()


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path)
    for number in range(DOCUMENTS - 3):
        desk.write(f"docs/guide/{number:03}.txt", f"some words of document {number} " * 3)
    return desk


@pytest.fixture
def local(desk: Desk) -> Rig:
    store = desk.folder / "batchq-data" / "results"

    def write(key: str, data: bytes) -> None:
        (store / key).write_bytes(data)

    return Rig(
        desk, lambda key: (store / key).read_bytes(), write, lambda key: (store / key).unlink()
    )


@pytest.fixture
def s3(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    with strict_server(monkeypatch) as server:
        desk.environment |= {n: v for n, v in os.environ.items() if n.startswith("AWS_")}
        desk.environment["BATCHQ_RESULTS"] = f"s3://{BUCKET}"
        yield Rig(
            desk,
            lambda key: server.state.get(BUCKET, key).data,
            lambda key, data: lay(server, key, data),
            lambda key: server.state.delete(BUCKET, key),
        )


def lay(server: StrictS3, key: str, data: bytes) -> None:
    server.state.put(BUCKET, key, Stored(data, '"altered"'), create_only=False)


def damage(rig: Rig, rows: list[tuple[Any, ...]]) -> dict[str, str]:
    """A third each flipped, cut short and deleted; by source id, what verify is to call it."""
    expected = {}
    for number, (source_id, key, *_) in enumerate(rows):
        if number % 3 == 2:
            rig.delete(key)
        else:
            rig.write(key, (flip, truncate)[number % 3](rig.read(key)))
        expected[source_id] = "missing" if number % 3 == 2 else "corrupt"
    return expected


def named(report: Any) -> dict[str, str]:
    return {one["source_id"]: one["kind"] for one in report["damage"]}


@pytest.mark.parametrize("where", ["local", "s3"])
def test_a_hundred_damaged_results_are_found_and_mended(
    where: str, request: pytest.FixtureRequest
) -> None:
    """Each by name; a worker makes them anew, and the history keeps what they were."""
    rig: Rig = request.getfixturevalue(where)
    rig.desk.json("enqueue", "docs", "--processor", "stats")
    assert rig.desk.run("worker").code == 0
    committed = rig.rows("results")
    expected = damage(rig, committed[5 : 5 + DAMAGED])

    found = rig.desk.run("verify", "--json")
    assert found.code == 15
    assert named(found.json) == expected
    assert (found.json["checked"], found.json["ok"]) == (DOCUMENTS, DOCUMENTS - DAMAGED)
    assert (found.json["tally_drift"], found.json["orphans"]) == ({}, 0)

    if where == "s3":
        # No answer is no damage: nothing is reported lost, nothing sent back.
        nowhere = {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9"}
        said = rig.desk.refused(14, "verify", "--repair", **nowhere)
        assert "missing" not in said.out + said.err
        assert rig.rows("results") == committed

    repaired = rig.desk.json("verify", "--repair")
    assert (repaired["repaired"], named(repaired)) == (DAMAGED, expected)
    assert rig.desk.run("worker").code == 0
    assert rig.desk.json("results", "--output", "all.jsonl")["written"] == DOCUMENTS
    assert rig.rows("results_history") == committed[5 : 5 + DAMAGED]

    left = sum(kind == "corrupt" for kind in expected.values())
    clean = rig.desk.json("verify", "--remove-orphans")
    assert (clean["ok"], clean["orphans"], clean["removed"]) == (DOCUMENTS, left, left)
    assert clean["unsettled"] == 0
    assert not list((rig.desk.folder / "batchq-data").glob(".verify-*"))


def test_damaged_frames_of_shards_are_mended_alone(local: Rig) -> None:
    """Their neighbours in the same object stay committed where they are."""
    local.desk.json("enqueue", "docs", "--processor", "stats", "--layout", "shard")
    assert local.desk.run("worker").code == 0
    committed = local.rows("results")
    for _, key, offset, length, _ in committed[::10]:
        data = local.read(key)
        frame = flip(data[offset : offset + length])
        local.write(key, data[:offset] + frame + data[offset + length :])

    repaired = local.desk.json("verify", "--repair")
    assert named(repaired) == {row[0]: "corrupt" for row in committed[::10]}
    assert local.desk.run("worker").code == 0
    assert local.desk.json("verify")["ok"] == DOCUMENTS
    assert local.rows("results_history") == committed[::10]
    kept = [row for number, row in enumerate(committed) if number % 10]
    assert set(kept) < set(local.rows("results"))


def test_verify_says_in_words_what_it_found_and_what_it_cannot_do(local: Rig) -> None:
    """Which result, where it lay, what to do; and no other store is taken for a lost one."""
    local.desk.json("enqueue", "docs", "--processor", "stats")
    local.desk.run("worker")
    source_id, key, *_ = local.rows("results")[0]
    local.delete(key)
    said = local.desk.run("verify")
    assert said.code == 15
    assert f"missing  {source_id}  {key}" in said.out
    assert f"{DOCUMENTS} results read: {DOCUMENTS - 1} ok, 1 missing, 0 corrupt" in said.out
    assert "1 damaged result left; " in said.err
    assert said.err.endswith(": batchq verify --repair\n")
    (local.desk.folder / "elsewhere").mkdir()
    local.desk.refused(14, "verify", "--repair", "--results", "elsewhere")
    local.desk.refused(2, "verify", "--sample", "5", "--remove-orphans")
    assert len(local.rows("results")) == DOCUMENTS
