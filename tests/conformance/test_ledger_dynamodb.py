"""What the ledger in DynamoDB owes to its table: rows that move apart, and who may die between.

The SDK is interposed: a test acts before or after a request, breaks off there as a process
that dies, or loses the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from batchq.errors import LedgerUnreachable, WorkerReaped
from batchq.lease import Failure, ReleaseReason
from batchq.ledger.base import Ledger, Reaped, Role, State
from batchq.ledger.dynamodb import DynamoLedger, reading
from batchq.ledger.dynamodb.keys import RandomRanks
from tests.conformance.backends import DynamoBackend, dynamo_backend
from tests.conformance.recount import check_rows
from tests.conformance.world import TTL, World, document, held
from tests.dynamodb import in_full
from tests.faults.dynamo_rows import scan

DYNAMO = pytest.mark.parametrize("backend", ["dynamodb", "dynamodb-local"], indirect=True)

Hook = Callable[[str, int], None]


class BrokenOff(BaseException):
    """The process died here, as far as the table knows."""


class Interposed:
    """The SDK's client with something done `before` and `after` each request."""

    def __init__(self, sdk: Any, before: Hook, after: Hook) -> None:
        self._sdk = sdk
        self._before = before
        self._after = after
        self.requests = 0
        self.counting = True

    def __getattr__(self, operation: str) -> Any:
        def ask(**request: Any) -> Any:
            if not self.counting:
                return getattr(self._sdk, operation)(**request)
            self.requests += 1
            number = self.requests
            self._before(operation, number)
            answer = getattr(self._sdk, operation)(**request)
            self._after(operation, number)
            return answer

        return ask


def nothing(operation: str, number: int) -> None:
    """The hook of who only counts."""


def once(operation: str, act: Callable[[], object]) -> Hook:
    """`act` at the first request of that kind."""
    left = [operation]

    def hook(asked: str, number: int) -> None:
        if asked in left:
            left.remove(asked)
            act()

    return hook


@contextmanager
def interposed(
    world: World, before: Hook = nothing, after: Hook = nothing, **arguments: Any
) -> Iterator[tuple[DynamoLedger, Interposed]]:
    """Another client of the ledger, whose requests are interposed."""
    backend = world.backend
    assert isinstance(backend, DynamoBackend)
    sdk = Interposed(backend.sdk, before, after)
    ledger = backend.open(client=sdk, **arguments)
    # What it learns of the table at its first call is not part of any verb.
    sdk.counting = False
    ledger.counts(world.run)
    sdk.counting = True
    yield ledger, sdk


def another_table(world: World, shards: int = 1) -> AbstractContextManager[DynamoBackend]:
    """A table of its own in the same emulator."""
    backend = world.backend
    assert isinstance(backend, DynamoBackend)
    return dynamo_backend(backend.name, backend.endpoint, shards)


def finish(world: World) -> None:
    """Everybody else is gone: whatever they left must come to its end."""
    for process in world.ledger.workers(world.run):
        world.ledger.stop(process.name, "gone")
    last = world.worker("last")
    for _ in range(30):
        lease = world.claim(last)
        if lease is not None:
            world.commit(last, lease)
        elif world.ledger.counts(world.run).run_is_over:
            break
        else:
            world.pass_time(60, [last])
            world.ledger.reap(last, 1_000)
    counts = world.ledger.counts(world.run)
    assert counts.run_is_over
    assert counts.tallies.completed + counts.tallies.dead_lettered == counts.tallies.total
    check_rows(world)


def look_with_the_eyes_of(seer: Ledger, ledger: DynamoLedger) -> None:
    """What the first has seen for a TTL, the second may act on."""
    assert isinstance(seer, DynamoLedger)
    ledger._watches, ledger._contact = seer._watches, seer._contact


# -- who is reaped in the middle of a claim ------------------------------------------------------


@DYNAMO
@pytest.mark.parametrize("limit", [0, 1_000], ids=["marked", "put away"])
def test_a_worker_that_is_reaped_while_it_chooses_claims_nothing(world: World, limit: int) -> None:
    """Its intent is refused with the mark on its row, and where the row has been put away."""
    world.worker("victim")
    world.enqueue_many(3)
    act = once("transact_write_items", lambda: world.lose("victim", limit=limit))
    with interposed(world, act) as (ledger, _), pytest.raises(WorkerReaped, match="victim is reap"):
        ledger.claim("victim", "t", 2, alone=True)
    assert world.states(["000", "001", "002"]) == [State.READY] * 3
    finish(world)


