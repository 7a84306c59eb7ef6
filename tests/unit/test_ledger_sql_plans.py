"""The plans of the SQL ledger's statements: each finds its rows by an index, at any size.

A story that tells every verb is recorded, and each of its statements explained: on SQLite,
and on PostgreSQL as a generic plan in a database that is empty, in one that was analysed
while it was, and in one with many rows.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from batchq.clock import ManualClock
from batchq.ledger.base import Policy
from batchq.ledger.schema import metadata
from batchq.ledger.sql import (
    SqlLedger,
    engine,
    familiar,
    fresh,
    hot_postgresql,
    hot_sqlite,
    statements,
)
from tests.ledger_story import repair, tell

# They read all of a run's items, and all of its processes, on purpose.
READS_ALL = (statements.DUPLICATES, statements.RECOUNT, statements.WORKERS)

Recorded = dict[str, tuple[str, dict[str, Any]]]
"""By template: what the driver was sent, and the parameters of the last time."""


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """What transactions execute from now on."""
    seen: Recorded = {}
    execute = engine.Transaction._execute

    def record(tx: engine.Transaction, statement: str, parameters: dict[str, Any]) -> None:
        execute(tx, statement, parameters)
        seen[statement] = (tx._database.rendered(statement)[0], dict(parameters))

    monkeypatch.setattr(engine.Transaction, "_execute", record)
    return seen


def story(url: str, recorded: Recorded) -> SqlLedger:
    """A ledger after the story; what created it is not recorded."""
    clock = ManualClock()
    ledger = SqlLedger(url, policy=Policy(), clock=clock, ledger_clock=clock)
    ledger.initialise()
    run = ledger.create_run("run", "stats-1", {"kind": "stats"}, "item")
    recorded.clear()
    tell(ledger, run, clock)
    repair(ledger, run)
    for template in READS_ALL:
        del recorded[template]
    assert len(recorded) > 40
    return ledger


# -- SQLite ----------------------------------------------------------------------------------


def sqlite_plan(connection: sqlite3.Connection, sql: str, parameters: Any) -> list[str]:
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)]


def sqlite_faults(plan: list[str], sql: str) -> list[str]:
    """Steps that read a whole table, or a whole index of one."""
    named = dict.fromkeys(metadata.tables, "")
    for table in named:
        if alias := re.search(rf"\b{table} AS (\w+)", sql):
            named[table] = alias[1]
    tables = {alias or table for table, alias in named.items()}
    return [step for step in plan if step.startswith("SCAN ") and step.split()[1] in tables]


@pytest.fixture
def sqlite_connection(tmp_path: Path, recorded: Recorded) -> Iterator[sqlite3.Connection]:
    path = tmp_path / "ledger.db"
    story(f"sqlite:///{path}", recorded).close()
    connection = sqlite3.connect(path)
    yield connection
    connection.close()


def test_sqlite_searches_every_table_by_a_key(
    sqlite_connection: sqlite3.Connection, recorded: Recorded
) -> None:
    """No statement of any verb scans a table."""
    faults = {
        sql: found
        for sql, parameters in recorded.values()
        if (found := sqlite_faults(sqlite_plan(sqlite_connection, sql, parameters), sql))
    }
    assert faults == {}


SQLITE_PLANS = {
    hot_sqlite._READY: [
        "SEARCH r USING PRIMARY KEY (run_id=? AND id>? AND id<?)",
        "SEARCH i USING INTEGER PRIMARY KEY (rowid=?)",
    ],
    hot_sqlite._UNREADY: ["SEARCH ready USING PRIMARY KEY (run_id=? AND id>? AND id<?)"],
    statements.HELD_BY: [
        "SEARCH leased USING INDEX ix_leased_worker (worker_id=?)",
        "USE TEMP B-TREE FOR ORDER BY",
    ],
    statements.PULL_BACK_DELAYED: [
        "SEARCH delayed USING COVERING INDEX ix_delayed_due (run_id=? AND not_before>?)"
    ],
}


@pytest.mark.parametrize("template", SQLITE_PLANS)
def test_sqlite_plans_of_the_hot_statements(
    sqlite_connection: sqlite3.Connection, recorded: Recorded, template: str
) -> None:
    """Ready items come in the order of their key, without a sort."""
    assert SQLITE_PLANS[template] == sqlite_plan(sqlite_connection, *recorded[template])


def test_a_commit_on_sqlite_searches_each_lease_by_its_key(
    sqlite_connection: sqlite3.Connection,
) -> None:
    """However many results one statement keeps, it reads no other lease."""
    plan = sqlite_plan(sqlite_connection, hot_sqlite._keep(20), [None] * (20 * 8 + 2))
    assert "SEARCH l USING PRIMARY KEY (run_id=? AND id=?)" in plan
    assert not [step for step in plan if step.startswith("SCAN l")]


def test_a_missing_index_of_sqlite_is_noticed(
    sqlite_connection: sqlite3.Connection, recorded: Recorded
) -> None:
    """These tests can fail."""
    sqlite_connection.execute("DROP INDEX ix_leased_worker")
    sql, parameters = recorded[statements.HELD_BY]
    assert sqlite_faults(sqlite_plan(sqlite_connection, sql, parameters), sql)


# -- PostgreSQL ------------------------------------------------------------------------------


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)


def postgres_plan(connection: Any, sql: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """The nodes of the generic plan, which a prepared statement has for good."""
    numbers = {name: index for index, name in enumerate(parameters, 1)}
    types = {int: "bigint", str: "text"}

    def numbered(found: re.Match[str]) -> str:
        kind = types.get(type(parameters[found[1]]))
        return f"CAST(${numbers[found[1]]} AS {kind})" if kind else f"${numbers[found[1]]}"

    text = re.sub(r"%\((\w+)\)s", numbered, sql)
    # The driver sends no parameters, so that the server does not ask for them.
    cursor = psycopg.ClientCursor(connection)
    rows = cursor.execute(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {text}").fetchall()
    return list(nodes(rows[0][0][0]["Plan"]))


SCANS = ("Index Scan", "Index Only Scan", "Bitmap Index Scan")


def postgres_faults(plan: list[dict[str, Any]]) -> list[str]:
    """Nodes that read a whole table or index, or compare every row with every other."""
    faults = []
    for node in plan:
        kind = node["Node Type"]
        whole = kind in SCANS and "Index Cond" not in node
        if kind in ("Seq Scan", "Hash Join", "Merge Join") or whole or "Join Filter" in node:
            faults.append(f"{kind} {node.get('Relation Name', node.get('Index Name', ''))}")
        if kind == "Limit" and any(inner["Node Type"] == "Sort" for inner in nodes(node)):
            relations = {inner.get("Relation Name") for inner in nodes(node)}
            faults += [f"Sort {name}" for name in relations & {"ready", "delayed"}]
    return faults


def explain_all(connection: Any, recorded: Recorded) -> dict[str, list[str]]:
    return {
        sql: found
        for sql, parameters in recorded.values()
        if (found := postgres_faults(postgres_plan(connection, sql, parameters)))
    }


def fill(connection: Any, rows: int) -> None:
    """Items in every state, as many of each."""
    counters = "1, 1, 0, 0, 0, 0"
    values = {
        "items": "n, 1, 'd' || n, 'v', 1, 'l'",
        "documents": "1, 'd' || n, n, 'r', 1",
        "ready": f"1, n, {counters}",
        "delayed": f"1, n, {counters}, n",
        "leased": f"1, n, {counters}, n % 50, 't', n, 0",
        "results": f"1, n, {counters}, 1, 't', 'k', 0, 1, 's', false, false, 1",
        "dead_letters": f"1, n, {counters}, 'c', 'e', 1",
        "superseded": f"1, n, {counters}",
    }
    for table, row in values.items():
        connection.execute(
            f"INSERT INTO {table} SELECT {row} FROM generate_series(1000, 1000 + {rows}) AS n (n)"
        )


@pytest.fixture
def postgres(postgres_url: str, recorded: Recorded) -> Iterator[Any]:
    """A connection as the ledger makes them, to its database after the story."""
    ledger = story(postgres_url, recorded)
    connection = ledger._database.driver.connect()
    yield connection
    connection.close()
    ledger.close()


def test_postgres_finds_rows_by_index_at_any_size(postgres: Any, recorded: Recorded) -> None:
    """Whatever the planner believes about tables whose rows all come and go."""
    assert explain_all(postgres, recorded) == {}
    postgres.execute("VACUUM ANALYZE")
    assert explain_all(postgres, recorded) == {}
    fill(postgres, 20_000)
    assert explain_all(postgres, recorded) == {}
    postgres.execute("VACUUM ANALYZE")
    assert explain_all(postgres, recorded) == {}


def used(plan: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {
        (node["Relation Name"], node.get("Index Name", node["Node Type"]))
        for node in plan
        if "Relation Name" in node and node["Node Type"] != "ModifyTable"
    }


POSTGRES_INDEXES = {
    hot_postgresql._CLAIM: {
        ("workers", "uq_workers_name"),
        ("workers", "pk_workers"),
        ("delayed", "ix_delayed_due"),
        ("ready", "pk_ready"),
        ("ready", "Tid Scan"),
        ("items", "pk_items"),
    },
    hot_postgresql._COMMIT: {
        ("workers", "uq_workers_name"),
        ("workers", "pk_workers"),
        ("leased", "pk_leased"),
        ("leased", "Tid Scan"),
    },
    fresh._ENQUEUE: {
        ("workers", "uq_workers_name"),
        ("workers", "pk_workers"),
        ("documents", "pk_documents"),
    },
    familiar._ENQUEUE: {
        ("workers", "uq_workers_name"),
        ("workers", "pk_workers"),
        ("documents", "pk_documents"),
        ("items", "pk_items"),
    },
    statements.HELD_BY: {("leased", "ix_leased_worker")},
    statements.SUSPECTS: {("workers", "ix_workers_unsettled")},
    statements.COUNTS: {
        ("runs", "pk_runs"),
        ("workers", "ix_workers_unsettled"),
        ("leased", "ix_leased_worker"),
        ("delayed", "ix_delayed_due"),
    },
}


@pytest.mark.parametrize("analysed", [False, True])
def test_postgres_indexes_of_enqueue_claim_commit_reap_and_counts(
    postgres: Any, recorded: Recorded, analysed: bool
) -> None:
    """By name, so that a change of plan is a decision."""
    if analysed:
        fill(postgres, 20_000)
        postgres.execute("VACUUM ANALYZE")
    found = {
        template: used(postgres_plan(postgres, *recorded[template]))
        for template in POSTGRES_INDEXES
    }
    assert found == POSTGRES_INDEXES


def test_a_missing_index_of_postgres_is_noticed(postgres: Any, recorded: Recorded) -> None:
    """These tests can fail."""
    postgres.execute("DROP INDEX ix_leased_worker")
    postgres.execute("DROP INDEX ix_delayed_due")
    faults = explain_all(postgres, recorded)
    assert recorded[statements.HELD_BY][0] in faults
    claim = used(postgres_plan(postgres, *recorded[hot_postgresql._CLAIM]))
    assert claim != POSTGRES_INDEXES[hot_postgresql._CLAIM]
