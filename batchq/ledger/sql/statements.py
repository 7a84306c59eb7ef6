"""The statements of the SQL ledger, by name; those of the common case stand with it (`hot`).

Parameters are written `:name`. Where SQLite and PostgreSQL differ, a word behind a
dollar sign stands for each one's own (`dialect`):

    $now             the ledger's clock in milliseconds
    $in_ids          is among the array parameter :ids, which are numbers
    $in_names        is among the array parameter :names, which are text
    $each_id         the array parameter :ids as the table `one (id)`
    $for_update      lock the rows read, waiting for whoever holds them
    $skip_locked     lock the rows read, passing over those that somebody holds
    $tables          the names of the tables there are

SQLite has one writer at a time, so that there two of these say nothing.
"""

from __future__ import annotations

from batchq.ledger.records import TALLY_NAMES
from batchq.ledger.sql.names import COUNTERS, RESULT_COLUMNS, STATE_TABLES, VERSION_TABLE

_COUNTERS = ", ".join(COUNTERS)
_OTHER_COUNTERS = ", ".join(COUNTERS[1:])
_RESULT_COLUMNS = ", ".join(RESULT_COLUMNS)
_ITEM = "i.source_id, i.source_version, i.size, i.locator"

# -- schema ------------------------------------------------------------------------------

TABLES = "$tables"

SCHEMA_VERSION = f"SELECT version_num FROM {VERSION_TABLE}"

LOCK_SCHEMA = f"SELECT pg_advisory_xact_lock(hashtext('{VERSION_TABLE}'))"

FIND_NAMESPACE = "SELECT 1 FROM pg_namespace WHERE nspname = :name"


def create_namespace(name: str) -> str:
    """Its name is checked with the address; quoted, since it may be a word of SQL's own."""
    return f'CREATE SCHEMA "{name}"'


# -- runs --------------------------------------------------------------------------------

FIND_RUN = """
SELECT id, name, prefix, processing_version, manifest, layout FROM runs WHERE name = :name
"""

RUN_NAMES = """
SELECT name FROM runs ORDER BY id DESC LIMIT :limit
"""

CREATE_RUN = """
INSERT INTO runs (name, prefix, processing_version, manifest, layout, created_at)
VALUES (:name, :prefix, :processing_version, :manifest, :layout, $now)
ON CONFLICT (name) DO NOTHING
"""

# -- processes ---------------------------------------------------------------------------

LONGEST_TRANSACTION = 60_000
"""Milliseconds between a look at the clock and the commit of what was written with it."""

REGISTER = f"""
INSERT INTO workers
  (run_id, name, role, state, about, ttl, registered_at, beat_at, expires_at, claims_since)
SELECT :run, :worker, :role, 'live', :about, :ttl, c.now, c.now, c.now + :ttl,
  c.now - {LONGEST_TRANSACTION}
FROM (SELECT $now AS now) AS c
WHERE true
ON CONFLICT (name) DO NOTHING
RETURNING registered_at
"""

BEAT = f"""
UPDATE workers SET ttl = :ttl, beat_at = c.now, expires_at = c.now + :ttl, claims_since = coalesce(
  (SELECT min(l.claimed_at) FROM leased AS l
    WHERE l.worker_id = workers.id AND l.claimed_at >= workers.claims_since),
  c.now - {LONGEST_TRANSACTION}
)
FROM (SELECT $now AS now) AS c
WHERE name = :worker AND state = 'live'
RETURNING beat_at
"""

PROCESS = """
SELECT id, run_id, state, ttl, claims_since, last_token, last_batch, last_answer, committed,
  $now AS now
FROM workers WHERE name = :worker $for_update
"""

ANSWERED_BATCH = "SELECT run_id, last_batch, last_answer FROM workers WHERE name = :worker"

COMMITTED_BY = "SELECT id, committed FROM workers WHERE id $in_ids"

FOLD_INTO_RUN = f"""
UPDATE runs SET {", ".join(f"{n} = runs.{n} + w.{n}" for n in TALLY_NAMES)}
FROM workers AS w WHERE w.id = :worker AND runs.id = :run
"""

