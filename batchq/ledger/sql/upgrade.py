"""The schema's version: how it gets into a database, and which one is there.

Alembic is imported only to create or upgrade: every other command reads one row.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import batchq
from batchq.errors import LedgerNotInitialised, UsageError
from batchq.ledger.sql import statements as sql
from batchq.ledger.sql.dialect import SQLITE
from batchq.ledger.sql.engine import Database, Transaction
from batchq.ledger.sql.names import HEAD, REVISIONS, VERSION_TABLE
from batchq.ledger.sql.sqlite import Sqlite

if TYPE_CHECKING:
    from sqlalchemy import Connection

__all__ = ["check", "initialise", "migrations"]


def migrations() -> Path:
    """The folder of the revisions: inside the installed package, or beside it in a checkout."""
    package = Path(batchq.__file__).parent
    installed = package / "migrations"
    return installed if installed.is_dir() else package.parent / "migrations"


def initialise(database: Database) -> None:
    """Create or upgrade the schema.

    Raises LedgerNotInitialised if it is newer than this code, and UsageError if the
    database is another program's.
    """
    driver = database.driver
    if isinstance(driver, Sqlite):
        driver.create()
    database.migrate(lambda tx, core: _upgrade(tx, core, driver.url, driver.schema))
    if isinstance(driver, Sqlite):
        # Last: until here the file may have been another program's. It stays so for good.
        database.single(lambda tx: tx.rows("PRAGMA journal_mode = WAL"))


def check(tx: Transaction, url: str) -> None:
    """Raise LedgerNotInitialised unless the schema is the one this code speaks."""
    version = _version(tx, _tables(tx))
    if version == HEAD:
        return
    if version is None:
        raise LedgerNotInitialised(f"{url} holds no batchq ledger", hint="run `batchq init`")
    if version not in REVISIONS:
        raise _newer(url, version)
    raise LedgerNotInitialised(
        f"{url} holds a ledger of the older schema {version}; this batchq speaks {HEAD}",
        hint="once no older batchq is at work on it, run `batchq init`",
        found=version,
    )


def _upgrade(tx: Transaction, core: Connection, url: str, schema: str | None) -> None:
    if tx.dialect is not SQLITE:
        # Two that initialise at once would both find nothing there.
        tx.rows(sql.LOCK_SCHEMA)
    # Asked first: IF NOT EXISTS needs the right to create it, also where it is there.
    if schema is not None and not tx.rows(sql.FIND_NAMESPACE, name=schema):
        tx.run(sql.create_namespace(schema))
    tables = _tables(tx)
    version = _version(tx, tables)
    if version == HEAD:
        return
    if version is not None and version not in REVISIONS:
        raise _newer(url, version)
    from batchq.ledger.schema import metadata

    # A file is one program's; a database may be shared, as long as no name is in use.
    taken = tables if tx.dialect is SQLITE else tables & metadata.tables.keys()
    if version is None and taken:
        raise UsageError(
            f"{url} holds tables of another program ({', '.join(sorted(taken)[:3])})",
            hint="give the ledger a file, or a database or schema, of its own",
        )
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations()).replace("%", "%%"))
    config.attributes["connection"] = core
    command.upgrade(config, HEAD)


def _tables(tx: Transaction) -> set[str]:
    return {row[0] for row in tx.rows(sql.TABLES)}


def _version(tx: Transaction, tables: set[str]) -> str | None:
    """The schema's revision, or none where there is no ledger."""
    rows = tx.rows(sql.SCHEMA_VERSION) if VERSION_TABLE in tables else ()
    return rows[0][0] if rows else None


def _newer(url: str, version: str) -> LedgerNotInitialised:
    return LedgerNotInitialised(
        f"{url} holds a ledger of the newer schema {version}; this batchq speaks {HEAD}",
        hint="upgrade batchq here",
        found=version,
    )
