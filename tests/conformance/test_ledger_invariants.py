"""The invariants of the promise that are the ledger's to keep, by their numbers.

4 and 9 are the store's as well, 12 is the worker's; `tests/end_to_end` has them whole.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from batchq.clock import ManualClock
from batchq.errors import WorkerReaped
from batchq.lease import ReleaseReason
from batchq.ledger.base import Policy, Role, State
from tests.conformance.world import TTL, World, document, held, moved, stored

DAY = 86_400.0


def work_off(world: World, worker: str, rounds: int = 50) -> None:
    """Claim and commit until nothing is left, letting delays pass."""
    for _ in range(rounds):
        lease = world.claim(worker)
        if lease is not None:
            assert world.commit(worker, lease).fenced == ()
        elif world.tallies.ready == 0:
            return
        else:
            world.pass_time(Policy().max_backoff, [worker])
    raise AssertionError(f"not finished after {rounds} rounds: {world.tallies}")


def test_invariant_1_every_enqueued_item_ends(world: World) -> None:
    """Through death, failure, release, stop and supersession: completed or dead-lettered."""
    world.enqueue_many(24)
    world.worker("dies")
    world.hold("dies", 4)
    world.lose("dies")
    world.worker("errs")
    world.fail("errs", world.hold("errs", 4))
    world.fail("errs", world.hold("errs", 4), final=True)
    world.release("errs", world.hold("errs", 4), ReleaseReason.STORE)
    world.hold("errs", 4)
    world.ledger.stop("errs", "notice")
    world.enqueue(document("003", "v2"), document("023", "v2"))
    work_off(world, world.worker("last"))
    tallies = world.check_accounting()
    assert tallies.total == 24
    assert tallies.completed + tallies.dead_lettered == 24
    assert tallies.dead_lettered == 4
    assert {r.source_version for r in world.ledger.results(world.run, 0, 100)} == {
        "sha256:v1",
        "sha256:v2",
    }


def test_invariant_2_nothing_is_invented(world: World) -> None:
    """Claims, commits, failures and retries of what was never enqueued bring nothing."""
    world.worker()
    assert world.claim("worker") is None
    world.enqueue("a")
    lease = world.hold("worker")
    [result] = world.results(lease)
    world.ledger.commit("worker", [replace(result, item_id=result.item_id + 1)])
    assert world.ledger.retry("worker", world.run, source_ids=["b"]) == 0
    assert world.ledger.lookup(world.run, "b") is None
    assert world.check_accounting().total == 1


def test_invariant_3_one_commit_for_an_item(world: World) -> None:
    """Every worker that ever held it tries; one result stays."""
    world.enqueue("a")
    leases = []
    for name in ("first", "second", "third"):
        world.worker(name)
        leases.append((name, world.hold(name, 1)))
        if name != "third":
            world.clock.advance(1)
            world.ledger.stop(name, "end")
    accepted = [
        name for name, lease in reversed(leases) if world.commit(name, lease, name).accepted
    ]
    assert accepted == ["third"]
    [row] = world.ledger.results(world.run, 0, 10)
    assert row.stored == stored("third")
    assert world.tallies.completed == 1


def test_invariant_5_a_commit_needs_the_same_lease_and_digest(world: World) -> None:
    """Neither another token nor, once committed, another digest is taken."""
    world.worker()
    world.enqueue("a")
    [result] = world.results(world.hold("worker"))
    other_token = replace(result, token="0" * 32)
    other_digest = replace(result, stored=stored("other"))
    assert world.ledger.commit("worker", [other_token]).accepted == ()
    assert world.ledger.commit("worker", [result]).accepted == (result.item_id,)
    assert world.ledger.commit("worker", [other_digest]).accepted == ()
    assert world.ledger.commit("worker", [other_token]).accepted == ()


def test_invariant_6_fencing(world: World) -> None:
    """Commit, fail, release and beat of a reaped worker take no effect at all."""
    world.worker("stalled")
    world.enqueue("a")
    lost = world.hold("stalled")
    world.lose("stalled")
    world.worker("next")
    taken = world.hold("next")
    before = world.tallies
    assert not world.ledger.beat("stalled", TTL)
    assert world.release("stalled", lost) == 0
    assert world.release("stalled", lost, ReleaseReason.BROKEN_OBJECT) == 0
    assert world.fail("stalled", lost, final=True).fenced == (lost.items[0].id,)
    world.ledger.stop("stalled", "late")
    assert before == world.tallies
    assert world.commit("stalled", lost).accepted == ()
    assert moved(before, world.tallies) == {"fenced": 1}
    assert world.commit("next", taken).accepted == (taken.items[0].id,)


def test_invariant_6_a_token_of_an_earlier_claim_of_ones_own_is_fenced(world: World) -> None:
    """Also the same worker needs the lease that holds now."""
    world.worker()
    world.enqueue("a")
    old = world.hold("worker")
    world.release("worker", old)
    new = world.hold("worker")
    assert world.commit("worker", old).accepted == ()
    assert world.commit("worker", new).accepted == (new.items[0].id,)


def test_invariant_7_a_token_claims_once_and_attempts_grow_by_one(world: World) -> None:
    """The same token sent again claims nothing more, also when its items are gone."""
    world.worker()
    world.enqueue_many(3)
    lease = world.hold("worker", 1, token="t")
    assert lease == world.claim("worker", 3, token="t")
    world.release("worker", lease)
    assert world.claim("worker", 3, token="t") is None
    attempts = {item.source_id: item.attempt for item in world.hold("worker").items}
    assert attempts == {"000": 2, "001": 1, "002": 1}
    assert world.tallies.attempts == 4


def test_invariant_8_no_item_is_held_by_two_live_leases(world: World) -> None:
    """Of ten workers with ten claims each, no two ever have the same item."""
    world.enqueue_many(95)
    taken: list[int] = []
    for round_ in range(10):
        for n in range(10):
            if round_ == 0:
                world.worker(f"w{n}")
            lease = world.claim(f"w{n}", 1)
            taken += [item.id for item in lease.items] if lease else []
    assert len(taken) == len(set(taken)) == 95


def test_invariant_9_a_committed_row_never_changes(world: World) -> None:
    """Whatever is sent afterwards."""
    world.worker()
    world.enqueue("a")
    lease = world.hold("worker")
    world.commit("worker", lease)
    [row] = world.ledger.results(world.run, 0, 10)
    world.clock.advance(100)
    world.commit("worker", lease, "other")
    world.commit("worker", lease)
    world.fail("worker", lease, final=True)
    world.release("worker", lease, ReleaseReason.BROKEN_OBJECT)
    world.enqueue("a")
    world.enqueue(document("a", "v2"))
    world.ledger.retry("worker", world.run)
    assert world.ledger.results(world.run, 0, 10) == [row]


def test_invariant_10_identity_makes_the_item(world: World) -> None:
    """The same document again is the same item; other bytes are another."""
    for _ in range(4):
        world.enqueue("a", "b")
    assert world.check_accounting().total == 2
    world.worker()
    world.commit("worker", world.hold("worker"))
    world.enqueue(document("a", "v2"))
    assert world.tallies.total == 3
    other = World(world.backend, run="other version")
    other.register("other", ttl=TTL)
    other.ledger.enqueue("other", 1, [document("a")])
    assert (world.tallies.total, other.tallies.total) == (3, 1)


def test_invariant_11_a_poison_document_is_found_and_blocks_nobody(world: World) -> None:
    """It kills whoever holds it: the others all complete, none of them charged."""
    world.enqueue_many(150)
    poison, deaths = "077", 0
    for n in range(60):
        worker = world.worker(f"w{n}")
        while (lease := world.claim(worker, 100)) is not None:
            if poison in {item.source_id for item in lease.items}:
                break
            world.commit(worker, lease)
        if lease is None:
            break
        world.lose(worker)
        deaths += 1
    tallies = world.check_accounting()
    assert (tallies.completed, tallies.dead_lettered) == (149, 1)
    assert world.letter(poison).cause == "worker_lost"
    assert deaths == 2 + Policy().max_losses
    assert tallies.failures == 0


def test_invariant_11_many_interruptions_kill_no_innocent_document(world: World) -> None:
    """Workers die in every round while they hold several; every item completes."""
    world.enqueue_many(40)
    for n in range(12):
        worker = world.worker(f"w{n}")
        for _ in range(3):
            world.claim(worker, 10, alone=False)
        world.lose(worker)
    work_off(world, world.worker("last"))
    assert world.check_accounting().completed == 40


def test_invariant_12_what_a_claim_in_flight_brought_is_released(world: World) -> None:
    """A draining worker that gets a lease late gives it back by asking for its token."""
    world.worker()
    world.enqueue_many(3)
    world.claim("worker", token="t")
    lease = world.claim("worker", token="t")
    assert lease is not None
    assert world.release("worker", lease, ReleaseReason.DRAIN) == 3
    world.ledger.stop("worker", "notice")
    tallies = world.check_accounting()
    assert (tallies.leased, tallies.ready, tallies.interrupted) == (0, 3, 3)


def test_invariant_13_terminal_states_absorb(world: World) -> None:
    """Completed and dead-lettered items are never handed out; `retry` counts its return."""
    world.worker()
    world.enqueue_many(2)
    completed, dead = world.hold("worker", 1), world.hold("worker", 1)
    world.commit("worker", completed)
    world.fail("worker", dead, final=True)
    world.enqueue_many(2)
    for lease in (completed, dead):
        world.fail("worker", lease)
        world.release("worker", lease)
    world.lose("worker")
    world.worker("next")
    world.clock.advance(DAY)
    assert world.claim("next") is None
    assert world.states(["000", "001"]) == [State.COMPLETED, State.DEAD_LETTERED]
    assert world.ledger.retry("next", world.run) == 1
    assert [(i.source_id, i.generation) for i in world.hold("next").items] == [("001", 2)]


def test_invariant_14_an_unanswered_call_can_be_resolved(world: World) -> None:
    """After a lost claim and a lost commit, asking again tells the truth."""
    world.worker()
    world.enqueue_many(2)
    world.claim("worker", token="t")
    lease = world.claim("worker", token="t")
    assert lease is not None
    assert {i.attempt for i in lease.items} == {1}
    world.commit("worker", lease)
    assert len(world.commit("worker", lease).accepted) == 2
    assert world.check_accounting().completed == 2


def test_invariant_15_accounting_holds_after_every_verb(world: World) -> None:
    """ready + leased + completed + dead_lettered = total, at each step of a long story."""
    world.worker("a")
    world.worker("b")
    world.enqueue_many(12)
    world.check_accounting()
    lease = world.hold("a", 6)
    world.check_accounting()
    one, two, three, *_ = held(lease)
    world.ledger.commit("a", world.results(lease)[3:4])
    world.check_accounting()
    world.ledger.release("a", [one], ReleaseReason.STORE)
    world.ledger.release("a", [two], ReleaseReason.BROKEN_OBJECT)
    world.check_accounting()
    world.fail("b", world.hold("b", 2), final=True)
    world.check_accounting()
    world.enqueue(*(document(f"{n:03}", "v2") for n in range(12)))
    world.check_accounting()
    world.ledger.release("a", [three], ReleaseReason.DRAIN)
    world.lose("a")
    world.check_accounting()
    world.enqueue(*(document(f"{n:03}") for n in range(12)))
    world.check_accounting()
    world.ledger.retry("b", world.run)
    world.ledger.stop("b", "end")
    assert world.check_accounting().total == 12


def test_invariant_16_workers_clocks_may_be_off_by_a_day(world: World) -> None:
    """Only the ledger's clock decides: a wrong wall clock changes nothing."""
    ahead = ManualClock(now=world.clock.now() + DAY)
    behind = ManualClock(now=world.clock.now() - DAY)
    world.enqueue_many(4)
    for name, clock in (("ahead", ahead), ("behind", behind)):
        client = world.client(clock)
        client.register(world.run, name, TTL, Role.WORKER, {})
        lease = client.claim(name, name, 2, alone=True)
        assert lease is not None
        clock.advance(TTL / 2)
        world.clock.advance(TTL / 2)
        assert client.beat(name, TTL)
        assert client.reap(name, 10).workers == ()
        assert len(client.commit(name, world.results(lease)).accepted) == 2
    assert all(s.alive for s in world.ledger.workers(world.run) if s.name in ("ahead", "behind"))
    times = [row.committed_at for row in world.ledger.results(world.run, 0, 10)]
    assert all(abs(t - world.clock.now()) <= TTL for t in times)


def test_invariant_17_everything_ends_once_faults_stop(world: World) -> None:
    """Within two TTLs of the last death, all that the dead held is held by the living."""
    world.enqueue_many(10)
    for n in range(3):
        world.worker(f"dead-{n}")
        world.hold(f"dead-{n}", 3)
    survivor = world.worker("survivor")
    for _ in range(8):
        world.pass_time(TTL / 4, [survivor])
        world.ledger.reap(survivor, 100)
    for _ in range(10):
        lease = world.claim(survivor)
        if lease is not None:
            world.commit(survivor, lease)
    assert world.check_accounting().completed == 10


def test_invariant_18_no_error_names_a_secret(world: World) -> None:
    """A lease token is as good as a password: whoever has it may commit."""
    with pytest.raises(WorkerReaped) as refused:
        world.claim("stranger", token="the-token")
    assert "the-token" not in f"{refused.value} {refused.value.hint}"
