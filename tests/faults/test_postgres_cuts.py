"""Connections to PostgreSQL cut at every statement of every verb, before and after it.

Each verb is called once undisturbed, through a proxy that counts its statements. Then it
is called again in a fresh run for each of them, and its connection cut there: the rows end
as they did undisturbed, and the answer is the same, or the one that the protocol gives to a
call which took effect already.

The DDL of `initialise` is cut at every seventh statement; at each with BATCHQ_CUTS=all.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from batchq.clock import random_hex
from batchq.errors import LedgerUnreachable
from batchq.lease import Failure, Lease, ReleaseReason
from batchq.ledger.base import Committed, Failed, Reaped, Role
from batchq.ledger.sql import SqlLedger, holding, hot_postgresql, postgresql_refusals, statements
from batchq.ledger.sql.names import STATE_TABLES
from tests.conformance.backends import SqlBackend
from tests.conformance.recount import recount
from tests.conformance.world import World, document, held
from tests.faults.postgres_proxy import Cut, PostgresProxy
from tests.postgres import create_database, drop_database, running_server

EVERY = 1 if os.environ.get("BATCHQ_CUTS") == "all" else 7

LOST = (Cut.BEFORE, Cut.AFTER)

Call = Callable[[], object]


@pytest.fixture(scope="module")
def server() -> str:
    return running_server()


@pytest.fixture(scope="module")
def database(server: str) -> Iterator[str]:
    """The address of a database with the schema."""
    name = f"cuts_{random_hex(32)}"
    url = create_database(server, name)
    ledger = SqlLedger(url)
    ledger.initialise()
    ledger.close()
    yield url
    drop_database(server, name)


@pytest.fixture(scope="module")
def proxy(server: str) -> Iterator[PostgresProxy]:
    with PostgresProxy(socket_of(server)) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def stage(database: str, proxy: PostgresProxy) -> Iterator[Stage]:
    with psycopg.connect(database, autocommit=True) as direct:
        backend = SqlBackend("postgresql", through(proxy, database))
        yield Stage(proxy, database, backend, direct)
        backend.close()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost connection is tried again at once."""
    monkeypatch.setattr(postgresql_refusals, "random_fraction", lambda: 0.0)


def socket_of(url: str) -> str:
    return f"{parse_qs(urlsplit(url).query)['host'][0]}/.s.PGSQL.5432"


def through(proxy: PostgresProxy, url: str) -> str:
    """The address of the same database by way of the proxy."""
    return f"postgresql://postgres@127.0.0.1:{proxy.port}{urlsplit(url).path}"


# -- what each verb is called with ------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """A ledger behind the proxy, and a connection of one's own to its database."""

    proxy: PostgresProxy
    database: str
    backend: SqlBackend
    direct: psycopg.Connection[Any]


class Scene:
    """A run of its own, whose processes and documents are named alike in every scene."""

    numbers = itertools.count(1)

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.mark = f"scene-{next(self.numbers)}/"
        self.world = World(stage.backend, run=f"run-{self.mark}")
        self.ledger = self.world.ledger

    def name(self, short: str) -> str:
        return self.mark + short

    def register(self, short: str, role: Role = Role.WORKER) -> str:
        return self.world.register(self.name(short), role)

    def enqueue(self, *names: str) -> None:
        self.world.enqueue(*names, by=self.register(f"e{'-'.join(names)}", Role.ENQUEUER))

    def enqueue_some(self, number: int = 4) -> str:
        """So many ready items, and a worker; its name."""
        self.enqueue(*(f"{n:03}" for n in range(number)))
        return self.register("w")

    def plain(self, answer: object) -> object:
        """An answer without what differs from run to run: ids, names and times."""
        ids = [row[0] for row in self._query("SELECT id FROM items WHERE run_id = {run}")]
        rank = {item: place for place, item in enumerate(sorted(ids))}
        if isinstance(answer, Lease):
            return [(item.source_id, item.attempt, item.losses) for item in answer.items]
        if isinstance(answer, Committed | Failed):
            return {k: [rank[item] for item in ids] for k, ids in asdict(answer).items()}
        if isinstance(answer, Reaped):
            return ([n.removeprefix(self.mark) for n in answer.workers], answer.returned)
        return answer

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every row of the run, as it may be compared with another run's."""
        counters = "attempt, generation, failures, losses, lone_losses, releases"
        found = {
            table: self._query(
                f"SELECT source_id, source_version, {counters} FROM {table} AS s "
                "JOIN items AS i ON i.id = s.id WHERE s.run_id = {run} ORDER BY 1, 2"
            )
            for table in STATE_TABLES.values()
        }
        found["documents"] = self._query(
            "SELECT d.source_id, i.source_version, d.root FROM documents AS d "
            "JOIN items AS i ON i.id = d.item_id WHERE d.run_id = {run} ORDER BY 1"
        )
        found["workers"] = self._query(
            f"SELECT replace(name, '{self.mark}', ''), state, settled, stop_reason, last_batch, "
            "last_answer, committed, held_when_lost FROM workers WHERE run_id = {run} ORDER BY 1"
        )
        found["fenced"] = self._query(
            "SELECT i.source_id, count(*) FROM fenced AS f JOIN items AS i ON i.id = f.id "
            "WHERE f.run_id = {run} GROUP BY 1 ORDER BY 1"
        )
        found["tallies"] = [tuple(asdict(self.world.tallies).values())]
        return found

    def check(self) -> None:
        """The tallies against a recount, once for each verb: other runs must equal this one."""
        counted = recount(self.stage.database, self.world.run.id)
        told = asdict(self.world.tallies)
        assert counted == {name: told[name] for name in counted}

    def _query(self, statement: str) -> list[tuple[Any, ...]]:
        text = statement.replace("{run}", str(self.world.run.id))
        return self.stage.direct.execute(text.encode()).fetchall()


