"""The benchmarks' generator of large ledgers: what it writes is what the verbs would."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from batchq.item import NewItem
from batchq.ledger.base import Role, Tallies
from batchq.ledger.sql import SqlLedger
from batchq.result import Result, Stored
from benchmarks.filling import Filling, fill, source_id
from tests.conformance.recount import recount

FILLING = Filling(completed=590, dead_lettered=10, ready=400)

EVENTS = ("known", "adopted", "divergent", "fenced", "attempts", "lost_leases", "interrupted")


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_filled_ledger_is_sound_and_goes_on(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Rows and tallies agree, before and after its items are enqueued again and worked on."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    if kind == "postgresql":
        url = request.getfixturevalue("postgres_url")
    ledger = SqlLedger(url)
    ledger.initialise()
    run = ledger.create_run("run", "stats-1", {"kind": "stats"}, "item")
    fill(url, FILLING)

    def check() -> Tallies:
        tallies = ledger.counts(run).tallies
        counted = recount(url, run.id)
        assert counted == {name: asdict(tallies)[name] for name in counted}
        assert replace(tallies, **dict.fromkeys((*EVENTS, "failures"), 0)) == ledger.recount(run)
        return tallies

    before = check()
    assert (before.total, before.completed, before.dead_lettered) == (1000, 590, 10)
    assert len(ledger.results(run, 0, 10_000)) == 590
    assert {letter.attempt for letter in ledger.dead_letters(run, 0, 100)} == {3}
    assert [worker.committed for worker in ledger.workers(run)] == [590]
    found = ledger.lookup(run, source_id(1000))
    assert found is not None

    ledger.register(run, "e", 60.0, Role.ENQUEUER, {})
    same = NewItem(found.source_id, found.source_version, 1, found.locator, "file:///data")
    answer = ledger.enqueue("e", 1, [same, NewItem("new", "sha256:1", 1, "file:///n", "file:///")])
    assert (answer.new, answer.known, answer.rejected) == (1, 1, ())
    ledger.register(run, "w", 60.0, Role.WORKER, {})
    lease = ledger.claim("w", "t", 1000, alone=True)
    assert lease is not None
    assert len(lease.items) == 401
    stored = Stored("run/1.json", 0, 1, "0" * 64)
    ledger.commit("w", [Result(item.id, "t", stored) for item in lease.items])
    assert check().completed == 991
    ledger.close()
