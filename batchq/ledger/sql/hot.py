"""Claim and commit in the common case, which is nearly every call of a worker.

A claim where nothing delayed is due, and a commit of results that are all still held:
in as few statements as each database allows, on PostgreSQL one, and so one round trip
and one transaction. Whatever else there is raises `Unusual`, and `holding` does it.

On SQLite everybody waits while one writes: parameters are made before the transaction
and items after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from batchq.item import Item
from batchq.lease import Lease
from batchq.ledger.records import ISOLATED_LOSSES, Committed
from batchq.ledger.sql.dialect import POSTGRESQL, Dialect
from batchq.ledger.sql.engine import Transaction
from batchq.ledger.sql.names import COUNTERS
from batchq.ledger.sql.statements import LONGEST_TRANSACTION
from batchq.result import Result

__all__ = ["Claimed", "Cursor", "Unusual", "claim", "commit", "most_losses", "nothing_due"]

_COUNTERS = ", ".join(COUNTERS)
_LATER_COUNTERS = ", ".join(COUNTERS[1:])


class Unusual(Exception):
    """Not the common case."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a claim starts to look, so as not to pass over the remains of all before it.

    `ready`: behind this item. `due`: nothing delayed for longer than since then (Unix
    milliseconds) was there. When a claim finds nothing, or the ledger's clock went back
    behind that, it looks from the start.
    """

    ready: int = 0
    due: int = 0


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a claim brought, the cursor after it, and the ledger's clock in milliseconds.

    A row holds an item's fields.
    """

    rows: Sequence[Any]
    cursor: Cursor
    now: int

    def lease(self, token: str) -> Lease | None:
        """The lease of what was claimed under `token`, or none."""
        return Lease(token, tuple([Item(*row) for row in self.rows])) if self.rows else None


def most_losses(alone: bool) -> int:
    """How many losses an item may have that this claim takes."""
    return 2**31 - 1 if alone else ISOLATED_LOSSES - 1


def nothing_due(now: int) -> int:
    """Since when nothing can be due that a look at `now` did not find.

    An item is delayed until its transaction's own time at the least, and none lasts longer.
    """
    return now - LONGEST_TRANSACTION


def claim(
    tx: Transaction,
    worker: str,
    token: str,
    limit: int,
    alone: bool,
    cursor: Cursor,
    last: str | None,
) -> Claimed:
    """Claim ready items. Raises Unusual where something delayed is due, or nothing is ready.

    `last`: the token of the worker's last claim that brought something, as this client knows
    it; none if there was none, empty if it does not know.
    """
    if tx.dialect is not POSTGRESQL:
        return _claim_by_range(tx, worker, token, limit, most_losses(alone), cursor)
    return _claim_in_one(tx, worker, token, limit, most_losses(alone), cursor, last)


def commit(
    dialect: Dialect, worker: str, results: Sequence[Result]
) -> Callable[[Transaction], Committed]:
    """The transaction that commits results. Raises Unusual where two are of one item.

    So does the transaction where one is not held; on PostgreSQL the others are committed
    by then, and asked again say so.
    """
    # By id, like everybody who locks rows of items.
    ordered = sorted(results, key=lambda result: result.item_id)
    ids = [result.item_id for result in ordered]
    if not ids or len(set(ids)) < len(ids):
        raise Unusual
    prepare = _commit_in_one if dialect is POSTGRESQL else _commit_in_few
    return prepare(worker, ordered, ids)


# -- PostgreSQL ------------------------------------------------------------------------------

# LATERAL with a LIMIT keeps a join in the one direction that is right for any statistics.
# FOR UPDATE waits for a reaper that holds the worker's row, and then sees what it wrote.
# One statement may reach the server after its sender has given it up, asked again and gone on
# (a proxy held it): the worker's last token is then another than the sender knew.
_CLAIM = f"""
WITH me AS MATERIALIZED (
  SELECT id, run_id, state, last_token, committed, $now AS now
  FROM workers WHERE name = :worker FOR UPDATE
), due AS MATERIALIZED (
  SELECT EXISTS (
    SELECT 1 FROM delayed WHERE run_id = (SELECT run_id FROM me)
    AND not_before >= (SELECT CASE WHEN now < :since THEN 0 ELSE :since END FROM me)
    AND not_before <= (SELECT now FROM me) AND losses <= :most
  ) AS found
), go AS MATERIALIZED (
  SELECT me.run_id FROM me, due
  WHERE NOT due.found AND me.state = 'live'
  AND me.last_token IS NOT DISTINCT FROM :last AND me.last_token IS DISTINCT FROM :token
), ahead AS MATERIALIZED (
  SELECT ctid AS place, id FROM ready
  WHERE run_id = (SELECT run_id FROM go) AND id > :after
  ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED
), behind AS MATERIALIZED (
  SELECT ctid AS place, id FROM ready
  WHERE run_id = (SELECT run_id FROM go) AND id <= :after
  ORDER BY id LIMIT greatest(0, :limit - (SELECT count(*) FROM ahead)) FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM ready WHERE ctid = ANY (ARRAY(
    SELECT place FROM ahead UNION ALL SELECT place FROM behind
  )) RETURNING run_id, id, {_COUNTERS}
), taken AS (
  INSERT INTO leased (run_id, id, {_COUNTERS}, worker_id, token, claimed_at, holder_committed)
  SELECT g.run_id, g.id, g.attempt + 1, {", ".join(f"g.{n}" for n in COUNTERS[1:])},
    me.id, :token, me.now, me.committed FROM gone AS g, me
), counted AS (
  UPDATE workers SET last_token = :token, ready = ready - n.n, leased = leased + n.n,
    attempts = attempts + n.n, settled = false,
    claims_since = least(claims_since, (SELECT now FROM me))
  FROM (SELECT count(*) AS n FROM gone) AS n
  WHERE workers.id = (SELECT id FROM me) AND n.n > 0
)
SELECT me.now, g.id, i.source_id, i.source_version, i.size, i.locator,
  g.attempt + 1, g.generation, g.failures, g.losses
FROM me LEFT JOIN (
  gone AS g CROSS JOIN LATERAL (SELECT * FROM items WHERE items.id = g.id LIMIT 1) AS i
) ON true
ORDER BY g.id
"""