def create_run(scene: Scene) -> Call:
    return lambda: scene.ledger.create_run(scene.name("other"), "p-1", {}, "item").layout


def register(scene: Scene) -> Call:
    return lambda: scene.register("w")[len(scene.mark) :]


def beat(scene: Scene) -> Call:
    worker = scene.enqueue_some()
    scene.world.hold(worker, 2)
    return lambda: scene.ledger.beat(worker, 60.0)


def stop(scene: Scene) -> Call:
    worker = scene.enqueue_some()
    scene.world.hold(worker, 2)
    return lambda: scene.ledger.stop(worker, "end")


def enqueue(scene: Scene) -> Call:
    """New ones, known ones, one that moved, one superseded, one brought back, one rejected."""
    worker = scene.enqueue_some()
    scene.world.enqueue(document("000", "v2"), by=scene.register("e2", Role.ENQUEUER))
    scene.world.hold(worker, 1)
    batch = [
        *(document("000"), document("001"), document("001"), document("002", "v2")),
        *(document("003", root="file:///elsewhere"), document("004"), document("005")),
    ]
    by = scene.register("e3", Role.ENQUEUER)
    return lambda: scene.ledger.enqueue(by, 1, batch)


def enqueue_new(scene: Scene) -> Call:
    by = scene.register("e", Role.ENQUEUER)
    return lambda: scene.ledger.enqueue(by, 1, [document("000"), document("001")])


def enqueue_known(scene: Scene) -> Call:
    """The second batch of known documents, which is expected to be like the first."""
    scene.enqueue_some()
    by = scene.register("e2", Role.ENQUEUER)
    scene.ledger.enqueue(by, 1, [document("000")])
    return lambda: scene.ledger.enqueue(by, 2, [document("001"), document("002")])


def claim(scene: Scene) -> Call:
    worker = scene.enqueue_some()
    return lambda: scene.world.claim(worker, 2, token=scene.name("t"))


def claim_what_came_back(scene: Scene) -> Call:
    worker = scene.enqueue_some()
    scene.world.release(worker, scene.world.hold(worker, 2))
    return lambda: scene.world.claim(worker, 3, token=scene.name("t"))


def commit(scene: Scene) -> Call:
    worker = scene.enqueue_some()
    results = scene.world.results(scene.world.hold(worker, 3))
    return lambda: scene.ledger.commit(worker, results)


def commit_some_that_are_fenced(scene: Scene) -> Call:
    worker = scene.enqueue_some()
    lease = scene.world.hold(worker, 3)
    scene.ledger.release(worker, held(lease)[:1], ReleaseReason.DRAIN)
    results = scene.world.results(lease)
    return lambda: scene.ledger.commit(worker, results)


def fail(scene: Scene) -> Call:
    worker = scene.enqueue_some()
    one, two = held(scene.world.hold(worker, 2))
    failures = [Failure(one, "c", "e"), Failure(two, "c", "e", final=True)]
    return lambda: scene.ledger.fail(worker, failures)


def release(scene: Scene) -> Call:
    worker = scene.enqueue_some()
    lease = scene.world.hold(worker, 2)
    return lambda: scene.world.release(worker, lease, ReleaseReason.STORE)


def reap(scene: Scene) -> Call:
    scene.world.hold(scene.enqueue_some(), 3)
    reaper = scene.register("reaper", Role.OPERATOR)
    scene.world.pass_time(75.0, [reaper])
    return lambda: scene.ledger.reap(reaper, 100)


def retry(scene: Scene) -> Call:
    worker = scene.enqueue_some()
    scene.world.fail(worker, scene.world.hold(worker, 2), final=True)
    operator = scene.register("o", Role.OPERATOR)
    return lambda: scene.ledger.retry(operator, scene.world.run)


