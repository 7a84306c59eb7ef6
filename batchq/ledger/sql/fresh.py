"""Enqueue on PostgreSQL in the common case: a batch of documents that are all new.

One statement, and so one round trip and one transaction. Whatever else there is raises
`Unusual`, and `enqueueing` does it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from batchq.item import NewItem
from batchq.ledger.records import Enqueued
from batchq.ledger.sql.engine import Transaction
from batchq.ledger.sql.enqueueing import to_json
from batchq.ledger.sql.hot import Unusual
from batchq.ledger.sql.names import COUNTERS
from batchq.ledger.sql.statements import NEXT_ID

__all__ = ["enqueue"]

_UNIQUE_VIOLATION = "23505"

# FOR UPDATE waits for whoever sends the same batch, and then sees what was answered.
# Ids follow the listing, while documents are added in the order in which every enqueue adds
# them: two that bring the same ones wait for each other in one direction only. One of them
# then breaks off at a key that is there by now, which leaves nothing behind.
# A shorter array's missing elements are null.
_ENQUEUE = f"""
WITH me AS MATERIALIZED (
  SELECT id, run_id, last_batch FROM workers WHERE name = :worker FOR UPDATE
), known AS MATERIALIZED (
  SELECT EXISTS (
    SELECT 1 FROM documents WHERE run_id = (SELECT run_id FROM me) AND source_id $in_names
  ) AS found
), go AS MATERIALIZED (
  SELECT me.id, me.run_id FROM me, known WHERE me.last_batch < :batch AND NOT known.found
), given AS MATERIALIZED (
  SELECT {NEXT_ID} AS id, go.id AS enqueuer, go.run_id, g.* FROM go, unnest(
    CAST(:names AS text[]), CAST(:versions AS text[]), CAST(:sizes AS bigint[]),
    CAST(:locators AS text[]), CAST(:roots AS text[])
  ) AS g (source_id, source_version, size, locator, root)
), named AS (
  INSERT INTO documents (run_id, source_id, item_id, root, enqueuer)
  SELECT run_id, source_id, id, coalesce(root, :root), enqueuer FROM given
  ORDER BY source_id COLLATE "C"
), made AS (
  INSERT INTO items (id, run_id, source_id, source_version, size, locator)
  SELECT id, run_id, source_id, source_version, size, locator FROM given
), readied AS (
  INSERT INTO ready (run_id, id, {", ".join(COUNTERS)})
  SELECT run_id, id, 0, 1, 0, 0, 0, 0 FROM given
), counted AS (
  UPDATE workers SET last_batch = :batch, last_answer = :answer, total = total + n.n,
    ready = ready + n.n, settled = false
  FROM (SELECT count(*) AS n FROM given) AS n
  WHERE workers.id = (SELECT id FROM go)
)
SELECT count(*) FROM given
"""


def enqueue(worker: str, batch: int, items: Sequence[NewItem]) -> Callable[[Transaction], Enqueued]:
    """The transaction that takes up a batch of new documents.

    Raises Unusual where one is known, or was named before, and where the batch is empty or
    was answered already; nothing has been changed then.
    """
    names = [new.source_id for new in items]
    if not names or len(set(names)) < len(names):
        raise Unusual
    roots = [new.root for new in items]
    answer = Enqueued(new=len(names))
    given = {
        "worker": worker,
        "batch": batch,
        "answer": to_json(answer),
        "names": names,
        "versions": [new.source_version for new in items],
        "sizes": [new.size for new in items],
        "locators": [new.locator for new in items],
        "roots": roots if len(set(roots)) > 1 else [],
        "root": roots[0],
    }

    def work(tx: Transaction) -> Enqueued:
        try:
            [(number,)] = tx.rows(_ENQUEUE, **given)
        except Exception as error:
            if getattr(error, "sqlstate", None) != _UNIQUE_VIOLATION:
                raise
            # Another enqueue has just added one of them.
            raise Unusual from None
        if not number:
            raise Unusual
        return answer

    return work
