"""The commands as a user types them, each in a process of its own, on a ledger on disk."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.postgres import WITH_PASSWORD, create_database, drop_database, running_server

SECRET = "hunter2-do-not-print"
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


class Desk:
    """A folder in which commands are typed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("BATCHQ_")
        }
        self.environment |= {"PYTHONPATH": str(ROOT), "COLUMNS": "120"}
        (folder / "docs" / "guide").mkdir(parents=True)
        self.write("docs/a.md", "# One\n\nsome words here")
        self.write("docs/guide/b.txt", "a few more words")
        self.write("docs/empty.txt", "")

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def run(self, *arguments: str, **environment: str) -> Said:
        done = subprocess.run(
            [sys.executable, "-m", "batchq", *arguments],
            cwd=self.folder,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=240,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    def json(self, *arguments: str, **environment: str) -> Any:
        """The document that a command which succeeds prints with --json."""
        said = self.run(*arguments, "--json", **environment)
        assert said.code == 0, said.err
        assert said.json["schema"] == 1
        return said.json

    def refused(self, code: int, *arguments: str, **environment: str) -> Said:
        """Run a command that must fail with `code`, and look at how it says so."""
        said = self.run(*arguments, **environment)
        assert said.code == code, f"{said.code}: {said.out}{said.err}"
        assert said.err.startswith("error: ")
        assert "Traceback" not in said.err
        assert SECRET not in said.err + said.out
        return said


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def enqueued(desk: Desk) -> Desk:
    """With a run of three documents that nobody has worked on yet."""
    desk.json("enqueue", "docs", "--processor", "stats")
    return desk


# -- the whole way ---------------------------------------------------------------------


def test_from_a_folder_to_results(desk: Desk) -> None:
    """Enqueue, work, look, read one result, export all."""
    report = desk.json("enqueue", "docs", "--processor", "stats")
    assert (report["seen"], report["new"], report["rejected"]) == (3, 3, [])

    worked = desk.run("worker", "--json")
    assert worked.code == 0
    kinds = [event["event"] for event in worked.events]
    assert kinds[0] == "started"
    assert kinds[-1] == "stopped"
    assert {"claimed", "committed"} <= set(kinds)
    commits = [event for event in worked.events if event["event"] == "committed"]
    committed = [source_id for event in commits for source_id in event["items"]]
    assert sorted(committed) == ["docs/a.md", "docs/empty.txt", "docs/guide/b.txt"]

    status = desk.json("status")
    assert status["items"]["completed"] == 3
    assert status["items"]["empty"] == 1
    assert status["eta_s"] == 0

    result = desk.run("results", "docs/guide/b.txt").json
    assert result["output"]["words"] == 4
    assert result["processing_version"] == report["processing_version"]
    stored = desk.folder / "batchq-data" / "results" / result["stored"]["key"]
    assert stored.stat().st_size == result["stored"]["length"]

    assert desk.json("results", "--output", "all.jsonl")["written"] == 3
    lines = (desk.folder / "all.jsonl").read_text().splitlines()
    assert {json.loads(line)["source_id"] for line in lines} == {
        "docs/a.md",
        "docs/guide/b.txt",
        "docs/empty.txt",
    }


def test_the_second_time_all_is_known_and_nothing_is_done(enqueued: Desk) -> None:
    """What `make demo` shows when it is run twice."""
    assert enqueued.run("worker").code == 0

    again = enqueued.run("enqueue", "docs")
    assert "nothing is new, 3 known" in again.out
    worked = enqueued.run("worker")
    assert worked.code == 0
    assert "nothing to do" in worked.err
    status = enqueued.json("status")
    assert status["rework"]["attempts"] == 3
    assert status["duplicates"]["enqueue"] == 3


def test_a_failed_document_is_listed_and_sent_back(enqueued: Desk) -> None:
    """Dead letters end the worker with 3, told once; retry makes them ready again, once."""
    (enqueued.folder / "docs" / "a.md").unlink()

    said = enqueued.run("worker")
    assert said.code == 3
    assert sum("docs/a.md" in line for line in said.err.splitlines()) == 1
    (failure,) = enqueued.json("failures")["failures"]
    assert failure["source_id"] == "docs/a.md"
    assert failure["cause"] == "source_missing"
    assert "docs/a.md  source_missing" in enqueued.run("failures").out
    assert enqueued.run("status", "--wait").code == 3

    assert enqueued.json("retry", "--cause", "something_else")["retried"] == 0
    assert enqueued.json("retry", "docs/guide/b.txt")["retried"] == 0
    enqueued.write("docs/a.md", "# One\n\nsome words here")
    again = enqueued.run("enqueue", "docs")
    assert "1 dead letter" in again.err
    assert "batchq retry" in again.err
    assert enqueued.json("retry", "--cause", "source_missing", "docs/a.md")["retried"] == 1
    assert enqueued.run("worker").code == 0
    assert enqueued.json("failures")["failures"] == []


def test_a_worker_that_does_not_have_the_documents_leaves_them_to_others(enqueued: Desk) -> None:
    """Nothing is charged to any: the folder is not mounted there, or its mount was lost."""
    docs, elsewhere = enqueued.folder / "docs", enqueued.folder / "elsewhere"
    docs.rename(elsewhere)
    said = enqueued.run("worker", "--notice", "none")
    assert said.code == 1
    assert f"{docs} that documents were enqueued from is not here" in said.err
    items = enqueued.json("status")["items"]
    assert (items["ready"], items["dead_lettered"]) == (3, 0)

    elsewhere.rename(docs)
    assert enqueued.run("worker", "--notice", "none").code == 0


def test_a_dry_run_writes_nothing(desk: Desk) -> None:
    """No ledger, no folder, no run."""
    before = sorted(desk.folder.rglob("*"))

    report = desk.json("enqueue", "docs", "--processor", "stats", "--dry-run")

    assert report["seen"] == 3
    assert sorted(desk.folder.rglob("*")) == before


def test_a_dry_run_speaks_of_the_run_that_is_there(enqueued: Desk) -> None:
    """Of its processor and not of the default, and it is refused what an enqueue would be."""
    real = enqueued.json("enqueue", "docs")
    assert (
        enqueued.json("enqueue", "docs", "--dry-run")["processing_version"]
        == (real["processing_version"])
    )
    for other, code in ((("--processor", "embed"), 13), (("--layout", "shard"), 2)):
        said = enqueued.run("enqueue", "docs", "--dry-run", *other)
        assert (said.code, said.out) == (code, "")


def test_include_exclude_and_prefix_shape_what_is_taken(desk: Desk) -> None:
    """Patterns are for paths below the root; the prefix stands for its name."""
    options = ("--processor", "stats", "--prefix", "pile")
    taken = desk.json("enqueue", "docs", *options, "--include", "**/*.txt", "--exclude", "empty*")
    assert taken["new"] == 1

    desk.run("worker")

    assert desk.run("results", "pile/guide/b.txt").json["source_id"] == "pile/guide/b.txt"


def test_what_is_no_document_is_rejected_by_name(desk: Desk) -> None:
    """On stderr for people, in the document for programs."""
    os.mkfifo(desk.folder / "docs" / "pipe")

    said = desk.run("enqueue", "docs", "--processor", "stats")
    assert said.code == 0
    assert "rejected: docs/pipe: a pipe" in said.err
    (rejected,) = desk.json("enqueue", "docs")["rejected"]
    assert rejected["source"] == "docs/pipe"


def test_enqueueing_the_current_folder_leaves_batchqs_own_files_alone(enqueued: Desk) -> None:
    """Else results would become documents, and every enqueue would find new ones."""
    enqueued.run("worker")

    assert enqueued.json("enqueue", ".")["new"] == 3
    assert enqueued.json("enqueue", ".")["known"] == 3


def test_waiting_gives_up_with_its_own_code(enqueued: Desk) -> None:
    """Nobody works, so the run cannot end."""
    said = enqueued.refused(16, "status", "--wait", "--timeout", "100ms")

    assert "has not ended after 0.1 s: 3 ready" in said.err


def test_the_status_is_plain_text_without_a_terminal(enqueued: Desk) -> None:
    """No escape sequence reaches a file, whatever the bar looks like."""
    said = enqueued.run("status")

    assert "0 of 3" in said.out
    assert "no worker is alive" in said.out
    assert "\x1b" not in said.out


def test_the_same_commands_work_on_postgresql(desk: Desk, postgres: str) -> None:
    """A ledger for a fleet needs `init` once, and is the same otherwise."""
    environment = {"BATCHQ_LEDGER": postgres}
    desk.refused(10, "enqueue", "docs", "--processor", "stats", **environment)

    desk.json("init", **environment)
    assert desk.json("enqueue", "docs", "--processor", "stats", **environment)["new"] == 3
    assert desk.run("worker", **environment).code == 0
    assert desk.json("status", **environment)["items"]["completed"] == 3
    assert desk.json("results", "--output", "all.jsonl", **environment)["written"] == 3


# -- identity --------------------------------------------------------------------------


def test_a_worker_set_up_for_something_else_is_refused(enqueued: Desk) -> None:
    """The difference names the field, and the run stays as it was."""
    said = enqueued.refused(13, "worker", BATCHQ_PROCESSOR="embed")

    assert 'processor: "embed" here, "stats" in the run' in said.err
    assert enqueued.json("status")["rework"]["attempts"] == 0


def test_an_enqueue_with_another_processor_is_told_to_name_a_run(enqueued: Desk) -> None:
    """The hint is the way out."""
    said = enqueued.refused(13, "enqueue", "docs", "--processor", "embed")

    assert "--run" in said.err


def test_results_in_shards_are_read_like_any_other(desk: Desk) -> None:
    """One object for all three, and each result found in it by the ledger's offsets."""
    desk.json("enqueue", "docs", "--processor", "stats", "--layout", "shard")
    assert desk.run("worker").code == 0
    results = desk.folder / "batchq-data" / "results"
    assert len(list(results.rglob("*.jsonl.zst"))) < 3
    assert desk.run("results", "docs/guide/b.txt").json["output"]["words"] == 4
    assert desk.json("results", "--output", "all.jsonl")["written"] == 3
    desk.write("docs/a.md", "other words")
    desk.json("enqueue", "docs")
    said = desk.json("results", "--output", "all.parquet", "--current")
    assert (said["written"], said["resumed"]) == (2, 0)
    assert desk.json("status")["duplicates"]["divergent"] is None
    said = desk.refused(2, "enqueue", "docs", "--processor", "stats", "--layout", "item")
    assert "layout shard" in said.err


def test_a_worker_with_another_folder_of_results_is_refused(enqueued: Desk) -> None:
    """Its results would lie where nobody looks for them."""
    assert "elsewhere is missing" in enqueued.refused(14, "worker", "--results", "elsewhere").err

    enqueued.run("init", "--results", "elsewhere")
    said = enqueued.refused(14, "worker", "--results", "elsewhere")
    assert "is not that of run 'default'" in said.err


def test_two_runs_of_one_ledger_stay_apart(enqueued: Desk) -> None:
    """The way to another processing version of the same documents."""
    enqueued.json("enqueue", "docs", "--run", "second", "--processor", "stats")
    enqueued.run("worker", "--run", "second")

    assert enqueued.json("status", "--run", "second")["items"]["completed"] == 3
    assert enqueued.json("status")["items"]["completed"] == 0


# -- what goes wrong -------------------------------------------------------------------


def test_before_anything_was_enqueued(desk: Desk) -> None:
    """Every reading command says what to do first."""
    for command in (["status"], ["worker"], ["retry"]):
        said = desk.refused(10, *command)
        assert "batchq enqueue" in said.err
    desk.run("init")
    for command in (["status"], ["worker"], ["failures"], ["results", "docs/a.md"]):
        said = desk.refused(2, *command)
        assert "hint: enqueue something for it: batchq enqueue FOLDER\n" in said.err
    for name in ("words", "two words"):
        assert desk.run("enqueue", "docs", "--processor", "stats", "--run", name).code == 0
    assert "--run names one of 'two words', 'words'; else enq" in desk.refused(2, "status").err
    misspelt = desk.refused(2, "status", "--run", "wrods")
    assert "hint: did you mean words? Else enqueue something" in misspelt.err


def test_an_error_is_a_document_too(desk: Desk) -> None:
    """For programs: kind, message, hint and exit code, on stdout."""
    said = desk.refused(10, "status", "--json")

    assert said.json["schema"] == 1
    assert said.json["error"]["kind"] == "ledger_not_initialised"
    assert said.json["error"]["exit_code"] == 10
    assert said.json["error"]["message"] in said.err
    assert said.json["error"]["hint"] in said.err


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["status", "--no-such-option"], "batchq status --help"),
        (["worker", "--max-failures", "5"], "BATCHQ_MAX_FAILURES, or max_failures in batchq.toml"),
        (["no-such-command"], "batchq --help"),
        (["enqueue"], "batchq enqueue --help"),
        (["enqueue", "nowhere"], None),
        (["enqueue", "docs", "--processor", "stat"], "did you mean stats?"),
        (["enqueue", "docs", "--layout", "heap"], "`item` or `shard`"),
        (["status", "--timeout", "1s"], None),
        (["status", "--wait", "--timeout", "soon"], "90s"),
        (["worker", "--lease-ttl", "soon"], "a duration"),
        (["results"], "--output"),
        (["results", "docs/a.md", "--output", "all.jsonl"], "--output"),
        (["results", "docs/a.md", "--current"], "latest version"),
        (["status", "--config", "missing.toml"], None),
        (["status", "--ledger", "dynamodb://table?rejoin=eu"], "dynamodb://TABLE"),
        (["status", "--run", "\udcff"], "percent-escaped"),
        (["results", "\udcff"], "percent-escaped"),
    ],
)
def test_usage_errors_have_one_code(desk: Desk, arguments: Sequence[str], hint: str | None) -> None:
    """2, and where one exists a way on."""
    said = desk.refused(2, *arguments)

    assert hint is None or hint in said.err.split("hint: ")[1]


