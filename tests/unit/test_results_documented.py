"""What docs/results.md shows of other libraries is run, word for word, on results as they come."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

from batchq.enqueue import run as marking
from batchq.ledger.sql import SqlLedger
from batchq.result import sha256_hex
from tests.unit.archive import Archive

ROOT = Path(__file__).parents[2]
SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "results.md").read_text(), re.S)

TELL = """
def tell(made):
    if isinstance(made, pandas.DataFrame):
        made = made.to_dict("records")
    elif isinstance(made, polars.DataFrame):
        made = made.to_dicts()
    elif isinstance(made, pyarrow.Table):
        made = made.to_pylist()
    rows = [(row["source_id"], row["output"]) for row in made]
    vectors = [[float(n) for n in output] for _, output in rows if output is not None]
    print("made", json.dumps([rows[0][0], len(rows), vectors]))
"""


def told_snippets() -> str:
    """The documentation's own statements, each followed by a look at what it made."""
    lines = ["import json", TELL]
    for snippet in SNIPPETS:
        for statement in ast.parse(snippet).body:
            lines.append(ast.unparse(statement))
            if isinstance(statement, ast.Assign):
                lines.append(f"tell({ast.unparse(statement.targets[0])})")
    return "\n".join(lines)


def test_every_library_takes_what_the_documentation_gives_it(tmp_path: Path) -> None:
    """All results and the same numbers by each way, though more have no vector than Polars samples.

    `datasets` keeps files: in a folder of its own, and with no word to its hub.
    """
    ledger = SqlLedger(f"sqlite:///{tmp_path}/ledger.db")
    ledger.initialise()
    vectors = [[0.5, 0.25], [1.0, -2.0]]
    outputs = [None] * 120 + vectors
    archive = Archive(tmp_path, outputs, "shard", ledger=ledger, manifest={"processor": "embed"})
    marker = marking._marker(archive.run)
    archive.store.put_if_absent(f"{archive.run.prefix}/run.json", marker, sha256_hex(marker))
    archive.export(tmp_path / "vectors.parquet")
    ledger.close()

    done = subprocess.run(
        [sys.executable, "-c", told_snippets()],
        cwd=tmp_path,
        env={
            "PYTHONPATH": str(ROOT),
            "PATH": "",
            "HOME": str(tmp_path),
            "HF_HUB_OFFLINE": "1",
            "BATCHQ_LEDGER": f"sqlite:///{tmp_path}/ledger.db",
            "BATCHQ_RESULTS": "store",
        },
        capture_output=True,
        text=True,
        timeout=240,
    )

    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith("made ")]
    assert len(told) == 8
    assert {f"made {json.dumps(['docs/0.md', 122, vectors])}"} == set(told)