@DYNAMO
def test_a_claim_that_lands_after_its_worker_was_reaped_takes_nothing(world: World) -> None:
    """The reaper gave what it had not reached another revision."""
    world.worker("victim")
    world.enqueue_many(3)
    act = once("update_item", lambda: world.lose("victim"))
    # Having found nothing left of what it wanted, it asks once more, and is told.
    with interposed(world, act) as (ledger, _), pytest.raises(WorkerReaped, match="victim"):
        ledger.claim("victim", "t", 2, alone=True)
    assert world.states(["000", "001", "002"]) == [State.READY] * 3
    assert world.tallies.lost_leases == 0
    finish(world)


@DYNAMO
def test_a_worker_reaped_in_the_middle_of_a_claim_loses_what_it_took(world: World) -> None:
    """What landed before comes back as a loss, what would have landed later never left."""
    world.worker("victim")
    world.enqueue_many(3)
    taken = []

    def die_after_the_first(operation: str, number: int) -> None:
        if operation == "update_item":
            taken.append(number)
            if len(taken) == 1:
                world.lose("victim")

    with interposed(world, after=die_after_the_first) as (ledger, _):
        lease = ledger.claim("victim", "t", 3, alone=True)
    assert lease is None or len(lease.items) == 1
    assert world.states(["000", "001", "002"]) == [State.DELAYED, State.READY, State.READY]
    assert world.tallies.lost_leases == 1
    finish(world)


@DYNAMO
def test_a_beat_after_the_last_look_saves_its_process(world: World) -> None:
    """The mark is set only on a beat that has not moved since it was seen."""
    world.worker("living")
    world.register("reaper", Role.OPERATOR)
    world.pass_time(1.25 * TTL, ["reaper"])
    other = world.client()

    def beat() -> None:
        assert other.beat("living", TTL)

    with interposed(world, once("transact_write_items", beat)) as (ledger, _):
        look_with_the_eyes_of(world.ledger, ledger)
        assert "living" not in ledger.reap("reaper", 10).workers
    assert world.ledger.beat("living", TTL)


@DYNAMO
def test_claims_that_meet_at_a_bundle_share_it(world: World) -> None:
    """The second announces nothing that the first has taken, and asks for none of it."""
    for name in ("first", "second"):
        world.worker(name)
    world.enqueue_many(3)
    asked = []
    meet = once("transact_write_items", lambda: world.hold("first", 2))

    def meet_and_count(operation: str, number: int) -> None:
        asked.append(operation)
        meet(operation, number)

    with interposed(world, meet_and_count) as (ledger, _):
        lease = ledger.claim("second", "t", 3, alone=True)
    assert lease is not None
    assert [item.source_id for item in lease.items] == ["002"]
    assert asked.count("update_item") == 1
    assert world.tallies.attempts == 3
    finish(world)


@DYNAMO
def test_what_is_left_of_a_bundle_comes_first_at_the_next_claim(world: World) -> None:
    """So that one worker does not leave the ends of many bundles behind."""
    with another_table(world, shards=16) as spread:
        ledger = spread.open(ranks=RandomRanks())
        run = ledger.create_run("run", "p-1", {}, "item")
        for name in ("e", "w"):
            ledger.register(run, name, TTL, Role.WORKER, {})
        batches = [[document(f"{batch}{n:03}") for n in range(6)] for batch in range(3)]
        for number, batch in enumerate(batches, start=1):
            ledger.enqueue("e", number, batch)
        begun: set[str] = set()
        numbers: list[int] = []
        while lease := ledger.claim("w", f"t{len(numbers)}", 4, alone=True):
            begun |= {item.source_id[0] for item in lease.items}
            numbers.append(len(begun))
        assert numbers == [1, 2, 2, 3, 3]


@DYNAMO
def test_an_item_that_waits_at_two_revisions_is_claimed_once(world: World) -> None:
    """Enqueued, superseded and brought back, it is due; the bundle names it as it was at first."""
    world.worker("w")
    for version in ("v1", "v2", "v1"):
        world.enqueue(document("a", version))
    lease = world.hold("w")
    assert [item.source_version for item in lease.items] == ["sha256:v1"]
    world.commit("w", lease)
    assert world.tallies.attempts == 1
    check_the_end(world, "w")


