"""Reading: counts, duplicates, lookup, and the pages of results and dead letters."""

from __future__ import annotations

import pytest

from batchq.ledger.base import ISOLATED_LOSSES, State, Tallies, lease_cap
from tests.conformance.world import World, document, stored


def test_an_empty_run_counts_nothing(world: World) -> None:
    """All zero, nothing held, nothing due."""
    counts = world.ledger.counts(world.run)
    assert Tallies() == counts.tallies
    assert (counts.workers_alive, counts.enqueuers_alive) == (0, 0)
    assert (counts.oldest_lease_s, counts.next_due_s, counts.exact) == (None, None, True)
    assert counts.now == pytest.approx(world.clock.now())
    assert world.ledger.duplicates(world.run) == (0 if world.backend.counts_content else None)


def test_counts_tell_the_age_of_the_oldest_lease(world: World) -> None:
    """Seconds since the earliest claim that is still open."""
    world.worker()
    world.enqueue_many(2)
    first = world.hold("worker", 1)
    world.clock.advance(10)
    world.hold("worker", 1)
    world.clock.advance(5)
    assert world.ledger.counts(world.run).oldest_lease_s == pytest.approx(15)
    world.commit("worker", first)
    assert world.ledger.counts(world.run).oldest_lease_s == pytest.approx(5)


def test_counts_tell_when_the_next_delayed_item_is_due(world: World) -> None:
    """Zero once it is."""
    world.worker()
    world.enqueue("a")
    world.fail("worker", world.hold("worker"))
    world.clock.advance(0.5)
    assert world.ledger.counts(world.run).next_due_s == pytest.approx(1.5)
    world.clock.advance(5)
    assert world.ledger.counts(world.run).next_due_s == 0


def test_a_clock_that_went_back_makes_no_age_negative(world: World) -> None:
    """Ages are seconds, and none is below zero."""
    world.worker()
    world.enqueue("a")
    world.hold("worker")
    world.clock.jump(-1_000)
    assert world.ledger.counts(world.run).oldest_lease_s == 0


def test_duplicates_are_items_that_share_their_bytes(world: World) -> None:
    """Items ever enqueued less their distinct versions, superseded ones included.

    None where nothing but a look at every item would tell.
    """
    world.enqueue(document("a", "same"), document("b", "same"), document("c", "same"), "d")
    duplicates = 2 if world.backend.counts_content else None
    assert world.ledger.duplicates(world.run) == duplicates
    world.enqueue(document("a", "other"))
    assert world.ledger.duplicates(world.run) == duplicates


def test_lookup_finds_the_current_item_of_a_document(world: World) -> None:
    """None for a stranger; the result where there is one."""
    world.worker()
    assert world.ledger.lookup(world.run, "a") is None
    world.enqueue("a")
    found = world.ledger.lookup(world.run, "a")
    assert found is not None
    assert (found.source_id, found.source_version) == ("a", "sha256:v1")
    assert (found.state, found.result) == (State.READY, None)
    lease, item = world.hold_one("worker")
    world.commit("worker", lease)
    found = world.ledger.lookup(world.run, "a")
    assert found is not None
    assert found.item_id == item.id
    assert found.result is not None
    assert found.result.stored == stored()


def test_lookup_names_every_state(world: World) -> None:
    """Ready, delayed, leased, completed, dead-lettered."""
    world.worker()
    world.enqueue_many(5)
    completed, dead, delayed, _ = (world.hold("worker", 1) for _ in range(4))
    world.commit("worker", completed)
    world.fail("worker", dead, final=True)
    world.fail("worker", delayed)
    assert world.states(["000", "001", "002", "003", "004"]) == [
        State.COMPLETED,
        State.DEAD_LETTERED,
        State.DELAYED,
        State.LEASED,
        State.READY,
    ]


def test_lookup_follows_the_document_to_its_new_version(world: World) -> None:
    """A committed old version is not the current item."""
    world.worker()
    world.enqueue("a")
    world.commit("worker", world.hold("worker"))
    world.enqueue(document("a", "v2"))
    found = world.ledger.lookup(world.run, "a")
    assert found is not None
    assert (found.source_version, found.state, found.result) == ("sha256:v2", State.READY, None)


def test_results_come_in_pages_by_id(world: World) -> None:
    """Whatever the order in which they were committed, each exactly once."""
    world.worker()
    world.enqueue_many(5)
    for lease in [world.hold("worker", 1) for _ in range(5)][::-1]:
        world.commit("worker", lease)
    names: list[str] = []
    after = 0
    while page := world.ledger.results(world.run, after, 2):
        assert len(page) <= 2
        names += [row.source_id for row in page]
        after = page[-1].item_id
    assert names == ["000", "001", "002", "003", "004"]


def test_current_results_leave_out_the_versions_that_were_replaced(world: World) -> None:
    """Full pages of the latest; a newer version without a result hides the old one too."""
    world.worker()
    world.enqueue_many(6)
    world.commit("worker", world.hold("worker"))
    world.enqueue(document("001", "v2"), document("003", "v2"))
    assert [row.source_id for row in world.ledger.results(world.run, 0, 4, current_only=True)] == [
        "000",
        "002",
        "004",
        "005",
    ]
    world.commit("worker", world.hold("worker", 1))
    rows = world.ledger.results(world.run, 0, 10, current_only=True)
    assert ("001", "sha256:v2") in [(row.source_id, row.source_version) for row in rows]
    assert len(rows) == 5
    assert len(world.ledger.results(world.run, 0, 10)) == 7
    last = world.ledger.results(world.run, rows[-2].item_id, 1, current_only=True)
    assert rows[-1:] == last


def test_dead_letters_come_in_pages_by_id(world: World) -> None:
    """The same, for what ended without a result."""
    world.worker()
    world.enqueue_many(5)
    for lease in [world.hold("worker", 1) for _ in range(5)][::-1]:
        world.fail("worker", lease, final=True)
    names: list[str] = []
    after = 0
    while page := world.ledger.dead_letters(world.run, after, 2):
        assert len(page) <= 2
        names += [letter.source_id for letter in page]
        after = page[-1].item_id
    assert names == ["000", "001", "002", "003", "004"]


def test_a_lease_cap_of_a_suspect_is_one(world: World) -> None:
    """The rule of isolation and that of shrinking leases meet."""
    assert [lease_cap(losses, 100) for losses in range(4)] == [100, 10, 1, 1]
    assert lease_cap(ISOLATED_LOSSES, 1_000) == 1


def test_counts_say_whether_they_are_exact(world: World) -> None:
    """Where tallies settle with each lease, an open one leaves room for doubt."""
    world.worker()
    world.enqueue("a")
    assert world.ledger.counts(world.run).exact
    lease = world.hold("worker")
    counts = world.ledger.counts(world.run)
    assert (counts.exact, counts.tallies.leased) == (world.backend.settles_at_once, 1)
    world.commit("worker", lease)
    counts = world.ledger.counts(world.run)
    assert (counts.exact, counts.run_is_over) == (True, True)