def retry_named(scene: Scene) -> Call:
    worker = scene.enqueue_some()
    scene.world.fail(worker, scene.world.hold(worker, 2), final=True)
    operator = scene.register("o", Role.OPERATOR)
    return lambda: scene.ledger.retry(operator, scene.world.run, source_ids=["000"])


def reopen(scene: Scene) -> Call:
    worker = scene.enqueue_some()
    scene.world.commit(worker, scene.world.hold(worker, 2))
    operator = scene.register("o", Role.OPERATOR)
    broken = scene.ledger.results(scene.world.run, 0, 10)
    return lambda: scene.ledger.reopen(operator, scene.world.run, broken)


def read(scene: Scene) -> Call:
    worker = scene.enqueue_some()
    scene.world.commit(worker, scene.world.hold(worker, 2))
    scene.world.fail(worker, scene.world.hold(worker, 1), final=True)
    ledger, run = scene.ledger, scene.world.run

    def look() -> object:
        ledger.check()
        found = ledger.lookup(run, "000")
        assert found is not None
        return (
            *(found.state, found.source_version, ledger.counts(run).tallies),
            *(ledger.recount(run), len(ledger.states(run, [("001", "sha256:v1")]))),
            *(ledger.duplicates(run), [w.held for w in ledger.workers(run)]),
            [result.source_id for result in ledger.results(run, 0, 10)],
            [letter.cause for letter in ledger.dead_letters(run, 0, 10)],
        )

    return look


@dataclass(frozen=True)
class Verb:
    prepare: Callable[[Scene], Call]
    again: object = None
    """What it answers when it took effect already; none where that is the same answer."""


VERBS = {
    "create_run": Verb(create_run),
    "register": Verb(register),
    "beat": Verb(beat),
    "stop": Verb(stop),
    "enqueue": Verb(enqueue),
    "enqueue new": Verb(enqueue_new),
    "enqueue known": Verb(enqueue_known),
    "claim": Verb(claim),
    "claim what came back": Verb(claim_what_came_back),
    "commit": Verb(commit),
    "commit some that are fenced": Verb(commit_some_that_are_fenced),
    "fail": Verb(fail, {"retried": [], "dead_lettered": [], "fenced": [0, 1]}),
    "release": Verb(release, 0),
    "reap": Verb(reap, ([], 0)),
    "retry": Verb(retry, 0),
    "retry named": Verb(retry_named, 0),
    "reopen": Verb(reopen, 0),
    "read": Verb(read),
}


# -- the tests --------------------------------------------------------------------------------


def faults(verb: Verb, stage: Stage, *, refuse: int = 0, only_last: bool = False) -> list[str]:
    """Cut at every statement, both ways; where the answer or the rows went wrong."""

    def call(statement: int | None, cut: Cut) -> tuple[object, Any]:
        scene = Scene(stage)
        made = verb.prepare(scene)
        stage.proxy.arm(statement, cut, refuse)
        answer = made()
        count = stage.proxy.statements
        assert statement is None or stage.proxy.has_cut
        stage.proxy.arm()
        if statement is None:
            scene.check()
        told = scene.plain(answer), (scene.rows(), count)
        scene.ledger.close()
        return told

    right, (rows, count) = call(None, Cut.BEFORE)
    assert count > 0
    found = []
    for statement, cut in itertools.product(range(count - 1 if only_last else 0, count), LOST):
        answer, (after, _) = call(statement, cut)
        last = statement == count - 1 and cut is Cut.AFTER
        allowed = (right, verb.again) if last and verb.again is not None else (right,)
        if answer not in allowed:
            found.append(f"{cut.name} {statement}: answered {answer}, not {right}")
        found += [
            f"{cut.name} {statement}: {table} holds {after[table]}, not {rows[table]}"
            for table in rows
            if rows[table] != after[table]
        ]
    return found


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_whose_connection_is_cut(name: str, stage: Stage) -> None:
    """At any statement: the call is repeated within, and the state is right."""
    assert faults(VERBS[name], stage) == []


def test_a_failover_in_the_middle_of_a_commit(stage: Stage) -> None:
    """The server is away for a while after the cut; the call outlasts that."""
    assert faults(VERBS["commit some that are fenced"], stage, refuse=3) == []


@pytest.mark.parametrize(
    "name", ["register", "beat", "enqueue new", "enqueue known", "claim", "commit"]
)
def test_a_verb_of_one_statement_that_arrives_after_it_was_repeated(
    name: str, stage: Stage
) -> None:
    """It changes nothing any more. The others' statements end with their connection."""
    verb = VERBS[name]

    def call(statement: int | None) -> tuple[object, Any]:
        scene = Scene(stage)
        made = verb.prepare(scene)
        stage.proxy.arm(statement, Cut.LATE)
        answer = made()
        assert stage.proxy.deliver() == (statement is not None)
        told = scene.plain(answer), scene.rows()
        scene.ledger.close()
        return told

    assert call(None) == call(0)


