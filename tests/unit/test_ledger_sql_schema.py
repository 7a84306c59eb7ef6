"""The schema of the SQL ledger: its migrations, its versions, and whose a database is."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from batchq.errors import LedgerNotInitialised, UsageError
from batchq.ledger.schema import metadata
from batchq.ledger.sql import SqlLedger
from batchq.ledger.sql.names import HEAD, REVISIONS, VERSION_TABLE
from batchq.ledger.sql.upgrade import migrations

ROOT = Path(__file__).parent.parent.parent


class Place:
    """An empty database, and a way to it that knows nothing of batchq."""

    def __init__(self, url: str) -> None:
        self.url = url

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        if self.url.startswith("sqlite"):
            connection: Any = sqlite3.connect(self.url.removeprefix("sqlite:///"))
        else:
            connection = psycopg.connect(self.url)
        with connection:
            cursor = connection.execute(statement)
            rows: list[tuple[Any, ...]] = cursor.fetchall() if cursor.description else []
        connection.close()
        return rows

    def engine(self) -> sa.Engine:
        return sa.create_engine(self.url.replace("postgresql:", "postgresql+psycopg:"))


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        return Place(f"sqlite:///{tmp_path}/deep/ledger.db")
    return Place(request.getfixturevalue("postgres_url"))


@pytest.fixture
def ledger(place: Place) -> Iterator[SqlLedger]:
    ledger = SqlLedger(place.url)
    yield ledger
    ledger.close()


def test_the_migrations_make_the_schema_that_the_code_speaks(
    place: Place, ledger: SqlLedger
) -> None:
    """Alembic finds nothing to add, drop or change, types and defaults included."""
    ledger.initialise()
    engine = place.engine()
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table": VERSION_TABLE,
                "compare_type": True,
                "compare_server_default": True,
            },
        )
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_tables_are_created_as_the_schema_says(place: Place, ledger: SqlLedger) -> None:
    """What no comparison sees: rows stored by key on SQLite, storage parameters on PostgreSQL."""
    ledger.initialise()
    if place.url.startswith("sqlite"):
        rows = place.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
        found = {name: "WITHOUT ROWID" in sql for name, sql in rows}
        for table in metadata.tables.values():
            assert found[table.name] == (table.dialect_options["sqlite"]["with_rowid"] is False)
    else:
        rows = place.execute("SELECT relname, reloptions FROM pg_class WHERE relkind = 'r'")
        stored = dict(rows)
        for table in metadata.tables.values():
            wanted = table.dialect_options["postgresql"]["with"]
            options = sorted(f"{name}={value}" for name, value in wanted.items())
            assert options == sorted(stored[table.name] or [])


def test_every_revision_is_known_by_name() -> None:
    """The code tells older from newer by a list, which must be that of the migrations."""
    config = Config()
    config.set_main_option("script_location", str(migrations()))
    scripts = ScriptDirectory.from_config(config)
    assert list(REVISIONS) == [script.revision for script in scripts.walk_revisions()][::-1]
    assert scripts.get_current_head() == HEAD


def test_initialising_again_changes_nothing(place: Place, ledger: SqlLedger) -> None:
    """What is there stays there."""
    ledger.initialise()
    run = ledger.create_run("run", "stats-1", {"kind": "stats"}, "item")
    ledger.initialise()
    ledger.check()
    assert run == ledger.find_run("run")


def test_many_may_initialise_at_once(place: Place) -> None:
    """Each finds the schema in place when it is done."""

    def one(_: int) -> None:
        ledger = SqlLedger(place.url)
        ledger.initialise()
        ledger.check()
        ledger.close()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(one, range(6)))
    assert place.execute(f"SELECT version_num FROM {VERSION_TABLE}") == [(HEAD,)]


def test_a_database_without_ledger_is_refused(place: Place, ledger: SqlLedger) -> None:
    """With the command that creates it, and without creating anything."""
    with pytest.raises(LedgerNotInitialised, match="no") as caught:
        ledger.check()
    assert "batchq init" in (caught.value.hint or "")
    with pytest.raises(LedgerNotInitialised):
        ledger.find_run("run")
    if place.url.startswith("sqlite"):
        assert not Path(place.url.removeprefix("sqlite:///")).exists()


def test_a_newer_schema_is_refused_by_name(place: Place, ledger: SqlLedger) -> None:
    """By the check, and by the initialisation, which must not touch it."""
    ledger.initialise()
    place.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    with pytest.raises(LedgerNotInitialised, match="newer schema 9999") as caught:
        ledger.check()
    assert "upgrade" in (caught.value.hint or "")
    with pytest.raises(LedgerNotInitialised, match="newer schema 9999"):
        ledger.initialise()
    assert place.execute(f"SELECT version_num FROM {VERSION_TABLE}") == [("9999",)]


@pytest.mark.parametrize("revision", REVISIONS[:-1])
def test_an_older_schema_is_refused_by_name_and_upgraded(
    place: Place, ledger: SqlLedger, revision: str
) -> None:
    """With the command that upgrades it; what was there is there afterwards."""
    if place.url.startswith("sqlite"):
        Path(place.url.removeprefix("sqlite:///")).parent.mkdir()
    config = Config()
    config.set_main_option("script_location", str(migrations()))
    engine = place.engine()
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    engine.dispose()
    run = ledger.create_run("run", "stats-1", {"kind": "stats"}, "item")
    with pytest.raises(LedgerNotInitialised, match=f"older schema {revision}.* {HEAD}") as caught:
        ledger.check()
    assert "batchq init" in (caught.value.hint or "")
    ledger.initialise()
    ledger.check()
    assert run == ledger.find_run("run")
    assert place.execute("SELECT count(*) FROM results_history") == [(0,)]


def test_tables_of_another_program_are_left_alone(place: Place, ledger: SqlLedger) -> None:
    """Names are taken: a file is refused for any, a database for one that is ours."""
    if place.url.startswith("sqlite"):
        Path(place.url.removeprefix("sqlite:///")).parent.mkdir()
    place.execute("CREATE TABLE items (name text)")
    with pytest.raises(UsageError, match="tables of another program \\(items\\)"):
        ledger.initialise()
    assert place.execute("SELECT * FROM items") == []
    with pytest.raises(LedgerNotInitialised):
        ledger.check()


def test_a_file_of_another_program_keeps_every_byte(tmp_path: Path) -> None:
    """Not even its journal mode changes."""
    path = tmp_path / "theirs.db"
    place = Place(f"sqlite:///{path}")
    place.execute("CREATE TABLE songs (title text)")
    before = path.read_bytes()
    with pytest.raises(UsageError, match="songs"):
        SqlLedger(place.url).initialise()
    assert before == path.read_bytes()


@pytest.mark.parametrize("broken", ["runs", "results_history"])
def test_a_failed_upgrade_leaves_nothing_behind(
    place: Place, ledger: SqlLedger, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """All revisions take effect as a whole, on SQLite too, whichever breaks off."""
    from alembic.operations import Operations

    create = Operations.create_table

    def create_or_fail(operations: Operations, name: str, *columns: Any, **options: Any) -> Any:
        if name == broken:
            raise RuntimeError("power cut")
        return create(operations, name, *columns, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Operations, "create_table", create_or_fail)
        with pytest.raises(RuntimeError, match="power cut"):
            ledger.initialise()
    with pytest.raises(LedgerNotInitialised, match="no batchq ledger"):
        ledger.check()
    ledger.initialise()
    ledger.check()


def test_the_wheel_carries_the_migrations(tmp_path: Path) -> None:
    """Every file that Alembic needs lies where an installed batchq looks for it."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    shipped = set(zipfile.ZipFile(wheel).namelist())
    scripts = [path for path in migrations().rglob("*") if path.suffix in (".py", ".mako")]
    wanted = {f"batchq/migrations/{path.relative_to(migrations())}" for path in scripts}
    assert wanted <= shipped
    assert len(wanted) == 2 + len(REVISIONS)