def _claim_in_one(
    tx: Transaction,
    worker: str,
    token: str,
    limit: int,
    most: int,
    cursor: Cursor,
    last: str | None,
) -> Claimed:
    rows = tx.rows(
        _CLAIM,
        worker=worker,
        token=token,
        last=last,
        limit=limit,
        most=most,
        after=cursor.ready,
        since=cursor.due,
    )
    if not rows or rows[0][1] is None:
        raise Unusual
    now = rows[0][0]
    found = [row[1:] for row in rows]
    behind = [row[0] for row in found if row[0] <= cursor.ready]
    # What lies behind was taken last, after the cursor had wrapped.
    ready = behind[-1] if behind else found[-1][0]
    return Claimed(found, Cursor(ready, nothing_due(now)), now)


_COMMIT = f"""
WITH me AS MATERIALIZED (
  SELECT id, run_id, $now AS now FROM workers WHERE name = :worker FOR UPDATE
), given AS MATERIALIZED (
  SELECT * FROM unnest(
    CAST(:ids AS bigint[]), CAST(:tokens AS text[]), CAST(:keys AS text[]),
    CAST(:offsets AS bigint[]), CAST(:lengths AS bigint[]), CAST(:digests AS text[]),
    CAST(:empty AS boolean[]), CAST(:adopted AS boolean[]), CAST(:divergent AS boolean[])
  ) AS g (id, token, object_key, byte_offset, byte_length, sha256, empty, adopted, divergent)
), held AS MATERIALIZED (
  SELECT l.*, g.* FROM given AS g CROSS JOIN LATERAL (
    SELECT ctid AS place, run_id, {_COUNTERS}, worker_id FROM leased
    WHERE run_id = (SELECT run_id FROM me) AND id = g.id AND token = g.token LIMIT 1 FOR UPDATE
  ) AS l
), gone AS (
  DELETE FROM leased WHERE ctid = ANY (ARRAY(SELECT place FROM held))
), kept AS (
  INSERT INTO results (run_id, id, {_COUNTERS}, worker_id, token, object_key, byte_offset,
    byte_length, sha256, empty, adopted, committed_at)
  SELECT run_id, id, {_COUNTERS}, worker_id, token, object_key, byte_offset,
    byte_length, sha256, empty, adopted, (SELECT now FROM me) FROM held
), counted AS (
  UPDATE workers SET leased = leased - n.n, completed = completed + n.n,
    committed = committed + n.n, empty = workers.empty + n.empty,
    adopted = workers.adopted + n.adopted, divergent = workers.divergent + n.divergent,
    settled = false
  FROM (
    SELECT count(*) AS n, count(*) FILTER (WHERE empty) AS empty,
      count(*) FILTER (WHERE adopted) AS adopted, count(*) FILTER (WHERE divergent) AS divergent
    FROM held
  ) AS n
  WHERE workers.id = (SELECT id FROM me) AND n.n > 0
)
SELECT (SELECT count(*) FROM held) FROM me
"""


def _commit_in_one(
    worker: str, results: Sequence[Result], ids: list[int]
) -> Callable[[Transaction], Committed]:
    stored = [result.stored for result in results]
    given = {
        "worker": worker,
        "ids": ids,
        "tokens": [result.token for result in results],
        "keys": [one.key for one in stored],
        "offsets": [one.offset for one in stored],
        "lengths": [one.length for one in stored],
        "digests": [one.sha256 for one in stored],
        "empty": [result.empty for result in results],
        "adopted": [result.adopted for result in results],
        "divergent": [result.divergent for result in results],
    }

    def work(tx: Transaction) -> Committed:
        rows = tx.rows(_COMMIT, **given)
        if not rows or rows[0][0] < len(ids):
            raise Unusual
        return Committed(accepted=tuple(ids))

    return work


# -- SQLite ----------------------------------------------------------------------------------
#
# There is one writer at a time, so what was read holds until the transaction ends.

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


def _claim_by_range(
    tx: Transaction, worker: str, token: str, limit: int, most: int, cursor: Cursor
) -> Claimed:
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


def _commit_in_few(
    worker: str, results: Sequence[Result], ids: list[int]
) -> Callable[[Transaction], Committed]:
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
