"""Names of the schema that statements are made of.

Apart from `schema`: describing its tables to SQLAlchemy loads the dialects of both
databases, which most commands need neither of.
"""

from __future__ import annotations

from batchq.ledger.records import State

__all__ = ["COUNTERS", "HEAD", "RESULT_COLUMNS", "REVISIONS", "STATE_TABLES", "VERSION_TABLE"]

REVISIONS = ("0001", "0002")
"""Every revision in `migrations/`, oldest first: what tells an older schema from a newer one."""

HEAD = REVISIONS[-1]

VERSION_TABLE = "batchq_version"
"""Not Alembic's default name, which another program in the same database may use."""

COUNTERS = ("attempt", "generation", "failures", "losses", "lone_losses", "releases")
"""What every state keeps of an item."""

RESULT_COLUMNS = (
    *("run_id", "id", *COUNTERS, "worker_id", "token", "object_key", "byte_offset"),
    *("byte_length", "sha256", "empty", "adopted", "committed_at"),
)
"""What is kept of a result, also in its history."""

STATE_TABLES = {
    State.READY: "ready",
    State.DELAYED: "delayed",
    State.LEASED: "leased",
    State.COMPLETED: "results",
    State.DEAD_LETTERED: "dead_letters",
    State.SUPERSEDED: "superseded",
}
"""The table that holds the items in a state."""
