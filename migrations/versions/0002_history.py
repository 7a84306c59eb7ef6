"""The history of results: what was committed in generations that the store lost."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

COUNTERS = ("attempt", "generation", "failures", "losses", "lone_losses", "releases")


def number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False)


def words(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)


def upgrade() -> None:
    op.create_table(
        "results_history",
        number("run_id"),
        number("id"),
        *(sa.Column(counter, sa.Integer, nullable=False) for counter in COUNTERS),
        number("worker_id"),
        words("token"),
        words("object_key"),
        number("byte_offset"),
        number("byte_length"),
        words("sha256"),
        sa.Column("empty", sa.Boolean, nullable=False),
        sa.Column("adopted", sa.Boolean, nullable=False),
        number("committed_at"),
        number("reopened_at"),
        sa.PrimaryKeyConstraint("run_id", "id", "generation", name="pk_results_history"),
        sqlite_with_rowid=False,
    )