@DYNAMO
def test_a_ready_item_that_is_named_again_is_offered_once(world: World) -> None:
    """Only where it has another revision does it need another place in the queue."""
    world.enqueue("a", "b")
    world.enqueue("a", "c")
    check_rows(world)
    finish(world)


# -- claims without an answer --------------------------------------------------------------------


def enqueue_delayed(world: World, count: int) -> None:
    """Documents 000, 001, ... that somebody has given back, due at once."""
    world.enqueue_many(count)
    world.worker("earlier")
    world.release("earlier", world.hold("earlier"))


def check_the_end(world: World, *workers: str) -> None:
    """The run is over with all of these alive, who find nothing to claim."""
    for worker in workers:
        assert world.claim(worker) is None
    check_rows(world)
    assert world.tallies.leased == 0
    assert world.ledger.counts(world.run).run_is_over


@DYNAMO
def test_what_others_took_before_a_claim_is_asked_again_leaves_its_lease(world: World) -> None:
    """Its first call had reached two of four; its tally counts these two."""
    for name in ("one", "other"):
        world.worker(name)
    enqueue_delayed(world, 4)
    written = []

    def reach_two(operation: str, number: int) -> None:
        if operation == "update_item":
            written.append(number)
            if len(written) > 2:
                raise EndpointConnectionError(endpoint_url="http://lost")

    cut = interposed(world, reach_two, patience=0)
    with cut as (ledger, _), pytest.raises(LedgerUnreachable):
        ledger.claim("one", "t", 4, alone=True)
    world.commit("other", world.hold("other"))
    lease = world.hold("one", 4, token="t")
    assert len(lease.items) == 2
    assert world.tallies.leased == 2
    world.commit("one", lease)
    assert world.tallies.leased == 0
    check_the_end(world, "one", "other")


class Late:
    """The SDK's client, which loses its first transaction until it is let through."""

    def __init__(self, sdk: Any) -> None:
        self._sdk = sdk
        self.lost: dict[str, Any] = {}

    def __getattr__(self, operation: str) -> Any:
        return getattr(self._sdk, operation)

    def transact_write_items(self, **request: Any) -> Any:
        if self.lost:
            return self._sdk.transact_write_items(**request)
        self.lost = request
        raise EndpointConnectionError(endpoint_url="http://late")


def claim_without_an_answer(world: World) -> tuple[DynamoLedger, Callable[[], object]]:
    """The ledger that has sent a claim of `one`, and what lets the claim arrive."""
    backend = world.backend
    assert isinstance(backend, DynamoBackend)
    sdk = Late(backend.sdk)
    ledger = backend.open(client=sdk, patience=0)
    with pytest.raises(LedgerUnreachable):
        ledger.claim("one", "t", 3, alone=True)
    return ledger, lambda: backend.sdk.transact_write_items(**sdk.lost)


@DYNAMO
def test_an_intent_that_lands_after_its_claim_was_asked_again_is_refused(world: World) -> None:
    """What the token has committed by then would be counted twice."""
    world.worker("one")
    world.enqueue_many(3)
    ledger, arrive = claim_without_an_answer(world)
    lease = ledger.claim("one", "t", 3, alone=True)
    assert lease is not None
    world.commit("one", lease)
    with pytest.raises(ClientError, match="ConditionalCheckFailed"):
        arrive()
    check_the_end(world, "one")


@DYNAMO
def test_an_intent_that_lands_when_its_bundle_is_taken_is_refused(world: World) -> None:
    """What it would take out of the queue is there no more."""
    for name in ("one", "other"):
        world.worker(name)
    world.enqueue_many(3)
    ledger, arrive = claim_without_an_answer(world)
    world.commit("other", world.hold("other"))
    assert ledger.claim("one", "t", 3, alone=True) is None
    with pytest.raises(ClientError, match="ConditionalCheckFailed"):
        arrive()
    check_the_end(world, "one", "other")


@DYNAMO
def test_an_intent_that_lands_when_all_is_taken_does_not_keep_the_run(world: World) -> None:
    """Nobody holds anything under it: its worker ends it when it has nothing to do."""
    for name in ("one", "other"):
        world.worker(name)
    enqueue_delayed(world, 3)
    ledger, arrive = claim_without_an_answer(world)
    world.commit("other", world.hold("other"))
    assert ledger.claim("one", "t", 3, alone=True) is None
    arrive()
    assert world.tallies.leased == 3
    check_the_end(world, "one", "other")