def test_a_claim_that_arrives_late_takes_nothing(stage: Stage) -> None:
    """Its sender asked again, has got its items and claims on: nobody would work on these."""
    scene = Scene(stage)
    worker = scene.enqueue_some(6)
    stage.proxy.arm(0, Cut.LATE)
    first, second = scene.world.hold(worker, 2), scene.world.hold(worker, 2)
    assert stage.proxy.deliver() == 1
    assert scene.world.tallies.leased == 4
    scene.world.commit(worker, first)
    scene.world.commit(worker, second)
    assert scene.world.tallies.leased == 0


def test_what_a_late_claim_took_is_claimed_again(stage: Stage) -> None:
    """It was asked again when nothing was ready, and arrived when something was."""
    scene = Scene(stage)
    worker = scene.register("w")
    stage.proxy.arm(0, Cut.LATE)
    assert scene.world.claim(worker, 2) is None
    scene.enqueue("000", "001")
    assert stage.proxy.deliver() == 1
    assert scene.world.tallies.leased == 2
    lease = scene.world.hold(worker, 3)
    assert [item.attempt for item in lease.items] == [2, 2]
    scene.world.commit(worker, lease)
    assert scene.world.tallies.leased == 0


def test_a_ledger_without_its_guards_against_late_claims_is_caught(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These tests can fail: each of the two guards is missed."""
    blind = hot_postgresql._CLAIM.replace("me.last_token IS NOT DISTINCT FROM :last AND ", "")
    assert blind != hot_postgresql._CLAIM
    with monkeypatch.context() as patch:
        patch.setattr(hot_postgresql, "_CLAIM", blind)
        with pytest.raises(AssertionError):
            test_a_claim_that_arrives_late_takes_nothing(stage)
    with monkeypatch.context() as patch:
        patch.setattr(holding, "_give_back_unknown", lambda *_: None)
        with pytest.raises(AssertionError):
            test_what_a_late_claim_took_is_claimed_again(stage)


def forget_commits(patch: pytest.MonkeyPatch) -> None:
    def all_fenced(process: Any, results: Any) -> tuple[set[int], set[int]]:
        return set(), {result.item_id for result in results}

    patch.setattr(holding, "_look_back", all_fenced)


def forget_claims(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        statements, "LEASED_UNDER", f"SELECT * FROM ({statements.LEASED_UNDER}) AS l LIMIT 0"
    )


def forget_batches(patch: pytest.MonkeyPatch) -> None:
    for name in ("ANSWERED_BATCH", "PROCESS"):
        text = getattr(statements, name).replace("last_batch", "0 AS last_batch")
        patch.setattr(statements, name, text)


@pytest.mark.parametrize(
    ("name", "mutate"),
    [("commit", forget_commits), ("claim", forget_claims), ("enqueue", forget_batches)],
)
def test_a_ledger_that_forgets_what_it_answered_is_caught(
    name: str,
    mutate: Callable[[pytest.MonkeyPatch], None],
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """These tests can fail: after a lost answer the verb would act twice, or lose its items."""
    mutate(monkeypatch)
    found = faults(VERBS[name], stage, only_last=True)
    assert any(fault.startswith("AFTER") for fault in found)


def test_without_patience_a_lost_answer_is_an_error(stage: Stage) -> None:
    """Nothing is guessed: the caller is told that nothing is known."""
    scene = Scene(stage)
    worker = scene.enqueue_some()
    results = scene.world.results(scene.world.hold(worker, 3))
    address = through(stage.proxy, stage.database)
    impatient = SqlLedger(address, ledger_clock=scene.world.clock, patience=0.0)
    impatient.check()
    for cut in LOST:
        stage.proxy.arm(0, cut)
        with pytest.raises(LedgerUnreachable, match="gives no answer"):
            impatient.commit(worker, results)
    assert len(impatient.commit(worker, results).accepted) == 3
    impatient.close()


def test_an_initialisation_whose_connection_is_cut(database: str, proxy: PostgresProxy) -> None:
    """The schema is there as a whole or not at all, and the call repeated completes it."""

    def initialise(statement: int | None, cut: Cut) -> int:
        name = f"s_{random_hex(32)}"
        ledger = SqlLedger(f"{through(proxy, database)}?schema={name}")
        proxy.arm(statement, cut)
        ledger.initialise()
        count = proxy.statements
        assert statement is None or proxy.has_cut
        proxy.arm()
        ledger.check()
        assert ledger.create_run("run", "p-1", {}, "item").name == "run"
        ledger.close()
        return count

    count = initialise(None, Cut.BEFORE)
    chosen = {*range(0, count, EVERY), count - 1}
    for statement, cut in itertools.product(sorted(chosen), LOST):
        initialise(statement, cut)
