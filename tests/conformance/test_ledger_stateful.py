"""Random stories of several workers on each backend, told to the reference as well.

After every verb both must have answered the same, and count and list the same.
The stories are the same every day; so many others as BATCHQ_STORIES says are told by hand. Of a
hundred of those on SQLite one may differ where the ledger's clock goes back by a day and comes
again between two claims of a worker: what came back meanwhile is claimed later (`hot.Cursor`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from batchq.clock import random_hex
from batchq.errors import WorkerReaped
from batchq.item import Item, NewItem
from batchq.lease import Failure, Held, Lease, ReleaseReason
from batchq.ledger.base import Ledger, Policy, Role, Run, State, WorkerStatus
from batchq.ledger.memory import MemoryLedger
from batchq.ledger.records import ISOLATED_LOSSES, lease_cap
from batchq.result import Result, Stored
from tests.conformance.backends import Backend
from tests.conformance.world import TTL, digest

STORIES = os.environ.get("BATCHQ_STORIES")
EXAMPLES = {"memory": 60, "sqlite": 25, "postgresql": 15, "dynamodb": 4, "dynamodb-local": 2}
STEPS = 40

# Small bounds, so that a short story reaches the end of every road.
POLICY = Policy(max_failures=2, max_losses=2, max_releases=2, backoff=2.0, max_backoff=9.0)
DAY = 86_400.0
DOCUMENTS = 5

WORKERS = range(3)
workers = st.sampled_from(WORKERS)
enqueuers = st.integers(0, 1)
choice = st.lists(st.integers(0, 7), min_size=1, max_size=4)
documents = st.lists(
    st.builds(
        lambda source, version, root: NewItem(
            f"doc-{source}", f"sha256:{version}", 1, f"{root}/doc-{source}", root
        ),
        st.integers(0, DOCUMENTS - 1),
        st.integers(0, 2),
        st.sampled_from(["file:///docs", "file:///docs", "file:///other"]),
    ),
    min_size=1,
    max_size=5,
)

VERBS: dict[str, tuple[int, dict[str, st.SearchStrategy[Any]]]] = {
    "enqueue": (
        2,
        {
            "number": enqueuers,
            "items": documents,
            "replace_": st.booleans(),
            "another": st.booleans(),
        },
    ),
    "enqueue_the_last_batch_again": (1, {"number": enqueuers}),
    "claim": (
        8,
        {
            "number": workers,
            "limit": st.integers(1, 4),
            "alone": st.sampled_from([True, True, False]),
        },
    ),
    "claim_with_the_last_token_again": (1, {"number": workers}),
    "commit": (
        4,
        {
            "number": workers,
            "choice": choice,
            "text": st.sampled_from(["one", "one", "other"]),
            "flags": st.tuples(st.booleans(), st.booleans(), st.booleans()),
        },
    ),
    "fail": (
        3,
        {
            "number": workers,
            "choice": choice,
            "cause": st.sampled_from(["x", "y"]),
            "final": st.sampled_from([False, False, True]),
        },
    ),
    "release": (
        4,
        {"number": workers, "choice": choice, "reason": st.sampled_from(list(ReleaseReason))},
    ),
    "stop": (1, {"number": workers}),
    "reap": (1, {"number": workers, "limit": st.integers(1, 4)}),
    "retry": (
        1,
        {
            "number": workers,
            "one": st.booleans(),
            "cause": st.sampled_from([None, "x", "worker_lost"]),
        },
    ),
    "reopen": (1, {"number": workers, "choice": choice}),
    "let_time_pass": (4, {"seconds": st.sampled_from([0.5, 2.0, 15.0, TTL, 3 * TTL])}),
    "let_some_die": (4, {"dying": st.sets(workers, max_size=2), "limit": st.integers(1, 4)}),
    "let_the_ledgers_clock_jump": (1, {"days": st.sampled_from([-1, 1])}),
}
"""Each with its weight, and what it is told with."""

steps = st.sampled_from(
    [verb for verb, (weight, _) in VERBS.items() for _ in range(weight)]
).flatmap(lambda verb: st.tuples(st.just(verb), st.fixed_dictionaries(VERBS[verb][1])))


@dataclass(frozen=True)
class Grip:
    """One item of a lease that was ever handed out, and its id in both ledgers."""

    token: str
    source_id: str
    theirs: int
    ours: int


class Side:
    """One of the two ledgers: a client for each of two machines, and the run."""

    def __init__(self, clients: list[Ledger], run_name: str) -> None:
        self.clients = clients
        self.run: Run = clients[0].create_run(run_name, "stats-000000000000", {}, "item")

    def of(self, worker: str) -> Ledger:
        """Workers and enqueuers with an odd number sit on the second machine."""
        return self.clients[int(worker.split("/")[1]) % 2]


class Stories(RuleBasedStateMachine):
    """Verbs at random. `backend` is set for each test."""

    backend: Backend
    subject_clients: list[Ledger]

    def __init__(self) -> None:
        super().__init__()
        self.clock = self.backend.clock
        run_name = random_hex(64)
        reference = MemoryLedger(policy=POLICY, clock=self.clock)
        self.model = Side([reference, reference.client()], run_name)
        self.subject = Side(self.subject_clients, run_name)
        self.names: dict[str, str] = {}
        self.batches: dict[str, tuple[int, list[NewItem]]] = {}
        self.last_claims: dict[str, tuple[str, int, bool]] = {}
        self.grips: list[Grip] = []
        self.serial = 0
        self.superseded = 0
        # Nothing that an earlier story saw of the clocks may count as contact.
        self.clock.jump(10.0)

    # -- telling both ------------------------------------------------------------

    def both(self, worker: str, verb: str, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        answers = []
        for side in (self.model, self.subject):
            try:
                answers.append(getattr(side.of(worker), verb)(*args, **kwargs))
            except WorkerReaped:
                answers.append(WorkerReaped)
        return answers[0], answers[1]

    def same(self, worker: str, verb: str, *args: Any, **kwargs: Any) -> Any:
        theirs, ours = self.both(worker, verb, *args, **kwargs)
        assert theirs == ours, f"{verb}{args}: the reference says {theirs}, the ledger {ours}"
        return theirs

    def fresh(self) -> str:
        self.serial += 1
        return f"{self.subject.run.name}-{self.serial}"

    def process(self, kind: str, number: int) -> str:
        """The name that this worker or enqueuer goes by now; registered at first use."""
        key = f"{kind}/{number}"
        if key not in self.names:
            role = Role.WORKER if kind == "worker" else Role.ENQUEUER
            self.names[key] = f"{key}/{self.fresh()}"
            for side in (self.model, self.subject):
                side.of(self.names[key]).register(side.run, self.names[key], TTL, role, {})
        return self.names[key]

    def picked(self, choice: list[int]) -> list[Grip]:
        """Mostly of the latest leases, sometimes of old ones."""
        recent = self.grips[::-1]
        return list(dict.fromkeys(recent[n % len(recent)] for n in choice if recent))

    # -- the verbs ---------------------------------------------------------------

    @rule(step=steps)
    def tell(self, step: tuple[str, dict[str, Any]]) -> None:
        """One rule, since the machine would switch off half of several for a whole story."""
        verb, arguments = step
        getattr(self, verb)(**arguments)

    @initialize()
    def begin_with_a_few_documents(self) -> None:
        name = self.process("enqueuer", 0)
        root = "file:///docs"
        items = [
            NewItem(f"doc-{n}", "sha256:0", 1, f"{root}/doc-{n}", root) for n in range(DOCUMENTS)
        ]
        self.batches[name] = (1, items)
        self.same(name, "enqueue", name, 1, items)

    def enqueue(self, number: int, items: list[NewItem], replace_: bool, another: bool) -> None:
        if another and (ended := self.names.pop(f"enqueuer/{number}", None)) is not None:
            self.same(ended, "stop", ended, "end")
        name = self.process("enqueuer", number)
        batch = self.batches.get(name, (0, []))[0] + 1
        self.batches[name] = (batch, items)
        answer = self.same(name, "enqueue", name, batch, items, replace=replace_)
        self.superseded += answer.superseded

    def enqueue_the_last_batch_again(self, number: int) -> None:
        name = self.process("enqueuer", number)
        if name in self.batches:
            self.same(name, "enqueue", name, *self.batches[name])

    def claim(self, number: int, limit: int, alone: bool) -> None:
        name = self.process("worker", number)
        self.last_claims[name] = (f"token-{self.fresh()}", limit, alone)
        self.claim_and_compare(name)

    def claim_with_the_last_token_again(self, number: int) -> None:
        name = self.process("worker", number)
        if name in self.last_claims:
            self.claim_and_compare(name)

    def claim_and_compare(self, name: str) -> None:
        token, limit, alone = self.last_claims[name]
        if self.backend.in_order:
            theirs, ours = self.both(name, "claim", name, token, limit, alone=alone)
        else:
            theirs, ours = self.both_claim_the_same(name, token, limit, alone=alone)
        if theirs is None or theirs is WorkerReaped:
            assert theirs == ours
            return
        assert ours is not None
        assert ours is not WorkerReaped
        assert theirs.token == ours.token
        # Items of one document are neighbours on one backend and strangers on another.
        pairs = list(zip(in_order(theirs.items), in_order(ours.items), strict=True))
        assert [alike(one) for one, _ in pairs] == [alike(other) for _, other in pairs]
        known = set(self.grips)
        for one, other in pairs:
            grip = Grip(token, one.source_id, one.id, other.id)
            if grip not in known:
                self.grips.append(grip)

    def both_claim_the_same(
        self, name: str, token: str, limit: int, *, alone: bool
    ) -> tuple[Any, Any]:
        """Where ids mean another order, the reference follows if it may take just these.

        They are as many as it would take itself, less one for each item that was superseded while
        it waited; and of those that waited for their time they are as early and as often lost.
        """
        model = self.model.of(name)
        assert isinstance(model, MemoryLedger)
        tables = model._tables
        process = tables.process(name)
        again = token == process.last_token
        try:
            ours: Any = self.subject.of(name).claim(name, token, limit, alone=alone)
        except WorkerReaped:
            ours = WorkerReaped
        if again or not isinstance(ours, Lease):
            try:
                return model.claim(name, token, limit, alone=alone), ours
            except WorkerReaped:
                return WorkerReaped, ours
        takes = [
            tables.versions[process.run, item.source_id, item.source_version] for item in ours.items
        ]
        ready = tables.rows(process.run, State.READY)
        due = [
            row
            for row in tables.rows(process.run, State.DELAYED)
            if row.not_before <= self.clock.now() and (alone or row.losses < ISOLATED_LOSSES)
        ]
        due.sort(key=lambda row: (row.not_before, row not in takes))
        if due:
            due = [row for row in due if row.losses == due[0].losses]
            due = due[: lease_cap(due[0].losses, limit)]
        if due and due[0].losses:
            ready = []
        assert all(row in due or row in ready for row in takes)
        assert all(row in takes for row in due)
        lacks = len(due) + min(len(ready), limit - len(due)) - len(takes)
        assert 0 <= lacks <= self.superseded
        self.superseded -= lacks
        with mock.patch.object(tables, "choose", return_value=takes):
            return model.claim(name, token, limit, alone=alone), ours

    def commit(
        self, number: int, choice: list[int], text: str, flags: tuple[bool, bool, bool]
    ) -> None:
        name, grips = self.process("worker", number), self.picked(choice)
        where = Stored(f"run/{text}", 0, 1, digest(text))
        theirs = self.model.of(name).commit(
            name, [Result(g.theirs, g.token, where, *flags) for g in grips]
        )
        ours = self.subject.of(name).commit(
            name, [Result(g.ours, g.token, where, *flags) for g in grips]
        )
        translate = {g.theirs: g.ours for g in grips}
        assert tuple(sorted(translate[i] for i in theirs.accepted)) == ours.accepted
        assert tuple(sorted(translate[i] for i in theirs.fenced)) == ours.fenced

    def fail(self, number: int, choice: list[int], cause: str, final: bool) -> None:
        name, grips = self.process("worker", number), self.picked(choice)
        theirs = self.model.of(name).fail(
            name, [Failure(Held(g.token, g.theirs), cause, "why", final) for g in grips]
        )
        ours = self.subject.of(name).fail(
            name, [Failure(Held(g.token, g.ours), cause, "why", final) for g in grips]
        )
        translate = {g.theirs: g.ours for g in grips}
        for field in ("retried", "dead_lettered", "fenced"):
            expected = tuple(sorted(translate[i] for i in getattr(theirs, field)))
            assert expected == getattr(ours, field), field

    def release(self, number: int, choice: list[int], reason: ReleaseReason) -> None:
        name, grips = self.process("worker", number), self.picked(choice)
        theirs = self.model.of(name).release(name, [Held(g.token, g.theirs) for g in grips], reason)
        ours = self.subject.of(name).release(name, [Held(g.token, g.ours) for g in grips], reason)
        assert theirs == ours

    def stop(self, number: int) -> None:
        name = self.names.pop(f"worker/{number}", None)
        if name is not None:
            self.same(name, "stop", name, "notice")

    def reap(self, number: int, limit: int) -> None:
        self.reap_and_compare(self.process("worker", number), limit)

    def reap_and_compare(self, name: str, limit: int) -> None:
        if not self.backend.in_order:
            limit = 1_000
        theirs, ours = self.both(name, "reap", name, limit)
        assert sorted(theirs.workers) == sorted(ours.workers)
        assert replace(theirs, workers=()) == replace(ours, workers=())

    def retry(self, number: int, one: bool, cause: str | None) -> None:
        name = self.process("worker", number)
        sources = ["doc-0"] if one else []
        answers = [
            side.of(name).retry(name, side.run, source_ids=sources, cause=cause)
            for side in (self.model, self.subject)
        ]
        assert answers[0] == answers[1]

    def reopen(self, number: int, choice: list[int]) -> None:
        """Some of what is committed now, in both: rows are told apart by their ids alone."""
        name = self.process("worker", number)
        numbers = []
        for side in (self.model, self.subject):
            rows = side.of(name).results(side.run, 0, 1_000)
            rows.sort(key=lambda row: (row.source_id, row.source_version))
            picked = [rows[n % len(rows)] for n in choice if rows]
            numbers.append(side.of(name).reopen(name, side.run, picked))
        assert numbers[0] == numbers[1]

    # -- time --------------------------------------------------------------------

    def let_time_pass(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def let_some_die(self, dying: set[int], limit: int) -> None:
        """The others beat for a TTL and more, and one of them reaps."""
        living = [self.process("worker", number) for number in WORKERS if number not in dying]
        for _ in range(5):
            self.clock.advance(TTL / 4)
            for name in living:
                self.same(name, "beat", name, TTL)
        self.reap_and_compare(living[0], limit)
        for number in WORKERS:
            # Who was reaped, now or before, comes back under another name.
            if not self.same(
                self.process("worker", number), "beat", self.names[f"worker/{number}"], TTL
            ):
                del self.names[f"worker/{number}"]

    def let_the_ledgers_clock_jump(self, days: int) -> None:
        if self.backend.expires_by_ledger_clock:
            self.clock.jump(days * DAY)

    # -- what must hold ----------------------------------------------------------

    @invariant()
    def counts_agree(self) -> None:
        theirs = self.model.clients[0].counts(self.model.run)
        ours = self.subject.clients[0].counts(self.subject.run)
        assert asdict(theirs.tallies) == asdict(ours.tallies)
        assert (theirs.workers_alive, theirs.enqueuers_alive) == (
            ours.workers_alive,
            ours.enqueuers_alive,
        )
        assert close(theirs.oldest_lease_s, ours.oldest_lease_s)
        assert close(theirs.next_due_s, ours.next_due_s)
        t = ours.tallies
        assert t.ready + t.leased + t.completed + t.dead_lettered == t.total

    @invariant()
    def processes_agree(self) -> None:
        theirs = self.model.clients[1].workers(self.model.run)
        ours = self.subject.clients[1].workers(self.subject.run)
        assert {s.name: summary(s) for s in theirs} == {s.name: summary(s) for s in ours}

    def teardown(self) -> None:
        """In the end, every list and every document."""
        if hasattr(self, "subject"):
            (theirs, their_run), (ours, our_run) = (
                (side.clients[0], side.run) for side in (self.model, self.subject)
            )
            for name in ("results", "dead_letters"):
                expected, found = (
                    [without_id(row) for row in in_order(getattr(ledger, name)(run, 0, 1_000))]
                    for ledger, run in ((theirs, their_run), (ours, our_run))
                )
                assert expected == found
            versions = [(f"doc-{n}", f"sha256:{v}") for n in range(DOCUMENTS) for v in range(3)]
            states = [
                [found and (found.locator, found.state) for found in side.states(run, versions)]
                for side, run in ((theirs, their_run), (ours, our_run))
            ]
            assert states[0] == states[1]
            assert theirs.recount(their_run) == ours.recount(our_run)
            for n in range(DOCUMENTS):
                one, other = theirs.lookup(their_run, f"doc-{n}"), ours.lookup(our_run, f"doc-{n}")
                assert (one is None) == (other is None)
                if one is not None and other is not None:
                    assert (one.source_version, one.locator, one.state) == (
                        other.source_version,
                        other.locator,
                        other.state,
                    )
            if self.backend.counts_content:
                assert theirs.duplicates(their_run) == ours.duplicates(our_run)


def in_order(items: Sequence[Any]) -> list[Any]:
    return sorted(items, key=lambda item: (item.source_id, item.source_version))


def alike(item: Item) -> Item:
    return replace(item, id=0)


def without_id(row: Any) -> dict[str, Any]:
    fields = asdict(row)
    del fields["item_id"]
    fields.pop("error", None)
    return {key: round(v, 3) if isinstance(v, float) else v for key, v in fields.items()}


def summary(status: WorkerStatus) -> tuple[object, ...]:
    return (
        status.role,
        status.state,
        status.alive,
        status.held,
        status.committed,
        status.stop_reason,
        round(status.beat_at, 3),
    )


def close(one: float | None, other: float | None) -> bool:
    """Equal to a millisecond, or both none."""
    if one is None or other is None:
        return one is other
    return abs(one - other) < 0.001


# A difference is reduced to a short story first, which takes minutes.
@pytest.mark.timeout(3600 if STORIES else 600)
def test_random_stories_end_as_in_the_reference(backend: Backend) -> None:
    """Several workers, stale tokens, deaths, jumps of the clock by a day: no difference."""

    class OnThisBackend(Stories):
        pass

    OnThisBackend.backend = backend
    # Where deaths are seen and not read, the two machines must look through the same eyes.
    clients = 2 if backend.expires_by_ledger_clock else 1
    OnThisBackend.subject_clients = (
        2 // clients * [backend.client(policy=POLICY) for _ in range(clients)]
    )
    run_state_machine_as_test(
        OnThisBackend,
        settings=settings(
            max_examples=int(STORIES or EXAMPLES[backend.name]),
            stateful_step_count=STEPS,
            derandomize=STORIES is None,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
