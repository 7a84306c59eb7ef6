"""Fail, release and retry: how items come back, and what it costs them."""

from __future__ import annotations

import pytest

from batchq.lease import Failure, Held, ReleaseReason
from batchq.ledger.base import Failed, Policy, State
from tests.conformance.backends import Backend
from tests.conformance.world import World, document, held, moved

BACKED_OFF = [ReleaseReason.CANCELLED, ReleaseReason.STORE]


def test_a_failure_is_charged_and_delays_the_item(world: World) -> None:
    """It comes back with one failure more."""
    world.worker()
    world.enqueue("a")
    lease = world.hold("worker")
    before = world.tallies
    assert Failed(retried=(lease.items[0].id,)) == world.fail("worker", lease)
    assert moved(before, world.tallies) == {"leased": -1, "ready": 1, "delayed": 1, "failures": 1}
    assert world.state("a") is State.DELAYED


def test_the_backoff_doubles_with_each_failure(backend: Backend) -> None:
    """2, 4, 8 seconds with the default policy, but never beyond the longest."""
    world = World(backend, Policy(max_failures=9, backoff=2.0, max_backoff=10.0))
    world.worker()
    world.enqueue("a")
    waits = []
    for _ in range(4):
        world.fail("worker", world.hold("worker"))
        wait = world.ledger.counts(world.run).next_due_s
        assert wait is not None
        waits.append(wait)
        world.clock.advance(wait)
    assert waits == pytest.approx([2, 4, 8, 10])


def test_the_last_failure_ends_the_item_with_its_cause(world: World) -> None:
    """After `max_failures` it is a dead letter that says why."""
    world.worker()
    world.enqueue("a")
    for cause in ("first", "second"):
        assert world.fail("worker", world.hold("worker"), cause).dead_lettered == ()
        world.clock.advance(Policy().max_backoff)
    lease, item = world.hold_one("worker")
    before = world.tallies
    assert Failed(dead_lettered=(item.id,)) == world.fail("worker", lease, "third")
    assert moved(before, world.tallies) == {"leased": -1, "dead_lettered": 1, "failures": 1}
    letter = world.letter("a")
    assert (letter.item_id, letter.source_version) == (item.id, "sha256:v1")
    assert (letter.cause, letter.error) == ("third", "third happened")
    assert (letter.attempt, letter.generation) == (3, 1)
    assert letter.at == pytest.approx(world.clock.now())


def test_a_final_failure_ends_the_item_at_once(world: World) -> None:
    """A missing source is not worth a second attempt."""
    world.worker()
    world.enqueue("a")
    lease = world.hold("worker")
    assert world.fail("worker", lease, final=True).dead_lettered == (lease.items[0].id,)
    world.clock.advance(Policy().max_backoff)
    assert world.claim("worker") is None


def test_failures_of_one_call_are_answered_each_for_itself(world: World) -> None:
    """Retried, dead-lettered and fenced, side by side."""
    world.worker()
    world.enqueue_many(3)
    lease = world.hold("worker")
    one, two, three = held(lease)
    answer = world.ledger.fail(
        "worker",
        [
            Failure(three, "c", "e"),
            Failure(two, "c", "e", final=True),
            Failure(Held("other", one.item_id), "c", "e"),
        ],
    )
    assert Failed((three.item_id,), (two.item_id,), (one.item_id,)) == answer
    assert world.states(["000", "001", "002"]) == [
        State.LEASED,
        State.DEAD_LETTERED,
        State.DELAYED,
    ]


def test_two_failures_under_one_token_are_charged_once(world: World) -> None:
    """The first decides."""
    world.worker()
    world.enqueue("a")
    [one] = held(world.hold("worker"))
    answer = world.ledger.fail("worker", [Failure(one, "c", "e"), Failure(one, "d", "f", True)])
    assert Failed(retried=(one.item_id,)) == answer
    assert world.tallies.failures == 1


def test_a_failure_under_a_token_that_does_not_hold_is_fenced(world: World) -> None:
    """It charges nobody and moves no counter."""
    world.worker("stalled")
    world.enqueue("a")
    lost = world.hold("stalled")
    world.lose("stalled")
    world.worker("next")
    taken = world.hold("next")
    before = world.tallies
    assert world.fail("stalled", lost, final=True).fenced == (lost.items[0].id,)
    assert before == world.tallies
    assert world.commit("next", taken).fenced == ()


