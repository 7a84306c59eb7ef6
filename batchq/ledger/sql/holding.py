"""Claim, commit, fail and release: what a worker does with the items that it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from batchq.errors import WorkerReaped
from batchq.lease import Failure, Held, ReleaseReason
from batchq.ledger.records import (
    Committed,
    Failed,
    Policy,
    State,
    WorkerState,
    lease_cap,
)
from batchq.ledger.refusals import leases_over
from batchq.ledger.sql import statements as sql
from batchq.ledger.sql.engine import Transaction
from batchq.ledger.sql.hot import Claimed, Cursor, most_losses, nothing_due
from batchq.ledger.sql.names import RESULT_COLUMNS, STATE_TABLES
from batchq.ledger.sql.process import Moves, Process, Row, settle
from batchq.result import Result

__all__ = [
    "claim",
    "commit",
    "fail",
    "release",
    "stop",
]

_ANY = 2**62
"""Above every id."""

_LOSSES = -1
"""Where a row that becomes an item holds its losses."""


def claim(
    tx: Transaction,
    policy: Policy,
    worker: str,
    token: str,
    limit: int,
    *,
    alone: bool,
    cursor: Cursor,
    last: str | None,
) -> Claimed:
    """Claim in any case. `last` is as for `hot_postgresql.claim`."""
    process = Process(tx, worker)
    if process.state != WorkerState.LIVE:
        raise leases_over(worker, process.state)
    if token == process.last_token:
        rows = tx.rows(sql.LEASED_UNDER, worker=process.id, token=token)
        return Claimed(rows, cursor, process.now)
    if process.last_token is not None and last not in ("", process.last_token):
        _give_back_unknown(process, policy, process.last_token)
    # A cursor ahead of the ledger's clock was set before that went back.
    since = cursor.due if cursor.due <= process.now else 0
    due = _due(process, limit, most_losses(alone), since)
    ready: Sequence[Any] = ()
    if not due or due[0][_LOSSES] == 0:
        ready = _ready(process, limit - len(due), cursor.ready)
    if not due and not ready and since:
        due = _due(process, limit, most_losses(alone), since=0)
    _take(process, State.DELAYED, due, token)
    _take(process, State.READY, ready, token)
    if due or ready:
        process.save(last_token=token, claims_since=min(process.claims_since, process.now))
    cursor = Cursor(ready[-1][0] if ready else cursor.ready, min(since, nothing_due(process.now)))
    return Claimed(sorted([*due, *ready]), cursor, process.now)


def _give_back_unknown(process: Process, policy: Policy, token: str) -> None:
    """Release what a claim took that arrived after its answer was no longer waited for."""
    moves = Moves(process, State.LEASED, policy)
    for row in process.tx.rows(sql.HELD_UNDER, worker=process.id, token=token):
        moves.release(Row(*row), ReleaseReason.DRAIN, others_committed=False)
    moves.save()
    process.save()


def _due(process: Process, limit: int, most: int, since: int) -> Sequence[Any]:
    """The delayed items to lease: as many as may go with the first, and like it."""
    where = {"run": process.run, "since": since, "now": process.now}
    first = process.tx.rows(sql.DUE, **where, least=0, most=most, limit=1)
    if not first:
        return ()
    losses = first[0][_LOSSES]
    cap = lease_cap(losses, limit)
    if cap == 1:
        return first
    return process.tx.rows(sql.DUE, **where, least=losses, most=losses, limit=cap)


def _ready(process: Process, limit: int, cursor: int) -> Sequence[Any]:
    """Ready items from the cursor on, then from the start up to it."""
    if limit <= 0:
        return ()
    ahead = process.tx.rows(sql.READY, run=process.run, after=cursor, until=_ANY, limit=limit)
    if len(ahead) == limit or cursor == 0:
        return ahead
    missing = limit - len(ahead)
    behind = process.tx.rows(sql.READY, run=process.run, after=0, until=cursor, limit=missing)
    return [*ahead, *behind]


def _take(process: Process, source: State, rows: Sequence[Any], token: str) -> None:
    if not rows:
        return
    table = STATE_TABLES[source]
    ids = [row[0] for row in rows]
    process.tx.run(
        sql.lease_from(table),
        run=process.run,
        ids=ids,
        worker=process.id,
        token=token,
        now=process.now,
        committed=process.committed,
    )
    process.tx.run(sql.delete_from(table), run=process.run, ids=ids)
    process.moved(source, State.LEASED, len(ids))
    process.tally["attempts"] += len(ids)


def commit(tx: Transaction, worker: str, results: Sequence[Result]) -> Committed:
    """Commit in any case."""
    process = Process(tx, worker)
    held = _held(process, [result.item_id for result in results])
    accepted: dict[int, tuple[Any, ...]] = {}
    others = []
    for result in results:
        lease = held.pop((result.token, result.item_id), None)
        if lease is None:
            others.append(result)
            continue
        stored = result.stored
        accepted[result.item_id] = (
            *(process.run, *lease.row, lease.worker, result.token, stored.key, stored.offset),
            *(stored.length, stored.sha256, result.empty, result.adopted, process.now),
        )
        for name in ("empty", "adopted", "divergent"):
            process.tally[name] += getattr(result, name)
    if accepted:
        leased = STATE_TABLES[State.LEASED]
        tx.run(sql.delete_from(leased), run=process.run, ids=list(accepted))
        tx.insert(STATE_TABLES[State.COMPLETED], RESULT_COLUMNS, list(accepted.values()))
        process.moved(State.LEASED, State.COMPLETED, len(accepted))
        process.tally["committed"] += len(accepted)
    again, fenced = _look_back(process, others) if others else (set(), set())
    process.save()
    return Committed(tuple(sorted({*accepted, *again})), tuple(sorted(fenced)))


def _look_back(process: Process, results: Sequence[Result]) -> tuple[set[int], set[int]]:
    """Which of the results that are not held were committed before, and which are fenced."""
    ids = [result.item_id for result in results]
    rows = process.tx.rows(sql.COMMITTED, run=process.run, ids=ids)
    committed = set(rows)
    again, fenced = set(), set()
    for result in results:
        if (result.item_id, result.token, result.stored.sha256) in committed:
            again.add(result.item_id)
        else:
            fenced.add((process.run, result.item_id, result.token))
    process.tally["fenced"] += process.tx.insert(
        "fenced", ("run_id", "id", "token"), sorted(fenced), new_only=True
    )
    return again, {item_id for _, item_id, _ in fenced}


def fail(tx: Transaction, policy: Policy, worker: str, failures: Sequence[Failure]) -> Failed:
    process = Process(tx, worker)
    held = _held(process, [failure.held.item_id for failure in failures])
    known = set(held)
    moves = Moves(process, State.LEASED, policy)
    fenced = set()
    for failure in failures:
        key = (failure.held.token, failure.held.item_id)
        lease = held.pop(key, None)
        if lease is not None:
            moves.charge(lease.row, failure.cause, failure.error, final=failure.final)
        elif key not in known:
            fenced.add(failure.held.item_id)
    moves.save()
    process.save()
    return Failed(tuple(sorted(moves.delayed)), tuple(sorted(moves.buried)), tuple(sorted(fenced)))


def release(
    tx: Transaction, policy: Policy, worker: str, held: Sequence[Held], reason: ReleaseReason
) -> int:
    process = Process(tx, worker)
    leases = _held(process, [one.item_id for one in held])
    named = [lease for one in held if (lease := leases.pop((one.token, one.item_id), None))]
    holders = sorted({lease.worker for lease in named})
    committed = dict(tx.rows(sql.COMMITTED_BY, ids=holders))
    moves = Moves(process, State.LEASED, policy)
    for lease in named:
        others = committed[lease.worker] > lease.holder_committed
        moves.release(lease.row, reason, others_committed=others)
    moves.save()
    process.save()
    return len(named)


def stop(tx: Transaction, policy: Policy, worker: str, reason: str) -> None:
    try:
        process = Process(tx, worker)
    except WorkerReaped:
        return
    if process.state != WorkerState.LIVE:
        return
    moves = Moves(process, State.LEASED, policy)
    for row in tx.rows(sql.HELD_BY, worker=process.id, limit=_ANY):
        moves.release(Row(*row), ReleaseReason.DRAIN, others_committed=False)
    moves.save()
    now = process.now
    process.save(state=WorkerState.STOPPED.value, stop_reason=reason, stopped_at=now, beat_at=now)
    settle(tx, process.run, process.id)


@dataclass(frozen=True, slots=True)
class _HeldRow:
    """An item's row in `leased`: who holds it, and what that worker had committed then."""

    row: Row
    worker: int
    holder_committed: int


def _held(process: Process, item_ids: Sequence[int]) -> dict[tuple[str, int], _HeldRow]:
    """The named items that are leased, locked, by (token, id)."""
    rows = process.tx.rows(sql.HELD, run=process.run, ids=sorted(set(item_ids)))
    return {(row[8], row[0]): _HeldRow(Row(*row[:7]), row[7], row[9]) for row in rows}
