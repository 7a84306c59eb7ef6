"""Reopen, recount and states: what an audit of the store asks of the ledger."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batchq.errors import WorkerReaped
from batchq.ledger.base import CommittedResult, State, Tallies
from tests.conformance.recount import check_rows, history
from tests.conformance.test_ledger_races import race
from tests.conformance.test_ledger_transactions import SQL, execute, url_of
from tests.conformance.world import World, digest, document, moved


def complete(world: World, *names: str, text: str = "output") -> list[CommittedResult]:
    """Enqueue documents and commit a result of each; what was committed."""
    world.worker()
    world.enqueue(*names)
    world.commit("worker", world.hold("worker"), text)
    return [world.result(name) for name in names]


def test_a_reopened_item_begins_a_new_generation(world: World) -> None:
    """Due at once, with clean counts; the attempts go on being numbered."""
    world.worker()
    world.enqueue("a")
    world.fail("worker", world.hold("worker"))
    world.clock.advance(60)
    world.commit("worker", world.hold("worker"))
    before = world.tallies
    assert world.reopen(world.result("a")) == 1
    assert moved(before, world.tallies) == {"completed": -1, "ready": 1, "delayed": 1}
    assert world.state("a") is State.DELAYED
    assert world.ledger.results(world.run, 0, 10) == []
    [item] = world.hold("worker").items
    assert (item.attempt, item.generation, item.failures, item.losses) == (3, 2, 0, 0)
    check_rows(world)


def test_a_reopened_item_is_completed_once_more(world: World) -> None:
    """The result of its new generation takes the place of the one that was lost."""
    [lost] = complete(world, "a")
    world.reopen(lost)
    world.commit("worker", world.hold("worker"), "again")
    found = world.result("a")
    assert (found.item_id, found.generation) == (lost.item_id, 2)
    assert found.stored.sha256 == digest("again")
    assert world.check_accounting().completed == 1


def test_only_what_was_given_is_reopened(world: World) -> None:
    """Its neighbours stay as they are."""
    one, two, three = complete(world, "a", "b", "c")
    assert world.reopen(three, one) == 2
    assert [two] == world.ledger.results(world.run, 0, 10)
    assert world.states(["a", "b", "c"]) == [State.DELAYED, State.COMPLETED, State.DELAYED]


def test_an_empty_result_that_is_reopened_is_empty_no_more(world: World) -> None:
    """It is taken off the count of empty ones with that of completed ones."""
    world.worker()
    world.enqueue("a")
    [result] = world.results(world.hold("worker"))
    world.ledger.commit("worker", [replace(result, empty=True, adopted=True, divergent=True)])
    before = world.tallies
    world.reopen(world.result("a"))
    assert moved(before, world.tallies) == {"completed": -1, "empty": -1, "ready": 1, "delayed": 1}
    world.check_accounting()


def test_another_generation_is_not_reopened(world: World) -> None:
    """Somebody else repaired it meanwhile, and came to the very same bytes."""
    [lost] = complete(world, "a")
    world.reopen(lost)
    world.commit("worker", world.hold("worker"))
    before = world.tallies
    assert world.reopen(lost) == 0
    assert before == world.tallies
    assert world.result("a").generation == 2


def test_another_digest_is_not_reopened(world: World) -> None:
    """What was looked at is not what is committed."""
    [lost] = complete(world, "a")
    other = replace(lost, stored=replace(lost.stored, sha256=digest("other")))
    assert world.reopen(other) == 0
    assert world.state("a") is State.COMPLETED


def test_an_item_that_is_not_completed_is_not_reopened(world: World) -> None:
    """A worker that holds it by now is not disturbed."""
    [lost] = complete(world, "a")
    world.reopen(lost)
    lease = world.hold("worker")
    assert world.reopen(lost) == 0
    assert world.commit("worker", lease).fenced == ()


def test_an_item_given_twice_is_reopened_once(world: World) -> None:
    """And counted once."""
    [lost] = complete(world, "a")
    assert world.reopen(lost, lost) == 1
    assert world.hold("worker").items[0].generation == 2


def test_an_item_of_another_run_is_not_reopened(world: World) -> None:
    """Whatever its number, a run's auditor touches that run alone."""
    [lost] = complete(world, "a")
    other = World(world.backend, run="other")
    other.register("elsewhere")
    assert other.ledger.reopen("elsewhere", other.run, [lost]) == 0
    assert world.state("a") is State.COMPLETED


def test_an_older_version_is_reopened_too(world: World) -> None:
    """A result that is no longer the current one was promised as well."""
    [old] = complete(world, "a")
    world.enqueue(document("a", "v2"))
    assert world.reopen(old) == 1
    assert {i.source_version for i in world.hold("worker").items} == {"sha256:v1", "sha256:v2"}
    check_rows(world)


def test_a_reopened_older_version_that_fails_is_retried_by_name(world: World) -> None:
    """Its bytes may be gone for now: nobody has to name a version to try again."""
    [old] = complete(world, "a")
    world.enqueue(document("a", "v2"))
    world.commit("worker", world.hold("worker"))
    world.reopen(old)
    world.fail("worker", world.hold("worker"), "source_changed", final=True)
    assert world.ledger.retry("worker", world.run, source_ids=["a"]) == 1
    assert world.hold("worker").items[0].generation == 3


