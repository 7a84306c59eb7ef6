"""Claim: what a worker gets, in which order and how much of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batchq.errors import WorkerReaped
from batchq.lease import ReleaseReason
from batchq.ledger.base import Policy, State
from tests.conformance.world import TTL, World, moved


def test_a_claim_leases_up_to_the_limit_in_order(world: World) -> None:
    """Ready items by id, each counted as an attempt."""
    world.worker()
    world.enqueue_many(5)
    before = world.tallies
    lease = world.hold("worker", 3, token="t" * 32)
    assert lease.token == "t" * 32
    assert [i.source_id for i in lease.items] == ["000", "001", "002"]
    assert moved(before, world.tallies) == {"ready": -3, "leased": 3, "attempts": 3}
    assert world.state("000") is State.LEASED


def test_a_claim_of_nothing_is_none(world: World) -> None:
    """An empty run, or one that is all leased, brings no lease and moves nothing."""
    world.worker()
    assert world.claim("worker") is None
    world.enqueue("a")
    world.hold("worker")
    before = world.tallies
    assert world.claim("worker") is None
    assert before == world.tallies


def test_a_claim_that_brought_nothing_has_used_up_no_token(world: World) -> None:
    """Polling costs no write; the token may be sent again."""
    world.worker()
    assert world.claim("worker", token="t") is None
    world.enqueue("a")
    assert len(world.hold("worker", token="t").items) == 1


def test_no_item_is_handed_out_twice(world: World) -> None:
    """Two workers share the run without meeting."""
    world.worker("a")
    world.worker("b")
    world.enqueue_many(4)
    mine = {i.id for i in world.hold("a", 2).items}
    theirs = {i.id for i in world.hold("b", 4).items}
    assert len(mine) == len(theirs) == 2
    assert mine.isdisjoint(theirs)


def test_a_worker_holds_several_leases_at_once(world: World) -> None:
    """Looking ahead: each claim has a token and items of its own."""
    world.worker()
    world.enqueue_many(4)
    first, second = world.hold("worker", 2), world.hold("worker", 2)
    assert first.token != second.token
    assert world.commit("worker", second).accepted == tuple(i.id for i in second.items)
    assert world.commit("worker", first).accepted == tuple(i.id for i in first.items)


def test_the_cursor_goes_on_and_wraps_once(world: World) -> None:
    """What became ready behind the cursor is found when nothing is left before it."""
    world.worker("a")
    world.worker("b")
    world.enqueue_many(6)
    world.hold("a", 2)
    assert [i.source_id for i in world.hold("b", 2).items] == ["002", "003"]
    assert [i.source_id for i in world.hold("a", 1).items] == ["004"]
    world.enqueue("006")
    assert [i.source_id for i in world.hold("b", 1).items] == ["005"]
    assert [i.source_id for i in world.hold("a", 9).items] == ["006"]


def test_the_cursor_wraps_to_ready_items_behind_it(world: World) -> None:
    """A worker whose cursor stands at the end still finds the ready ones before it."""
    world.enqueue_many(4)
    world.worker("a")
    world.worker("b")
    world.hold("a", 1)
    world.hold("b", 3)
    world.enqueue("new")
    assert [i.source_id for i in world.hold("b", 1).items] == ["new"]
    assert world.claim("b") is None


def test_due_delayed_items_come_before_ready_ones(world: World) -> None:
    """A lease is filled up from the ready ones, so that nothing delayed starves."""
    world.worker()
    world.enqueue_many(4)
    world.release("worker", world.hold("worker", 1))
    lease = world.hold("worker", 3)
    assert [i.source_id for i in lease.items] == ["000", "001", "002"]
    assert [i.attempt for i in lease.items] == [2, 1, 1]


def test_delayed_items_come_in_the_order_in_which_they_are_due(world: World) -> None:
    """By not_before, then by id."""
    world.worker()
    world.enqueue_many(3)
    first, second, third = (world.hold("worker", 1) for _ in range(3))
    world.release("worker", third)
    world.clock.advance(1)
    world.release("worker", second)
    world.release("worker", first)
    order = [world.hold("worker", 1).items[0].source_id for _ in range(3)]
    assert order == ["002", "000", "001"]


def test_a_delayed_item_is_not_handed_out_before_it_is_due(world: World) -> None:
    """The backoff is the ledger's to keep."""
    world.worker()
    world.enqueue("a")
    world.fail("worker", world.hold("worker"))
    assert world.claim("worker") is None
    world.clock.advance(Policy().backoff - 0.01)
    assert world.claim("worker") is None
    world.clock.advance(0.02)
    assert world.hold("worker").items[0].failures == 1