SETTLE = f"""
UPDATE workers SET {", ".join(f"{n} = 0" for n in TALLY_NAMES)}, settled = true WHERE id = :worker
"""

# -- reaping -----------------------------------------------------------------------------

SUSPECTS = """
SELECT id, name, ttl, expires_at FROM workers
WHERE run_id = :run AND NOT settled AND state = 'live'
AND (expires_at <= :now OR expires_at > :now + ttl)
ORDER BY id $skip_locked
"""

PULL_BACK_EXPIRY = "UPDATE workers SET expires_at = :now + ttl WHERE id $in_ids"

PULL_BACK_DELAYED = """
UPDATE delayed SET not_before = :latest WHERE run_id = :run AND not_before > :latest
"""

# Counted in the transaction that marks: a later page of a large lease is no lone loss.
MARK_REAPED = """
UPDATE workers SET state = 'reaped', stopped_at = :now,
held_when_lost = (SELECT count(*) FROM leased WHERE leased.worker_id = workers.id),
stop_reason = 'no sign of life for ' || ((:now - beat_at) / 1000) || ' s, items lost: '
|| (SELECT count(*) FROM leased WHERE leased.worker_id = workers.id)
WHERE id $in_ids
"""

ENDED = """
SELECT id, held_when_lost FROM workers
WHERE run_id = :run AND NOT settled AND state <> 'live'
ORDER BY id $skip_locked
"""

HELD_BY = f"""
SELECT id, {_COUNTERS} FROM leased WHERE worker_id = :worker
ORDER BY id LIMIT :limit $for_update
"""

HELD_UNDER = f"""
SELECT id, {_COUNTERS} FROM leased WHERE worker_id = :worker AND token = :token
ORDER BY id $for_update
"""

# -- claiming ----------------------------------------------------------------------------

DUE = f"""
WITH picked AS (
  SELECT id, {_COUNTERS}, not_before FROM delayed
  WHERE run_id = :run AND not_before >= :since AND not_before <= :now
  AND losses >= :least AND losses <= :most
  ORDER BY not_before, id LIMIT :limit $skip_locked
)
SELECT p.id, {_ITEM}, p.attempt + 1, p.generation, p.failures, p.losses
FROM picked AS p JOIN items AS i ON i.id = p.id
ORDER BY p.not_before, p.id
"""

READY = f"""
WITH picked AS (
  SELECT id, {_COUNTERS} FROM ready
  WHERE run_id = :run AND id > :after AND id <= :until ORDER BY id LIMIT :limit $skip_locked
)
SELECT p.id, {_ITEM}, p.attempt + 1, p.generation, p.failures, p.losses
FROM picked AS p JOIN items AS i ON i.id = p.id
ORDER BY p.id
"""


def lease_from(table: str) -> str:
    """Lease the rows of `table` that :ids names."""
    return f"""
INSERT INTO leased (run_id, id, {_COUNTERS}, worker_id, token, claimed_at, holder_committed)
SELECT run_id, id, attempt + 1, {_OTHER_COUNTERS}, :worker, :token, :now, :committed
FROM {table} WHERE run_id = :run AND id $in_ids
"""


LEASED_UNDER = f"""
SELECT l.id, {_ITEM}, l.attempt, l.generation, l.failures, l.losses
FROM leased AS l JOIN items AS i ON i.id = l.id
WHERE l.worker_id = :worker AND l.token = :token ORDER BY l.id
"""

# -- moving what is held -----------------------------------------------------------------

HELD = f"""
SELECT id, {_COUNTERS}, worker_id, token, holder_committed FROM leased
WHERE run_id = :run AND id $in_ids ORDER BY id $for_update
"""


def delete_from(table: str) -> str:
    return f"DELETE FROM {table} WHERE run_id = :run AND id $in_ids"


def take_from(table: str) -> str:
    """Delete what :ids names and say what the rows held."""
    return f"{delete_from(table)} RETURNING id, {_COUNTERS}"


