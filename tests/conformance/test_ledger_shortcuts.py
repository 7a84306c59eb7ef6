"""Batches that PostgreSQL takes up in one statement: all new, or all known as they are."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import psycopg
import pytest

from batchq.errors import UsageError
from batchq.ledger.base import Enqueued, Role
from batchq.ledger.sql import familiar, fresh
from tests.conformance import test_ledger_enqueue as enqueues
from tests.conformance import test_ledger_races as races
from tests.conformance import test_ledger_repeated as repeated
from tests.conformance.recount import check_rows
from tests.conformance.test_ledger_transactions import breaking_off_at, url_of
from tests.conformance.world import World, document

pytestmark = pytest.mark.parametrize("backend", ["postgresql"], indirect=True)


def statements_of(call: Callable[[], object]) -> int:
    """How many statements a call sends, without the BEGIN and COMMIT around several."""
    with breaking_off_at(1_000) as left:
        call()
    return 1_000 - left[0]


def behind_the_back(world: World, statement: str, call: Callable[[], Any]) -> Any:
    """Begin `call` while somebody else's transaction holds what `statement` wrote; its answer."""
    url = url_of(world)
    with ThreadPoolExecutor(1) as pool, psycopg.connect(url) as other:
        other.execute(statement)
        answer = pool.submit(call)
        # For just this transaction: tests of other processes wait in the same server.
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"
        with psycopg.connect(url, autocommit=True) as watch:
            while not watch.execute(waiting, [other.info.backend_pid]).fetchall()[0][0]:
                assert not answer.done(), "nothing was waited for"
        other.commit()
        return answer.result(120)


def with_known_ones_expected(test: Callable[[World], object], world: World) -> None:
    """A test of the suite, where each enqueue is tried first as one of known documents."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fresh, "enqueue", familiar.enqueue)
        test(world)


def test_new_documents_take_one_statement(world: World) -> None:
    """And so one round trip, however many there are."""
    world.register("e", Role.ENQUEUER)
    batch = [document(f"{n:03}") for n in range(100)]
    assert statements_of(lambda: world.ledger.enqueue("e", 1, batch)) == 1
    assert world.tallies.ready == 100
    check_rows(world)


def test_each_batch_is_tried_as_one_like_the_last(world: World) -> None:
    """All new, or all known; after a mixed one, neither."""
    world.enqueue_many(6)
    world.register("e", Role.ENQUEUER)

    def sent(batch: int, *names: str) -> int:
        items = [document(name) for name in names]
        return statements_of(lambda: world.ledger.enqueue("e", batch, items))

    assert sent(1, "000", "001") > 1
    assert sent(2, "002", "003") == 1
    tried_in_vain = sent(3, "new-1", "004")
    assert sent(4, "new-2", "005") == tried_in_vain - 1
    assert sent(5, "new-3") > 1
    assert sent(6, "new-4") == 1
    assert (world.tallies.known, world.tallies.total) == (6, 10)
    check_rows(world)


def test_items_are_numbered_as_listed_and_documents_added_by_name(world: World) -> None:
    """Two enqueues in other orders wait for each other in one direction only.

    By code points, as `sorted` has it, whatever the database's collation.
    """
    names = ["b", "a/b", "B", "a-b", "é", "z", "\U0001f600", "\uffee"]
    world.enqueue(*names)
    with psycopg.connect(url_of(world)) as connection:
        items = connection.execute("SELECT source_id FROM items ORDER BY id").fetchall()
        places = connection.execute("SELECT source_id FROM documents ORDER BY ctid").fetchall()
    assert [row[0] for row in items] == names
    assert [row[0] for row in places] == sorted(names)


def test_a_document_that_another_enqueue_has_just_added_is_known(world: World) -> None:
    """It was not there when the statement began, and is when its key is written."""
    world.register("e", Role.ENQUEUER)
    other = f"""
    WITH item AS (
      INSERT INTO items (run_id, source_id, source_version, size, locator)
      VALUES ({world.run.id}, 'b', 'sha256:v1', 1, 'file:///docs/b') RETURNING id
    ), ready AS (
      INSERT INTO ready SELECT {world.run.id}, id, 0, 1, 0, 0, 0, 0 FROM item
    )
    INSERT INTO documents SELECT {world.run.id}, 'b', id, 'file:///docs', 0 FROM item
    """
    batch = [document("a"), document("b"), document("c")]
    answer = behind_the_back(world, other, lambda: world.ledger.enqueue("e", 1, batch))
    assert answer == Enqueued(new=2, known=1)
    assert [item.source_id for item in world.hold(world.worker("w")).items] == ["b", "a", "c"]


def test_a_batch_that_waited_for_a_later_one_is_refused(world: World) -> None:
    """What the process's row says counts once it is free, not what it said before."""
    world.register("e", Role.ENQUEUER)
    later = "UPDATE workers SET last_batch = 2 WHERE name = 'e'"
    with pytest.raises(UsageError, match="batch 1 of e comes after its batch 2"):
        behind_the_back(world, later, lambda: world.ledger.enqueue("e", 1, [document("a")]))
    assert world.tallies.total == 0
    check_rows(world)


