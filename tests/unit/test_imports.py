"""What a command loads: `batchq --help` and `status` must answer at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "sentence_transformers", "boto3", "botocore")

LOADED = """
import sys
from batchq.cli import main
code = main(sys.argv[1:])
print(code, *(name for name in sys.modules if "." not in name), file=sys.stderr)
"""


def loaded(folder: Path, *arguments: str) -> tuple[int, set[str]]:
    """The exit code of a command, and the top-level modules that it loaded."""
    command = [sys.executable, "-c", LOADED, *arguments]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        command,
        cwd=folder,
        env={"PYTHONPATH": str(root), "PATH": "", "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    code, *names = done.stderr.splitlines()[-1].split()
    return int(code), set(names)


@pytest.fixture
def enqueued(tmp_path: Path) -> Path:
    """A folder in which a run exists."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("some words")
    code, _ = loaded(tmp_path, "enqueue", "docs", "--processor", "stats")
    assert code == 0
    return tmp_path


def test_help_loads_no_part_of_batchq_but_the_command_line(tmp_path: Path) -> None:
    """Neither a database nor rich: they would cost more than the answer."""
    code, names = loaded(tmp_path, "--help")

    assert code == 0
    assert names.isdisjoint({*HEAVY, "sqlalchemy", "alembic", "psycopg", "rich", "pydantic"})


def test_status_loads_no_model_library(enqueued: Path) -> None:
    """It reads a ledger and needs nothing else."""
    code, names = loaded(enqueued, "status")

    assert code == 0
    assert "sqlalchemy" in names
    assert names.isdisjoint({*HEAVY, "alembic", "psycopg", "pypdfium2", "selectolax", "numpy"})


def test_a_worker_with_stats_loads_no_model_library(enqueued: Path) -> None:
    """A rehearsal runs where the extra `inference` is not installed."""
    code, names = loaded(enqueued, "worker")

    assert code == 0
    assert names.isdisjoint(HEAVY)


def test_finding_the_processing_version_needs_no_torch(tmp_path: Path) -> None:
    """Enqueueing for a GPU fleet runs on a machine that has none."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("some words")

    code, names = loaded(tmp_path, "enqueue", "docs")

    assert code == 0
    assert names.isdisjoint({"torch", "transformers", "sentence_transformers"})
