"""Every call repeated after a lost answer: it took effect, nobody heard, it is sent again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest

from batchq.errors import WorkerReaped
from batchq.lease import Failure, ReleaseReason
from batchq.ledger.base import Enqueued, Failed, Policy, Reaped, Role, State
from tests.conformance.world import TTL, World, document, held


def snapshot(world: World) -> dict[str, Any]:
    """All that can be read of the run, but the times of beats."""
    ledger, run = world.ledger, world.run
    return {
        "tallies": ledger.counts(run).tallies,
        "results": ledger.results(run, 0, 1_000),
        "dead letters": ledger.dead_letters(run, 0, 1_000),
        "processes": [asdict(replace(s, beat_at=0.0)) for s in ledger.workers(run)],
        "documents": [ledger.lookup(run, name) for name in ("000", "001", "002", "003")],
        "duplicates": ledger.duplicates(run),
        "recount": ledger.recount(run),
    }


def repeat(world: World, call: Callable[[], object]) -> tuple[object, object]:
    """Call, forget the answer, call again: nothing may move the second time."""
    lost = call()
    before = snapshot(world)
    world.clock.advance(0.5)
    answer = call()
    assert before == snapshot(world)
    world.check_accounting()
    return lost, answer


def test_initialise_repeated(world: World) -> None:
    """The schema is there already."""
    repeat(world, world.ledger.initialise)


def test_create_run_repeated(world: World) -> None:
    """The same run, not a second one."""
    lost, answer = repeat(world, lambda: world.ledger.create_run("new", "p-1", {}, "item"))
    assert lost == answer


def test_register_repeated(world: World) -> None:
    """The process is known once."""
    repeat(world, lambda: world.register("w"))
    assert [s.name for s in world.ledger.workers(world.run)] == ["w"]


def test_beat_repeated(world: World) -> None:
    """Alive, and alive again."""
    world.worker("w")
    assert repeat(world, lambda: world.ledger.beat("w", TTL)) == (True, True)


def test_stop_repeated(world: World) -> None:
    """Released and folded once; the first reason stays."""
    world.worker("w")
    world.enqueue_many(2)
    world.hold("w")
    repeat(world, lambda: world.ledger.stop("w", "end"))
    assert world.tallies.interrupted == 2


def test_enqueue_repeated(world: World) -> None:
    """The same answer, and no duplicate counted."""
    world.enqueue("000")
    world.register("e", Role.ENQUEUER)
    batch = [document("000"), document("001"), document("001"), document("002", "v2")]
    lost, answer = repeat(world, lambda: world.ledger.enqueue("e", 1, batch))
    assert lost == answer
    assert isinstance(answer, Enqueued)
    assert (answer.new, answer.known, len(answer.rejected)) == (2, 1, 1)
    assert world.tallies.known == 1


def test_an_enqueue_that_superseded_repeated(world: World) -> None:
    """One supersession, also when the new item has been claimed in between."""
    world.worker("w")
    world.enqueue("000")
    world.register("e", Role.ENQUEUER)
    batch = [document("000", "v2")]
    lost = world.ledger.enqueue("e", 1, batch)
    world.hold("w")
    assert lost == world.ledger.enqueue("e", 1, batch)
    assert (world.state("000"), world.tallies.superseded) == (State.LEASED, 1)


def test_the_last_batch_repeated_by_another_client(world: World) -> None:
    """The answer lies in the ledger, not in the connection that was lost."""
    world.register("e", Role.ENQUEUER)
    lost = world.ledger.enqueue("e", 7, [document("000"), document("000")])
    assert lost == world.client().enqueue("e", 7, [document("000"), document("000")])
    assert world.tallies.total == 1


def test_claim_repeated(world: World) -> None:
    """The same token brings the same items, no more and no less."""
    world.worker("w")
    world.enqueue_many(3)
    lost, answer = repeat(world, lambda: world.claim("w", 2, token="t"))
    assert lost == answer
    assert world.tallies.leased == 2


def test_claim_repeated_by_another_client(world: World) -> None:
    """The connection broke, the lease did not."""
    world.worker("w")
    world.enqueue_many(3)
    lost = world.claim("w", 2, token="t")
    assert lost == world.client().claim("w", "t", 2, alone=True)


def test_a_claim_of_delayed_items_repeated(world: World) -> None:
    """Also where the items came back from somewhere."""
    world.worker("w")
    world.enqueue_many(3)
    world.release("w", world.hold("w"))
    lost, answer = repeat(world, lambda: world.claim("w", 2, token="t"))
    assert lost == answer


def test_a_claim_repeated_after_some_results_returns_the_rest(world: World) -> None:
    """What the token still holds, and nothing once it holds nothing."""
    world.worker("w")
    world.enqueue_many(4)
    lease = world.hold("w", 2, token="t")
    world.ledger.commit("w", world.results(lease)[:1])
    rest = world.claim("w", 2, token="t")
    assert rest is not None
    assert rest.items == lease.items[1:]
    world.release("w", rest)
    assert world.claim("w", 2, token="t") is None
    assert world.tallies.ready == 3


def test_a_claim_repeated_after_the_reaper_came(world: World) -> None:
    """Its leases are over, and it is told so."""
    world.worker("w")
    world.enqueue_many(2)
    world.hold("w", token="t")
    world.lose("w")
    with pytest.raises(WorkerReaped):
        world.claim("w", token="t")


def test_commit_repeated(world: World) -> None:
    """Accepted again: a lost answer is resolved by asking again."""
    world.worker("w")
    world.enqueue_many(3)
    lease = world.hold("w")
    results = [replace(r, adopted=True, divergent=True, empty=True) for r in world.results(lease)]
    lost, answer = repeat(world, lambda: world.ledger.commit("w", results))
    assert lost == answer
    assert world.commit("w", lease).fenced == ()
    tallies = world.tallies
    assert (tallies.completed, tallies.adopted, tallies.divergent, tallies.empty) == (3, 3, 3, 3)


def test_a_commit_repeated_in_other_company(world: World) -> None:
    """The next flush may carry the unanswered results along."""
    world.worker("w")
    world.enqueue_many(4)
    first, second = world.results(world.hold("w", 2)), world.results(world.hold("w", 2))
    world.ledger.commit("w", first)
    assert len(world.ledger.commit("w", second + first).accepted) == 4
    assert world.check_accounting().completed == 4


def test_a_commit_repeated_after_the_worker_was_reaped(world: World) -> None:
    """What was accepted stays accepted, whoever died since."""
    world.worker("w")
    world.enqueue("000")
    lease = world.hold("w")
    lost = world.commit("w", lease)
    world.lose("w")
    assert lost == world.commit("w", lease)
    assert world.check_accounting().fenced == 0


def test_a_commit_repeated_after_the_document_changed(world: World) -> None:
    """The old version's result is still there, and still this worker's."""
    world.worker("w")
    world.enqueue("000")
    lease = world.hold("w")
    lost = world.commit("w", lease)
    world.enqueue(document("000", "v2"))
    assert lost == world.commit("w", lease)


def test_a_refused_commit_repeated(world: World) -> None:
    """Fenced again, counted once."""
    world.worker("w")
    world.enqueue_many(2)
    lease = world.hold("w")
    world.release("w", lease)
    lost, answer = repeat(world, lambda: world.commit("w", lease))
    assert lost == answer
    assert world.tallies.fenced == 2


def test_fail_repeated(world: World) -> None:
    """Charged once; the token no longer holds."""
    world.worker("w")
    world.enqueue_many(2)
    one, two = held(world.hold("w"))
    failures = [Failure(one, "c", "e"), Failure(two, "c", "e", final=True)]
    lost, answer = repeat(world, lambda: world.ledger.fail("w", failures))
    assert Failed((one.item_id,), (two.item_id,)) == lost
    assert Failed(fenced=(one.item_id, two.item_id)) == answer
    assert world.tallies.failures == 2


@pytest.mark.parametrize("reason", list(ReleaseReason))
def test_release_repeated(world: World, reason: ReleaseReason) -> None:
    """Given back once; one generation more at most."""
    world.worker("w")
    world.enqueue_many(2)
    lease = world.hold("w")
    assert repeat(world, lambda: world.release("w", lease, reason)) == (2, 0)
    world.clock.advance(Policy().max_backoff)
    generation = 2 if reason is ReleaseReason.BROKEN_OBJECT else 1
    assert {item.generation for item in world.hold("w").items} == {generation}


def test_reap_repeated(world: World) -> None:
    """Nobody dies twice."""
    world.worker("w")
    world.enqueue_many(2)
    world.hold("w")
    reaper = world.register("r", Role.OPERATOR)
    world.pass_time(2 * TTL, [reaper])
    lost, answer = repeat(world, lambda: world.ledger.reap(reaper, 10))
    assert (Reaped(("w",), 2), Reaped()) == (lost, answer)


def test_retry_repeated(world: World) -> None:
    """One generation more, not two."""
    world.worker("w")
    world.dead_letter("000", "w")
    assert repeat(world, lambda: world.ledger.retry("w", world.run)) == (1, 0)
    assert world.hold("w").items[0].generation == 2


def test_reopen_repeated(world: World) -> None:
    """One generation more, not two."""
    world.worker("w")
    world.enqueue_many(2)
    world.commit("w", world.hold("w"))
    rows = world.ledger.results(world.run, 0, 10)
    world.register("auditor", Role.OPERATOR)
    assert repeat(world, lambda: world.reopen(*rows)) == (2, 0)
    assert {item.generation for item in world.hold("w").items} == {2}