def rows_of(table: str) -> str:
    """What the rows that :ids names hold."""
    return f"SELECT id, {_COUNTERS} FROM {table} WHERE run_id = :run AND id $in_ids"


COMMITTED = """
SELECT id, token, sha256 FROM results WHERE run_id = :run AND id $in_ids
"""

# -- enqueueing --------------------------------------------------------------------------

NAMED = """
WITH named AS (
  SELECT source_id, item_id, root, enqueuer FROM documents
  WHERE run_id = :run AND source_id $in_names ORDER BY source_id $for_update
)
SELECT n.source_id, n.item_id, n.root, n.enqueuer, i.source_version, i.locator
FROM named AS n JOIN items AS i ON i.id = n.item_id
"""

VERSIONS = """
SELECT id, source_id, source_version, locator FROM items
WHERE run_id = :run AND source_id $in_names
"""

HIGHEST_ID = "SELECT coalesce(max(id), 0) FROM items"

# In a subquery the sequence is looked up once, and not for each number.
NEXT_ID = "nextval((SELECT CAST(pg_get_serial_sequence('items', 'id') AS regclass)))"

NEXT_IDS = f"SELECT {NEXT_ID} FROM generate_series(1, :count)"

NAME_LIKE_ITEMS = """
INSERT INTO documents (run_id, source_id, item_id, root, enqueuer)
SELECT run_id, source_id, id, :root, :enqueuer FROM items WHERE id >= :first
"""

MAKE_READY = f"""
INSERT INTO ready (run_id, id, {_COUNTERS})
SELECT :run, one.id, 0, 1, 0, 0, 0, 0 FROM $each_id
"""

MARK_NAMED = """
UPDATE documents SET enqueuer = :worker WHERE run_id = :run AND source_id $in_names
"""

REPOINT = """
UPDATE documents SET item_id = :item, root = :root WHERE run_id = :run AND source_id = :source_id
"""

RELOCATE = "UPDATE items SET locator = :locator WHERE id = :item"

# -- retrying ----------------------------------------------------------------------------

DEAD_OF_RUN = f"""
SELECT id, {_COUNTERS} FROM dead_letters
WHERE run_id = :run AND id > :after AND (CAST(:cause AS text) IS NULL OR cause = :cause)
ORDER BY id LIMIT :limit $for_update
"""

ITEMS_OF = """
SELECT id FROM items WHERE run_id = :run AND source_id $in_names
"""

DEAD_AMONG = f"""
SELECT id, {_COUNTERS} FROM dead_letters
WHERE run_id = :run AND id $in_ids AND (CAST(:cause AS text) IS NULL OR cause = :cause)
ORDER BY id $for_update
"""

# -- reopening ---------------------------------------------------------------------------

COMPLETED = f"""
SELECT id, {_COUNTERS}, sha256, empty FROM results
WHERE run_id = :run AND id $in_ids ORDER BY id $for_update
"""

KEEP_HISTORY = f"""
INSERT INTO results_history ({_RESULT_COLUMNS}, reopened_at)
SELECT {_RESULT_COLUMNS}, :now FROM results WHERE run_id = :run AND id $in_ids
"""

# -- reading -----------------------------------------------------------------------------

COUNTS = f"""
SELECT c.now, t.*,
  (SELECT count(*) FROM workers WHERE run_id = :run AND NOT settled AND state = 'live'
    AND role = 'worker' AND expires_at > c.now) AS workers_alive,
  (SELECT count(*) FROM workers WHERE run_id = :run AND NOT settled AND state = 'live'
    AND role = 'enqueuer' AND expires_at > c.now) AS enqueuers_alive,
  (SELECT min((
    SELECT min(l.claimed_at) FROM leased AS l
    WHERE l.worker_id = w.id AND l.claimed_at >= w.claims_since
  )) FROM workers AS w WHERE w.run_id = :run AND NOT w.settled) AS oldest,
  (SELECT min(not_before) FROM delayed WHERE run_id = :run) AS due
FROM (SELECT $now AS now) AS c, (
  SELECT {", ".join(f"sum(u.{n}) AS {n}" for n in TALLY_NAMES)} FROM (
    SELECT {", ".join(TALLY_NAMES)} FROM runs WHERE id = :run
    UNION ALL
    SELECT {", ".join(TALLY_NAMES)} FROM workers WHERE run_id = :run AND NOT settled
  ) AS u
) AS t
"""

