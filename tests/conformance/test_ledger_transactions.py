"""What a SQL ledger owes to its database: atomic verbs, constraints, locks taken first."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from batchq.errors import LedgerUnreachable
from batchq.lease import Failure, ReleaseReason
from batchq.ledger.base import Role
from batchq.ledger.sql import SqlLedger, engine
from tests.conformance.backends import SqlBackend
from tests.conformance.recount import check_rows
from tests.conformance.world import TTL, World, document, held

SQL = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
SQLITE = pytest.mark.parametrize("backend", ["sqlite"], indirect=True)


class BrokenOff(Exception):
    """The process died here, as far as the database knows."""


class Tripwire:
    """A cursor whose n-th statement, of those after a BEGIN, is never sent."""

    def __init__(self, cursor: Any, left: list[int]) -> None:
        self._cursor = cursor
        self._left = left

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def execute(self, statement: str, *parameters: Any) -> Any:
        if not statement.startswith("BEGIN"):
            self._count()
        return self._cursor.execute(statement, *parameters)

    def executemany(self, statement: str, *parameters: Any) -> Any:
        self._count()
        return self._cursor.executemany(statement, *parameters)

    def _count(self) -> None:
        self._left[0] -= 1
        if self._left[0] == 0:
            raise BrokenOff


@contextmanager
def breaking_off_at(number: int) -> Iterator[list[int]]:
    """Every transaction in here breaks off at statement `number`; yields how many are left."""
    left = [number]
    begin = engine.Transaction.__init__

    def wrapped(tx: engine.Transaction, *arguments: Any) -> None:
        begin(tx, *arguments)
        tx._cursor = Tripwire(tx._cursor, left)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.Transaction, "__init__", wrapped)
        yield left


def url_of(world: World) -> str:
    assert isinstance(world.backend, SqlBackend)
    return world.backend.url


def execute(url: str, *statements: str) -> None:
    """Straight to the database, past the ledger."""
    if url.startswith("sqlite:///"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as lite, lite:
            for statement in statements:
                lite.execute(statement)
    else:
        with psycopg.connect(url) as server:
            for statement in statements:
                server.execute(statement)


# -- atomic verbs ------------------------------------------------------------------------


def prepare_claim(world: World) -> Callable[[], object]:
    world.enqueue_many(3)
    world.worker("w")
    return lambda: world.claim("w", 2, token="t")


def prepare_claim_of_delayed(world: World) -> Callable[[], object]:
    world.enqueue_many(3)
    world.worker("w")
    world.release("w", world.hold("w", 1))
    return lambda: world.claim("w", 2, token="t")


def prepare_commit(world: World) -> Callable[[], object]:
    world.enqueue_many(3)
    world.worker("w")
    lease = world.hold("w", 2)
    return lambda: world.commit("w", lease)


def prepare_fenced_commit(world: World) -> Callable[[], object]:
    world.enqueue_many(3)
    world.worker("w")
    one, two = world.hold("w", 1), world.hold("w", 1)
    world.release("w", one)
    return lambda: world.ledger.commit("w", world.results(one) + world.results(two))


def prepare_fail(world: World) -> Callable[[], object]:
    world.enqueue_many(3)
    world.worker("w")
    one, two, _ = held(world.hold("w"))
    failures = [Failure(one, "c", "e"), Failure(two, "c", "e", final=True)]
    return lambda: world.ledger.fail("w", failures)


def prepare_release(world: World) -> Callable[[], object]:
    world.enqueue_many(3)
    world.worker("w")
    lease = world.hold("w", 2)
    return lambda: world.release("w", lease, ReleaseReason.STORE)


def prepare_stop(world: World) -> Callable[[], object]:
    world.enqueue_many(3)
    world.worker("w")
    world.hold("w", 2)
    return lambda: world.ledger.stop("w", "end")


def prepare_reap(world: World) -> Callable[[], object]:
    world.enqueue_many(3)
    world.worker("w")
    world.hold("w", 2)
    world.register("reaper", Role.OPERATOR)
    world.pass_time(1.25 * TTL, ["reaper"])
    return lambda: world.ledger.reap("reaper", 10)


def prepare_enqueue(world: World) -> Callable[[], object]:
    world.enqueue_many(5)
    world.worker("w")
    world.fail("w", world.hold("w", 1))
    world.hold("w", 1)
    world.commit("w", world.hold("w", 1))
    world.register("e", Role.ENQUEUER)
    batch = [document(f"{n:03}", "v2") for n in range(4)] + [document("004"), document("new")]
    return lambda: world.ledger.enqueue("e", 1, batch)


def prepare_enqueue_of_new(world: World) -> Callable[[], object]:
    world.register("e", Role.ENQUEUER)
    return lambda: world.ledger.enqueue("e", 1, [document("a"), document("b")])


def prepare_enqueue_of_superseded(world: World) -> Callable[[], object]:
    world.enqueue_many(3)
    world.enqueue(*(document(f"{n:03}", "v2") for n in range(3)))
    world.register("e", Role.ENQUEUER)
    batch = [document(f"{n:03}", root="file:///docs") for n in range(3)]
    return lambda: world.ledger.enqueue("e", 1, batch)


def prepare_retry(world: World) -> Callable[[], object]:
    world.worker("w")
    for name in ("a", "b"):
        world.dead_letter(name, "w")
    return lambda: world.ledger.retry("w", world.run)


def prepare_reopen(world: World) -> Callable[[], object]:
    world.worker("w")
    world.enqueue_many(3)
    world.commit("w", world.hold("w"))
    world.register("auditor", Role.OPERATOR)
    rows = world.ledger.results(world.run, 0, 2)
    return lambda: world.reopen(*rows)


STORIES = [
    prepare_claim,
    prepare_claim_of_delayed,
    prepare_commit,
    prepare_fenced_commit,
    prepare_fail,
    prepare_release,
    prepare_stop,
    prepare_reap,
    prepare_enqueue,
    prepare_enqueue_of_new,
    prepare_enqueue_of_superseded,
    prepare_retry,
    prepare_reopen,
]


def break_off_everywhere(world: World, prepare: Callable[[World], Callable[[], object]]) -> int:
    """Break a verb off at each of its statements in turn; how many it has."""
    call = prepare(world)
    before = world.tallies
    for number in range(1, 100):
        with breaking_off_at(number) as left:
            try:
                call()
            except BrokenOff:
                pass
            else:
                assert left[0] > 0
                break
        if prepare is not prepare_fenced_commit:
            # There, what is still held may be committed before the rest is looked at.
            assert before == world.tallies, f"statement {number} broke off and left a trace"
        check_rows(world)
    assert before != world.tallies
    check_rows(world)
    return number - 1


@SQL
@pytest.mark.parametrize("prepare", STORIES, ids=lambda p: p.__name__.removeprefix("prepare_"))
def test_a_verb_that_breaks_off_leaves_no_trace(
    world: World, prepare: Callable[[World], Callable[[], object]]
) -> None:
    """At whichever statement: neither rows nor tallies move, and they agree."""
    assert break_off_everywhere(world, prepare) > 0


# -- constraints: what even a wrong statement cannot do --------------------------------------


def refused(world: World, statement: str) -> None:
    with pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError)):
        execute(url_of(world), statement)


def copy_row(table: str, **changes: str) -> str:
    """Insert the rows of `table` again, with these columns changed."""
    columns = {
        "items": "id, run_id, source_id, source_version, size, locator",
        "documents": "run_id, source_id, item_id, root, enqueuer",
        "results": "run_id, id, attempt, generation, failures, losses, lone_losses, releases, "
        "worker_id, token, object_key, byte_offset, byte_length, sha256, empty, adopted, "
        "committed_at",
        "leased": "run_id, id, attempt, generation, failures, losses, lone_losses, releases, "
        "worker_id, token, claimed_at, holder_committed",
        "ready": "run_id, id, attempt, generation, failures, losses, lone_losses, releases",
    }[table]
    values = ", ".join(changes.get(name, name) for name in columns.split(", "))
    return f"INSERT INTO {table} ({columns}) SELECT {values} FROM {table}"


@SQL
def test_the_schema_refuses_a_second_result_of_an_item(world: World) -> None:
    """One commit per item (invariant 3), by constraint."""
    world.worker("w")
    world.enqueue("a")
    world.commit("w", world.hold("w"))
    refused(world, copy_row("results", token="'other'", sha256="'other'"))


@SQL
def test_the_schema_refuses_a_second_lease_of_an_item(world: World) -> None:
    """No two leases (invariant 8), by constraint."""
    world.worker("w")
    world.enqueue("a")
    world.hold("w")
    refused(world, copy_row("leased", token="'other'"))


@SQL
def test_the_schema_refuses_the_same_item_twice(world: World) -> None:
    """One item for an identity (invariant 10), by constraint."""
    world.enqueue("a")
    refused(world, copy_row("items", id="id + 1"))
    refused(world, copy_row("documents", item_id="item_id + 1"))
    refused(world, copy_row("ready"))


# -- locks -----------------------------------------------------------------------------------


@SQLITE
def test_a_verb_waits_for_its_turn_before_it_does_anything(world: World) -> None:
    """A writer that starts as a reader may have to start over when it comes to write."""
    world.enqueue_many(3)
    world.worker("w")
    hasty = SqlLedger(url_of(world), ledger_clock=world.clock, patience=0.05)
    hasty.counts(world.run)
    with closing(sqlite3.connect(url_of(world).removeprefix("sqlite:///"))) as other:
        other.execute("BEGIN IMMEDIATE")
        with breaking_off_at(1_000_000) as left:
            for verb in (
                lambda: hasty.claim("w", "t", 1, alone=True),
                lambda: hasty.commit("w", []),
                lambda: hasty.stop("w", "end"),
                lambda: hasty.enqueue("w", 1, [document("b")]),
            ):
                with pytest.raises(LedgerUnreachable, match="locked"):
                    verb()
        other.rollback()
    assert left[0] == 1_000_000, "a statement ran before the lock was there"
    assert hasty.claim("w", "t", 1, alone=True) is not None
    hasty.close()


@SQLITE
def test_a_ledger_that_did_not_answer_reaps_nothing_for_a_ttl(world: World) -> None:
    """What kept this client out may have kept the others out as well."""
    world.worker("victim")
    client = SqlLedger(url_of(world), clock=world.clock, ledger_clock=world.clock, patience=0.02)
    client.register(world.run, "reaper", TTL, Role.OPERATOR, {})
    for _ in range(5):
        world.clock.advance(TTL / 4)
        assert client.beat("reaper", TTL)
    with closing(sqlite3.connect(url_of(world).removeprefix("sqlite:///"))) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerUnreachable):
            client.commit("reaper", [])
        other.rollback()
    assert client.reap("reaper", 10).workers == ()
    for _ in range(3):
        world.clock.advance(TTL / 4)
        assert client.reap("reaper", 10).workers == ()
    world.clock.advance(TTL / 4)
    assert client.reap("reaper", 10).workers == ("victim",)
    client.close()


@SQL
def test_items_that_come_to_light_behind_the_cursor_are_found(world: World) -> None:
    """Of two enqueues at once, the one with the lower ids may commit later."""
    world.worker("w")
    world.enqueue_many(2)
    shift = "UPDATE {} SET {} = {} + {}".format
    tables = (("items", "id"), ("documents", "item_id"), ("ready", "id"))
    execute(url_of(world), *(shift(table, name, name, 1_000) for table, name in tables))
    assert len(world.hold("w").items) == 2
    tables = (("items", "id"), ("documents", "item_id"), ("leased", "id"))
    execute(url_of(world), *(shift(table, name, name, -1_000) for table, name in tables))
    world.enqueue("late-1", "late-2", "late-3")
    tables = (("items", "id"), ("documents", "item_id"), ("ready", "id"))
    ahead = "UPDATE {} SET {} = 2000 WHERE {} = (SELECT max(id) FROM items WHERE id < 2000)".format
    execute(url_of(world), *(ahead(table, name, name) for table, name in reversed(tables)))
    assert [item.source_id for item in world.hold("w", 2).items] == ["late-1", "late-3"]
    assert [item.source_id for item in world.hold("w", 2).items] == ["late-2"]
    check_rows(world)