def test_a_reopened_older_version_may_become_the_current_one(world: World) -> None:
    """v1, v2, v1 reopened, v1 enqueued again: v2 gives way, and nothing is lost."""
    [old] = complete(world, "a")
    world.enqueue(document("a", "v2"))
    world.reopen(old)
    assert world.enqueue("a").superseded == 1
    [item] = world.hold("worker").items
    assert (item.source_version, item.generation) == ("sha256:v1", 2)
    check_rows(world)


def test_the_commit_of_a_reopened_item_asked_again_is_fenced(world: World) -> None:
    """Its object is lost: to accept it once more would be to commit nothing."""
    world.worker()
    world.enqueue("a")
    lease = world.hold("worker")
    world.commit("worker", lease)
    world.reopen(world.result("a"))
    assert world.commit("worker", lease).fenced == (lease.items[0].id,)
    assert world.state("a") is State.DELAYED


def test_who_reopens_must_be_registered(world: World) -> None:
    """Its tallies have to be kept somewhere."""
    [lost] = complete(world, "a")
    with pytest.raises(WorkerReaped):
        world.ledger.reopen("nobody", world.run, [lost])
    assert world.state("a") is State.COMPLETED


@SQL
def test_what_was_lost_stays_in_the_history(world: World) -> None:
    """Each generation with its digest, its key and who committed it."""
    for text in ("first", "second"):
        complete(world, "a", text=text)
        world.reopen(world.result("a"))
    assert history(url_of(world)) == [
        (1, "run/first.json", digest("first")),
        (2, "run/second.json", digest("second")),
    ]


def test_auditors_that_race_reopen_an_item_once(world: World) -> None:
    """Both read the same row; one of them is too late."""
    rows = complete(world, *(f"{n:02}" for n in range(20)))
    for name in ("one", "two"):
        world.register(name)
    answers = race(
        lambda: world.client().reopen("one", world.run, rows),
        lambda: world.client().reopen("two", world.run, rows[::-1]),
    )
    assert sum(answers) == 20
    assert {item.generation for item in world.hold("worker").items} == {2}


def test_a_reader_meets_a_reopened_item_in_one_state(world: World) -> None:
    """While it moves, `states` finds it completed with its result, or open without."""
    rows = complete(world, *(f"{n:02}" for n in range(20)))
    identities = [(row.source_id, row.source_version) for row in rows]
    world.register("auditor")

    def reopen_one_by_one() -> None:
        for row in rows:
            world.ledger.reopen("auditor", world.run, [row])

    def look() -> None:
        reader = world.client()
        for _ in range(30):
            for found in reader.states(world.run, identities):
                assert found is not None
                assert (found.state is State.COMPLETED) is (found.result is not None)

    race(reopen_one_by_one, look)
    assert world.tallies.delayed == 20


def test_states_finds_items_in_any_version(world: World) -> None:
    """Current or not, in the order of the question; none for a stranger."""
    [old] = complete(world, "a")
    world.enqueue(document("a", "v2"), "b")
    asked = [("b", "sha256:v1"), ("a", "sha256:v1"), ("a", "sha256:v9"), ("a", "sha256:v2")]
    first, second, third, fourth = world.ledger.states(world.run, asked)
    assert first is not None
    assert (first.source_id, first.state) == ("b", State.READY)
    assert second is not None
    assert (second.item_id, second.state, second.result) == (old.item_id, State.COMPLETED, old)
    assert third is None
    assert fourth == world.ledger.lookup(world.run, "a")


def test_states_finds_a_superseded_item(world: World) -> None:
    """The state that no current item is in."""
    world.enqueue("a")
    world.enqueue(document("a", "v2"))
    [found] = world.ledger.states(world.run, [("a", "sha256:v1")])
    assert found is not None
    assert found.state is State.SUPERSEDED


def test_states_of_nothing_are_none(world: World) -> None:
    """No question, no answer."""
    assert world.ledger.states(world.run, []) == []


def test_a_recount_finds_what_the_tallies_say(world: World) -> None:
    """One item in each state, and an empty result; counters of events are not its matter."""
    world.worker()
    world.enqueue_many(6)
    one, two, dead, delayed, _ = (world.hold("worker", 1) for _ in range(5))
    [result] = world.results(two)
    world.commit("worker", one)
    world.ledger.commit("worker", [replace(result, empty=True)])
    world.fail("worker", dead, final=True)
    world.fail("worker", delayed)
    world.enqueue(document("002", "v2"))
    assert world.ledger.recount(world.run) == Tallies(
        total=6, ready=3, delayed=1, leased=1, completed=2, empty=1, superseded=1
    )
    world.check_accounting()


def test_a_recount_is_of_one_run(world: World) -> None:
    """Another run in the same ledger does not count."""
    world.enqueue("a")
    other = World(world.backend, run="other")
    assert Tallies() == other.ledger.recount(other.run)


@SQL
def test_a_recount_sees_a_tally_that_drifted(world: World) -> None:
    """It asks no tally, so that a wrong one comes to light."""
    complete(world, "a", "b")
    execute(url_of(world), "UPDATE workers SET completed = completed + 1 WHERE name = 'worker'")
    assert world.tallies.completed == 3
    assert world.ledger.recount(world.run).completed == 2


@SQL
def test_a_recount_sees_an_item_in_no_state(world: World) -> None:
    """It is part of the total, since it was enqueued."""
    complete(world, "a", "b")
    execute(url_of(world), "DELETE FROM results WHERE id = (SELECT min(id) FROM items)")
    recounted = world.ledger.recount(world.run)
    assert (recounted.total, recounted.completed) == (2, 1)
