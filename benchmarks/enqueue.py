"""How near `enqueue` comes to merely reading the documents: a ratio of rates within one run.

    python -m benchmarks.enqueue [--files 100000] [--threads N] [--repeat 3] [--json]

    bare      lists the folders; threads stat, read and digest the files, some hundred at a time
    enqueue   the same folders into a new SQLite ledger, everything acknowledged and durable
    memory    peak resident memory of an enqueue of a tenth of the files, and of all

Each measurement is a process of its own, `--repeat` times in turn, and the fastest counts:
what else runs on the machine only ever slows one down. Files hold 0.3 to 3 KB.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from batchq.clock import SystemClock
from batchq.enqueue import enqueue
from batchq.ledger.sql import SqlLedger
from batchq.source.directory import DirectorySource, LocalReader

CHUNK = 250
FOLDER_FILES = 1_000
TARGET = 0.60
RSS_UNIT = 1 if sys.platform == "darwin" else 1024


def make_documents(root: Path, first: int, last: int) -> None:
    """Small text files with numbers `first` to `last`, a thousand to a folder."""
    for number in range(first, last):
        folder = root / f"{number // FOLDER_FILES:04d}"
        if number % FOLDER_FILES == 0:
            folder.mkdir(parents=True)
        line = f"Document {number} of those that are enqueued.\n"
        (folder / f"document-{number:07d}.txt").write_text(line * (7 + number % 60))


# -- what is measured, each in a process of its own ------------------------------------------


def bare(root: Path, threads: int) -> int:
    """Stat, read and digest every file; how many there were."""

    def digest(paths: list[str]) -> int:
        for path in paths:
            size = os.stat(path).st_size
            fd = os.open(path, os.O_RDONLY)
            data = os.read(fd, size + 1)
            os.close(fd)
            hashlib.sha256(data).hexdigest()
        return len(paths)

    def chunks() -> Iterator[list[str]]:
        chunk: list[str] = []
        pending = [str(root)]
        while pending:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                        continue
                    chunk.append(entry.path)
                    if len(chunk) == CHUNK:
                        yield chunk
                        chunk = []
        if chunk:
            yield chunk

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(digest, chunks()))


def enqueued(root: Path, threads: int) -> int:
    """Enqueue every file to a new SQLite ledger; how many it took up."""
    with tempfile.TemporaryDirectory(dir=root.parent) as scratch:
        ledger = SqlLedger(f"sqlite:///{scratch}/ledger.db")
        ledger.initialise()
        run = ledger.create_run("benchmark", "none-000000000000", {"kind": "none"}, "item")
        report = enqueue(
            ledger,
            run,
            [DirectorySource(root)],
            LocalReader(),
            clock=SystemClock(),
            threads=threads,
        )
        ledger.close()
    return report.new


def measure(what: str, root: Path, threads: int) -> None:
    """Print what one measurement took as JSON."""
    start = time.perf_counter()
    files = bare(root, threads) if what == "bare" else enqueued(root, threads)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT
    print(json.dumps({"files": files, "seconds": seconds, "peak_bytes": peak}))


# -- the comparison --------------------------------------------------------------------------


def in_process(what: str, root: Path, threads: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.enqueue", "--threads", str(threads)]
    done = subprocess.run(
        [*command, "--measure", what, str(root)],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        check=True,
    )
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome


def compare(files: int, threads: int, repeat: int) -> dict[str, Any]:
    """Rates in files a second, peaks in bytes, and the ratios."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "documents"
        make_documents(root, 0, files // 10)
        few = in_process("enqueue", root, threads)
        make_documents(root, files // 10, files)
        rates: dict[str, list[float]] = {"bare": [], "enqueue": []}
        peaks = []
        for _ in range(repeat):
            for what, measured in rates.items():
                outcome = in_process(what, root, threads)
                if outcome["files"] != files:
                    raise SystemExit(f"{what} saw {outcome['files']} files of {files}")
                measured.append(files / outcome["seconds"])
                if what == "enqueue":
                    peaks.append(outcome["peak_bytes"])
    return {
        "files": files,
        "threads": threads,
        "bare_per_s": max(rates["bare"]),
        "enqueue_per_s": max(rates["enqueue"]),
        "ratio": max(rates["enqueue"]) / max(rates["bare"]),
        "target": TARGET,
        "peak_bytes_of_a_tenth": few["peak_bytes"],
        "peak_bytes": max(peaks),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", nargs=2, metavar=("WHAT", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure[0], Path(options.measure[1]), options.threads)
        return
    figures = compare(options.files, options.threads, options.repeat)
    if options.json:
        print(json.dumps(figures))
        return
    print(f"{figures['files']:,} files, {figures['threads']} threads")
    print(f"bare loop  {figures['bare_per_s']:10,.0f} files/s")
    print(f"enqueue    {figures['enqueue_per_s']:10,.0f} files/s")
    print(f"ratio      {figures['ratio']:10.2f}   (target {TARGET:.2f})")
    print(
        f"peak       {figures['peak_bytes'] >> 20:10,} MiB, "
        f"{figures['peak_bytes_of_a_tenth'] >> 20:,} MiB for a tenth of the files"
    )


if __name__ == "__main__":
    main()
