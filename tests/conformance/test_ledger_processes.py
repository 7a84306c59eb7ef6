"""Runs and processes: create_run, register, beat, stop, workers."""

from __future__ import annotations

import pytest

from batchq.errors import UsageError, WorkerReaped
from batchq.lease import ReleaseReason
from batchq.ledger.base import Policy, Reaped, Role, State, WorkerState
from tests.conformance.world import TTL, World, moved


def test_initialising_again_changes_nothing(world: World) -> None:
    """`init` is idempotent: what is in the ledger stays."""
    world.enqueue("a")
    world.ledger.initialise()
    world.ledger.check()
    assert world.tallies.total == 1


def test_a_run_is_created_once_and_found_by_name(world: World) -> None:
    """An existing run is returned as it is, whatever is asked for the second time."""
    again = world.ledger.create_run("run", "other-000000000000", {"kind": "other"}, "shard")
    assert world.run == again == world.ledger.find_run("run")
    assert world.run.manifest == {"kind": "stats"}
    assert world.ledger.find_run("another") is None


def test_runs_are_listed_by_name(world: World) -> None:
    """For somebody who misspelt one: in the same order everywhere, and no more than asked for."""
    for name in ("é", "b", "B", "a b"):
        world.ledger.create_run(name, "p-1", {}, "item")
    assert world.client().run_names(10) == ["B", "a b", "b", "run", "é"]
    some = world.ledger.run_names(2)
    assert len(some) == 2
    assert some == sorted(some)
    assert set(some) < {"B", "a b", "b", "run", "é"}


def test_a_run_keeps_its_whole_manifest(world: World) -> None:
    """The manifest comes back as it went in, nested and in every language."""
    manifest = {"kind": "embed", "parameters": {"overlap": 16, "prompt": "Größe: \u4e2d\n"}}
    world.ledger.create_run("other", "embed-000000000000", manifest, "item")
    found = world.client().find_run("other")
    assert found is not None
    assert manifest == found.manifest


def test_each_run_has_its_own_prefix(world: World) -> None:
    """The prefix begins with the run's name and is shared by no other run."""
    one = world.ledger.create_run("My Run!", "p-1", {}, "item")
    other = world.ledger.create_run("my run", "p-1", {}, "item")
    assert one.prefix.startswith("my-run-")
    assert other.prefix.startswith("my-run-")
    assert one.prefix != other.prefix


def test_runs_share_nothing(world: World) -> None:
    """The same document in two runs is two items, and a worker gets those of its run."""
    world.enqueue("a")
    other = World(world.backend, run="other")
    worker = other.register("other-worker")
    assert other.claim(worker) is None
    other.ledger.register(other.run, "other-enqueuer", TTL, Role.ENQUEUER, {})
    other.enqueue("a", by="other-enqueuer")
    lease = other.hold(worker)
    other.commit(worker, lease)
    assert (world.tallies.completed, world.tallies.ready) == (0, 1)
    assert (other.tallies.completed, other.tallies.ready) == (1, 0)


def test_a_registered_process_is_alive_for_its_ttl(world: World) -> None:
    """Alive until the TTL is over, by the ledger's clock, and counted by its role."""
    world.worker("w")
    world.register("e", Role.ENQUEUER)
    world.register("o", Role.OPERATOR)
    counts = world.ledger.counts(world.run)
    assert (counts.workers_alive, counts.enqueuers_alive) == (1, 1)
    world.clock.advance(TTL - 1)
    assert world.ledger.counts(world.run).workers_alive == 1
    world.clock.advance(1)
    counts = world.ledger.counts(world.run)
    assert (counts.workers_alive, counts.enqueuers_alive) == (0, 0)


def test_a_beat_prolongs_life_by_the_ttl(world: World) -> None:
    """A beat counts from when it comes, and may change the TTL."""
    world.worker("w")
    world.clock.advance(TTL / 2)
    assert world.ledger.beat("w", 2 * TTL)
    world.clock.advance(2 * TTL - 1)
    assert world.ledger.counts(world.run).workers_alive == 1
    world.clock.advance(1)
    assert world.ledger.counts(world.run).workers_alive == 0


def test_a_late_beat_revives_one_that_nobody_reaped(world: World) -> None:
    """Expired but not reaped: its leases still hold, and so does its life."""
    world.worker("w")
    world.enqueue("a")
    lease = world.hold("w")
    world.clock.advance(10 * TTL)
    assert world.ledger.beat("w", TTL)
    assert world.ledger.counts(world.run).workers_alive == 1
    assert world.commit("w", lease).accepted == (lease.items[0].id,)


def test_an_unknown_name_does_not_beat(world: World) -> None:
    """A beat makes nobody known, and stopping a stranger changes nothing."""
    assert not world.ledger.beat("stranger", TTL)
    world.ledger.stop("stranger", "end")
    assert world.ledger.workers(world.run) == []


