"""What interruptions cost: notices on and off, and how often results are flushed.

    python -m benchmarks.interruptions [--layout item|shard] [--repeat 1] [--rows FILE] [--json]
                                       [--variants notices,auto,1,1000]

The same run under the same schedule of interruptions, on SQLite and a local store: workers,
one after another, live for 6 and 9 s from their first claim and are then told to stop
(SIGTERM) or killed (SIGKILL); the next starts at once, and the third may finish. The
processor sleeps 5 ms a document, so that a busy machine changes little. All of it is to scale:
lives of seconds for hours, a notice 2 s ahead for two minutes, leases of 1 s.

    notices      the interruption is announced; flush interval measured (batchq's own)
    auto         killed without a word; flush interval measured
    1, 100, …    killed; so many results a flush

The variants take turns, `--repeat` times, and medians are told. With `--rows` each run's row
is kept in a file and the report is about all of them, so that a comparison can be made in
turns. `recomputed`: inferences beyond one a document, and what they took. `adopted`: results
found in the store, whose commit was lost but not their inference. `overhead`: seconds beyond
the bare inference, with the starts of three workers and the wait for lost leases.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROCESSOR = """
import time
from pathlib import Path

from batchq.inference.base import Output, Prepared


class Paced:
    batch_tokens = 64

    def manifest(self):
        return {"kind": "paced"}

    def load(self, device):
        pass

    def prepare(self, document):
        return Prepared(document.text, 4)

    def infer(self, batch):
        time.sleep(SECONDS * len(batch))
        with Path("inferred.txt").open("a") as file:
            file.write("x" * len(batch))
        return [Output(one.payload.upper(), 4, 4) for one in batch]
"""

SECONDS = 0.005
LIVES_S = (6.0, 9.0)
DOCUMENTS = 4_000
VARIANTS = "notices,auto,1,1000"
OWN = ("notices", "auto")

Row = dict[str, Any]


def batchq(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "batchq", *arguments, "--json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def answer(folder: Path, *arguments: str) -> dict[str, Any]:
    process = batchq(folder, *arguments)
    output, _ = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"batchq {' '.join(arguments)}: {process.returncode}\n{output}")
    parsed: dict[str, Any] = json.loads(output)
    return parsed


def live(folder: Path, seconds: float | None, end: signal.Signals, flush: str) -> bool:
    """One worker's life, up to `seconds` from its first claim; whether it was cut short."""
    settings = {"BATCHQ_FLUSH_ITEMS": flush, "BATCHQ_NOTICE_WINDOW": "2s"}
    worker = batchq(folder, "worker", "--lease-ttl", "1s", **settings)
    assert worker.stdout is not None
    for line in worker.stdout:
        if json.loads(line)["event"] == "claimed":
            break
    try:
        worker.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        worker.send_signal(end)
        worker.communicate()
        return True
    if worker.returncode != 0:
        raise SystemExit(f"a worker ended with {worker.returncode}")
    return False


def run(variant: str, layout: str) -> Row:
    end = signal.SIGTERM if variant == "notices" else signal.SIGKILL
    flush = "auto" if variant in OWN else variant
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "paced.py").write_text(PROCESSOR.replace("SECONDS", str(SECONDS)))
        (folder / "docs").mkdir()
        for number in range(DOCUMENTS):
            (folder / "docs" / f"{number}.txt").write_text(f"document {number} of many")
        answer(folder, "enqueue", "docs", "--processor", "paced:Paced", "--layout", layout)
        began = time.perf_counter()
        cut_short = [live(folder, seconds, end, flush) for seconds in (*LIVES_S, None)]
        seconds = time.perf_counter() - began
        status = answer(folder, "status")
        recomputed = len((folder / "inferred.txt").read_text()) - DOCUMENTS
    return {
        "variant": variant,
        "layout": layout,
        "seconds": seconds,
        "overhead": seconds - DOCUMENTS * SECONDS,
        "interruptions": sum(cut_short),
        "recomputed": recomputed,
        "recomputed_s": recomputed * SECONDS,
        "adopted": status["duplicates"]["adopted"],
        "given_back": status["rework"]["interrupted"],
        "lost": status["rework"]["lost_leases"],
    }


def report(rows: list[Row]) -> dict[str, Any]:
    """Medians by layout and variant, and batchq's own choice over the best of the killed."""
    layouts: dict[str, Any] = {}
    for layout in sorted({row["layout"] for row in rows}):
        of_layout = [row for row in rows if row["layout"] == layout]
        variants: dict[str, Any] = {}
        for variant in dict.fromkeys(row["variant"] for row in of_layout):
            same = [row for row in of_layout if row["variant"] == variant]
            medians = {
                key: round(statistics.median(row[key] for row in same), 2)
                for key in same[0]
                if key not in ("variant", "layout")
            }
            variants[variant] = {"runs": len(same), **medians}
        killed = [v["seconds"] for name, v in variants.items() if name != "notices"]
        own = variants.get("auto")
        layouts[layout] = {
            "variants": variants,
            "own_choice_to_best": own and round(own["seconds"] / min(killed), 3),
        }
    return {"schema": 1, "documents": DOCUMENTS, "layouts": layouts}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layout", choices=("item", "shard"), default="item")
    parser.add_argument("--variants", default=VARIANTS)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows: list[Row] = []
    if options.rows is not None and options.rows.exists():
        rows = [json.loads(line) for line in options.rows.read_text().splitlines()]
    for _ in range(options.repeat):
        for variant in options.variants.split(","):
            rows.append(run(variant, options.layout))
            if options.rows is not None:
                with options.rows.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    told = report(rows)
    if options.json:
        print(json.dumps(told))
        return
    for layout, of_layout in told["layouts"].items():
        for variant, row in of_layout["variants"].items():
            print(f"{layout} {variant:8}", "  ".join(f"{k} {v:.4g}" for k, v in row.items()))
        print(f"{layout} own choice / best  {of_layout['own_choice_to_best']}")


if __name__ == "__main__":
    main()
