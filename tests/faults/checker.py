"""An auditor of finished runs that shares no code with batchq.

It knows the ledger's tables, the envelope and the documents, and nothing else: it reads
the database through the raw driver and the results from the folder, recomputes every
identity, digest and tally, and returns what is wrong as sentences. Used by the tests
that kill workers.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import zstandard

from tests.faults.dynamo_rows import read_tables

STATES = ("ready", "delayed", "leased", "results", "dead_letters", "superseded")


def audit(ledger: str, results: Path, run: str, documents: Mapping[str, bytes]) -> list[str]:
    """Everything wrong with a finished run in which every document must be completed."""
    return _Audit(ledger, results, run, documents).wrong


class _Audit:
    def __init__(
        self, ledger: str, results: Path, run: str, documents: Mapping[str, bytes]
    ) -> None:
        self.wrong: list[str] = []
        self.results = results
        self.documents = documents
        self.tables = _read(ledger)
        [self.run] = [row for row in self.tables["runs"] if row["name"] == run]
        self.items = {row["id"]: row for row in self._of_run("items")}
        self._each_item_is_in_one_state()
        self._each_document_is_completed_once()
        named = {self._result_is_whole(row) for row in self._of_run("results")}
        self._objects_trace_to_items(named)
        self._tallies_are_exact()

    def _of_run(self, table: str) -> list[dict[str, Any]]:
        return [row for row in self.tables[table] if row["run_id"] == self.run["id"]]

    def _complain(self, sentence: str) -> None:
        self.wrong.append(sentence)

    def _each_item_is_in_one_state(self) -> None:
        where: dict[int, list[str]] = defaultdict(list)
        for state in STATES:
            for row in self._of_run(state):
                where[row["id"]].append(state)
        for item in self.items:
            if len(where[item]) != 1:
                self._complain(f"item {item} is in {where[item] or 'no state'}")
        for item in where.keys() - self.items.keys():
            self._complain(f"a row in {where[item]} names item {item}, which was never enqueued")
        versions = Counter((r["source_id"], r["source_version"]) for r in self.items.values())
        for version, number in versions.items():
            if number > 1:
                self._complain(f"{version} is {number} items")

    def _each_document_is_completed_once(self) -> None:
        completed = Counter(
            self.items[row["id"]]["source_id"]
            for row in self._of_run("results")
            if row["id"] in self.items
        )
        for source_id in self.documents:
            if completed[source_id] != 1:
                self._complain(f"{source_id} has {completed[source_id]} results")
        for source_id in completed.keys() - self.documents.keys():
            self._complain(f"{source_id} has a result and is no document")

    def _result_is_whole(self, row: Mapping[str, Any]) -> str:
        """Check the object behind a row; its key."""
        key = str(row["object_key"])
        item = self.items.get(row["id"])
        if item is None:
            return key
        path = self.results / key
        if not path.is_file():
            self._complain(f"{key} is committed and missing")
            return key
        data = path.read_bytes()
        if self.run["layout"] == "shard":
            data = data[row["byte_offset"] : row["byte_offset"] + row["byte_length"]]
        if (len(data), _sha256(data)) != (row["byte_length"], row["sha256"]):
            self._complain(f"{key} is not what was committed")
        try:
            [line] = _lines(data) if self.run["layout"] == "shard" else [data]
            envelope = json.loads(line)
        except ValueError as error:
            self._complain(f"{key} is not JSON: {error}")
            return key
        source_id = item["source_id"]
        bytes_of = self.documents.get(source_id, b"")
        version = f"sha256:{_sha256(bytes_of)}"
        expected = {
            "source_id": source_id,
            "source_version": version,
            "processing_version": self.run["processing_version"],
            "item_key": _item_key(source_id, version, self.run["processing_version"]),
            "output_sha256": _sha256(_canonical(envelope.get("output"))),
        }
        for name, value in expected.items():
            if envelope.get(name) != value:
                self._complain(f"{key}: {name} is {envelope.get(name)!r} and should be {value!r}")
        output = envelope.get("output")
        if output != expected_output(bytes_of):
            self._complain(f"{key}: the output {output!r} is not that of {source_id}")
        return key

    def _objects_trace_to_items(self, named: set[str]) -> None:
        """Every object is named by the ledger, or an orphan of one of its items."""
        versions = {(r["source_id"], r["source_version"]) for r in self.items.values()}
        for path in [*self.results.rglob("*.json"), *self.results.rglob("*.jsonl.zst")]:
            key = path.relative_to(self.results).as_posix()
            # Of a shard that is named, some frames may still be orphans.
            if path.name == "run.json" or (key in named and path.suffix == ".json"):
                continue
            data = path.read_bytes()
            for line in [data] if path.suffix == ".json" else _lines(data):
                envelope = json.loads(line)
                if (envelope["source_id"], envelope["source_version"]) not in versions:
                    self._complain(f"{key} traces to no enqueue")

    def _tallies_are_exact(self) -> None:
        counted = {state: len(self._of_run(state)) for state in STATES}
        results = self._of_run("results")
        recount = {
            "ready": counted["ready"] + counted["delayed"],
            "delayed": counted["delayed"],
            "leased": counted["leased"],
            "completed": counted["results"],
            "empty": sum(bool(row["empty"]) for row in results),
            "adopted": sum(bool(row["adopted"]) for row in results),
            "dead_lettered": counted["dead_letters"],
            "superseded": counted["superseded"],
            "fenced": len(self._of_run("fenced")),
            "total": sum(counted.values()) - counted["superseded"],
            "attempts": sum(row["attempt"] for state in STATES for row in self._of_run(state)),
        }
        holders = [self.run, *self._of_run("workers")]
        for name, number in recount.items():
            tally = sum(row[name] for row in holders)
            if tally != number:
                self._complain(f"the tally {name} says {tally}, and there are {number}")


def expected_output(data: bytes) -> dict[str, Any]:
    """What the processor of the kill tests must have made of a document's bytes."""
    return {"sha256": _sha256(data), "words": len(data.decode().split())}


