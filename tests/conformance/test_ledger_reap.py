"""Reap: whose leases are over, since when, and what it costs the items."""

from __future__ import annotations

import re

import pytest

from batchq.clock import ManualClock
from batchq.ledger.base import Policy, Reaped, Role, State, WorkerState
from tests.conformance.world import TTL, World, moved

DAY = 86_400.0


def test_the_leases_of_a_dead_worker_come_back(world: World) -> None:
    """All of them, due at once, with one loss each."""
    world.worker("victim")
    world.enqueue_many(3)
    world.hold("victim", 2)
    world.hold("victim", 1)
    before = world.tallies
    assert Reaped(("victim",), returned=3) == world.lose("victim")
    assert moved(before, world.tallies) == {
        "leased": -3,
        "ready": 3,
        "delayed": 3,
        "lost_leases": 3,
    }
    world.worker("next")
    assert {(i.losses, i.failures, i.attempt) for i in world.hold("next").items} == {(1, 0, 2)}


def test_a_dead_worker_is_reaped_once(world: World) -> None:
    """A second reap finds nothing."""
    world.worker("victim")
    world.enqueue("a")
    world.hold("victim")
    world.lose("victim")
    assert Reaped() == world.ledger.reap("reaper", 100)


def test_a_reaped_worker_is_over(world: World) -> None:
    """Its beats are refused, and `workers` says what became of it and what that cost."""
    world.worker("victim")
    world.enqueue_many(3)
    world.hold("victim", 2)
    world.lose("victim")
    assert not world.ledger.beat("victim", TTL)
    status = {s.name: s for s in world.ledger.workers(world.run)}["victim"]
    assert (status.state, status.alive, status.held) == (WorkerState.REAPED, False, 0)
    assert status.stop_reason is not None
    assert re.fullmatch(r"no sign of life for \d+ s, items lost: 2", status.stop_reason)


def test_who_beats_is_not_reaped(world: World) -> None:
    """A living worker keeps its leases however long it works."""
    world.worker("living")
    world.enqueue("a")
    lease = world.hold("living")
    world.pass_time(20 * TTL, ["living", world.register("reaper", Role.OPERATOR)])
    assert Reaped() == world.ledger.reap("reaper", 100)
    assert world.commit("living", lease).fenced == ()


def test_a_worker_without_leases_is_reaped_too(world: World) -> None:
    """So that it does not count as alive and its tallies are folded."""
    world.worker("idle")
    assert Reaped(("idle",)) == world.lose("idle")


def test_a_dead_enqueuer_is_reaped(world: World) -> None:
    """It just stops counting; its items stay."""
    world.register("enqueuer", Role.ENQUEUER)
    world.ledger.enqueue("enqueuer", 1, [])
    world.enqueue("a")
    assert world.lose("enqueuer").workers == ("enqueuer",)
    counts = world.ledger.counts(world.run)
    assert (counts.enqueuers_alive, counts.tallies.ready) == (0, 1)


def test_nobody_reaps_itself(world: World) -> None:
    """Whoever reaps is there, however old its last beat is."""
    world.worker("late")
    world.enqueue("a")
    world.hold("late")
    world.register("other", Role.OPERATOR)
    world.pass_time(2 * TTL, ["other"])
    assert Reaped() == world.ledger.reap("late", 100)
    assert world.ledger.reap("other", 100).workers == ("late",)


def test_another_run_is_left_alone(world: World) -> None:
    """A reaper takes back in its own run only."""
    other = World(world.backend, run="other")
    other.ledger.register(other.run, "other-victim", TTL, Role.WORKER, {})
    assert world.lose().workers == ()
    assert other.ledger.beat("other-victim", TTL)


def test_the_tallies_of_a_reaped_worker_stay_in_the_run(world: World) -> None:
    """Folding loses nothing and doubles nothing."""
    world.worker("victim")
    world.enqueue_many(3)
    world.commit("victim", world.hold("victim", 1))
    world.hold("victim", 1)
    before = world.tallies
    world.lose("victim")
    assert moved(before, world.check_accounting()) == {
        "leased": -1,
        "ready": 1,
        "delayed": 1,
        "lost_leases": 1,
    }


def test_a_large_loss_comes_back_in_pages(world: World) -> None:
    """At most `limit` items a call; the worker is named once."""
    world.worker("victim")
    world.enqueue_many(5)
    world.hold("victim")
    pages = [world.lose("victim", limit=2), *(world.ledger.reap("reaper", 2) for _ in range(3))]
    assert [Reaped(("victim",), 2), Reaped((), 2), Reaped((), 1), Reaped()] == pages
    assert world.check_accounting().lost_leases == 5


