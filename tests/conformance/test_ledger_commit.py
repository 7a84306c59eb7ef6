"""Commit: what is accepted, what is fenced, and what each counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batchq.ledger.base import Committed, State
from batchq.result import Result, Stored
from tests.conformance.world import TTL, World, document, moved, stored


def test_a_result_whose_token_holds_is_accepted(world: World) -> None:
    """The item is completed, and its row says what, when and by whom."""
    world.worker()
    world.enqueue(document("a", "v7", size=123))
    lease = world.hold("worker")
    [item] = lease.items
    world.clock.advance(5)
    before = world.tallies
    where = Stored("run/00/key.json", 17, 42, "ab" * 32)
    answer = world.ledger.commit("worker", [Result(item.id, lease.token, where)])
    assert Committed(accepted=(item.id,)) == answer
    assert moved(before, world.tallies) == {"leased": -1, "completed": 1}
    [row] = world.ledger.results(world.run, 0, 10)
    assert (row.item_id, row.source_id, row.source_version) == (item.id, "a", "sha256:v7")
    assert (row.size, row.stored, row.worker) == (123, where, "worker")
    assert (row.attempt, row.generation, row.empty, row.adopted) == (1, 1, False, False)
    assert row.committed_at == pytest.approx(world.clock.now())


def test_part_of_a_lease_may_be_committed(world: World) -> None:
    """The rest stays held."""
    world.worker()
    world.enqueue_many(3)
    lease = world.hold("worker")
    results = world.results(lease)
    world.ledger.commit("worker", results[:1])
    assert world.states(["000", "001", "002"]) == [State.COMPLETED, State.LEASED, State.LEASED]
    world.ledger.commit("worker", results[1:])
    assert world.tallies.completed == 3


def test_results_of_several_leases_go_in_one_commit(world: World) -> None:
    """Batches span leases."""
    world.worker()
    world.enqueue_many(4)
    results = world.results(world.hold("worker", 2)) + world.results(world.hold("worker", 2))
    assert len(world.ledger.commit("worker", results[::-1]).accepted) == 4


def test_the_flags_of_a_result_are_counted(world: World) -> None:
    """empty, adopted and divergent, each once for each item."""
    world.worker()
    world.enqueue_many(4)
    one, two, three, four = world.results(world.hold("worker"))
    before = world.tallies
    world.ledger.commit(
        "worker",
        [
            replace(one, empty=True),
            replace(two, adopted=True),
            replace(three, adopted=True, divergent=True),
            four,
        ],
    )
    assert moved(before, world.tallies) == {
        "leased": -4,
        "completed": 4,
        "empty": 1,
        "adopted": 2,
        "divergent": 1,
    }
    rows = world.ledger.results(world.run, 0, 10)
    assert [(r.empty, r.adopted) for r in rows] == [
        (True, False),
        (False, True),
        (False, True),
        (False, False),
    ]


def test_a_commit_under_a_token_that_does_not_hold_is_fenced(world: World) -> None:
    """A guessed or forgotten token commits nothing."""
    world.worker()
    world.enqueue("a")
    lease = world.hold("worker")
    [item] = lease.items
    before = world.tallies
    answer = world.ledger.commit("worker", [Result(item.id, "other", stored())])
    assert Committed(fenced=(item.id,)) == answer
    assert moved(before, world.tallies) == {"fenced": 1}
    assert world.state("a") is State.LEASED
    assert world.commit("worker", lease).accepted == (item.id,)


def test_a_commit_after_the_lease_passed_on_is_fenced(world: World) -> None:
    """A worker that was thought dead finds its place taken, and the counter says so."""
    world.worker("stalled")
    world.enqueue("a")
    lost = world.hold("stalled")
    world.lose("stalled")
    world.worker("next")
    taken = world.hold("next")
    before = world.tallies
    assert world.commit("stalled", lost, "late").fenced == (lost.items[0].id,)
    assert moved(before, world.tallies) == {"fenced": 1}
    world.commit("next", taken, "right")
    [row] = world.ledger.results(world.run, 0, 10)
    assert (row.worker, row.stored) == ("next", stored("right"))


def test_a_commit_after_another_has_committed_is_fenced(world: World) -> None:
    """The first committed result stays."""
    world.worker("stalled")
    world.enqueue("a")
    lost = world.hold("stalled")
    world.lose("stalled")
    world.worker("next")
    world.commit("next", world.hold("next"), "right")
    assert world.commit("stalled", lost, "late").fenced == (lost.items[0].id,)
    [row] = world.ledger.results(world.run, 0, 10)
    assert row.stored == stored("right")


def test_a_commit_of_an_item_that_was_returned_is_fenced(world: World) -> None:
    """Released or failed items are no longer held, also before anybody else has them."""
    world.worker()
    world.enqueue_many(2)
    first, second = world.hold("worker", 1), world.hold("worker", 1)
    world.release("worker", first)
    world.fail("worker", second)
    assert len(world.commit("worker", first).fenced) == 1
    assert len(world.commit("worker", second).fenced) == 1
    assert world.check_accounting().completed == 0


def test_a_refused_commit_is_counted_once_for_each_item_and_token(world: World) -> None:
    """However often it is sent, alone or with others."""
    world.worker()
    world.enqueue_many(2)
    one, two = world.results(world.hold("worker"))
    wrong = [replace(one, token="x"), replace(two, token="x")]
    before = world.tallies
    world.ledger.commit("worker", wrong[:1])
    world.ledger.commit("worker", wrong)
    world.ledger.commit("worker", wrong)
    assert moved(before, world.tallies) == {"fenced": 2}
    world.ledger.commit("worker", [replace(one, token="y")])
    assert moved(before, world.tallies) == {"fenced": 3}


def test_the_same_token_with_another_digest_is_fenced(world: World) -> None:
    """A second result under one token is another result: the first stays."""
    world.worker()
    world.enqueue("a")
    lease = world.hold("worker")
    world.commit("worker", lease, "first")
    before = world.tallies
    assert world.commit("worker", lease, "second").fenced == (lease.items[0].id,)
    assert moved(before, world.tallies) == {"fenced": 1}
    [row] = world.ledger.results(world.run, 0, 10)
    assert row.stored == stored("first")


def test_two_results_of_one_item_in_one_call_are_taken_in_turn(world: World) -> None:
    """The first is committed, the second is fenced."""
    world.worker()
    world.enqueue("a")
    [first] = world.results(world.hold("worker"), "first")
    answer = world.ledger.commit("worker", [first, replace(first, stored=stored("second"))])
    assert Committed(accepted=(first.item_id,), fenced=(first.item_id,)) == answer
    [row] = world.ledger.results(world.run, 0, 10)
    assert row.stored == stored("first")
    assert world.check_accounting().fenced == 1


def test_good_and_fenced_results_of_one_call_are_told_apart(world: World) -> None:
    """One stale result does not take the others down."""
    world.worker()
    world.enqueue_many(3)
    one, two, three = world.results(world.hold("worker"))
    answer = world.ledger.commit("worker", [three, replace(two, token="x"), one])
    assert Committed((one.item_id, three.item_id), (two.item_id,)) == answer


def test_a_result_for_an_unknown_item_is_fenced(world: World) -> None:
    """Nothing is invented (invariant 2)."""
    world.worker()
    before = world.tallies
    answer = world.ledger.commit("worker", [Result(987_654, "t", stored())])
    assert Committed(fenced=(987_654,)) == answer
    assert moved(before, world.tallies) == {"fenced": 1}
    assert world.ledger.results(world.run, 0, 10) == []


def test_a_late_commit_whose_token_still_holds_is_accepted(world: World) -> None:
    """Long after the beat expired: nobody reaped it, so the work counts."""
    world.worker()
    world.enqueue("a")
    lease = world.hold("worker")
    world.clock.advance(100 * TTL)
    assert world.commit("worker", lease).accepted == (lease.items[0].id,)


def test_an_empty_commit_changes_nothing(world: World) -> None:
    """Nothing named, nothing answered."""
    world.worker()
    before = world.tallies
    assert Committed() == world.ledger.commit("worker", [])
    assert before == world.tallies


def test_the_worker_that_committed_is_credited(world: World) -> None:
    """`committed` counts for each worker, and only what was accepted."""
    world.worker("a")
    world.worker("b")
    world.enqueue_many(5)
    lease = world.hold("a", 2)
    world.commit("a", lease)
    world.commit("a", lease)
    world.commit("b", world.hold("b", 3))
    status = {s.name: (s.committed, s.held) for s in world.ledger.workers(world.run)}
    assert (status["a"], status["b"]) == ((2, 0), (3, 0))