# -- enqueues ------------------------------------------------------------------------------------


@DYNAMO
def test_two_enqueues_may_bring_back_the_same_old_version(world: World) -> None:
    """The second finds it where the first has put it, and knows it."""
    for version in ("v1", "v2"):
        world.enqueue(document("a", version))
    for name in ("one", "other"):
        world.register(name, Role.ENQUEUER)
    looked = []

    def bring_back(operation: str, number: int) -> None:
        # After the current row was read, and before that of the old version is.
        looked.append(operation)
        if looked.count("batch_get_item") == 1 and operation == "get_item":
            looked.append("batch_get_item")
            assert world.ledger.enqueue("other", 1, [document("a", "v1")]).known == 1

    with interposed(world, bring_back) as (ledger, _):
        assert ledger.enqueue("one", 1, [document("a", "v1")]).known == 1
    assert world.ledger.counts(world.run).tallies.superseded == 1
    finish(world)


@DYNAMO
def test_a_commit_meets_the_enqueue_that_brings_its_version_back(world: World) -> None:
    """Its item lay apart when the commit was sent, and is the document's current one after."""
    world.worker("w")
    world.enqueue(document("a", "v1"))
    world.commit("w", world.hold("w"))
    world.enqueue(document("a", "v2"))
    world.reopen(world.result("a"))
    lease = world.hold("w", 1)
    assert [item.source_version for item in lease.items] == ["sha256:v1"]
    act = once("batch_get_item", lambda: world.enqueue(document("a", "v1")))
    with interposed(world, act) as (ledger, _):
        assert ledger.commit("w", world.results(lease)).fenced == ()
    assert world.state("a") is State.COMPLETED
    check_rows(world)


# -- processes that have ended -------------------------------------------------------------------


def rows_of_processes(world: World) -> list[str]:
    """The rows that whoever counts must read, one for each process."""
    backend = world.backend
    assert isinstance(backend, DynamoBackend)
    names = (str(row["sk"]) for row in scan(backend.sdk, backend.table))
    return sorted(name.partition("#")[2] for name in names if name.startswith("2process#"))


@DYNAMO
def test_what_counting_reads_does_not_grow_with_the_processes_that_have_ended(
    world: World,
) -> None:
    """Stopped or reaped, they are in one sum, and still listed with what they did."""
    world.worker("w")
    for name in ("a", "b"):
        world.enqueue(name)
    world.commit("w", world.hold("w", 1))
    world.hold("w", 1)
    world.lose("w")
    assert rows_of_processes(world) == ["reaper"]
    assert (world.tallies.completed, world.tallies.lost_leases) == (1, 1)
    found = {process.name: process for process in world.ledger.workers(world.run)}
    assert {"enqueuer-1", "enqueuer-2", "w", "reaper"} == {*found}
    assert found["w"].committed == 1
    check_rows(world)


@DYNAMO
def test_what_is_counted_to_a_process_that_was_put_away_is_counted_once(world: World) -> None:
    """In the sum: its row does not come back."""
    world.worker("w")
    world.enqueue("a", "b")
    lease = world.hold("w")
    world.lose("w")
    for _ in range(2):
        assert len(world.commit("w", lease).fenced) == 2
    assert world.tallies.fenced == 2
    world.register("e", Role.ENQUEUER)
    world.ledger.stop("e", "end")
    assert world.ledger.enqueue("e", 1, [document("c")]).new == 1
    assert world.ledger.enqueue("e", 1, [document("c")]).new == 1
    assert world.ledger.enqueue("e", 2, [document(f"{n}") for n in range(30)]).new == 30
    assert world.check_accounting().total == 33
    assert rows_of_processes(world) == ["reaper"]
    check_rows(world)


@DYNAMO
def test_a_process_that_acts_while_it_is_put_away_loses_no_tally(world: World) -> None:
    """Its row is moved only as it was read."""
    world.register("e", Role.ENQUEUER)
    marked = []

    def act(operation: str, number: int) -> None:
        if operation == "transact_write_items":
            marked.append(number)
            if len(marked) == 2:
                assert world.ledger.enqueue("e", 1, [document("a")]).new == 1

    with interposed(world, act) as (ledger, _):
        ledger.stop("e", "end")
    assert rows_of_processes(world) == []
    assert world.check_accounting().total == 1
    check_rows(world)