def supersede(world: World, name: str) -> str:
    """A statement that puts another version in the place of a ready one, as an enqueue does."""
    run = world.run.id
    return f"""
    WITH old AS (
      DELETE FROM ready USING documents AS d WHERE ready.id = d.item_id AND d.source_id = '{name}'
      RETURNING ready.*
    ), gone AS (
      INSERT INTO superseded SELECT * FROM old
    ), item AS (
      INSERT INTO items (run_id, source_id, source_version, size, locator)
      VALUES ({run}, '{name}', 'sha256:v2', 1, 'file:///docs/{name}') RETURNING id
    ), ready AS (
      INSERT INTO ready SELECT {run}, id, 0, 1, 0, 0, 0, 0 FROM item
    )
    UPDATE documents SET item_id = (SELECT id FROM item) WHERE source_id = '{name}'
    """


def test_a_document_that_another_enqueue_has_just_changed_is_changed_back(world: World) -> None:
    """Newer is what is committed later, and so the bytes that waited for the others."""
    world.enqueue("a", "b")
    world.register("e", Role.ENQUEUER)

    def enqueue(world: World) -> None:
        batch = [document("a"), document("b")]
        call = partial(world.ledger.enqueue, "e", 1, batch)
        assert behind_the_back(world, supersede(world, "b"), call) == Enqueued(
            known=2, superseded=1
        )

    with_known_ones_expected(enqueue, world)
    found = world.ledger.lookup(world.run, "b")
    assert found is not None
    assert found.source_version == "sha256:v1"


def test_a_document_that_another_enqueue_has_just_named_is_marked(world: World) -> None:
    """So that this one does not name it again."""
    world.enqueue("a", "b")
    world.register("e", Role.ENQUEUER)
    named = "UPDATE documents SET enqueuer = 0 WHERE source_id = 'b'"

    def enqueue(world: World) -> None:
        batch = [document("a"), document("b")]
        call = partial(world.ledger.enqueue, "e", 1, batch)
        assert behind_the_back(world, named, call) == Enqueued(known=2)
        assert len(world.ledger.enqueue("e", 2, batch).rejected) == 2

    with_known_ones_expected(enqueue, world)


def test_batches_of_known_documents_go_forward_only(world: World) -> None:
    """Whether the later one was answered before this one came, or while it waited."""
    world.enqueue_many(4)
    world.register("e", Role.ENQUEUER)
    world.ledger.enqueue("e", 5, [document("000")])
    with pytest.raises(UsageError, match="batch 4 of e comes after its batch 5"):
        world.ledger.enqueue("e", 4, [document("001")])
    world.ledger.enqueue("e", 6, [document("002")])
    later = "UPDATE workers SET last_batch = 8 WHERE name = 'e'"
    with pytest.raises(UsageError, match="batch 7 of e comes after its batch 8"):
        behind_the_back(world, later, lambda: world.ledger.enqueue("e", 7, [document("003")]))
    assert world.tallies.known == 2
    check_rows(world)


@pytest.mark.parametrize(
    "test",
    [
        enqueues.test_an_unknown_document_becomes_a_ready_item,
        enqueues.test_an_empty_batch_brings_nothing,
        enqueues.test_the_same_version_again_is_known,
        enqueues.test_a_completed_item_keeps_its_locator,
        enqueues.test_changed_bytes_supersede_a_ready_item,
        enqueues.test_changed_bytes_leave_a_completed_item_as_it_is,
        enqueues.test_a_superseded_item_named_again_begins_anew,
        enqueues.test_the_last_of_many_versions_is_the_current_one,
        enqueues.test_the_same_bytes_from_another_root_are_known,
        enqueues.test_naming_the_same_bytes_twice_in_one_batch_is_rejected_too,
        enqueues.test_naming_a_document_in_two_batches_of_one_process_is_rejected,
        enqueues.test_a_stopped_or_reaped_enqueuer_may_go_on,
        enqueues.test_a_large_batch_is_taken_up_whole,
        races.test_concurrent_enqueues_of_the_same_items_make_one_of_each,
        races.test_concurrent_enqueues_of_different_versions_leave_one_current,
        races.test_a_batch_sent_twice_at_once_is_taken_up_once,
        repeated.test_the_last_batch_repeated_by_another_client,
    ],
    ids=lambda test: test.__name__.removeprefix("test_"),
)
def test_whatever_else_a_batch_holds_goes_the_usual_way(
    world: World, test: Callable[[World], object]
) -> None:
    """What the suite says of enqueue, where all of it is expected to be known."""
    with_known_ones_expected(test, world)