def test_the_last_page_of_a_large_loss_is_no_lone_loss(world: World) -> None:
    """Whether the worker held one item alone was decided when it was found dead."""
    world.enqueue_many(2)
    for n in range(Policy().max_losses + 1):
        world.worker(f"victim-{n}")
        first = world.claim(f"victim-{n}", 1, alone=True)
        second = world.claim(f"victim-{n}", 1, alone=True)
        assert first is not None
        assert second is not None
        world.lose(f"victim-{n}", limit=1)
        world.ledger.reap("reaper", 1)
    assert world.check_accounting().dead_lettered == 0


def test_until_its_page_comes_a_reaped_workers_token_still_holds(world: World) -> None:
    """A commit before that is accepted, after it fenced."""
    world.worker("victim")
    world.enqueue_many(2)
    lease = world.hold("victim")
    world.lose("victim", limit=1)
    answer = world.commit("victim", lease)
    assert (len(answer.accepted), len(answer.fenced)) == (1, 1)
    assert Reaped() == world.ledger.reap("reaper", 1)
    assert world.check_accounting().lost_leases == 1


def test_lone_losses_end_an_item(world: World) -> None:
    """The document that kills its process is found, and said to have done so."""
    world.enqueue("poison")
    for n in range(Policy().max_losses):
        assert world.state("poison") is not State.DEAD_LETTERED
        world.worker(f"victim-{n}")
        world.hold(f"victim-{n}")
        reaped = world.lose(f"victim-{n}")
    assert Reaped((f"victim-{n}",), returned=0, dead_lettered=1) == reaped
    letter = world.letter("poison")
    assert (letter.cause, letter.attempt) == ("worker_lost", Policy().max_losses)
    assert letter.error
    assert world.check_accounting().lost_leases == Policy().max_losses


def test_losses_in_company_end_nothing(world: World) -> None:
    """A dead worker is seldom the document's fault (invariant 11)."""
    world.enqueue_many(2)
    for n in range(3 * Policy().max_losses):
        worker = world.worker(f"victim-{n}")
        world.claim(worker, 1, alone=True)
        world.claim(worker, 1, alone=True)
        world.lose(worker)
    assert world.check_accounting().dead_lettered == 0


def test_a_loss_of_two_leases_of_one_is_not_a_lone_loss(world: World) -> None:
    """What counts is all that the worker held, not the size of the lease."""
    world.enqueue_many(2)
    world.worker("victim")
    world.hold("victim", 1)
    world.hold("victim", 1)
    world.lose("victim")
    for n in range(Policy().max_losses - 1):
        world.worker(f"lone-{n}")
        world.claim(f"lone-{n}", 1, alone=True)
        world.lose(f"lone-{n}")
    assert world.tallies.dead_lettered == 0


def test_retry_forgets_lone_losses(world: World) -> None:
    """A retried item dies again only after as many lone losses as a new one."""
    world.enqueue("poison")
    for n in range(2 * Policy().max_losses):
        world.worker(f"victim-{n}")
        world.hold(f"victim-{n}")
        world.lose(f"victim-{n}")
        if n == Policy().max_losses - 1:
            assert world.ledger.retry("reaper", world.run) == 1
    assert world.letter("poison").generation == 2


# -- contact: an outage or a suspended machine kills nobody who is alive ----------------


def test_a_new_client_reaps_nothing_for_a_ttl(world: World) -> None:
    """Whoever has just come cannot know who would have beaten by now."""
    world.worker("victim")
    world.clock.advance(10 * TTL)
    client = world.client()
    client.register(world.run, "newcomer", TTL, Role.WORKER, {})
    assert Reaped() == client.reap("newcomer", 100)
    for _ in range(3):
        world.clock.advance(TTL / 3 - 1)
        assert client.beat("newcomer", TTL)
        assert Reaped() == client.reap("newcomer", 100)
    world.clock.advance(3)
    assert client.reap("newcomer", 100).workers == ("victim",)


def test_a_client_that_was_silent_reaps_nothing_for_a_ttl(world: World) -> None:
    """It may have been cut off, and with it everybody else."""
    world.worker("victim")
    world.register("reaper", Role.OPERATOR)
    world.pass_time(TTL / 2, ["reaper"])
    world.clock.advance(TTL)
    assert Reaped() == world.ledger.reap("reaper", 100)
    world.pass_time(TTL, ["reaper"])
    assert world.ledger.reap("reaper", 100).workers == ("victim",)


def test_after_an_outage_those_who_come_back_in_time_live(world: World) -> None:
    """Ledger away for ten TTLs; the first to return does not kill the second."""
    world.worker("first")
    world.worker("second")
    world.enqueue("a")
    lease = world.hold("second")
    world.clock.advance(10 * TTL)
    assert world.ledger.beat("first", TTL)
    assert Reaped() == world.ledger.reap("first", 100)
    world.clock.advance(TTL / 3)
    assert world.ledger.beat("second", TTL)
    world.pass_time(2 * TTL, ["first", "second"])
    assert Reaped() == world.ledger.reap("first", 100)
    assert world.commit("second", lease).fenced == ()


