"""What it costs to start: CPU seconds of `batchq --help` and `batchq status`.

    python -m benchmarks.startup [--repeat 5] [--json]

Each command runs in a process of its own and the cheapest of the repetitions counts: what
else runs on the machine only ever adds to one. The limits are those that the commands are
held to; a command above its limit makes the benchmark exit with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

LIMITS = {"--help": 0.15, "status": 0.45}
ROOT = Path(__file__).parents[1]


def cpu_seconds(arguments: Sequence[str], folder: Path) -> float:
    """User and system time of one run of `batchq` with `arguments` in `folder`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "batchq", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(repeat: int) -> dict[str, float]:
    """The cheapest of `repeat` runs of each command, in CPU seconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "docs").mkdir()
        (folder / "docs" / "a.txt").write_text("some words")
        cpu_seconds(["enqueue", "docs", "--processor", "stats"], folder)
        cpu_seconds(["worker"], folder)
        return {
            command: min(cpu_seconds([command], folder) for _ in range(repeat))
            for command in LIMITS
        }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    measured = measure(options.repeat)
    if options.json:
        print(json.dumps({"cpu_s": measured, "limit_s": LIMITS}))
    else:
        for command, seconds in measured.items():
            print(f"batchq {command:<8} {seconds:.3f} s of CPU, at most {LIMITS[command]} s")
    return int(any(measured[command] > limit for command, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
