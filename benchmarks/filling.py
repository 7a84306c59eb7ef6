"""Fills a ledger with many items in a moment, by bulk statements, without an enqueue's care.

The tables are the ledger's own and its tallies are right: `verify`'s recount finds no drift.
Names ascend with the items, as an enqueue lists them, so that the indexes look as they would.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any

import psycopg

__all__ = ["Filling", "fill", "raw_connection", "source_id"]

_STEP = 250_000
"""Items in one transaction."""

_REST = "1, 0, 0, 0, 0"
"""Generation, failures, losses, lone losses and releases of an item that had no trouble."""

_ENDED_WORKER = (
    "(run_id, name, role, state, about, ttl, registered_at, beat_at, expires_at, claims_since, "
    "stop_reason, stopped_at, committed, settled) "
    "VALUES (1, 'filling', 'worker', 'stopped', '{}', 60000, 0, 0, 0, 0, 'end', 0, "
)


@dataclass(frozen=True, slots=True)
class Filling:
    """How many items of run 1 are in which state; their ids are 1 to `total` in this order."""

    completed: int = 0
    dead_lettered: int = 0
    ready: int = 0

    @property
    def total(self) -> int:
        return self.completed + self.dead_lettered + self.ready


def source_id(number: int) -> str:
    """The name of the document that item `number` is of."""
    return f"docs/guide/{number:09d}.md"


def raw_connection(url: str) -> Any:
    """The driver's own connection, in autocommit mode."""
    if url.startswith("sqlite:///"):
        return sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    return psycopg.connect(url, autocommit=True)


def fill(url: str, filling: Filling) -> None:
    """Add `filling` to run 1 of an initialised ledger that has no item yet."""
    connection = raw_connection(url)
    words: _Words = _Sqlite() if url.startswith("sqlite:") else _Postgresql()
    connection.execute(words.hasten)
    connection.execute(f"INSERT INTO workers {_ENDED_WORKER}{filling.completed}, {words.true})")
    name = words.name
    version, digest = f"'sha256:' || {words.digest}", words.digest
    bounds = (
        (1, filling.total, "items", f"n, 1, {name}, {version}, 1000, 'file:///data/' || {name}"),
        (1, filling.total, "documents", f"1, {name}, n, 'file:///data', 0"),
        (
            1,
            filling.completed,
            "results",
            f"1, n, 1, {_REST}, 1, {words.token}, {words.key}, 0, 1000, {digest}, "
            f"{words.false}, {words.false}, 1700000000000",
        ),
        (
            filling.completed + 1,
            filling.completed + filling.dead_lettered,
            "dead_letters",
            f"1, n, 3, {_REST.replace('1, 0', '1, 3', 1)}, 'bad_document', 'it is bad', "
            "1700000000000",
        ),
        (
            filling.completed + filling.dead_lettered + 1,
            filling.total,
            "ready",
            f"1, n, 0, {_REST}",
        ),
    )
    for first, last, table, row in bounds:
        for start in range(first, last + 1, _STEP):
            numbers = words.numbers(start, min(last, start + _STEP - 1))
            connection.execute(f"INSERT INTO {table} SELECT {row} FROM {numbers}")
    connection.execute(
        f"UPDATE runs SET total = {filling.total}, ready = {filling.ready}, "
        f"completed = {filling.completed}, dead_lettered = {filling.dead_lettered}, "
        f"attempts = {filling.completed + 3 * filling.dead_lettered}, "
        f"failures = {3 * filling.dead_lettered} WHERE id = 1"
    )
    for statement in words.settle(filling.total):
        connection.execute(statement)
    connection.close()


class _Postgresql:
    hasten = "SET synchronous_commit = off"
    true, false = "true", "false"
    name = "'docs/guide/' || lpad(n::text, 9, '0') || '.md'"
    digest = "encode(sha256(int8send(n)), 'hex')"
    token = "md5((n / 100)::text)"
    key = "'default-0123456789abcdef/' || left(md5(n::text), 2) || '/' || md5(n::text) || '.json'"

    def numbers(self, first: int, last: int) -> str:
        return f"generate_series({first}::bigint, {last}::bigint) AS n (n)"

    def settle(self, total: int) -> tuple[str, ...]:
        return (f"SELECT setval('items_id_seq', {max(1, total)})", "VACUUM ANALYZE", "CHECKPOINT")


class _Sqlite:
    hasten = "PRAGMA synchronous = OFF"
    true, false = "1", "0"
    name = "'docs/guide/' || printf('%09d', n) || '.md'"
    digest = "lower(hex(randomblob(32)))"
    token = "printf('%032x', n / 100)"
    key = "'default-0123456789abcdef/' || lower(hex(randomblob(1))) || printf('/%032x.json', n)"

    def numbers(self, first: int, last: int) -> str:
        return (
            f"(WITH RECURSIVE n (n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM n "
            f"WHERE n < {last}) SELECT n FROM n)"
        )

    def settle(self, total: int) -> tuple[str, ...]:
        return ("PRAGMA wal_checkpoint(TRUNCATE)", "PRAGMA optimize")


_Words = _Postgresql | _Sqlite