def test_an_unregistered_name_is_refused_by_every_other_verb(world: World) -> None:
    """No verb moves an item in the name of nobody."""
    ledger = world.ledger
    with pytest.raises(WorkerReaped, match="stranger"):
        ledger.claim("stranger", "t", 1, alone=True)
    with pytest.raises(WorkerReaped, match="stranger"):
        ledger.enqueue("stranger", 1, [])
    with pytest.raises(WorkerReaped, match="stranger"):
        ledger.commit("stranger", [])
    with pytest.raises(WorkerReaped, match="stranger"):
        ledger.fail("stranger", [])
    with pytest.raises(WorkerReaped, match="stranger"):
        ledger.release("stranger", [], ReleaseReason.DRAIN)
    with pytest.raises(WorkerReaped, match="stranger"):
        ledger.reap("stranger", 1)
    with pytest.raises(WorkerReaped, match="stranger"):
        ledger.retry("stranger", world.run)
    with pytest.raises(WorkerReaped, match="stranger"):
        ledger.reopen("stranger", world.run, [])


@pytest.mark.parametrize("ttl", [0.0, -1.0, Policy().max_ttl + 1])
def test_a_ttl_outside_the_legal_range_is_refused(world: World, ttl: float) -> None:
    """A TTL longer than the longest legal one would make a dead worker immortal."""
    with pytest.raises(UsageError, match="TTL"):
        world.worker("w", ttl=ttl)
    world.worker("w")
    with pytest.raises(UsageError, match="TTL"):
        world.ledger.beat("w", ttl)


def test_stopping_releases_what_is_held_as_a_drain_does(world: World) -> None:
    """Nothing of a stopped worker stays leased, and nothing is charged for it."""
    world.worker("w")
    world.enqueue_many(3)
    lease = world.hold("w")
    before = world.tallies
    world.ledger.stop("w", "notice")
    assert moved(before, world.tallies) == {
        "leased": -3,
        "ready": 3,
        "delayed": 3,
        "interrupted": 3,
    }
    world.worker("next")
    again = world.hold("next")
    assert [i.id for i in lease.items] == [i.id for i in again.items]
    assert {(i.failures, i.losses, i.attempt) for i in again.items} == {(0, 0, 2)}


def test_a_stopped_process_is_over(world: World) -> None:
    """It counts as stopped with its reason; beats are refused, and so are claims."""
    world.worker("w")
    world.ledger.stop("w", "notice: spot interruption")
    [status] = world.ledger.workers(world.run)
    assert (status.state, status.alive) == (WorkerState.STOPPED, False)
    assert status.stop_reason == "notice: spot interruption"
    assert not world.ledger.beat("w", TTL)
    with pytest.raises(WorkerReaped):
        world.claim("w")
    with pytest.raises(WorkerReaped):
        world.worker("w")


def test_a_stop_is_the_last_sign_of_life(world: World) -> None:
    """A worker that ends between two beats has lived until then; asked again, no longer."""
    world.worker("w")
    for _ in range(2):
        world.clock.advance(7)
        world.ledger.stop("w", "run finished")
    [status] = world.ledger.workers(world.run)
    assert status.beat_at - status.registered_at == pytest.approx(7)


def test_the_tallies_of_a_stopped_process_stay_in_the_run(world: World) -> None:
    """Folding moves counters; it neither loses nor doubles them."""
    world.worker("w")
    world.clock.advance(1)
    world.enqueue_many(2)
    world.commit("w", world.hold("w", 1))
    before = world.tallies
    world.ledger.stop("w", "end")
    world.ledger.stop("w", "end again")
    assert before == world.check_accounting()
    assert [s.committed for s in world.ledger.workers(world.run)][-1:] == [0]
    assert {s.name: s.committed for s in world.ledger.workers(world.run)}["w"] == 1


def test_processes_are_listed_oldest_first_with_what_they_said(world: World) -> None:
    """`workers` shows each process of the run as it registered and as it stands."""
    world.ledger.register(world.run, "b", TTL, Role.WORKER, {"device": "cuda:0", "n": 1})
    world.clock.advance(1)
    world.ledger.register(world.run, "a", TTL, Role.OPERATOR, {})
    world.clock.advance(1)
    world.ledger.beat("b", TTL)
    world.enqueue_many(3)
    world.hold("b", 2)
    first, second, _ = world.ledger.workers(world.run)
    assert (first.name, first.role, first.about) == ("b", Role.WORKER, {"device": "cuda:0", "n": 1})
    assert (first.state, first.alive, first.held) == (WorkerState.LIVE, True, 2)
    assert first.beat_at - first.registered_at == pytest.approx(2)
    assert (second.name, second.role, second.stop_reason) == ("a", Role.OPERATOR, None)


def test_what_a_stopped_worker_released_is_ready_for_others(world: World) -> None:
    """The state after a stop is delayed, due at once."""
    world.worker("w")
    world.enqueue("a")
    world.hold("w")
    world.ledger.stop("w", "end")
    assert world.state("a") is State.DELAYED
    assert world.ledger.counts(world.run).next_due_s == 0


def test_a_stop_after_the_reap_gives_nothing_back(world: World) -> None:
    """What a reaped worker still holds goes back as the loss that it is, page by page."""
    world.worker("victim")
    world.enqueue_many(3)
    world.hold("victim")
    world.lose("victim", limit=1)
    before = world.tallies
    world.ledger.stop("victim", "too late")
    assert world.tallies == before
    assert Reaped((), returned=2) == world.ledger.reap("reaper", 10)
    status = {s.name: s for s in world.ledger.workers(world.run)}["victim"]
    assert status.state is WorkerState.REAPED
    assert (world.tallies.lost_leases, world.tallies.interrupted) == (3, 0)