def test_a_broken_configuration_file_is_named_with_its_line(desk: Desk) -> None:
    """TOML says where; so does the message."""
    desk.write("batchq.toml", 'run = "default"\nledger = sqlite\n')

    assert "batchq.toml:2:" in desk.refused(2, "status").err


def test_an_unknown_key_is_named_with_the_nearest_one(desk: Desk) -> None:
    """A misspelt setting must not be ignored in silence."""
    desk.write("batchq.toml", 'lease_tll = "60s"\n')

    said = desk.refused(2, "status")
    assert "lease_tll" in said.err
    assert "did you mean lease_ttl?" in said.err


@pytest.mark.parametrize("command", [("init",), ("enqueue", "docs", "--processor", "stats")])
def test_an_unusable_results_folder(desk: Desk, command: Sequence[str]) -> None:
    """A file in its place stands for every reason: root may write into any folder."""
    desk.write("occupied", "")

    said = desk.refused(14, *command, "--results", "occupied/results")

    assert "occupied/results" in said.err


def test_a_foreign_database_is_left_alone(desk: Desk) -> None:
    """Another program's tables are neither used nor added to."""
    path = desk.folder / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE precious (id INTEGER)")
    connection.close()
    before = path.read_bytes()

    for command in (["enqueue", "docs", "--processor", "stats"], ["init"]):
        said = desk.refused(2, *command, "--ledger", "sqlite:///other.db")
        assert "precious" in said.err
    assert desk.refused(10, "status", "--ledger", "sqlite:///other.db")
    assert path.read_bytes() == before