def test_an_error_of_any_length_and_text_is_kept(world: World) -> None:
    """Errors are sentences for people, in every language."""
    world.worker()
    world.enqueue("a")
    [one] = held(world.hold("worker"))
    error = "Größe \u4e2d '\";\n" + "x" * 5_000
    world.ledger.fail("worker", [Failure(one, "cause", error, final=True)])
    assert error == world.letter("a").error


def test_a_drain_gives_items_back_at_once_and_uncharged(world: World) -> None:
    """The next worker starts where this one stopped."""
    world.worker()
    world.enqueue_many(2)
    lease = world.hold("worker")
    before = world.tallies
    assert world.release("worker", lease) == 2
    assert moved(before, world.tallies) == {
        "leased": -2,
        "ready": 2,
        "delayed": 2,
        "interrupted": 2,
    }
    assert {(i.failures, i.losses) for i in world.hold("worker").items} == {(0, 0)}


def test_any_number_of_drains_is_free(world: World) -> None:
    """Interruptions are not the document's fault (invariant 11)."""
    world.worker()
    world.enqueue_many(2)
    for _ in range(3 * Policy().max_releases):
        one, two = held(world.hold("worker"))
        world.ledger.release("worker", [one, two], ReleaseReason.DRAIN)
    assert world.tallies.failures == 0
    assert world.hold("worker").items[0].failures == 0


@pytest.mark.parametrize("reason", BACKED_OFF)
def test_other_releases_back_off(world: World, reason: ReleaseReason) -> None:
    """A store that is down is not asked again at once, nor is it a document's failure."""
    world.worker()
    world.enqueue("a")
    waits = []
    for _ in range(3):
        assert world.release("worker", world.hold("worker"), reason) == 1
        assert world.tallies.delayed == 1
        wait = world.ledger.counts(world.run).next_due_s
        assert wait is not None
        waits.append(wait)
        world.clock.advance(wait)
    assert waits == pytest.approx([2, 4, 8])
    assert (world.tallies.failures, world.tallies.interrupted) == (0, 0)
    assert world.hold("worker").items[0].failures == 0


def release_often(world: World, times: int, *, while_committing: bool) -> None:
    """Release 000 `times` times; `while_committing`, its worker commits another each time."""
    world.worker()
    world.enqueue_many(times + 1)
    others = iter([world.hold("worker", 1) for _ in range(times + 1)])
    world.release("worker", next(others))
    for _ in range(times):
        [one] = held(world.hold("worker"))
        if while_committing:
            world.commit("worker", next(others))
        world.ledger.release("worker", [one], ReleaseReason.STORE)
        world.clock.advance(Policy().max_backoff)


def test_the_fifth_release_while_others_commit_is_charged(world: World) -> None:
    """A store that takes everything but this one result is no outage."""
    release_often(world, 4, while_committing=True)
    assert world.tallies.failures == 0
    [one] = held(world.hold("worker"))
    world.worker("other")
    world.enqueue("x")
    lease = world.claim("worker", alone=False)
    assert lease is not None
    world.commit("worker", lease)
    before = world.tallies
    assert world.ledger.release("worker", [one], ReleaseReason.STORE) == 1
    assert moved(before, world.tallies) == {"leased": -1, "ready": 1, "delayed": 1, "failures": 1}
    assert world.ledger.counts(world.run).next_due_s == pytest.approx(Policy().backoff)


def test_releases_while_nothing_commits_are_never_charged(world: World) -> None:
    """An outage, however long, costs no document anything."""
    release_often(world, 12, while_committing=False)
    assert world.tallies.failures == 0
    assert world.state("000") is State.DELAYED


def test_a_commit_before_the_claim_charges_no_release(world: World) -> None:
    """Only what was committed since the claim shows that the store works."""
    world.worker()
    world.enqueue_many(2)
    other = world.hold("worker", 1)
    suspect = world.hold("worker", 1)
    world.commit("worker", other)
    for _ in range(Policy().max_releases + 1):
        world.release("worker", suspect, ReleaseReason.STORE)
        world.clock.advance(Policy().max_backoff)
        suspect = world.hold("worker")
    assert world.tallies.failures == 0


def test_a_charged_release_can_end_the_item(backend: Backend) -> None:
    """Its cause is the reason of the release."""
    world = World(backend, Policy(max_failures=1, max_releases=1))
    world.worker()
    world.enqueue_many(2)
    one, two = world.hold("worker", 1), world.hold("worker", 1)
    world.commit("worker", two)
    before = world.tallies
    assert world.release("worker", one, ReleaseReason.CANCELLED) == 1
    assert moved(before, world.tallies) == {"leased": -1, "dead_lettered": 1, "failures": 1}
    letter = world.letter("000")
    assert letter.cause == "cancelled"
    assert letter.error


