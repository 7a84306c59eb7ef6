"""Enqueue on PostgreSQL of documents that are all known, as they are: a folder once more.

One statement, like that for new ones. Whatever else there is raises `Unusual`, and
`enqueueing` does it: changed bytes, another locator, a document that was named before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from batchq.item import NewItem
from batchq.ledger.records import Enqueued
from batchq.ledger.sql.engine import Transaction
from batchq.ledger.sql.enqueueing import to_json
from batchq.ledger.sql.hot import Unusual

__all__ = ["enqueue"]

# Documents are locked in the order in which every enqueue locks known ones, and only then the
# process. A document's current item is never superseded, so that nothing comes back here.
# Marked by key and not by place: a version of the row that came while this one waited for it
# is not in its snapshot.
_ENQUEUE = """
WITH known AS MATERIALIZED (
  SELECT id, run_id FROM workers WHERE name = :worker
), given AS MATERIALIZED (
  SELECT * FROM unnest(
    CAST(:names AS text[]), CAST(:versions AS text[]), CAST(:locators AS text[])
  ) AS g (source_id, source_version, locator)
  ORDER BY source_id
), held AS MATERIALIZED (
  SELECT i.id FROM given AS g CROSS JOIN LATERAL (
    SELECT item_id FROM documents
    WHERE run_id = (SELECT run_id FROM known) AND source_id = g.source_id
    AND enqueuer <> (SELECT id FROM known) LIMIT 1 FOR UPDATE
  ) AS d CROSS JOIN LATERAL (
    SELECT id FROM items
    WHERE id = d.item_id AND source_version = g.source_version AND locator = g.locator LIMIT 1
  ) AS i
), me AS MATERIALIZED (
  SELECT id, run_id, last_batch FROM workers
  WHERE name = :worker AND (SELECT count(*) FROM held) = :number FOR UPDATE
), go AS MATERIALIZED (
  SELECT id, run_id FROM me WHERE last_batch < :batch
), marked AS (
  UPDATE documents SET enqueuer = (SELECT id FROM go)
  WHERE run_id = (SELECT run_id FROM go) AND source_id $in_names
), counted AS (
  UPDATE workers SET last_batch = :batch, last_answer = :answer, known = known + :number,
    settled = false
  WHERE id = (SELECT id FROM go)
)
SELECT count(*) FROM go
"""


def enqueue(worker: str, batch: int, items: Sequence[NewItem]) -> Callable[[Transaction], Enqueued]:
    """The transaction that finds a batch of documents known.

    Raises Unusual where one is new, changed, moved or was named before, and where the batch is
    empty or was answered already; nothing has been changed then.
    """
    names = [new.source_id for new in items]
    if not names or len(set(names)) < len(names):
        raise Unusual
    answer = Enqueued(known=len(names))
    given = {
        "worker": worker,
        "batch": batch,
        "answer": to_json(answer),
        "number": len(names),
        "names": names,
        "versions": [new.source_version for new in items],
        "locators": [new.locator for new in items],
    }

    def work(tx: Transaction) -> Enqueued:
        if tx.rows(_ENQUEUE, **given) == [(0,)]:
            raise Unusual
        return answer

    return work