def test_a_corrupt_database_is_named(desk: Desk) -> None:
    """Neither a traceback nor an attempt to mend it."""
    path = desk.folder / "broken.db"
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 8_000)

    for command in (["status"], ["enqueue", "docs", "--processor", "stats"], ["worker"]):
        said = desk.refused(1, *command, "--ledger", "sqlite:///broken.db")
        assert "broken.db is damaged or no SQLite database" in said.err


def test_a_locked_database_is_unreachable(enqueued: Desk) -> None:
    """A shell that holds the lock for ever; who does is for the hint."""
    ledger = enqueued.folder / "batchq-data" / "ledger.db"
    holder = sqlite3.connect(ledger, isolation_level=None)
    try:
        holder.execute("BEGIN IMMEDIATE")
        said = enqueued.refused(11, "retry")
    finally:
        holder.close()

    assert "locked by another process" in said.err
    assert enqueued.json("retry")["retried"] == 0


def test_a_missing_model_is_named_with_every_place_looked_at(desk: Desk) -> None:
    """Nothing is enqueued for a run that nobody could work on."""
    said = desk.refused(1, "enqueue", "docs", "--model", "no-such-model", HF_HUB_OFFLINE="1")

    assert "no-such-model" in said.err
    assert desk.refused(2, "status")