def test_a_broken_object_begins_a_new_generation(world: World) -> None:
    """Due at once under a new key, with the counts it had."""
    world.worker()
    world.enqueue("a")
    world.fail("worker", world.hold("worker"))
    world.clock.advance(Policy().max_backoff)
    lease = world.hold("worker")
    before = world.tallies
    assert world.release("worker", lease, ReleaseReason.BROKEN_OBJECT) == 1
    assert moved(before, world.tallies) == {"leased": -1, "ready": 1, "delayed": 1}
    [item] = world.hold("worker").items
    assert (item.generation, item.attempt, item.failures) == (2, 3, 1)


@pytest.mark.parametrize("reason", list(ReleaseReason))
def test_a_release_under_a_token_that_does_not_hold_takes_no_effect(
    world: World, reason: ReleaseReason
) -> None:
    """Neither the state nor the generation of another's item moves."""
    world.worker("stalled")
    world.enqueue("a")
    lost = world.hold("stalled")
    world.lose("stalled")
    world.worker("next")
    taken = world.hold("next")
    before = world.tallies
    assert world.release("stalled", lost, reason) == 0
    assert before == world.tallies
    world.commit("next", taken)
    [row] = world.ledger.results(world.run, 0, 10)
    assert row.generation == 1


def test_naming_an_item_twice_releases_it_once(world: World) -> None:
    """The second naming finds the token gone."""
    world.worker()
    world.enqueue("a")
    [one] = held(world.hold("worker"))
    assert world.ledger.release("worker", [one, one], ReleaseReason.DRAIN) == 1
    assert world.tallies.interrupted == 1


def test_retry_sends_all_dead_letters_back_with_clean_counts(world: World) -> None:
    """A new generation, due at once."""
    world.worker()
    for name in ("a", "b"):
        world.dead_letter(name, "worker")
    before = world.tallies
    assert world.ledger.retry("worker", world.run) == 2
    assert moved(before, world.tallies) == {"dead_lettered": -2, "ready": 2, "delayed": 2}
    items = world.hold("worker").items
    assert {(i.generation, i.attempt, i.failures, i.losses) for i in items} == {(2, 2, 0, 0)}
    assert world.ledger.dead_letters(world.run, 0, 10) == []


def test_retry_is_narrowed_by_cause_and_by_name(world: World) -> None:
    """Either, or both at once."""
    world.worker()
    for name, cause in (("a", "x"), ("b", "x"), ("c", "y")):
        world.dead_letter(name, "worker", cause)
    ledger = world.ledger
    assert ledger.retry("worker", world.run, cause="z") == 0
    assert ledger.retry("worker", world.run, source_ids=["c"], cause="x") == 0
    assert ledger.retry("worker", world.run, source_ids=["a", "c"], cause="x") == 1
    assert world.state("a") is State.DELAYED
    assert ledger.retry("worker", world.run, source_ids=["unknown", "c"]) == 1
    assert ledger.retry("worker", world.run, cause="x") == 1
    assert world.check_accounting().dead_lettered == 0


def test_retry_touches_dead_letters_only(world: World) -> None:
    """Completed, leased and ready items are none of its business."""
    world.worker()
    world.enqueue_many(3)
    world.commit("worker", world.hold("worker", 1))
    world.hold("worker", 1)
    before = world.tallies
    assert world.ledger.retry("worker", world.run) == 0
    assert world.ledger.retry("worker", world.run, source_ids=["000", "001", "002"]) == 0
    assert before == world.tallies


def test_a_retried_item_fails_as_often_as_a_new_one(world: World) -> None:
    """Clean counts mean clean counts."""
    world.worker()
    world.dead_letter("a", "worker")
    world.ledger.retry("worker", world.run)
    for _ in range(Policy().max_failures):
        assert world.state("a") is State.DELAYED
        world.fail("worker", world.hold("worker"))
        world.clock.advance(Policy().max_backoff)
    assert world.letter("a").generation == 2


def test_a_superseded_dead_letter_is_not_retried(world: World) -> None:
    """Its document has other bytes now."""
    world.worker()
    world.dead_letter("a", "worker")
    world.enqueue(document("a", "v2"))
    assert world.ledger.retry("worker", world.run) == 0
