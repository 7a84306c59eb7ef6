"""Processes that race on every verb, and what must be true whatever they did."""

from __future__ import annotations

import multiprocessing
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict

import pytest

from batchq.ledger.base import State
from tests.conformance.backends import Backend, SqlBackend
from tests.conformance.crowd import DOCUMENTS, History, live
from tests.conformance.recount import check_rows
from tests.conformance.world import World, document

PROCESSES = 3
SECONDS, VERBS = 2.0, 100
"""Of each process, and both: a machine that is slow tells no less."""


def run_crowd(url: str, run: str, seeds: range) -> list[History]:
    """The stories of so many processes at once."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(seeds), mp_context=context) as pool:
        told = [pool.submit(live, url, run, seed, SECONDS, VERBS) for seed in seeds]
        return [story.result(240) for story in told]


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
def test_a_crowd_of_processes_breaks_no_promise(backend: Backend) -> None:
    """Claim, commit, fail, release, beat, reap, stop, retry and supersede, all at once."""
    assert isinstance(backend, SqlBackend)
    world = World(backend)
    world.enqueue(*(document(f"{n:03}", "v0") for n in range(DOCUMENTS)))
    histories = run_crowd(backend.url, world.run.name, range(PROCESSES))

    # Invariant 7 and 8: one attempt of one item was handed out under one token alone.
    tokens = defaultdict(set)
    for history in histories:
        for item, attempt, token in history.leases:
            tokens[item, attempt].add(token)
    assert tokens, "nobody claimed anything"
    assert all(len(of_one) == 1 for of_one in tokens.values())

    # Invariants 3 and 9: one result was ever accepted for an item, and it is still there.
    accepted = defaultdict(set)
    for history in histories:
        for item, token, digest in history.accepted:
            accepted[item].add((token, digest))
    assert accepted, "nobody committed anything"
    assert all(len(of_one) == 1 for of_one in accepted.values())
    rows = {row.item_id: row.stored.sha256 for row in world.ledger.results(world.run, 0, 10_000)}
    assert rows == {item: digest for item, of_one in accepted.items() for _, digest in of_one}

    # Invariant 15, against a recount; and the events against what the processes were told.
    check_rows(world)
    tallies = world.tallies
    assert tallies.attempts == len(tokens)
    assert tallies.total + tallies.superseded == DOCUMENTS + sum(h.new for h in histories)
    assert tallies.lost_leases == sum(h.lost for h in histories)

    # Invariants 1 and 17: once they are gone, everything ends.
    for process in world.ledger.workers(world.run):
        world.ledger.stop(process.name, "gone")
    last = world.worker("last")
    for _ in range(1_000):
        lease = world.claim(last)
        if lease is not None:
            world.commit(last, lease)
        elif world.tallies.ready == world.tallies.leased == 0:
            break
        else:
            world.pass_time(60, [last])
            world.ledger.reap(last, 1_000)
    check_rows(world)
    ended = {State.COMPLETED, State.DEAD_LETTERED}
    assert set(world.states([f"{n:03}" for n in range(DOCUMENTS)])) <= ended
    assert asdict(world.tallies)["ready"] == 0
