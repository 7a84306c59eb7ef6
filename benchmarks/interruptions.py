"""What interruptions cost: notices on and off, and how often results are committed.

    python -m benchmarks.interruptions [--documents 1500] [--repeat 2] [--json]

The same run under the same schedule of interruptions, one worker after another on SQLite:
each lives for a few seconds from its first claim, then it is told to stop (SIGTERM) or
killed (SIGKILL), and the next starts at once. The processor sleeps 8 ms a document.

    notices      the interruption is announced, flush interval measured (batchq's own)
    no notices   killed without a word, flush interval measured
    flush 1      killed, every result committed by itself
    flush 1000   killed, a thousand results a commit

`recomputed`: inferences beyond one a document. `adopted`: results found in the store, whose
commit was lost but not their inference. `overhead`: seconds beyond the bare inference.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
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

SECONDS = 0.008
LIVES_S = (4.0, 2.5, 5.0, 3.0, 4.5, 3.5)

VARIANTS: dict[str, tuple[signal.Signals, str]] = {
    "notices": (signal.SIGTERM, "auto"),
    "no notices": (signal.SIGKILL, "auto"),
    "flush 1": (signal.SIGKILL, "1"),
    "flush 1000": (signal.SIGKILL, "1000"),
}


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


def live(folder: Path, seconds: float, end: signal.Signals, flush: str) -> bool:
    """One worker's life; whether it finished the run."""
    worker = batchq(folder, "worker", "--lease-ttl", "2s", BATCHQ_FLUSH_ITEMS=flush)
    assert worker.stdout is not None
    for line in worker.stdout:
        if json.loads(line)["event"] == "claimed":
            break
    try:
        worker.communicate(timeout=seconds)
        return worker.returncode == 0
    except subprocess.TimeoutExpired:
        worker.send_signal(end)
        worker.communicate()
        return worker.returncode == 0


def run(documents: int, end: signal.Signals, flush: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "paced.py").write_text(PROCESSOR.replace("SECONDS", str(SECONDS)))
        (folder / "docs").mkdir()
        for number in range(documents):
            (folder / "docs" / f"{number}.txt").write_text(f"document {number} of many")
        answer(folder, "enqueue", "docs", "--processor", "paced:Paced")
        began = time.perf_counter()
        lives = 0
        while not live(folder, LIVES_S[lives % len(LIVES_S)], end, flush):
            lives += 1
        seconds = time.perf_counter() - began
        status = answer(folder, "status")
        inferred = len((folder / "inferred.txt").read_text())
        return {
            "seconds": seconds,
            "overhead": seconds - documents * SECONDS,
            "interruptions": lives,
            "recomputed": inferred - documents,
            "adopted": status["duplicates"]["adopted"],
            "interrupted": status["rework"]["interrupted"],
            "lost": status["rework"]["lost_leases"],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--documents", type=int, default=1_500)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    best: dict[str, dict[str, float]] = {}
    for _ in range(options.repeat):
        for name, (end, flush) in VARIANTS.items():
            row = run(options.documents, end, flush)
            if name not in best or row["seconds"] < best[name]["seconds"]:
                best[name] = row
    killed = min(best[name]["seconds"] for name in VARIANTS if name != "notices")
    report = {
        "schema": 1,
        "documents": options.documents,
        "variants": {n: {k: round(v, 2) for k, v in row.items()} for n, row in best.items()},
        "own_choice_to_best": round(best["no notices"]["seconds"] / killed, 3),
    }
    if options.json:
        print(json.dumps(report))
        return
    for name, row in best.items():
        print(f"{name:12}", "  ".join(f"{key} {value:.4g}" for key, value in row.items()))
    print(f"own choice / best fixed  {report['own_choice_to_best']}")


if __name__ == "__main__":
    main()
