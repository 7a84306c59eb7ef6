"""The verbs that only read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from batchq.errors import BatchqError
from batchq.ledger.records import (
    TALLY_NAMES,
    CommittedResult,
    Counts,
    DeadLetter,
    ItemState,
    Role,
    Run,
    State,
    Tallies,
    WorkerState,
    WorkerStatus,
)
from batchq.ledger.sql import statements as sql
from batchq.ledger.sql.dialect import POSTGRESQL
from batchq.ledger.sql.engine import Repeat, Transaction
from batchq.result import Stored

__all__ = [
    "counts",
    "dead_letters",
    "duplicates",
    "find_run",
    "lookup",
    "recount",
    "results",
    "run_names",
    "states",
    "workers",
]


def find_run(tx: Transaction, name: str) -> Run | None:
    row = tx.record(sql.FIND_RUN, name=name)
    if row is None:
        return None
    run_id, _, prefix, processing_version, manifest, layout = row
    return Run(run_id, name, prefix, processing_version, json.loads(manifest), layout)


def run_names(tx: Transaction, limit: int) -> list[str]:
    # Sorted here: each database has an alphabet of its own.
    return sorted(name for (name,) in tx.rows(sql.RUN_NAMES, limit=limit))


def counts(tx: Transaction, run: Run) -> Counts:
    row = tx.record(sql.COUNTS, run=run.id)
    now = row.now / 1000
    return Counts(
        # PostgreSQL adds up big integers as decimals.
        Tallies(**{name: int(getattr(row, name)) for name in TALLY_NAMES}),
        workers_alive=row.workers_alive,
        enqueuers_alive=row.enqueuers_alive,
        now=now,
        oldest_lease_s=None if row.oldest is None else max(0.0, now - row.oldest / 1000),
        next_due_s=None if row.due is None else max(0.0, row.due / 1000 - now),
    )


def duplicates(tx: Transaction, run: Run) -> int:
    if tx.dialect is POSTGRESQL:
        tx.rows(sql.WHOLE_TABLES)
    return int(tx.rows(sql.DUPLICATES, run=run.id)[0][0])


def workers(tx: Transaction, run: Run) -> list[WorkerStatus]:
    return [
        WorkerStatus(
            name=row.name,
            role=Role(row.role),
            state=WorkerState(row.state),
            alive=row.state == WorkerState.LIVE and bool(row.fresh),
            held=row.held,
            committed=row.committed,
            registered_at=row.registered_at / 1000,
            beat_at=row.beat_at / 1000,
            stop_reason=row.stop_reason,
            about=json.loads(row.about),
        )
        for row in tx.records(sql.WORKERS, run=run.id)
    ]


def recount(tx: Transaction, run: Run) -> Tallies:
    if tx.dialect is POSTGRESQL:
        tx.rows(sql.WHOLE_TABLES)
    row = tx.record(sql.RECOUNT, run=run.id)
    return Tallies(
        total=row.items - row.superseded,
        ready=row.ready + row.delayed,
        delayed=row.delayed,
        leased=row.leased,
        completed=row.completed,
        empty=row.empty,
        dead_lettered=row.dead_lettered,
        superseded=row.superseded,
    )


def lookup(tx: Transaction, run: Run, source_id: str) -> ItemState | None:
    rows = tx.records(sql.LOOKUP, run=run.id, source_id=source_id)
    return _item_states(tx, run, rows)[0] if rows else None


def states(
    tx: Transaction, run: Run, identities: Sequence[tuple[str, str]]
) -> list[ItemState | None]:
    names = sorted({source_id for source_id, _ in identities})
    rows = tx.records(sql.STATES, run=run.id, names=names) if names else ()
    asked = set(identities)
    rows = [row for row in rows if (row.source_id, row.source_version) in asked]
    found = {(one.source_id, one.source_version): one for one in _item_states(tx, run, rows)}
    return [found.get(identity) for identity in identities]


def _item_states(tx: Transaction, run: Run, rows: Sequence[Any]) -> list[ItemState]:
    lost = [row for row in rows if row.state is None]
    if lost:
        raise BatchqError(
            f"item {lost[0].id} is in no state of the ledger: {lost[0].source_id!r}",
            hint="the ledger is damaged; restore it from a copy",
        )
    completed = [row.id for row in rows if row.state == State.COMPLETED]
    results: dict[int, CommittedResult] = {}
    if completed:
        committed = tx.records(sql.RESULTS_OF, run=run.id, ids=completed)
        results = {row.id: _result(*row) for row in committed}
        if len(results) < len(completed):
            # One was reopened between the two statements.
            raise Repeat
    return [
        ItemState(
            row.id,
            row.source_id,
            row.source_version,
            row.locator,
            State(row.state),
            results.get(row.id),
        )
        for row in rows
    ]


def results(
    tx: Transaction, run: Run, after: int, limit: int, current_only: bool
) -> list[CommittedResult]:
    statement = sql.CURRENT_RESULTS if current_only else sql.RESULTS
    rows = tx.page(statement, sql.COMMITTED_COLUMNS, run=run.id, after=after, limit=limit)
    return [_result(*row) for row in rows]


def _result(
    item_id: int,
    source_id: str,
    source_version: str,
    size: int,
    key: str,
    offset: int,
    length: int,
    sha256: str,
    attempt: int,
    generation: int,
    empty: bool,
    adopted: bool,
    worker: str,
    committed_at: int,
) -> CommittedResult:
    """From a row of COMMITTED_COLUMNS."""
    return CommittedResult(
        item_id,
        source_id,
        source_version,
        size,
        Stored(key, offset, length, sha256),
        attempt,
        generation,
        bool(empty),
        bool(adopted),
        worker,
        committed_at / 1000,
    )


def dead_letters(tx: Transaction, run: Run, after: int, limit: int) -> list[DeadLetter]:
    return [
        DeadLetter(
            item_id=row.id,
            source_id=row.source_id,
            source_version=row.source_version,
            cause=row.cause,
            error=row.error,
            attempt=row.attempt,
            generation=row.generation,
            at=row.ended_at / 1000,
        )
        for row in tx.records(sql.DEAD_LETTERS, run=run.id, after=after, limit=limit)
    ]
