"""What `benchmarks.ledger` compares with: the same moves by bare statements of the driver.

No processes are checked, no tallies kept, nothing is fenced; the tables, the rows and the
durability are the ledger's.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable

import psycopg

from batchq.lease import new_token

__all__ = ["BATCH", "REST", "Step", "bare_postgresql", "bare_sqlite", "digest", "key"]

BATCH = 100

COUNTERS = "attempt, generation, failures, losses, lone_losses, releases"
REST = "generation, failures, losses, lone_losses, releases"

Step = Callable[[], int]
"""Claims and commits one batch; how many items there were."""


def key(item_id: int) -> str:
    return f"default-0123456789abcdef/{item_id % 256:02x}/{item_id:032x}-guide-a-md.json"


def digest(item_id: int) -> str:
    return f"{item_id:064x}"


def bare_sqlite(path: str) -> Step:
    """The same moves through the sqlite3 module."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=60)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA cache_size = -32768")
    run = connection.execute
    cursor = 0

    def step() -> int:
        nonlocal cursor
        token = new_token()
        now = int(time.time() * 1000)
        run("BEGIN IMMEDIATE")
        rows = run(
            "SELECT r.id, i.source_id, i.source_version, i.size, i.locator, r.attempt, "
            "r.generation, r.failures, r.losses FROM ready AS r JOIN items AS i ON i.id = r.id "
            "WHERE r.run_id = 1 AND r.id > ? ORDER BY r.id LIMIT ?",
            (cursor, BATCH),
        ).fetchall()
        if not rows:
            run("COMMIT")
            return 0
        span = (cursor, rows[-1][0])
        run(
            f"INSERT INTO leased SELECT run_id, id, attempt + 1, {REST}, 1, ?, ?, 0 "
            "FROM ready WHERE run_id = 1 AND id > ? AND id <= ?",
            (token, now, *span),
        )
        run("DELETE FROM ready WHERE run_id = 1 AND id > ? AND id <= ?", span)
        run("COMMIT")
        cursor = span[1]
        run("BEGIN IMMEDIATE")
        connection.executemany(
            f"INSERT INTO results SELECT run_id, id, {COUNTERS}, worker_id, token, "
            "?, 0, ?, ?, 0, 0, ? FROM leased WHERE run_id = 1 AND id = ? AND token = ?",
            [(key(row[0]), 1000, digest(row[0]), now, row[0], token) for row in rows],
        )
        run(
            "DELETE FROM leased WHERE run_id = 1 AND id IN (SELECT value FROM json_each(?))",
            (json.dumps([row[0] for row in rows]),),
        )
        run("COMMIT")
        return len(rows)

    return step


BARE_CLAIM = f"""
WITH picked AS MATERIALIZED (
  SELECT ctid AS place FROM ready WHERE run_id = 1 AND id > %s ORDER BY id LIMIT %s
  FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM ready WHERE ctid = ANY (ARRAY(SELECT place FROM picked))
  RETURNING run_id, id, {COUNTERS}
), taken AS (
  INSERT INTO leased SELECT run_id, id, attempt + 1, {REST}, 1, %s, %s, 0 FROM gone
)
SELECT g.id, i.source_id, i.source_version, i.size, i.locator, attempt, generation, failures, losses
FROM gone AS g JOIN items AS i ON i.id = g.id ORDER BY g.id
"""

BARE_COMMIT = f"""
WITH given AS MATERIALIZED (
  SELECT * FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::bigint[], %s::text[])
  AS g (id, token, object_key, byte_length, sha256)
), gone AS (
  DELETE FROM leased AS l USING given AS g
  WHERE l.run_id = 1 AND l.id = g.id AND l.token = g.token
  RETURNING l.run_id, l.id, {COUNTERS}, worker_id, l.token, object_key, byte_length, sha256
)
INSERT INTO results SELECT run_id, id, {COUNTERS}, worker_id, token, object_key, 0,
  byte_length, sha256, false, false, %s FROM gone
"""


def bare_postgresql(url: str) -> Step:
    """The same moves through psycopg, one statement each, prepared."""
    connection = psycopg.connect(url, autocommit=True)
    cursor = 0

    def step() -> int:
        nonlocal cursor
        token = new_token()
        now = int(time.time() * 1000)
        rows = connection.execute(BARE_CLAIM, (cursor, BATCH, token, now)).fetchall()
        if not rows:
            return 0
        ids = [row[0] for row in rows]
        cursor = ids[-1]
        connection.execute(
            BARE_COMMIT,
            (
                ids,
                [token] * len(ids),
                [key(i) for i in ids],
                [1000] * len(ids),
                [digest(i) for i in ids],
                now,
            ),
        )
        return len(rows)

    return step