def tally(ledger: str, run: str, name: str) -> int:
    """One tally of a run, added up over all who keep it."""
    tables = _read(ledger, ("runs", "workers"))
    [row] = [row for row in tables["runs"] if row["name"] == run]
    workers = [worker for worker in tables["workers"] if worker["run_id"] == row["id"]]
    return int(row[name]) + sum(int(worker[name]) for worker in workers)


def _read(
    ledger: str, names: tuple[str, ...] = ("runs", "workers", "items", "fenced", *STATES)
) -> dict[str, list[dict[str, Any]]]:
    """The named tables, whole, in one snapshot (on DynamoDB, while nothing moves)."""
    if ledger.startswith("dynamodb:"):
        return read_tables(ledger)
    if ledger.startswith("sqlite:///"):
        lite = sqlite3.connect(ledger.removeprefix("sqlite:///"), 60, isolation_level=None)
        lite.row_factory = sqlite3.Row
        lite.execute("BEGIN")
        read = {
            name: [dict(row) for row in lite.execute(f"SELECT * FROM {name}")] for name in names
        }
        lite.close()
        return read
    import psycopg
    from psycopg.rows import dict_row

    with psycopg.connect(ledger, row_factory=dict_row) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        # The names are this module's own.
        return {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in names}


def _lines(frames: bytes) -> list[bytes]:
    """What zstd frames hold, a line each. Raises ValueError for anything else."""
    try:
        with zstandard.ZstdDecompressor().stream_reader(frames, read_across_frames=True) as stream:
            return stream.read().splitlines(keepends=True)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _canonical(value: object) -> bytes:
    return json.dumps(
        value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False
    ).encode()


def _item_key(*parts: str) -> str:
    framed = b"".join(len(part.encode()).to_bytes(8, "big") + part.encode() for part in parts)
    return _sha256(framed)
