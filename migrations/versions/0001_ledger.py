"""The ledger: one table for each state of an item.

A revision is history: it keeps its own copy of what the tables were and never imports
the schema as it is now.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TALLIES = (
    *("total", "ready", "delayed", "leased", "completed", "empty", "dead_lettered"),
    *("superseded", "known", "adopted", "divergent", "fenced", "attempts", "lost_leases"),
    *("interrupted", "failures"),
)
COUNTERS = ("attempt", "generation", "failures", "losses", "lone_losses", "releases")

# Every row is deleted soon after it came: vacuum by number of rows, not by share.
HOT = {
    "autovacuum_vacuum_scale_factor": 0,
    "autovacuum_vacuum_threshold": 20000,
    "autovacuum_vacuum_cost_delay": 0,
}


def number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False)


def words(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)


def own_number() -> sa.Column[int]:
    # SQLite numbers rows itself only in a column of type INTEGER.
    kind = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    return sa.Column("id", kind, autoincrement=True, nullable=False)


def tallies() -> list[sa.Column[int]]:
    zero = sa.text("0")
    return [sa.Column(name, sa.BigInteger, nullable=False, server_default=zero) for name in TALLIES]


def key(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=f"pk_{table}")


def state_table(name: str, *columns: Any, storage: dict[str, Any] | None = None) -> None:
    op.create_table(
        name,
        number("run_id"),
        number("id"),
        *(sa.Column(counter, sa.Integer, nullable=False) for counter in COUNTERS),
        *columns,
        key(name, "run_id", "id"),
        sqlite_with_rowid=False,
        postgresql_with=storage or {},
    )


def upgrade() -> None:
    op.create_table(
        "runs",
        own_number(),
        words("name"),
        words("prefix"),
        words("processing_version"),
        words("manifest"),
        words("layout"),
        number("created_at"),
        *tallies(),
        key("runs", "id"),
        sa.UniqueConstraint("name", name="uq_runs_name"),
        sa.UniqueConstraint("prefix", name="uq_runs_prefix"),
    )
    op.create_table(
        "workers",
        own_number(),
        number("run_id"),
        words("name"),
        words("role"),
        words("state"),
        words("about"),
        number("ttl"),
        number("registered_at"),
        number("beat_at"),
        number("expires_at"),
        number("claims_since"),
        sa.Column("stop_reason", sa.Text),
        sa.Column("stopped_at", sa.BigInteger),
        sa.Column("last_token", sa.Text),
        sa.Column("last_batch", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("last_answer", sa.Text),
        sa.Column("committed", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("held_when_lost", sa.BigInteger),
        sa.Column("settled", sa.Boolean, nullable=False, server_default=sa.false()),
        *tallies(),
        key("workers", "id"),
        sa.UniqueConstraint("name", name="uq_workers_name"),
        # Room on each page for the next version of a row that changes with every verb.
        postgresql_with={"fillfactor": 50},
    )
    op.create_index(
        "ix_workers_unsettled",
        "workers",
        ["run_id", "id"],
        sqlite_where=sa.text("NOT settled"),
        postgresql_where=sa.text("NOT settled"),
    )
    op.create_table(
        "documents",
        number("run_id"),
        words("source_id"),
        number("item_id"),
        words("root"),
        number("enqueuer"),
        key("documents", "run_id", "source_id"),
        sqlite_with_rowid=False,
        postgresql_with={"fillfactor": 90},
    )
    op.create_table(
        "items",
        own_number(),
        number("run_id"),
        words("source_id"),
        words("source_version"),
        number("size"),
        words("locator"),
        key("items", "id"),
        sa.UniqueConstraint(
            *("run_id", "source_id", "source_version"),
            name="uq_items_run_id_source_id_source_version",
        ),
    )
    state_table("ready", storage=HOT)
    state_table("delayed", number("not_before"), storage=HOT)
    op.create_index("ix_delayed_due", "delayed", ["run_id", "not_before", "id"])
    state_table(
        "leased",
        number("worker_id"),
        words("token"),
        number("claimed_at"),
        number("holder_committed"),
        storage=HOT,
    )
    op.create_index("ix_leased_worker", "leased", ["worker_id", "claimed_at"])
    state_table(
        "results",
        number("worker_id"),
        words("token"),
        words("object_key"),
        number("byte_offset"),
        number("byte_length"),
        words("sha256"),
        sa.Column("empty", sa.Boolean, nullable=False),
        sa.Column("adopted", sa.Boolean, nullable=False),
        number("committed_at"),
    )
    state_table("dead_letters", words("cause"), words("error"), number("ended_at"))
    state_table("superseded")
    op.create_table(
        "fenced",
        number("run_id"),
        number("id"),
        words("token"),
        key("fenced", "run_id", "id", "token"),
        sqlite_with_rowid=False,
    )
