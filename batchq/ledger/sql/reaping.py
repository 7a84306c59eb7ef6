"""Reap: taking back what dead workers held."""

from __future__ import annotations

from batchq.ledger.contact import Contact
from batchq.ledger.records import Policy, Reaped, State
from batchq.ledger.sql import statements as sql
from batchq.ledger.sql.process import Moves, Process, Row, milliseconds, settle

__all__ = ["reap"]


def reap(process: Process, policy: Policy, contact: Contact, limit: int) -> Reaped:
    """Mark the dead, and return at most `limit` items of those marked now or before.

    The reaper's own row is locked already, and others' only where they are free: two
    reapers that hold each other for dead must not wait for each other.
    """
    names = _mark_the_dead(process, contact)
    latest = process.now + milliseconds(policy.max_backoff)
    process.tx.run(sql.PULL_BACK_DELAYED, run=process.run, latest=latest)
    moves = Moves(process, State.LEASED, policy)
    emptied = []
    left = limit
    for ended in process.tx.records(sql.ENDED, run=process.run):
        # One more than may go back, to see whether anything stays behind.
        rows = process.tx.rows(sql.HELD_BY, worker=ended.id, limit=left + 1)
        for row in rows[:left]:
            moves.lose(Row(*row), alone=ended.held_when_lost == 1)
        if len(rows) <= left:
            emptied.append(ended.id)
        left -= len(rows[:left])
    moves.save()
    process.save()
    for worker in emptied:
        settle(process.tx, process.run, worker)
    return Reaped(names, len(moves.delayed), len(moves.buried))


def _mark_the_dead(process: Process, contact: Contact) -> tuple[str, ...]:
    """Refuse the dead their beats from here on, and pull back expiries from the future."""
    dead, ahead = [], []
    for suspect in process.tx.records(sql.SUSPECTS, run=process.run, now=process.now):
        if not contact.lasted(suspect.ttl / 1000):
            continue
        if suspect.expires_at > process.now:
            ahead.append(suspect.id)
        elif suspect.id != process.id:
            dead.append(suspect)
    if ahead:
        process.tx.run(sql.PULL_BACK_EXPIRY, ids=ahead, now=process.now)
    if dead:
        process.tx.run(sql.MARK_REAPED, ids=[worker.id for worker in dead], now=process.now)
    return tuple(worker.name for worker in dead)
