"""The import rules in pyproject.toml notice what breaks them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

ONE_WAY = "Imports go one way, and every module has its layer"
WIRING = "Only the wiring names concrete adapters; the flow knows protocols"
MODELS = "Models are inference's alone"
DATABASE = "The database is the ledger's alone"
CLOUD = "The cloud's SDK stays in the adapters that speak to it"
CLOCK = "Time and randomness come from the clock"


def broken(tree: Path) -> set[str]:
    """The names of the contracts that the package in `tree` breaks."""
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as f; f()"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "NO_COLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    verdicts = dict(re.findall(r"^(.+) (KEPT|BROKEN)(?: \(.*)?$", done.stdout, re.MULTILINE))
    assert len(verdicts) == 6, done.stdout + done.stderr
    return {name for name, verdict in verdicts.items() if verdict == "BROKEN"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the package and its rules."""
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "batchq", tmp_path / "batchq", ignore=unwanted)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("module", "line", "contracts"),
    [
        ("item.py", "", set()),
        ("item.py", "import batchq.ledger.base", {ONE_WAY}),
        ("store/local.py", "import batchq.ledger.base", {ONE_WAY}),
        ("results.py", "import batchq.enqueue", {ONE_WAY}),
        ("a_new_module.py", "", {ONE_WAY}),
        ("worker/worker.py", "import batchq.store.local", {WIRING}),
        ("cli/status.py", "def f():\n    import batchq.ledger.sql", {WIRING}),
        ("worker/worker.py", "def f():\n    import torch", {MODELS}),
        ("results.py", "import sqlalchemy", {DATABASE}),
        ("store/local.py", "import boto3", {CLOUD}),
        ("worker/pace.py", "import time", {CLOCK}),
        ("lease.py", "from random import random", {CLOCK}),
    ],
)
def test_each_rule_notices_what_breaks_it(
    tree: Path, module: str, line: str, contracts: set[str]
) -> None:
    """One import too many, anywhere, also inside a function."""
    with (tree / "batchq" / module).open("a") as file:
        file.write(f"\n{line}\n")

    assert broken(tree) == contracts