def test_an_unreachable_postgresql(desk: Desk) -> None:
    """A port that nobody listens on; the password in the address stays unseen."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"postgresql://someone:{SECRET}@127.0.0.1:{taken.getsockname()[1]}/ledger"

        said = desk.refused(11, "status", "--json", BATCHQ_LEDGER=address)

    assert "127.0.0.1" in said.err
    assert said.json["error"]["exit_code"] == 11


def test_a_wrong_password_for_postgresql(desk: Desk, locked_role: str) -> None:
    """Access denied is not unreachable: waiting would not help."""
    said = desk.refused(12, "status", BATCHQ_LEDGER=locked_role)

    assert "password" in said.err


def test_settings_are_shown_without_their_secrets(desk: Desk) -> None:
    """With the place that each comes from."""
    desk.write(
        "batchq.toml", f'lease_ttl = "2m"\n\n[processor]\nkind = "m:C"\napi_key = "{SECRET}"'
    )
    address = f"postgresql://someone:{SECRET}@db/ledger"

    said = desk.run("config", "show", "--origin", BATCHQ_LEDGER=address)
    assert said.code == 0
    assert SECRET not in said.out
    assert "batchq.toml:1" in said.out
    assert "BATCHQ_LEDGER" in said.out
    shown = desk.json("config", "show", "--run", "mine", BATCHQ_LEDGER=address)
    assert shown["settings"]["lease_ttl"] == 120
    assert shown["origin"]["run"] == "option"
    assert SECRET not in json.dumps(shown)


def test_an_unexpected_error_is_one_line_and_a_traceback_on_request(enqueued: Desk) -> None:
    """A user's processor may do anything, and a secret in its error stays unseen."""
    enqueued.write(
        "mine.py",
        "class Broken:\n"
        "    def manifest(self):\n"
        f"        raise RuntimeError('password={SECRET}')\n"
        "    load = prepare = infer = manifest\n",
    )
    command = ("enqueue", "docs", "--run", "mine", "--processor", "mine:Broken")

    said = enqueued.refused(1, *command)
    assert "BATCHQ_DEBUG=1" in said.err

    debugged = enqueued.run(*command, BATCHQ_DEBUG="1")
    assert debugged.code == 1
    assert "Traceback" in debugged.err
    assert "mine.py" in debugged.err
    assert SECRET not in debugged.err