def test_losses_shrink_the_next_lease_tenfold(world: World) -> None:
    """A lease of a hundred that was lost comes back in tens, then one by one."""
    world.worker("victim")
    world.enqueue_many(40)
    world.hold("victim", 30)
    world.lose("victim")
    world.worker("second")
    lease = world.hold("second", 100)
    assert len(lease.items) == 10
    assert {i.losses for i in lease.items} == {1}
    world.lose("second")
    world.worker("third")
    assert [len(world.hold("third", 100).items) for _ in range(3)] == [10, 10, 1]


def test_a_small_limit_is_kept_with_losses_too(world: World) -> None:
    """The cap only ever shrinks what was asked for."""
    world.worker("victim")
    world.enqueue_many(9)
    world.hold("victim")
    world.lose("victim")
    world.worker("next")
    assert len(world.hold("next", 4).items) == 4


def test_items_with_losses_never_share_a_lease_with_ready_ones(world: World) -> None:
    """Else an innocent document would be searched along with a suspect."""
    world.worker("victim")
    world.enqueue_many(5)
    world.hold("victim", 2)
    world.lose("victim")
    world.worker("next")
    lease = world.hold("next")
    assert [(i.source_id, i.losses) for i in lease.items] == [("000", 1), ("001", 1)]
    assert {i.losses for i in world.hold("next").items} == {0}


def test_the_first_due_item_decides_the_losses_of_a_lease(world: World) -> None:
    """Items returned by a drain and by a death go out in leases of their own."""
    world.worker("victim")
    world.worker("drained")
    world.enqueue_many(5)
    world.hold("victim", 2)
    world.ledger.stop("drained", "empty")
    drained = world.worker("drained-2")
    lease = world.hold(drained, 2)
    world.lose("victim")
    world.release(drained, lease)
    assert [i.losses for i in world.hold(drained).items] == [1, 1]
    assert [i.source_id for i in world.hold(drained).items] == ["002", "003", "004"]


def lose_twice(world: World, count: int) -> None:
    """Enqueue 000, 001, ... and let two workers die while they hold all of them."""
    world.enqueue_many(count)
    for victim in ("victim-1", "victim-2"):
        world.worker(victim)
        world.hold(victim, count)
        world.lose(victim)


def test_a_suspect_is_leased_alone_to_a_worker_that_holds_nothing(world: World) -> None:
    """Only so does a death convict it, and nobody else."""
    lose_twice(world, 3)
    world.worker("next")
    assert world.claim("next", alone=False) is None
    lease = world.hold("next", 100, alone=True)
    assert [(i.source_id, i.losses) for i in lease.items] == [("000", 2)]


def test_suspects_are_passed_over_where_the_worker_holds_something(world: World) -> None:
    """They block nobody: the rest of the run goes on."""
    lose_twice(world, 2)
    world.enqueue("fresh")
    world.worker("next")
    lease = world.hold("next", alone=False)
    assert [i.source_id for i in lease.items] == ["fresh"]


def test_the_attempt_grows_by_one_at_each_claim(world: World) -> None:
    """Whatever ended the attempt before."""
    world.worker()
    world.enqueue("a")
    attempts = []
    for end in (world.release, world.fail, world.release):
        lease = world.hold("worker")
        attempts.append(lease.items[0].attempt)
        end("worker", lease)
        world.clock.advance(Policy().max_backoff)
    world.lose("worker")
    world.worker("next")
    attempts.append(world.hold("next").items[0].attempt)
    assert attempts == [1, 2, 3, 4]


def test_a_reaped_worker_claims_nothing(world: World) -> None:
    """Its leases are over, and the claim says so."""
    world.worker("victim")
    world.enqueue("a")
    world.lose("victim")
    with pytest.raises(WorkerReaped, match="victim"):
        world.claim("victim")
    assert world.state("a") is State.READY


def test_an_expired_beat_alone_hinders_no_claim(world: World) -> None:
    """Whoever can claim can be reached; only a reaper decides that it is dead."""
    world.worker()
    world.enqueue("a")
    world.clock.advance(10 * TTL)
    assert world.claim("worker") is not None


def test_a_claim_takes_no_more_than_the_limit_from_delayed_and_ready_together(
    world: World,
) -> None:
    """The limit is of the lease, not of each table."""
    world.worker()
    world.enqueue_many(6)
    world.release("worker", world.hold("worker", 3), ReleaseReason.DRAIN)
    assert [len(world.hold("worker", 4).items) for _ in range(2)] == [4, 2]


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
def test_what_is_due_comes_first_also_after_a_jump_of_the_clock(world: World, jump: float) -> None:
    """Whatever a client remembers of earlier claims, it remembers no wrong clock."""
    world.worker()
    world.enqueue_many(9)
    world.hold("worker", 1)
    for step in (jump, -jump):
        given_back = world.hold("worker", 1)
        world.clock.jump(step)
        world.release("worker", given_back)
        assert world.hold("worker", 1).items == tuple(
            replace(item, attempt=item.attempt + 1) for item in given_back.items
        )
