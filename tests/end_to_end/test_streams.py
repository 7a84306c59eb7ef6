"""The three streams of a command: closed, full, in any encoding, and printed to by others."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.test_commands import Desk

PRINTING = """
import os
from batchq.inference.base import Output, Prepared

print("imported")

class Printing:
    def manifest(self):
        print("asked")
        return {}
    def load(self, device):
        os.write(1, b"a library in C has loaded\\n")
    def prepare(self, document):
        return Prepared(document.text, 1)
    def infer(self, batch):
        print("computed")
        return [Output(one.payload, 1, 1) for one in batch]
"""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """With a folder of which not every name is ASCII."""
    desk = Desk(tmp_path)
    desk.write("docs/\u00e9\U0001f600.txt", "words")
    return desk


def shell(desk: Desk, line: str) -> subprocess.CompletedProcess[str]:
    """`batchq` as a shell starts it, with what redirects its streams."""
    return subprocess.run(
        ["/bin/sh", "-c", f"{shlex.quote(sys.executable)} -m batchq {line}"],
        cwd=desk.folder,
        env=desk.environment,
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_what_a_processor_prints_is_no_part_of_the_json(desk: Desk) -> None:
    """Stdout holds documents and events alone, and stderr all else."""
    desk.write("printing.py", PRINTING)
    enqueued = desk.run("enqueue", "docs", "--processor", "printing:Printing", "--json")
    assert json.loads(enqueued.out)["new"] == 4
    assert "imported" in enqueued.err

    worker = desk.run("worker", "--notice", "none", "--json")
    assert worker.code == 0, worker.err
    assert worker.events[-1]["event"] == "stopped"
    for printed in ("asked", "a library in C has loaded", "computed"):
        assert printed in worker.err


def test_a_command_ends_though_its_processors_threads_do_not(desk: Desk) -> None:
    """A worker would say that the run is finished, and stay on its machine for ever."""
    start = "import threading; threading.Thread(target=threading.Event().wait).start()"
    desk.write("lingering.py", PRINTING.replace('print("imported")', start))
    said = desk.run("enqueue", "docs", "--processor", "lingering:Printing")
    assert (said.code, "4 new" in said.out) == (0, True)
    assert "leaving without them" in said.err


def test_commands_work_without_any_stream(desk: Desk) -> None:
    """As some schedulers start them: nothing that is opened later is taken for one."""
    closed = "<&- >&- 2>&-"
    assert shell(desk, f"enqueue docs --processor stats {closed}").returncode == 0
    assert shell(desk, f"worker --notice none --json {closed}").returncode == 0
    status = desk.json("status")
    assert (status["items"]["completed"], status["items"]["total"]) == (4, 4)
    assert desk.json("verify")["ok"] == 4


def test_an_exit_code_does_not_depend_on_who_reads_stderr(desk: Desk) -> None:
    """A full disk behind it, or nobody: the work is done, and a refusal keeps its own code."""
    assert shell(desk, "enqueue docs --processor stats 2>/dev/full").returncode == 0
    assert shell(desk, "worker --notice none 2>/dev/full").returncode == 0
    refused = shell(desk, "status --json --run other 2>/dev/full")
    assert refused.returncode == 2
    assert json.loads(refused.stdout)["error"]["exit_code"] == 2


def test_a_stream_that_cannot_say_a_name_gets_it_escaped(desk: Desk) -> None:
    """And JSON stays the same document."""
    run = ("--run", "l\u00e4uf \U0001f600")
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    said = desk.run("enqueue", "docs", "--processor", "stats", *run, **ascii_only)
    assert said.out.startswith("run l\\xe4uf \\U0001f600 (stats-"), said.err
    assert desk.json("status", *run, **ascii_only)["run"] == run[1]
    assert desk.run("status", *run, **ascii_only).code == 0