def test_a_suspended_machine_reaps_nothing_for_a_ttl(world: World) -> None:
    """Its own clock stood still while the ledger's went on."""
    world.worker("victim")
    suspended = ManualClock()
    client = world.client(suspended)
    client.register(world.run, "suspended", TTL, Role.WORKER, {})
    for _ in range(8):
        suspended.advance(TTL / 4)
        world.clock.advance(TTL / 4)
        assert client.beat("suspended", TTL)
        assert world.ledger.beat("victim", TTL)
    suspended.advance(TTL / 4)
    world.clock.advance(2 * TTL)
    assert Reaped() == client.reap("suspended", 100)
    for _ in range(4):
        suspended.advance(TTL / 4)
        world.clock.advance(TTL / 4)
        assert client.beat("suspended", TTL)
    assert client.reap("suspended", 100).workers == ("victim",)


def test_the_longer_of_the_two_ttls_counts(world: World) -> None:
    """A worker with a long TTL beats seldom: a hasty reaper waits for it."""
    world.worker("slow", ttl=10 * TTL)
    world.clock.advance(20 * TTL)
    client = world.client()
    client.register(world.run, "hasty", TTL, Role.WORKER, {})
    for _ in range(39):
        world.clock.advance(TTL / 4)
        assert client.beat("hasty", TTL)
        assert Reaped() == client.reap("hasty", 100)
    world.clock.advance(TTL / 4)
    assert client.reap("hasty", 100).workers == ("slow",)


# -- jumps of the ledger's clock --------------------------------------------------------


@pytest.mark.parametrize("jump", [DAY, -DAY])
def test_a_jump_of_the_ledgers_clock_kills_nobody_who_beats(world: World, jump: float) -> None:
    """Right after the jump, and ever after."""
    world.worker("living")
    world.enqueue("a")
    lease = world.hold("living")
    reaper = world.register("reaper", Role.OPERATOR)
    world.pass_time(2 * TTL, ["living", reaper])
    world.clock.jump(jump)
    for _ in range(12):
        assert Reaped() == world.ledger.reap(reaper, 100)
        world.pass_time(TTL / 4, ["living", reaper])
    assert world.commit("living", lease).fenced == ()


@pytest.mark.parametrize("jump", [DAY, -DAY])
def test_after_a_jump_the_dead_are_found_within_two_ttls(world: World, jump: float) -> None:
    """Their expiries, a day ahead, are pulled back to what could have been set."""
    world.worker("victim")
    world.enqueue("a")
    world.hold("victim")
    reaper = world.register("reaper", Role.OPERATOR)
    world.pass_time(TTL / 2, [reaper])
    world.clock.jump(jump)
    reaped: list[str] = []
    for _ in range(10):
        world.pass_time(TTL / 4, [reaper])
        reaped += world.ledger.reap(reaper, 100).workers
    assert reaped == ["victim"]
    assert world.state("a") is State.DELAYED


def test_a_delay_set_by_a_clock_that_was_ahead_is_pulled_back(world: World) -> None:
    """An item must not wait a day because a clock was wrong for a minute."""
    world.worker()
    world.enqueue("a")
    lease = world.hold("worker")
    world.clock.jump(DAY)
    world.fail("worker", lease)
    world.clock.jump(-DAY)
    world.pass_time(1.25 * TTL, ["worker"])
    world.ledger.reap("worker", 100)
    assert world.ledger.counts(world.run).next_due_s == pytest.approx(Policy().max_backoff)
    world.pass_time(Policy().max_backoff, ["worker"])
    assert world.claim("worker") is not None


def test_a_brief_jump_that_is_undone_kills_nobody(world: World) -> None:
    """One client saw the wrong clock, another did not; neither may act on it."""
    world.worker("living")
    world.enqueue("a")
    lease = world.hold("living")
    one, other = world.client(), world.client()
    one.register(world.run, "one", TTL, Role.WORKER, {})
    other.register(world.run, "other", TTL, Role.WORKER, {})

    def pass_a_quarter() -> None:
        world.clock.advance(TTL / 4)
        for client, name in ((world.ledger, "living"), (one, "one"), (other, "other")):
            assert client.beat(name, TTL)

    for _ in range(6):
        pass_a_quarter()
    world.clock.jump(-DAY)
    assert Reaped() == one.reap("one", 100)
    world.clock.jump(DAY)
    assert Reaped() == other.reap("other", 100)
    for _ in range(6):
        pass_a_quarter()
        assert Reaped() == one.reap("one", 100)
        assert Reaped() == other.reap("other", 100)
    assert world.commit("living", lease).fenced == ()