DUPLICATES = """
SELECT count(*) - count(DISTINCT source_version) FROM items WHERE run_id = :run
"""

WORKERS = """
SELECT w.name, w.role, w.state, w.expires_at > c.now AS fresh,
  (SELECT count(*) FROM leased AS l
    WHERE l.worker_id = w.id AND l.claimed_at >= w.claims_since) AS held,
  w.committed, w.registered_at, w.beat_at, w.stop_reason, w.about
FROM workers AS w, (SELECT $now AS now) AS c WHERE w.run_id = :run ORDER BY w.id
"""

# Not EXISTS, for which PostgreSQL may read a whole table into a hash first.
_IN_STATE = "\n".join(
    f"  WHEN (SELECT true FROM {table} AS s WHERE s.run_id = i.run_id AND s.id = i.id)"
    f" THEN '{state}'"
    for state, table in STATE_TABLES.items()
)

# One statement looks into all tables: a row that moved while they were read one by one
# could be missed, but its snapshot shows each item in exactly one.
_STATES = f"""
SELECT i.id, i.source_id, i.source_version, i.locator, CASE
{_IN_STATE}
END AS state
"""

LOOKUP = f"""{_STATES}
FROM documents AS d JOIN items AS i ON i.id = d.item_id
WHERE d.run_id = :run AND d.source_id = :source_id
"""

STATES = f"{_STATES} FROM items AS i WHERE i.run_id = :run AND i.source_id $in_names"

COMMITTED_COLUMNS = (
    *("id", "source_id", "source_version", "size", "object_key", "byte_offset", "byte_length"),
    *("sha256", "attempt", "generation", "empty", "adopted", "name", "committed_at"),
)

_RESULTS = """
SELECT r.id, i.source_id, i.source_version, i.size, r.object_key, r.byte_offset,
  r.byte_length, r.sha256, r.attempt, r.generation, r.empty, r.adopted,
  (SELECT w.name FROM workers AS w WHERE w.id = r.worker_id) AS name, r.committed_at
FROM results AS r JOIN items AS i ON i.id = r.id
"""

RESULTS = f"{_RESULTS} WHERE r.run_id = :run AND r.id > :after ORDER BY r.id LIMIT :limit"

CURRENT_RESULTS = f"""{_RESULTS}
JOIN documents AS d ON d.run_id = r.run_id AND d.source_id = i.source_id AND d.item_id = r.id
WHERE r.run_id = :run AND r.id > :after ORDER BY r.id LIMIT :limit
"""

RESULTS_OF = f"{_RESULTS} WHERE r.run_id = :run AND r.id $in_ids"

# Hours of reading are allowed here, and every row is wanted, in any order.
WHOLE_TABLES = """
SELECT set_config('statement_timeout', '0', true), set_config('enable_seqscan', 'on', true)
"""

_IN_EACH_STATE = ",\n".join(
    f"  (SELECT count(*) FROM {table} WHERE run_id = :run) AS {state}"
    for state, table in STATE_TABLES.items()
)

RECOUNT = f"""
SELECT (SELECT count(*) FROM items WHERE run_id = :run) AS items,
  (SELECT count(*) FROM results WHERE run_id = :run AND empty) AS empty,
{_IN_EACH_STATE}
"""

DEAD_LETTERS = """
SELECT d.id, i.source_id, i.source_version, d.cause, d.error, d.attempt, d.generation, d.ended_at
FROM dead_letters AS d JOIN items AS i ON i.id = d.id
WHERE d.run_id = :run AND d.id > :after ORDER BY d.id LIMIT :limit
"""
