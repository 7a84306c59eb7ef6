"""New documents on PostgreSQL, which one statement takes up: what may come between."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from batchq.errors import UsageError
from batchq.ledger.base import Enqueued, Role
from tests.conformance.recount import check_rows
from tests.conformance.test_ledger_transactions import breaking_off_at, url_of
from tests.conformance.world import World, document

pytestmark = [
    pytest.mark.parametrize("backend", ["postgresql"], indirect=True),
    pytest.mark.timeout(60),
]


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
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()"
        with psycopg.connect(url, autocommit=True) as watch:
            while not watch.execute(waiting).fetchall()[0][0]:
                assert not answer.done(), "nothing was waited for"
        other.commit()
        return answer.result(30)


def test_new_documents_take_one_statement(world: World) -> None:
    """And so one round trip, however many there are."""
    world.register("e", Role.ENQUEUER)
    batch = [document(f"{n:03}") for n in range(100)]
    assert statements_of(lambda: world.ledger.enqueue("e", 1, batch)) == 1
    assert world.tallies.ready == 100
    check_rows(world)


def test_known_documents_are_tried_as_new_ones_once(world: World) -> None:
    """Until a batch brings nothing but new ones again."""
    world.enqueue_many(4)
    world.register("e", Role.ENQUEUER)

    def sent(batch: int, *names: str) -> int:
        items = [document(name) for name in names]
        return statements_of(lambda: world.ledger.enqueue("e", batch, items))

    first, second = sent(1, "000", "001"), sent(2, "002", "003")
    assert first == second + 1
    assert sent(3, "new-1") > 1
    assert sent(4, "new-2") == 1


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
