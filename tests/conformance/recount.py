"""A recount of a ledger's rows that shares no code with it."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import Any

import psycopg

from tests.conformance.backends import DynamoBackend, SqlBackend
from tests.conformance.world import World
from tests.faults.dynamo_rows import scan, tables

__all__ = ["check_rows", "history", "recount"]

STATES = ("ready", "delayed", "leased", "results", "dead_letters", "superseded")

Query = Callable[[str], list[tuple[Any, ...]]]


def check_rows(world: World) -> None:
    """The tallies equal a recount of the rows, and the rows fit together."""
    tallies = asdict(world.check_accounting())
    if isinstance(world.backend, SqlBackend):
        counted = recount(world.backend.url, world.run.id)
        assert counted == {name: tallies[name] for name in counted}
    if isinstance(world.backend, DynamoBackend):
        counted = recount_dynamo(world.backend, world.run.id)
        assert counted == {name: tallies[name] for name in counted}


def recount_dynamo(backend: DynamoBackend, run: int) -> dict[str, int]:
    """The same of a table in DynamoDB, by its raw rows."""
    found = tables(scan(backend.sdk, backend.table))
    rows = {name: [row for row in found[name] if row["run_id"] == run] for name in STATES}
    items = [row for row in found["items"] if row["run_id"] == run]
    identities = Counter((row["source_id"], row["source_version"]) for row in items)
    assert set(identities.values()) <= {1}, "two items are the same"
    current = Counter(row["source_id"] for row in items if row["current"])
    assert current == dict.fromkeys({row["source_id"] for row in items}, 1), "no one current item"
    assert not any(row["current"] for row in rows["superseded"]), "a current item is superseded"
    return _sums({name: len(of_state) for name, of_state in rows.items()}, len(items))


def recount(url: str, run_id: int) -> dict[str, int]:
    """The tallies of states as the rows say, having checked that the rows fit together."""
    with _querying(url) as query:
        return _recount(query, run_id)


def history(url: str) -> list[tuple[Any, ...]]:
    """Generation, key and digest of every result that was reopened, oldest first."""
    with _querying(url) as query:
        return query("SELECT generation, object_key, sha256 FROM results_history ORDER BY 1, 2")


@contextmanager
def _querying(url: str) -> Iterator[Query]:
    if url.startswith("sqlite:///"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as lite:
            yield lambda statement: lite.execute(statement).fetchall()
    else:
        with psycopg.connect(url) as server:
            yield lambda statement: server.execute(statement).fetchall()


def _recount(query: Query, run: int) -> dict[str, int]:
    def ids(statement: str) -> list[int]:
        return [row[0] for row in query(statement)]

    rows = {name: ids(f"SELECT id FROM {name} WHERE run_id = {run}") for name in STATES}
    placed = [item for name in STATES for item in rows[name]]
    items = ids(f"SELECT id FROM items WHERE run_id = {run}")
    assert len(placed) == len(set(placed)), "an item is in two states"
    assert set(items) == set(placed), "an item is in no state, or a state is of no item"

    identities = query(f"SELECT source_id, source_version FROM items WHERE run_id = {run}")
    assert len(identities) == len(set(identities)), "two items are the same"

    current = ids(f"SELECT item_id FROM documents WHERE run_id = {run}")
    assert len(current) == len(set(current)), "two documents share an item"
    # Only the current item of a document may be open, or one whose result was lost.
    reopened = ids(f"SELECT id FROM results_history WHERE run_id = {run}")
    settled = {*rows["results"], *rows["superseded"], *reopened}
    assert set(items) - set(current) <= settled, "an outdated item is still open"
    assert not set(current) & set(rows["superseded"]), "a current item is superseded"

    orphans = query(
        f"SELECT count(*) FROM leased l JOIN workers w ON w.id = l.worker_id "
        f"WHERE l.run_id = {run} AND w.state = 'stopped'"
    )
    assert orphans == [(0,)], "a stopped worker holds items"

    return _sums({name: len(found) for name, found in rows.items()}, len(items))


def _sums(counts: dict[str, int], items: int) -> dict[str, int]:
    return {
        "total": items - counts["superseded"],
        "ready": counts["ready"] + counts["delayed"],
        "delayed": counts["delayed"],
        "leased": counts["leased"],
        "completed": counts["results"],
        "dead_lettered": counts["dead_letters"],
        "superseded": counts["superseded"],
    }
