"""Claim and commit in the common case on PostgreSQL.

Each is one statement, and so one round trip and one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from batchq.ledger.records import Committed
from batchq.ledger.sql.engine import Transaction
from batchq.ledger.sql.hot import Claimed, Cursor, Unusual, nothing_due
from batchq.ledger.sql.names import COUNTERS
from batchq.result import Result

__all__ = ["claim", "commit"]

_COUNTERS = ", ".join(COUNTERS)

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


def claim(
    tx: Transaction,
    worker: str,
    token: str,
    limit: int,
    most: int,
    cursor: Cursor,
    last: str | None,
) -> Claimed:
    """Claim ready items.

    Raises Unusual where a delayed one of at most `most` losses is due, or nothing is ready.
    `last`: the token of the worker's last claim that brought something, as this client knows
    it; none if there was none, empty if it does not know.
    """
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


def commit(worker: str, results: Sequence[Result]) -> Callable[[Transaction], Committed]:
    """The statement that commits results, which come `in_order`.

    It raises Unusual where one is not held; the others are committed by then, but for behind a
    pooler, and asked again say so.
    """
    ids = [result.item_id for result in results]
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
