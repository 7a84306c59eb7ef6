"""Claim and commit in the common case on SQLite, in few and short statements.

Everybody waits while one writes: parameters are made before the transaction and items after
it. And what was read holds until it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from batchq.ledger.records import Committed
from batchq.ledger.sql.engine import Transaction
from batchq.ledger.sql.hot import Claimed, Cursor, Unusual, nothing_due
from batchq.ledger.sql.names import COUNTERS
from batchq.result import Result

__all__ = ["claim", "commit"]

_COUNTERS = ", ".join(COUNTERS)
_LATER_COUNTERS = ", ".join(COUNTERS[1:])

_CLAIMANT = """
SELECT w.id, w.run_id, w.committed, c.now,
  w.state = 'live' AND w.last_token IS NOT :token AND NOT EXISTS (
    SELECT 1 FROM delayed AS d
    WHERE d.run_id = w.run_id
    AND d.not_before >= CASE WHEN c.now < :since THEN 0 ELSE :since END
    AND d.not_before <= c.now AND d.losses <= :most
  )
FROM workers AS w, (SELECT $now AS now) AS c WHERE w.name = :worker
"""

_READY = """
SELECT r.id, i.source_id, i.source_version, i.size, i.locator,
  r.attempt + 1, r.generation, r.failures, r.losses
FROM ready AS r JOIN items AS i ON i.id = r.id
WHERE r.run_id = :run AND r.id > :after AND r.id <= :until ORDER BY r.id LIMIT :limit
"""

_LEASE = f"""
INSERT INTO leased (run_id, id, {_COUNTERS}, worker_id, token, claimed_at, holder_committed)
SELECT run_id, id, attempt + 1, {_LATER_COUNTERS}, :worker, :token, :now, :committed
FROM ready WHERE run_id = :run AND id > :after AND id <= :until
"""

_UNREADY = "DELETE FROM ready WHERE run_id = :run AND id > :after AND id <= :until"

_COUNT_CLAIM = """
UPDATE workers SET last_token = :token, ready = ready - :number, leased = leased + :number,
  attempts = attempts + :number, claims_since = min(claims_since, :now)
WHERE id = :worker
"""


def claim(
    tx: Transaction, worker: str, token: str, limit: int, most: int, cursor: Cursor
) -> Claimed:
    """Claim ready items.

    Raises Unusual where a delayed one of at most `most` losses is due, or nothing is ready.
    """
    claimant = tx.rows(_CLAIMANT, worker=worker, token=token, most=most, since=cursor.due)
    if not claimant or not claimant[0][4]:
        raise Unusual
    worker_id, run, committed, now, _ = claimant[0]
    rows: list[Any] = []
    last = cursor.ready
    for after, until in ((cursor.ready, 2**62), (0, cursor.ready)):
        page = tx.rows(_READY, run=run, after=after, until=until, limit=limit - len(rows))
        if page:
            last = page[-1][0]
            span = {"run": run, "after": after, "until": last}
            tx.run(_LEASE, **span, worker=worker_id, token=token, now=now, committed=committed)
            tx.run(_UNREADY, **span)
            rows = page + rows
        if len(rows) == limit or cursor.ready == 0:
            break
    if not rows:
        raise Unusual
    tx.run(_COUNT_CLAIM, worker=worker_id, token=token, number=len(rows), now=now)
    return Claimed(rows, Cursor(last, nothing_due(now)), now)


# Writing `settled`, even to the same value, would write the index that depends on it.
_COMMITTER = "SELECT id, run_id, $now FROM workers WHERE name = :worker AND NOT settled"

_AT_ONCE = 20
"""Results that one statement keeps: what Python does for each statement takes longer."""


@cache
def _keep(number: int) -> str:
    """Keep so many results; the parameters are the fields of each, the clock and the run."""
    return f"""
INSERT INTO results (run_id, id, {_COUNTERS}, worker_id, token, object_key, byte_offset,
  byte_length, sha256, empty, adopted, committed_at)
WITH given (id, token, object_key, byte_offset, byte_length, sha256, empty, adopted) AS (
  VALUES {", ".join(["(?, ?, ?, ?, ?, ?, ?, ?)"] * number)}
)
SELECT l.run_id, l.id, {", ".join(f"l.{name}" for name in COUNTERS)}, l.worker_id, l.token,
  g.object_key, g.byte_offset, g.byte_length, g.sha256, g.empty, g.adopted, ?
FROM given AS g CROSS JOIN leased AS l
WHERE l.run_id = ? AND l.id = g.id AND l.token = g.token
"""


_UNLEASE = "DELETE FROM leased WHERE run_id = :run AND id $in_ids"

_COUNT_COMMIT = """
UPDATE workers SET leased = leased - :number, completed = completed + :number,
  committed = committed + :number, empty = empty + :empty, adopted = adopted + :adopted,
  divergent = divergent + :divergent
WHERE id = :worker
"""


def commit(worker: str, results: Sequence[Result]) -> Callable[[Transaction], Committed]:
    """The transaction that commits results, of which no two are of one item.

    It raises Unusual where one is not held.
    """
    ids = [result.item_id for result in results]
    parts = []
    for first in range(0, len(results), _AT_ONCE):
        part = results[first : first + _AT_ONCE]
        parts.append((_keep(len(part)), [value for result in part for value in _values(result)]))
    counted = {
        "number": len(ids),
        "empty": sum([result.empty for result in results]),
        "adopted": sum([result.adopted for result in results]),
        "divergent": sum([result.divergent for result in results]),
    }

    def work(tx: Transaction) -> Committed:
        committer = tx.rows(_COMMITTER, worker=worker)
        if not committer:
            raise Unusual
        worker_id, run, now = committer[0]
        kept = sum([tx.run_listed(keep, (*values, now, run)) for keep, values in parts])
        if kept < len(ids):
            raise Unusual
        tx.run(_UNLEASE, run=run, ids=ids)
        tx.run(_COUNT_COMMIT, worker=worker_id, **counted)
        return Committed(accepted=tuple(ids))

    return work


def _values(result: Result) -> tuple[str | int, ...]:
    # The driver looks for an adapter of a truth value, which takes longer than to bind it.
    empty, adopted = int(result.empty), int(result.adopted)
    one = result.stored
    return result.item_id, result.token, one.key, one.offset, one.length, one.sha256, empty, adopted