def test_an_enqueue_of_which_nothing_was_taken_up_is_an_error(desk: Desk) -> None:
    """A script must not go on as if there was something to do."""
    (desk.folder / "odd").mkdir()
    os.mkfifo(desk.folder / "odd" / "pipe")
    for options in ([], ["--dry-run"], ["--json"]):
        said = desk.run("enqueue", "odd", "--processor", "stats", *options)
        assert said.code == 1
        assert "error: every document was rejected: 1 document" in said.err
    desk.write("odd/fine.txt", "words")
    assert desk.run("enqueue", "odd", "--processor", "stats").code == 0


def test_a_source_that_is_not_there_comes_with_a_hint(desk: Desk) -> None:
    """Paths are relative, and the hint says to what."""
    said = desk.refused(2, "enqueue", "nosuch", "--processor", "stats")
    assert f"relative to {desk.folder}" in said.err


def test_a_retry_that_can_change_nothing_says_why(enqueued: Desk) -> None:
    """An unknown document is refused; beside a cause that nothing has stand those there are."""
    (enqueued.folder / "docs" / "a.md").unlink()
    assert enqueued.run("retry").out == "there is no dead letter\n"
    assert enqueued.run("worker").code == 3
    assert enqueued.run("failures").err.startswith("1 dead letter; source_missing (1); ")
    assert "/docs/a.md: no such file" in enqueued.run("failures").out
    said = enqueued.refused(2, "retry", "docs/a.md", "docs/nosuch.md")
    assert "knows no document 'docs/nosuch.md'" in said.err
    said = enqueued.run("retry", "--cause", "boredom")
    assert (said.code, said.out) == (
        0,
        "no dead letter has the cause 'boredom'; there are: source_missing (1)\n",
    )
    said = enqueued.run("retry", "docs/empty.txt")
    assert (said.code, said.out) == (0, "this document is no dead letter; see batchq failures\n")
    assert enqueued.run("retry").out.startswith("ready again: 1 item;")


