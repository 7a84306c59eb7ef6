"""The ledger's tables, the same on SQLite and PostgreSQL.

State is a table, not a column: an item's row lies in exactly one of `ready`,
`delayed`, `leased`, `results`, `dead_letters` and `superseded`, and a transition
moves it. The hot tables have no foreign keys, which would lock a row of `runs` and
`workers` for each row that moves. Times are milliseconds since 1970-01-01 UTC on the
ledger's clock.

The tables here are what the code speaks; `migrations/` is how a database gets there,
and a test holds the two together.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.schema import SchemaItem

from batchq.ledger.records import TALLY_NAMES
from batchq.ledger.sql.names import COUNTERS

__all__ = ["metadata"]

# SQLite numbers rows itself only in a column of type INTEGER.
_Id = BigInteger().with_variant(Integer(), "sqlite")

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)


def _number(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


def _tallies() -> list[Column[int]]:
    return [
        Column(name, BigInteger, nullable=False, server_default=text("0")) for name in TALLY_NAMES
    ]


def _table(name: str, *parts: SchemaItem, hot: bool = False, fillfactor: int = 100) -> Table:
    storage: dict[str, int] = {"fillfactor": fillfactor} if fillfactor != 100 else {}
    if hot:
        # Every row is deleted soon after it came: vacuum by number of rows, not by share.
        storage |= {
            "autovacuum_vacuum_scale_factor": 0,
            "autovacuum_vacuum_threshold": 20000,
            "autovacuum_vacuum_cost_delay": 0,
        }
    return Table(name, metadata, *parts, postgresql_with=storage)


def _state(name: str, *columns: Column[Any], hot: bool = False) -> Table:
    table = _table(
        name,
        _number("run_id"),
        _number("id"),
        *(Column(counter, Integer, nullable=False) for counter in COUNTERS),
        *columns,
        PrimaryKeyConstraint("run_id", "id"),
        hot=hot,
    )
    table.dialect_options["sqlite"]["with_rowid"] = False
    return table


runs = _table(
    "runs",
    Column("id", _Id, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("prefix", Text, nullable=False, unique=True),
    Column("processing_version", Text, nullable=False),
    Column("manifest", Text, nullable=False),
    Column("layout", Text, nullable=False),
    _number("created_at"),
    *_tallies(),
)

workers = _table(
    "workers",
    Column("id", _Id, primary_key=True),
    _number("run_id"),
    Column("name", Text, nullable=False, unique=True),
    Column("role", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("about", Text, nullable=False),
    _number("ttl"),
    _number("registered_at"),
    _number("beat_at"),
    _number("expires_at"),
    # None of its leases is older: where to look for them behind a million dead versions.
    _number("claims_since"),
    Column("stop_reason", Text),
    Column("stopped_at", BigInteger),
    Column("last_token", Text),
    Column("last_batch", BigInteger, nullable=False, server_default=text("0")),
    Column("last_answer", Text),
    Column("committed", BigInteger, nullable=False, server_default=text("0")),
    Column("held_when_lost", BigInteger),
    # Whether its tallies have been folded into the run's: `counts` adds up the others.
    Column("settled", Boolean, nullable=False, server_default=false()),
    *_tallies(),
    # Room on each page for the next version of a row that changes with every verb.
    fillfactor=50,
)
Index(
    "ix_workers_unsettled",
    workers.c.run_id,
    workers.c.id,
    sqlite_where=text("NOT settled"),
    postgresql_where=text("NOT settled"),
)

documents = _table(
    "documents",
    _number("run_id"),
    Column("source_id", Text, nullable=False),
    _number("item_id"),
    Column("root", Text, nullable=False),
    # The last enqueue that named it, which may not name it again.
    _number("enqueuer"),
    PrimaryKeyConstraint("run_id", "source_id"),
    fillfactor=90,
)
documents.dialect_options["sqlite"]["with_rowid"] = False

items = _table(
    "items",
    Column("id", _Id, primary_key=True),
    _number("run_id"),
    Column("source_id", Text, nullable=False),
    Column("source_version", Text, nullable=False),
    _number("size"),
    Column("locator", Text, nullable=False),
    UniqueConstraint("run_id", "source_id", "source_version"),
)

ready = _state("ready", hot=True)

delayed = _state("delayed", _number("not_before"), hot=True)
Index("ix_delayed_due", delayed.c.run_id, delayed.c.not_before, delayed.c.id)

leased = _state(
    "leased",
    _number("worker_id"),
    Column("token", Text, nullable=False),
    _number("claimed_at"),
    # What its holder had committed when it claimed: whether others got through since.
    _number("holder_committed"),
    hot=True,
)
Index("ix_leased_worker", leased.c.worker_id, leased.c.claimed_at)


def _result() -> list[Column[Any]]:
    return [
        _number("worker_id"),
        Column("token", Text, nullable=False),
        Column("object_key", Text, nullable=False),
        _number("byte_offset"),
        _number("byte_length"),
        Column("sha256", Text, nullable=False),
        Column("empty", Boolean, nullable=False),
        Column("adopted", Boolean, nullable=False),
        _number("committed_at"),
    ]


results = _state("results", *_result())

# No state: what was committed in generations that the store lost.
results_history = _table(
    "results_history",
    _number("run_id"),
    _number("id"),
    *(Column(counter, Integer, nullable=False) for counter in COUNTERS),
    *_result(),
    _number("reopened_at"),
    PrimaryKeyConstraint("run_id", "id", "generation"),
)
results_history.dialect_options["sqlite"]["with_rowid"] = False

dead_letters = _state(
    "dead_letters",
    Column("cause", Text, nullable=False),
    Column("error", Text, nullable=False),
    _number("ended_at"),
)

superseded = _state("superseded")

fenced = _table(
    "fenced",
    _number("run_id"),
    _number("id"),
    Column("token", Text, nullable=False),
    PrimaryKeyConstraint("run_id", "id", "token"),
)
fenced.dialect_options["sqlite"]["with_rowid"] = False
