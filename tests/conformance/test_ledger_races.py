"""Threads that race for the same items, each through a client of its own.

Each race is run in several rounds, and must show the same sum whoever wins.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from batchq.errors import WorkerReaped
from batchq.lease import Failure, Lease, ReleaseReason, new_token
from batchq.ledger.base import Enqueued, Ledger, Role, State
from tests.conformance.recount import check_rows
from tests.conformance.world import TTL, World, document, held

THREADS = 4
ROUNDS = 5


def race(*calls: Callable[[], Any]) -> list[Any]:
    """Make all calls at once; their answers in order. The first error is raised again."""
    start = threading.Barrier(len(calls))
    answers: dict[int, Any] = {}
    errors: list[BaseException] = []

    def run(number: int, call: Callable[[], Any]) -> None:
        try:
            start.wait(120)
            answers[number] = call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
    return [answers[number] for number in range(len(calls))]


def few(world: World, number: int) -> int:
    """A fifth of them where a request takes long, but two."""
    return number if world.backend.swift else max(2, number // 5)


def clients(world: World, number: int = THREADS) -> list[Ledger]:
    return [world.client() for _ in range(number)]


def claim(ledger: Ledger, worker: str, limit: int) -> Lease | None:
    """What a claim brings, or nothing where the worker has been reaped."""
    try:
        return ledger.claim(worker, new_token(), limit, alone=False)
    except WorkerReaped:
        return None


def claim_all(ledger: Ledger, worker: str, limit: int) -> list[Lease]:
    """Leases until nothing is left."""
    return list(iter(lambda: claim(ledger, worker, limit), None))


def commit_rest(world: World, worker: str) -> None:
    """Clear the table for the next round."""
    for lease in claim_all(world.ledger, world.worker(worker), 50):
        world.commit(worker, lease)
    world.ledger.stop(worker, "end")


def items_of(answers: Iterable[list[Lease]]) -> list[int]:
    return [item.id for leases in answers for lease in leases for item in lease.items]


def test_racing_claims_hand_out_each_item_once(world: World) -> None:
    """No two live leases hold one item (invariant 8), and none is forgotten."""
    number = few(world, 200)
    world.enqueue_many(number)
    answers = race(
        *(
            partial(claim_all, ledger, world.worker(f"w{n}"), 7)
            for n, ledger in enumerate(clients(world))
        )
    )
    got = items_of(answers)
    assert len(got) == len(set(got)) == number
    assert {item.attempt for leases in answers for lease in leases for item in lease.items} == {1}
    assert world.tallies.attempts == number
    check_rows(world)


def test_racing_claims_of_delayed_items_hand_out_each_once(world: World) -> None:
    """The same for those that came back."""
    number = few(world, 100)
    world.enqueue_many(number)
    first = world.worker("first")
    world.release(first, world.hold(first, 100))
    got = items_of(
        race(
            *(
                partial(claim_all, ledger, world.worker(f"w{n}"), 7)
                for n, ledger in enumerate(clients(world))
            )
        )
    )
    assert len(got) == len(set(got)) == number
    check_rows(world)


def test_a_claim_sent_twice_at_once_is_one_lease(world: World) -> None:
    """The client gave up on the first, which was still under way."""
    world.worker("w")
    world.enqueue_many(20 * ROUNDS)
    one, other = clients(world, 2)
    for n in range(1, few(world, ROUNDS) + 1):
        call = ("w", f"token-{n}", 10)
        first, second = race(
            partial(one.claim, *call, alone=False), partial(other.claim, *call, alone=False)
        )
        assert first == second
        assert world.tallies.leased == 10 * n
    check_rows(world)


def test_racing_commits_of_one_lease_accept_one_result(world: World) -> None:
    """Same token, different outputs: one stays, the others are fenced."""
    world.worker("w")
    world.enqueue_many(ROUNDS * 5)
    ledgers = clients(world)
    for n in range(1, few(world, ROUNDS) + 1):
        lease = world.hold("w", 5)
        answers = race(
            *(
                partial(ledger.commit, "w", world.results(lease, f"output-{text}"))
                for text, ledger in enumerate(ledgers)
            )
        )
        accepted = Counter(i for answer in answers for i in answer.accepted)
        assert accepted == Counter(item.id for item in lease.items)
        # One for each item and token, however many were refused.
        assert world.tallies.fenced == 5 * n
        check_rows(world)


def test_a_commit_sent_twice_at_once_counts_once(world: World) -> None:
    """Both are told that it was accepted."""
    world.worker("w")
    world.enqueue_many(ROUNDS * 5)
    one, other = clients(world, 2)
    for n in range(1, few(world, ROUNDS) + 1):
        results = world.results(world.hold("w", 5))
        first, second = race(partial(one.commit, "w", results), partial(other.commit, "w", results))
        assert first == second
        assert world.tallies.completed == 5 * n
    assert world.tallies.fenced == 0
    check_rows(world)


def test_commit_fail_and_release_of_one_token_exclude_each_other(world: World) -> None:
    """Exactly one of the three has its way with each item."""
    world.worker("w")
    world.enqueue_many(ROUNDS * 6)
    one, two, three = clients(world, 3)
    for _ in range(few(world, ROUNDS)):
        lease = world.hold("w", 6)
        failures = [Failure(each, "c", "e", final=True) for each in held(lease)]
        committed, failed, released = race(
            partial(one.commit, "w", world.results(lease)),
            partial(two.fail, "w", failures),
            partial(three.release, "w", held(lease), ReleaseReason.DRAIN),
        )
        assert len(committed.accepted) + len(failed.dead_lettered) + released == 6
        check_rows(world)


def prepare_a_death(world: World, name: str, number: int) -> Lease:
    """A worker that holds items, whose beat has expired, before a reaper in contact."""
    world.enqueue(*(f"{name}-{n}" for n in range(number + 1)))
    world.worker(name)
    lease = world.hold(name, number)
    world.pass_time(1.25 * TTL, ["reaper"])
    return lease


def test_commit_against_reap(world: World) -> None:
    """Each item is committed, or comes back, never both."""
    world.register("reaper", Role.OPERATOR)
    other = world.client()
    for n in range(few(world, ROUNDS)):
        lease = prepare_a_death(world, f"victim-{n}", 5)
        before = world.tallies
        committed, _ = race(
            partial(other.commit, f"victim-{n}", world.results(lease)),
            partial(world.ledger.reap, "reaper", 100),
        )
        # Whom the first reap found busy, the second finds dead.
        world.ledger.reap("reaper", 100)
        after = world.tallies
        assert after.leased == 0
        assert after.completed - before.completed == len(committed.accepted)
        assert after.lost_leases - before.lost_leases == 5 - len(committed.accepted)
        check_rows(world)
        commit_rest(world, f"rest-{n}")


def test_beat_against_reap(world: World) -> None:
    """Who is told that it lives keeps its leases; who is reaped is told so."""
    world.register("reaper", Role.OPERATOR)
    other = world.client()
    for n in range(few(world, 2 * ROUNDS)):
        name = f"victim-{n}"
        lease = prepare_a_death(world, name, 1)
        lives, reaped = race(
            partial(other.beat, name, TTL), partial(world.ledger.reap, "reaper", 100)
        )
        assert lives == (name not in reaped.workers)
        assert lives == bool(world.commit(name, lease).accepted)
        check_rows(world)
        world.ledger.stop(name, "end")
        commit_rest(world, f"rest-{n}")


def test_claim_against_reap(world: World) -> None:
    """A claim of a worker that is being reaped leaves nothing leased to the dead."""
    world.register("reaper", Role.OPERATOR)
    other = world.client()
    for n in range(few(world, 2 * ROUNDS)):
        name = f"victim-{n}"
        prepare_a_death(world, name, 1)
        race(partial(claim, other, name, 1), partial(world.ledger.reap, "reaper", 100))
        world.ledger.reap("reaper", 100)
        assert world.tallies.leased == 0
        check_rows(world)
        commit_rest(world, f"rest-{n}")


def test_racing_reaps_take_back_each_item_once(world: World) -> None:
    """Every worker reaps: nobody dies twice, and no loss is counted twice."""
    world.enqueue_many(40)
    for n in range(4):
        world.worker(f"victim-{n}")
        world.hold(f"victim-{n}", 10)
    reapers = [
        (ledger, world.register(f"reaper-{n}", Role.OPERATOR))
        for n, ledger in enumerate(clients(world))
    ]
    for _ in range(6):
        world.clock.advance(TTL / 4)
        for ledger, name in reapers:
            assert ledger.beat(name, TTL)
    names: list[str] = []
    returned = 0
    for _ in range(20):
        for answer in race(*(partial(ledger.reap, name, 3) for ledger, name in reapers)):
            names += answer.workers
            returned += answer.returned
    assert sorted(names) == [f"victim-{n}" for n in range(4)]
    assert returned == world.tallies.lost_leases == 40
    check_rows(world)


def test_commit_against_supersession(world: World) -> None:
    """Changed bytes and a result at once: committed or superseded, never both."""
    world.worker("w")
    other = world.client()
    for n in range(few(world, ROUNDS)):
        names = [f"{n}-{m}" for m in range(5)]
        world.enqueue(*names)
        lease = world.hold("w", 5)
        changed = [document(name, "v2") for name in names]
        committed, enqueued = race(
            partial(other.commit, "w", world.results(lease)),
            partial(world.ledger.enqueue, world.register(f"e{n}", Role.ENQUEUER), 1, changed),
        )
        assert len(committed.accepted) + enqueued.superseded == 5
        assert world.states(names) == [State.READY] * 5
        check_rows(world)
        commit_rest(world, f"rest-{n}")


def test_claim_against_supersession(world: World) -> None:
    """A claim gets the old version or the new; the old one commits nothing any more."""
    world.worker("w")
    other = world.client()
    for n in range(few(world, ROUNDS)):
        names = [f"{n}-{m}" for m in range(5)]
        world.enqueue(*names)
        changed = [document(name, "v2") for name in names]
        lease, enqueued = race(
            partial(claim, other, "w", 5),
            partial(world.ledger.enqueue, world.register(f"e{n}", Role.ENQUEUER), 1, changed),
        )
        assert enqueued.superseded == 5
        if lease is not None:
            new = {item.id for item in lease.items if item.source_version == "sha256:v2"}
            assert set(world.commit("w", lease).accepted) == new
        check_rows(world)
        commit_rest(world, f"rest-{n}")
        versions = {row.source_version for row in world.ledger.results(world.run, 0, 1_000)}
        assert versions == {"sha256:v2"}


def test_concurrent_enqueues_of_the_same_items_make_one_of_each(world: World) -> None:
    """N enqueues, one item; the others find it known (invariant 10)."""
    names = [document(f"{n:03}") for n in range(60)]
    # In different orders, which is how locks taken in listing order come to a deadlock.
    orders = [names, names[::-1], names[30:] + names[:30], names[::2] + names[1::2]]
    answers = race(
        *(
            partial(ledger.enqueue, world.register(f"e{n}", Role.ENQUEUER), 1, orders[n])
            for n, ledger in enumerate(clients(world))
        )
    )
    assert sum(answer.new for answer in answers) == 60
    assert sum(answer.known for answer in answers) == 60 * (THREADS - 1)
    assert world.tallies.known == 60 * (THREADS - 1)
    check_rows(world)


def test_concurrent_enqueues_of_different_versions_leave_one_current(world: World) -> None:
    """The order in which they commit decides; all but the last are superseded."""
    batches = [[document(f"{m:03}", f"v{n}") for m in range(30)] for n in range(THREADS)]
    answers = race(
        *(
            partial(
                ledger.enqueue,
                world.register(f"e{n}", Role.ENQUEUER),
                1,
                batches[n][:: -1 if n % 2 else 1],
            )
            for n, ledger in enumerate(clients(world))
        )
    )
    assert sum(answer.new for answer in answers) == 30 * THREADS
    assert sum(answer.superseded for answer in answers) == 30 * (THREADS - 1)
    tallies = world.tallies
    assert (tallies.total, tallies.superseded) == (30, 30 * (THREADS - 1))
    check_rows(world)


def test_a_batch_sent_twice_at_once_is_taken_up_once(world: World) -> None:
    """Both are told the same."""
    enqueuer = world.register("e", Role.ENQUEUER)
    one, other = clients(world, 2)
    for n in range(1, few(world, ROUNDS) + 1):
        batch = [document(f"{n}-{m}") for m in range(20)]
        first, second = race(
            partial(one.enqueue, enqueuer, n, batch), partial(other.enqueue, enqueuer, n, batch)
        )
        assert first == second == Enqueued(new=20)
    assert world.tallies.known == 0
    check_rows(world)


def test_concurrent_creation_makes_one_run(world: World) -> None:
    """Everybody works in the same run, under the same prefix."""
    runs = race(
        *(
            partial(ledger.create_run, "shared", "p-1", {"kind": "p"}, "item")
            for ledger in clients(world)
        )
    )
    assert len({(run.id, run.prefix) for run in runs}) == 1


def test_stop_against_commit(world: World) -> None:
    """What was not committed in time is released; nothing is both."""
    other = world.client()
    for n in range(few(world, ROUNDS)):
        world.enqueue(*(f"{n}-{m}" for m in range(5)))
        name = world.worker(f"w{n}")
        lease = world.hold(name, 5)
        before = world.tallies
        committed, _ = race(
            partial(other.commit, name, world.results(lease)),
            partial(world.ledger.stop, name, "notice"),
        )
        after = world.tallies
        assert len(committed.accepted) + after.interrupted - before.interrupted == 5
        assert after.leased == 0
        check_rows(world)
        commit_rest(world, f"rest-{n}")


def test_racing_retries_send_back_each_dead_letter_once(world: World) -> None:
    """One generation more, whoever asks."""
    world.worker("w")
    world.enqueue_many(30)
    world.fail("w", world.hold("w"), final=True)
    sent_back = race(*(partial(ledger.retry, "w", world.run) for ledger in clients(world)))
    assert sum(sent_back) == 30
    assert {item.generation for item in world.hold("w").items} == {2}
    check_rows(world)