def test_hints_name_the_run_that_the_command_was_given(desk: Desk) -> None:
    """Copied from there, a command works on the same run."""
    on = ["--run", "two words"]
    named = "--run 'two words'"
    assert desk.run("enqueue", "docs", "--processor", "stats", *on).code == 0
    worker = f"batchq worker {named}"
    assert f"start one: {worker}" in desk.run("status", *on).out
    waited = desk.refused(16, "status", "--wait", "--timeout", "100ms", *on)
    assert f"start one: {worker}" in waited.err
    assert f"a worker brings it: {worker}" in desk.refused(1, "results", "docs/a.md", *on).err
    (desk.folder / "docs" / "a.md").unlink()
    ended = desk.run("worker", *on)
    assert (ended.code, ended.err.split("; ")[-1]) == (3, f"see why: batchq failures {named}\n")
    assert f"dead letters: batchq failures {named}" in desk.run("status", *on).out
    assert f"batchq failures {named}" in desk.refused(1, "results", "docs/a.md", *on).err
    assert f"batchq failures {named}" in desk.refused(2, "retry", "docs/nosuch.md", *on).err
    assert f"batchq failures {named}" in desk.run("retry", "docs/empty.txt", *on).out
    assert f"`batchq retry {named}`" in desk.run("enqueue", "docs", *on).err
    assert f"; batchq retry {named} sends" in desk.run("failures", *on).err
    assert f"; {worker} takes" in desk.run("retry", *on).out


def test_a_path_for_a_source_id_is_told_which_document_it_leads_to(enqueued: Desk) -> None:
    """As a shell completes it, or from another folder; what leads nowhere is told what ids are."""
    inner = copy(enqueued)
    inner.folder = enqueued.folder / "docs" / "guide"
    ledger = f"sqlite:///{enqueued.folder}/batchq-data/ledger.db"
    results = f"{enqueued.folder}/batchq-data/results"
    elsewhere = ["--ledger", ledger, "--results", results]
    for typed in ("./docs/guide/b.txt", f"{enqueued.folder}/docs/guide/../guide/b.txt"):
        said = enqueued.refused(2, "results", typed)
        assert said.err.endswith("hint: did you mean docs/guide/b.txt?\n")
    said = inner.refused(2, "results", "b.txt", *elsewhere)
    assert said.err.endswith("hint: did you mean docs/guide/b.txt?\n")
    assert "a source id is" in enqueued.refused(2, "results", "docs/guide/c.txt").err
    said = enqueued.refused(2, "retry", "docs/guide/b.txt", "./docs/a.md")
    assert "did you mean docs/a.md? batchq failures" in said.err


def test_a_table_without_a_column_comes_with_a_hint(desk: Desk) -> None:
    """It is one document, which hardly anybody means; in a folder of documents it may be."""
    desk.write("docs/rows.jsonl", '{"text": "one"}\n{"text": "two"}\n')
    taken = desk.run("enqueue", "docs/rows.jsonl", "--processor", "stats", "--dry-run")
    assert (taken.code, taken.err.count("docs/rows.jsonl is one document")) == (0, 1)
    assert "--text-column" in taken.err
    rows = ["enqueue", "docs/rows.jsonl", "--processor", "stats", "--text-column", "text"]
    assert desk.run(*rows).err == desk.run("enqueue", "docs", "--processor", "stats").err == ""