@DYNAMO
def test_a_reaper_that_comes_late_leaves_no_row_of_whom_another_put_away(world: World) -> None:
    """Both had found it dead; the second to judge its loss finds nothing to write that to."""
    world.worker("victim")
    reapers = ["late", "swift"]
    for name in reapers:
        world.register(name, Role.OPERATOR)
    world.pass_time(1.25 * TTL, reapers)
    act = once("update_item", lambda: world.ledger.reap("swift", 10))
    with interposed(world, act) as (ledger, _):
        look_with_the_eyes_of(world.ledger, ledger)
        assert ledger.reap("late", 10).workers == ("victim",)
    assert rows_of_processes(world) == reapers
    check_rows(world)


@DYNAMO
def test_counts_that_someone_is_put_away_from_are_not_called_exact(world: World) -> None:
    """Its tallies may have been read twice, from its row and from the sum."""
    world.enqueue("a")
    world.register("e", Role.ENQUEUER)
    queries = []

    def stop(operation: str, number: int) -> None:
        if operation == "query":
            queries.append(number)
            if len(queries) == 2:
                world.ledger.stop("e", "end")

    with interposed(world, stop) as (ledger, _):
        assert not ledger.counts(world.run).exact
        assert ledger.counts(world.run).exact


# -- items that spread ---------------------------------------------------------------------------


@DYNAMO
def test_items_that_spread_at_random_are_all_found(world: World) -> None:
    """Over sixteen shards, from a random start: each once, and the pages in one order."""
    with another_table(world, shards=16) as spread:
        ledger = spread.open(ranks=RandomRanks())
        run = ledger.create_run("run", "p-1", {}, "item")
        ledger.register(run, "e", TTL, Role.ENQUEUER, {})
        names = [f"{n:03}" for n in range(40)]
        ledger.enqueue("e", 1, [document(name) for name in names])
        ledger.register(run, "w", TTL, Role.WORKER, {})
        found: list[str] = []
        while lease := ledger.claim("w", f"t{len(found)}", 9, alone=True):
            found += [item.source_id for item in lease.items]
            ledger.commit("w", world.results(lease))
        assert sorted(found) == names
        pages, after = [], 0
        while page := ledger.results(run, after, 7):
            pages += page
            after = page[-1].item_id
        assert sorted(row.source_id for row in pages) == names
        assert [row.item_id for row in pages] == sorted(row.item_id for row in pages)


# -- breaking off, and lost answers, at every request --------------------------------------------


def claim(world: World) -> Callable[[DynamoLedger], object]:
    world.worker("w")
    world.enqueue_many(3)
    world.release("w", world.hold("w", 1))
    return lambda ledger: ledger.claim("w", "t", 3, alone=True)


def commit(world: World) -> Callable[[DynamoLedger], object]:
    world.worker("w")
    world.enqueue_many(3)
    one, two = world.hold("w", 2), world.hold("w", 1)
    world.release("w", two)
    results = world.results(one) + world.results(two)
    return lambda ledger: ledger.commit("w", results)


def fail(world: World) -> Callable[[DynamoLedger], object]:
    world.worker("w")
    world.enqueue_many(3)
    one, two, _ = held(world.hold("w"))
    failures = [Failure(one, "c", "e"), Failure(two, "c", "e", final=True)]
    return lambda ledger: ledger.fail("w", failures)


def release(world: World) -> Callable[[DynamoLedger], object]:
    world.worker("w")
    world.enqueue_many(3)
    lease = world.hold("w", 2)
    return lambda ledger: ledger.release("w", held(lease), ReleaseReason.STORE)


def stop(world: World) -> Callable[[DynamoLedger], object]:
    world.worker("w")
    world.enqueue_many(3)
    world.hold("w", 2)
    return lambda ledger: ledger.stop("w", "end")


def enqueue(world: World) -> Callable[[DynamoLedger], object]:
    world.worker("w")
    world.enqueue_many(4)
    world.hold("w", 1)
    world.commit("w", world.hold("w", 1))
    world.register("e", Role.ENQUEUER)
    batch = [document(f"{n:03}", "v2") for n in range(3)] + [document("003"), document("new")]
    return lambda ledger: ledger.enqueue("e", 1, batch)


