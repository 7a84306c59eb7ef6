"""How fast results leave: an export of a run in layout `shard`, in bytes of its output; and
how fast an audit reads them all.

    python -m benchmarks.export [--results 100000] [--dimension 384] [--layout shard|item]
                                [--formats jsonl,parquet,verify] [--repeat 3] [--json]

A finished run of that many embeddings is laid down directly, 256 to a shard in a folder, its
rows in SQLite. Each export is a process of its own and the fastest of `--repeat` counts. A
tenth as large a run is exported too, to compare the peaks of memory. `read` counts the objects'
bytes, packed. `copy` is what the machine gives: as many bytes written to a file and flushed by a
bare loop. `verify` is no export: it reads and checks everything, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy

from batchq.inference.vectors import shortest_floats
from batchq.ledger.base import Run
from batchq.ledger.sql import SqlLedger
from batchq.result import Envelope, canonical_json, result_key, sha256_hex
from batchq.results import LocalFile, export
from batchq.store.frames import packed
from batchq.store.local import LocalStore
from batchq.verify import Journal, audit

TOGETHER = 256
TARGET = 100.0
DISTINCT = 4096
VERSION = "embed-0123456789ab"
RSS_UNIT = 1 if sys.platform == "darwin" else 1024
PROVENANCE = {
    "attempt": 1,
    "generation": 1,
    "worker": "host-4242-0123456789abcdef",
    "batch": [8, 128],
    "device": "NVIDIA H200",
    "versions": {"batchq": "0.1.0", "torch": "2.13.0", "transformers": "5.24.0"},
}


# -- a finished run, without a worker --------------------------------------------------------


def lay_down(folder: Path, name: str, results: int, dimension: int, layout: str) -> None:
    """A run called `name` with `results` rows and their objects."""
    ledger = SqlLedger(f"sqlite:///{folder}/ledger.db")
    ledger.initialise()
    manifest = {"processor": "embed"}
    run = ledger.create_run(name, VERSION, manifest, layout)
    ledger.close()
    values = numpy.random.default_rng(1).standard_normal((DISTINCT, dimension)).astype("float32")
    outputs = [canonical_json(row) for row in shortest_floats(values)]
    objects = folder / "store" / run.prefix
    rows = sqlite3.connect(folder / "ledger.db", isolation_level=None)
    rows.execute("PRAGMA synchronous=OFF")
    [(first,)] = rows.execute("SELECT coalesce(max(id), 0) + 1 FROM items")
    [(worker,)] = rows.execute("SELECT coalesce(max(id), 0) + 1 FROM workers")
    rows.execute(
        "INSERT INTO workers (id, run_id, name, role, state, about, ttl, registered_at, beat_at,"
        " expires_at, claims_since, total, completed) "
        "VALUES (?, ?, ?, 'worker', 'stopped', '{}', 60000, 0, 0, 0, 0, ?, ?)",
        (worker, run.id, f"worker of {name}", results, results),
    )
    for start in range(0, results, TOGETHER):
        numbers = range(start, min(start + TOGETHER, results))
        rows.execute("BEGIN")
        lay_portion(rows, objects, run, layout, first, worker, numbers, outputs)
        rows.execute("COMMIT")
    rows.close()


def lay_portion(
    rows: sqlite3.Connection,
    objects: Path,
    run: Run,
    layout: str,
    first: int,
    worker: int,
    numbers: range,
    outputs: list[bytes],
) -> None:
    shard = f"{run.prefix}/shards/{numbers[0]:032x}.jsonl.zst"
    frames, offset = [], 0
    for number in numbers:
        source_id, version = f"docs/{number // 1000}/{number:09}.txt", f"sha256:{number:064x}"
        envelope = Envelope(source_id, version, VERSION, None, 100, 100, PROVENANCE)
        line = envelope._line(outputs[number % DISTINCT])
        data = packed(line) if layout == "shard" else line
        key = shard
        if layout == "item":
            key = result_key(run.prefix, envelope.item_key, source_id, 1)
            path = objects.parent / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        rows.execute(
            "INSERT INTO items VALUES (?, ?, ?, ?, 1000, '')",
            (first + number, run.id, source_id, version),
        )
        rows.execute(
            "INSERT INTO documents VALUES (?, ?, ?, '', 0)", (run.id, source_id, first + number)
        )
        rows.execute(
            "INSERT INTO results VALUES (?, ?, 1, 1, 0, 0, 0, 0, ?, 't', ?, ?, ?, ?, 0, 0, 0)",
            (run.id, first + number, worker, key, offset, len(data), sha256_hex(data)),
        )
        if layout == "shard":
            frames.append(data)
            offset += len(data)
    if frames:
        (objects / "shards").mkdir(parents=True, exist_ok=True)
        (objects / "shards" / shard.rpartition("/")[2]).write_bytes(b"".join(frames))


# -- what is measured, each in a process of its own ------------------------------------------


def measure(folder: Path, name: str, output: Path, *, current_only: bool) -> dict[str, float]:
    """An export to `output`, or an audit if its suffix is `.verify`."""
    ledger = SqlLedger(f"sqlite:///{folder}/ledger.db")
    run = ledger.find_run(name)
    assert run is not None
    store = LocalStore(folder / "store")
    began = time.perf_counter()
    if output.suffix == ".verify":
        journal = Journal(output, name)
        report = audit(ledger, run, store, journal)
        assert report.is_sound
        journal.close(finished=True)
        number = report.checked
    else:
        number = export(
            ledger, run, store, LocalFile(output), force=True, current_only=current_only
        ).written
    seconds = time.perf_counter() - began
    ledger.close()
    return {"seconds": seconds, "results": number, "peak_mib": peak_mib()}


def stored_bytes(folder: Path, name: str) -> int:
    """How large the objects are that all is read from."""
    ledger = SqlLedger(f"sqlite:///{folder}/ledger.db")
    run = ledger.find_run(name)
    ledger.close()
    assert run is not None
    objects = LocalStore(folder / "store").list(f"{run.prefix}/")
    return sum(each.size for each in objects)


def peak_mib() -> float:
    """Of this process alone: what getrusage tells includes what was inherited at its start."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT / 2**20
    [line] = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def copy(size: int, output: Path) -> float:
    piece = os.urandom(2**20)
    began = time.perf_counter()
    with output.open("wb") as file:
        for _ in range(size // len(piece)):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - began


def in_process(folder: Path, name: str, output: Path, *more: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.export", "--measure", str(folder), name]
    done = subprocess.run(
        [*command, str(output), *more], capture_output=True, text=True, check=True
    )
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def report_on(folder: Path, results: int, formats: str, repeat: int) -> dict[str, Any]:
    stored = stored_bytes(folder, "whole")
    report: dict[str, Any] = {"schema": 1, "results": results}
    for form in formats.split(","):
        suffix, *more = form.split()
        output = folder / f"all.{suffix}"
        turns = [in_process(folder, "whole", output, *more) for _ in range(repeat)]
        seconds = min(turn["seconds"] for turn in turns)
        tenth = in_process(folder, "tenth", output.with_stem("tenth"), *more)
        report[form] = {
            "results_per_s": round(results / seconds),
            "read_MB_per_s": round(stored / seconds / 1e6, 1),
            "peak_mib": round(max(turn["peak_mib"] for turn in turns)),
            "peak_mib_of_a_tenth": round(tenth["peak_mib"]),
        }
        if output.exists():
            size = output.stat().st_size
            report[form] |= {
                "MB_per_s": round(size / seconds / 1e6, 1),
                "bytes_a_result": round(size / results),
                "copy_MB_per_s": round(size / copy(size, output) / 1e6),
            }
            output.unlink()
    report["target_MB_per_s"] = TARGET
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=int, default=100_000)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--layout", choices=("shard", "item"), default="shard")
    parser.add_argument("--formats", default="jsonl,jsonl --current,parquet,verify")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", nargs=3, metavar=("FOLDER", "RUN", "OUTPUT"))
    parser.add_argument("--current", action="store_true")
    options = parser.parse_args()
    if options.measure:
        folder, name, output = options.measure
        print(json.dumps(measure(Path(folder), name, Path(output), current_only=options.current)))
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, number in (("whole", options.results), ("tenth", options.results // 10)):
            lay_down(folder, name, number, options.dimension, options.layout)
        report = report_on(folder, options.results, options.formats, options.repeat)
    if options.json:
        print(json.dumps(report))
        return
    for name, value in report.items():
        print(f"{name:20} {value}")


if __name__ == "__main__":
    main()