def test_an_export_says_which_documents_have_no_result(enqueued: Desk) -> None:
    """On stderr, whatever its form: half of a run must not pass for all of it."""
    early = enqueued.run("results", "--output", "early.jsonl")
    assert (early.code, early.out) == (0, "0 results written to early.jsonl\n")
    assert "a result: 3 items unfinished (batchq worker)\n" in early.err
    (enqueued.folder / "docs" / "a.md").unlink()
    assert enqueued.run("worker").code == 3
    ended = enqueued.run("results", "--output", "ended.jsonl", "--json")
    assert (ended.code, ended.json["written"]) == (0, 2)
    assert "a result: 1 dead letter (batchq failures)\n" in ended.err
    enqueued.write("docs/a.md", "# One\n\nsome words here")
    assert enqueued.run("retry").code == enqueued.run("worker").code == 0
    assert enqueued.run("results", "--output", "all.jsonl").err == ""


def test_settings_are_shown_as_they_are_written(desk: Desk) -> None:
    """5h, and not 18000.0; for machines in seconds."""
    shown = desk.run("config", "show").out
    assert 'expected_uptime = "5h"' in shown
    assert "# notice_queue: none" in shown
    assert desk.json("config", "show")["settings"]["expected_uptime"] == 18_000


def test_the_settings_shown_are_a_file_that_sets_the_same(desk: Desk) -> None:
    """Where it comes from or not: what somebody sees may be kept."""
    desk.write(
        "batchq.toml",
        'run = "mine"\nlease_ttl = "90s"\n[processor]\nkind = "shout:Shout"\nmodel = "m"\n'
        'quoted = "\\"é\\n"\nnested = { "a b" = [1, 2.5, { c = true }] }\n',
    )
    settings = desk.json("config", "show")["settings"]
    assert settings["processor.nested"] == {"a b": [1, 2.5, {"c": True}]}
    for options in ([], ["--origin"]):
        desk.write("shown.toml", desk.run("config", "show", *options).out)
        assert desk.json("config", "show", "--config", "shown.toml")["settings"] == settings


@pytest.mark.parametrize("fate", ["removed", "replaced by another file"])
def test_a_ledger_taken_away_under_a_worker_ends_it_with_an_error(
    enqueued: Desk, fate: str
) -> None:
    """SQLite would go on with the file that no name leads to any more."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "batchq", "worker", "--follow", "--lease-ttl", "1s", "--json"],
        cwd=enqueued.folder,
        env=enqueued.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    for line in worker.stdout:
        if '"committed"' in line:
            break
    ledger = enqueued.folder / "batchq-data" / "ledger.db"
    if fate == "removed":
        ledger.unlink()
    else:
        shutil.copy(ledger, enqueued.folder / "copy.db")
        (enqueued.folder / "copy.db").replace(ledger)
    _, err = worker.communicate(timeout=120)
    assert worker.returncode == 1, err
    assert f"was {fate} while this process works on it" in err


def test_a_reader_that_has_seen_enough_causes_no_noise(enqueued: Desk) -> None:
    """`batchq status | head -0`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "batchq", "status", "--json"],
        cwd=enqueued.folder,
        env=enqueued.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(120) == 1
    process.stderr.close()


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_full_disk_behind_stdout_is_an_error(enqueued: Desk, options: Sequence[str]) -> None:
    """What could not be printed was not said."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "batchq", "status", *options],
            cwd=enqueued.folder,
            env=enqueued.environment,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )

    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def server() -> str:
    return running_server()


@pytest.fixture
def postgres(server: str, tmp_path: Path) -> Iterator[str]:
    """An empty database."""
    name = f"commands_{os.getpid()}_{tmp_path.name}"[:60]
    yield create_database(server, name)
    drop_database(server, name)


@pytest.fixture
def locked_role(server: str) -> Iterator[str]:
    """The address of the server for a role that must give a password, with a wrong one."""
    role = f"locked_{os.getpid()}"
    with psycopg.connect(server, autocommit=True) as connection:
        words = f"CREATE ROLE {role} LOGIN PASSWORD 'right' IN ROLE {WITH_PASSWORD}"
        connection.execute(words.encode())
        yield server.replace("//postgres:@", f"//{role}:{SECRET}@")
        connection.execute(f"DROP ROLE {role}".encode())