def retry(world: World) -> Callable[[DynamoLedger], object]:
    world.worker("w")
    for name in ("a", "b"):
        world.dead_letter(name, "w")
    return lambda ledger: ledger.retry("w", world.run)


def reap(world: World) -> Callable[[DynamoLedger], object]:
    world.worker("w")
    world.enqueue_many(3)
    world.hold("w", 2)
    world.register("reaper", Role.OPERATOR)
    world.pass_time(1.25 * TTL, ["reaper"])

    def work(ledger: DynamoLedger) -> Reaped:
        look_with_the_eyes_of(world.ledger, ledger)
        return ledger.reap("reaper", 10)

    return work


EVERYDAY = [commit]
ALL = [claim, commit, fail, release, stop, enqueue, retry, reap]
STORIES = ALL if in_full() else EVERYDAY


@DYNAMO
@pytest.mark.parametrize("prepare", STORIES, ids=lambda p: p.__name__)
@pytest.mark.parametrize("sent", [False, True], ids=["before", "after"])
def test_a_process_that_dies_at_any_request_strands_nothing(
    world: World, prepare: Callable[[World], Callable[[DynamoLedger], object]], sent: bool
) -> None:
    """Neither an item nor a tally, whichever request was its last, answered or not."""
    for number in range(1, 200):

        def die(operation: str, asked: int, at: int = number) -> None:
            if asked == at:
                raise BrokenOff

        hooks = (nothing, die) if sent else (die, nothing)
        with another_table(world) as table:
            own = World(table)
            call = prepare(own)
            with interposed(own, *hooks) as (ledger, _):
                try:
                    call(ledger)
                except BrokenOff:
                    finish(own)
                else:
                    break
    assert number > 1


@DYNAMO
@pytest.mark.parametrize("prepare", STORIES, ids=lambda p: p.__name__)
def test_a_lost_answer_is_asked_for_again_and_changes_nothing(
    world: World, prepare: Callable[[World], Callable[[DynamoLedger], object]]
) -> None:
    """The request took effect, and the connection broke: the same end as without."""
    expected: object = None
    for number in range(200):

        def lose(operation: str, asked: int, at: int = number) -> None:
            if asked == at:
                raise EndpointConnectionError(endpoint_url="http://lost")

        with another_table(world) as table:
            own = World(table)
            call = prepare(own)
            with interposed(own, after=lose) as (ledger, sdk):
                answer = call(ledger)
            check_rows(own)
            found = answer, own.tallies
            expected = expected or found
            assert found == expected, f"after the lost answer of request {number}"
            if sdk.requests < number:
                break
    assert number > 1


# -- pages of results ----------------------------------------------------------------------------


@DYNAMO
def test_a_page_of_results_reads_no_rows_of_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export that read each row twice would cost twice as much."""
    monkeypatch.setattr(reading, "PAGE", 1)
    world.enqueue_many(30)
    lease = world.hold(world.worker())
    world.commit("worker", lease)
    after, requests = 0, []
    with interposed(world) as (ledger, sdk):
        while rows := ledger.results(world.run, after, 10):
            after = rows[-1].item_id
            requests.append(sdk.requests)
    assert requests == [1, 2, 3]


@DYNAMO
@pytest.mark.parametrize("newer", ["v2", "v1"], ids=["superseded", "current again"])
def test_versions_that_change_places_between_two_requests_are_listed_once(
    world: World, monkeypatch: pytest.MonkeyPatch, newer: str
) -> None:
    """The current version's row was read where it lay, and then again beside its document's."""
    monkeypatch.setattr(reading, "PAGE", 1)
    worker = world.worker()
    # The first three are not completed, and fill the first request up to the fourth's own row.
    world.enqueue("a", "b", "c", "d", "e")
    lease = world.hold(worker)
    world.ledger.commit(worker, world.results(lease)[3:4])
    if newer == "v1":
        world.enqueue(document("d", "v2"))
        world.commit(worker, world.hold(worker))
    before = world.ledger.results(world.run, 0, 10)
    change = once("query", lambda: world.enqueue(document("d", newer)))
    with interposed(world, after=change) as (ledger, sdk):
        assert ledger.results(world.run, 0, 2) == before
        assert sdk.requests == 3
