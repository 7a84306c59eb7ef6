"""The walk of docs/s3.md: documents of a laptop, a ledger and a store for all, instances."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import create_database, drop_database, running_server
from tests.s3 import BUCKET, SECRET, policy, strict_server

ROOT = Path(__file__).parents[2]
ROLES = ("enqueuer", "worker", "auditor")
DOCUMENTS = 60


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[str]:
    """An empty database."""
    server, name = running_server(), f"fleet_{os.getpid()}"
    yield create_database(server, name)
    drop_database(server, name)


def start(role: str, folder: Path, ledger: str, *arguments: str) -> subprocess.Popen[str]:
    """A command of batchq, typed in `folder` by whoever has that role."""
    folder.mkdir(exist_ok=True)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("BATCHQ_")},
        "PYTHONPATH": str(ROOT),
        "BATCHQ_LEDGER": ledger,
        "BATCHQ_RESULTS": f"s3://{BUCKET}/results",
        "AWS_ACCESS_KEY_ID": role,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "batchq", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return out


def test_documents_of_a_laptop_are_worked_on_where_it_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ledger: str
) -> None:
    """Each command with the rights of its role alone, and the laptop gone before the first
    worker starts."""
    laptop, desk = tmp_path / "laptop", tmp_path / "desk"
    reports = laptop / "reports"
    reports.mkdir(parents=True)
    for number in range(DOCUMENTS):
        (reports / f"{number:02}.md").write_text(f"Report {number}, of six words.")
    policies = {role: policy(role) for role in ROLES}
    secrets = dict.fromkeys(ROLES, SECRET)
    with strict_server(monkeypatch, policies=policies, secrets=secrets) as server:
        ended(start("enqueuer", laptop, ledger, "init"))
        said = ended(
            start(
                "enqueuer", laptop, ledger, "enqueue", "./reports", "--processor", "stats", "--json"
            )
        )
        assert json.loads(said)["new"] == DOCUMENTS
        shutil.rmtree(laptop)

        workers = [
            start("worker", tmp_path / name, ledger, "worker", "--claim", "10")
            for name in ("one", "two")
        ]
        for worker in workers:
            ended(worker)

        status = json.loads(ended(start("auditor", desk, ledger, "status", "--json")))
        ended(start("auditor", desk, ledger, "results", "--output", "reports.jsonl"))
        checked = json.loads(ended(start("auditor", desk, ledger, "verify", "--json")))
        staged = server.state.keys(BUCKET, "results/inputs/")

    assert status["items"]["completed"] == status["items"]["total"] == DOCUMENTS
    assert (checked["ok"], checked["missing"], checked["corrupt"]) == (DOCUMENTS, 0, 0)
    lines = [json.loads(line) for line in (desk / "reports.jsonl").read_text().splitlines()]
    assert {line["source_id"] for line in lines} == {
        f"reports/{number:02}.md" for number in range(DOCUMENTS)
    }
    assert len(lines) == len(staged) == DOCUMENTS
    assert server.count("DeleteObject") == 0
