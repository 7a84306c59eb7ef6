"""What goes wrong below the SQL ledger: each fault has its error, its hint and no secret."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import tempfile
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from batchq.clock import SystemClock, random_hex
from batchq.errors import (
    AccessDenied,
    BatchqError,
    ExitCode,
    LedgerNotInitialised,
    LedgerUnreachable,
    UsageError,
)
from batchq.item import NewItem
from batchq.ledger.base import Role, Run
from batchq.ledger.sql import SqlLedger, postgresql, sqlite
from batchq.mounts import network_filesystem
from tests.postgres import WITH_PASSWORD
from tests.unit.patience import comes_true

SECRET = "s3cr3t/w0rd"


def opened(url: str) -> tuple[SqlLedger, Run]:
    """An initialised ledger with a run, and little patience."""
    ledger = SqlLedger(url, patience=0.3)
    ledger.initialise()
    return ledger, ledger.create_run("run", "stats-1", {"kind": "stats"}, "item")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


# -- SQLite ----------------------------------------------------------------------------------


def test_a_locked_file_is_named_after_some_patience(path: Path) -> None:
    """Another process that keeps the write lock: say so, and how to find it."""
    ledger, _ = opened(f"sqlite:///{path}")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    clock = SystemClock()
    started = clock.monotonic()
    with pytest.raises(LedgerUnreachable, match="locked") as caught:
        ledger.create_run("other", "stats-1", {}, "item")
    # Without being told to be impatient it would have waited for ten seconds.
    assert 0.3 <= clock.monotonic() - started < 10
    assert f"fuser {path}" in (caught.value.hint or "")
    other.execute("ROLLBACK")
    assert ledger.create_run("other", "stats-1", {}, "item").name == "other"


def test_readers_do_not_wait_for_a_writer(path: Path) -> None:
    """With the write lock held elsewhere, counts and check still answer."""
    ledger, run = opened(f"sqlite:///{path}")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert ledger.counts(run).tallies.total == 0
    ledger.check()
    other.close()


@pytest.mark.parametrize("content", [b"no database at all, but text" * 100, b"SQLite format 3\0"])
def test_a_file_that_is_no_database_is_named(path: Path, content: bytes) -> None:
    """Its content stays what it is."""
    path.write_bytes(content)
    for verb in (SqlLedger(f"sqlite:///{path}").check, SqlLedger(f"sqlite:///{path}").initialise):
        with pytest.raises(BatchqError, match="damaged or no SQLite database") as caught:
            verb()
        assert caught.value.exit_code is ExitCode.ERROR
        assert str(path) in caught.value.message
        assert "--ledger" in (caught.value.hint or "")
    assert path.read_bytes() == content


def test_a_damaged_page_is_no_lost_contact(path: Path) -> None:
    """Trying again cannot mend it."""
    ledger, run = opened(f"sqlite:///{path}")
    ledger.close()
    damaged = bytearray(path.read_bytes())
    damaged[4096:] = b"\xff" * (len(damaged) - 4096)
    path.write_bytes(damaged)
    with pytest.raises(BatchqError, match="damaged") as caught:
        ledger.counts(run)
    assert caught.value.exit_code is ExitCode.ERROR


def test_a_full_disk_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that was acknowledged is lost, and the message says so."""
    ledger, _ = opened(f"sqlite:///{path}")
    ledger.close()

    class SmallDisk(sqlite.Sqlite):
        def connect(self) -> sqlite3.Connection:
            connection = super().connect()
            connection.execute("PRAGMA max_page_count = 1")
            return connection

    monkeypatch.setattr("batchq.ledger.sql.ledger.Sqlite", SmallDisk)
    small = SqlLedger(f"sqlite:///{path}", patience=0.3)
    with pytest.raises(LedgerUnreachable, match="no space is left") as caught:
        small.create_run("other", "stats-1", {"padding": "x" * 100_000}, "item")
    assert "free some space" in (caught.value.hint or "")


def _as_somebody(verb: str, url: str) -> int:
    """The exit code of a verb in a process that is not root's."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            ledger = SqlLedger(url, patience=0.3)
            try:
                if verb == "initialise":
                    ledger.initialise()
                else:
                    ledger.create_run("other", "stats-1", {}, "item")
                code = 0
            except BatchqError as error:
                code = int(error.exit_code)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that every user may enter, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="batchq-unit-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_a_read_only_file_is_access_denied(shared_folder: Path) -> None:
    """As is a folder in which SQLite cannot put its journal."""
    path = shared_folder / "ledger.db"
    opened(f"sqlite:///{path}")[0].close()
    path.chmod(0o444)
    shared_folder.chmod(0o555)
    assert _as_somebody("create_run", f"sqlite:///{path}") == ExitCode.ACCESS_DENIED


def test_an_unreadable_file_is_access_denied(shared_folder: Path) -> None:
    """It exists, and is not ours."""
    path = shared_folder / "ledger.db"
    opened(f"sqlite:///{path}")[0].close()
    path.chmod(0o000)
    assert _as_somebody("create_run", f"sqlite:///{path}") == ExitCode.ACCESS_DENIED


def test_a_file_system_that_is_mounted_read_only_is_named(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No right of any user would help: an archive on a snapshot, say."""
    driver = sqlite.Sqlite(f"sqlite:///{path}")
    mounted = types.SimpleNamespace(f_flag=os.ST_RDONLY)
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.R_OK)
    monkeypatch.setattr(os, "statvfs", lambda path: mounted)
    error = sqlite3.OperationalError("unable to open database file")
    error.sqlite_errorname = "SQLITE_CANTOPEN"
    refused = driver.judge(error).error
    assert isinstance(refused, AccessDenied)
    assert "mounted read-only" in refused.message
    assert "-wal" in (refused.hint or "")


def test_an_unwritable_folder_is_access_denied(shared_folder: Path) -> None:
    """Neither a new file nor a new folder can be made there."""
    shared_folder.chmod(0o555)
    for name in ("ledger.db", "deep/ledger.db"):
        url = f"sqlite:///{shared_folder}/{name}"
        assert _as_somebody("initialise", url) == ExitCode.ACCESS_DENIED


MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:40 / /mnt/share rw,relatime shared:5 - nfs4 server:/export rw
31 22 0:41 / /mnt/my\\040disk rw - fuse.sshfs host:/ rw
32 30 254:1 / /mnt/share/local rw - xfs /dev/vdb rw
33 22 0:42 / /mnt/covered rw - cifs //host/share rw
34 22 254:2 / /mnt/covered rw - ext4 /dev/vdc rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/home/user", None),
        ("/mnt/share", "nfs4"),
        ("/mnt/share/deep/er", "nfs4"),
        ("/mnt/shares", None),
        ("/mnt/my disk/x", "fuse.sshfs"),
        ("/mnt/share/local/x", None),
        ("/mnt/covered", None),
    ],
)
def test_network_file_systems_are_told_by_their_mount(
    tmp_path: Path, folder: str, kind: str | None
) -> None:
    """The innermost mount decides, and of two on one folder the later."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert network_filesystem(Path(folder), mounts) == kind


def test_a_network_file_system_is_refused(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any file is made on it; the hint names what to use."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text("22 1 0:40 / / rw - nfs4 server:/export rw\n")
    monkeypatch.setattr("batchq.mounts.MOUNTS", mounts)
    with pytest.raises(UsageError, match="network file system \\(nfs4\\)") as caught:
        SqlLedger(f"sqlite:///{path}").initialise()
    assert "postgresql://" in (caught.value.hint or "")
    assert not path.exists()


def test_a_link_to_a_network_file_system_is_refused(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file lies there, and so would its log."""
    far, mounts = tmp_path / "far", tmp_path / "mountinfo"
    far.mkdir()
    path.symlink_to(far / "ledger.db")
    mounts.write_text(
        "22 1 254:0 / / rw - ext4 /dev/vda rw\n"
        f"23 22 0:40 / {far.resolve()} rw - nfs4 server:/export rw\n"
    )
    monkeypatch.setattr("batchq.mounts.MOUNTS", mounts)
    with pytest.raises(UsageError, match="network file system \\(nfs4\\)"):
        SqlLedger(f"sqlite:///{path}").initialise()
    assert list(far.iterdir()) == []


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "mysql://h/db"])
def test_addresses_of_no_ledger_are_refused(url: str) -> None:
    """With the two forms that there are."""
    with pytest.raises(UsageError) as caught:
        SqlLedger(url)
    assert "sqlite:///" in (caught.value.hint or "")


# -- PostgreSQL ------------------------------------------------------------------------------


def with_user(url: str, user: str, password: str) -> str:
    return url.replace("postgres:@", f"{user}:{password}@", 1)


@pytest.fixture
def role(postgres_url: str) -> Iterator[str]:
    """A role without any grant that must give its password."""
    name = f"role_{random_hex(32)}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        words = f"CREATE ROLE {name} LOGIN PASSWORD '{SECRET}' IN ROLE {WITH_PASSWORD}"
        connection.execute(words.encode())
        yield name
        connection.execute(f"DROP OWNED BY {name}")
        connection.execute(f"DROP ROLE {name}")


def test_a_wrong_password_is_access_denied(postgres_url: str, role: str) -> None:
    """At once, and without the password in any message."""
    wrong = "wr0ng-p4ss"
    ledger = SqlLedger(with_user(postgres_url, role, wrong), patience=30)
    with pytest.raises(AccessDenied, match="password authentication failed") as caught:
        ledger.check()
    assert wrong not in f"{caught.value} {caught.value.hint} {ledger.url}"
    assert caught.value.__cause__ is None


def test_a_missing_grant_is_access_denied(postgres_url: str, role: str) -> None:
    """Whoever may read and not write can look, and is told by name what it may not."""
    opened(postgres_url)[0].close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    ledger = SqlLedger(with_user(postgres_url, role, SECRET.replace("/", "%2F")), patience=30)
    ledger.check()
    with pytest.raises(AccessDenied, match="permission denied for table runs") as caught:
        ledger.create_run("other", "stats-1", {}, "item")
    assert "grants" in (caught.value.hint or "")


def test_an_unknown_role_is_access_denied(postgres_url: str) -> None:
    """The server trusts the password and does not know the name."""
    with pytest.raises(AccessDenied, match="does not exist"):
        SqlLedger(with_user(postgres_url, "nobody_we_know", ""), patience=30).check()


def test_a_missing_database_is_a_missing_ledger(postgres_url: str) -> None:
    """With what to create first."""
    url = postgres_url.replace("/unit_", "/absent_")
    with pytest.raises(LedgerNotInitialised, match=r"database absent_.* does not exist") as caught:
        SqlLedger(url, patience=30).check()
    assert "create the database" in (caught.value.hint or "")


def test_a_server_that_is_not_there_is_unreachable() -> None:
    """After some patience; the address is shown without its password."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        password = SECRET.replace("/", "%2F")
        ledger = SqlLedger(f"postgresql://user:{password}@127.0.0.1:{port}/db", patience=0.3)
        with pytest.raises(LedgerUnreachable, match=f"127.0.0.1:{port}") as caught:
            ledger.check()
    assert not any(part in f"{caught.value} {caught.value.hint}" for part in SECRET.split("/"))


def test_lost_connections_are_replaced(postgres_url: str) -> None:
    """A restart of the server ends every connection; the next verb opens another."""
    ledger, run = opened(postgres_url)
    ledger.register(run, "worker", 60.0, Role.WORKER, {})
    for _ in range(3):
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name = 'batchq'"
            )
        patient = SqlLedger(postgres_url)
        assert patient.beat("worker", 60.0)
        ledger._database._patience = 60.0
        assert ledger.beat("worker", 60.0)


def test_at_most_two_connections(postgres_url: str) -> None:
    """However many threads ask, so that a fleet of hundreds fits on one server."""
    first, run = opened(postgres_url)
    first.close()
    ledger = SqlLedger(postgres_url)
    connections = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name = 'batchq'"
    )
    with (
        ThreadPoolExecutor(8) as pool,
        psycopg.connect(postgres_url, autocommit=True) as watching,
    ):
        list(pool.map(lambda _: ledger.counts(run), range(64)))
        # What has just been closed is not gone at once.
        assert comes_true(lambda: watching.execute(connections).fetchall() in ([(1,)], [(2,)]))
    ledger.close()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:p4ss@h/db", "postgresql://u:***@h/db"),
        ("postgresql+psycopg://u:p4ss@h:5432/db", "postgresql+psycopg://u:***@h:5432/db"),
        ("postgresql://u:p4%2Fss@h/db?sslmode=require", "postgresql://u:***@h/db?sslmode=require"),
        ("postgresql://h/db?user=u&password=p4ss", "postgresql://h/db?user=u&password=***"),
        ("postgresql://u@h/db", "postgresql://u@h/db"),
        ("postgresql://:p4ss@h/db", "postgresql://:***@h/db"),
        ("postgresql:///db?host=/run/postgresql", "postgresql:///db?host=/run/postgresql"),
        ("sqlite:////data/ledger.db", "sqlite:////data/ledger.db"),
    ],
)
def test_the_address_is_shown_without_its_password(url: str, shown: str) -> None:
    """Wherever the password stands in it."""
    assert SqlLedger(url).url == shown


def test_an_address_that_cannot_be_parsed_hides_its_password() -> None:
    """The driver's message would quote it."""
    with pytest.raises(UsageError) as caught:
        SqlLedger("postgresql://user:p4%ss@host/db")
    assert "p4%ss" not in f"{caught.value} {caught.value.hint}"
    assert caught.value.__cause__ is None
    assert "percent-encoding" in (caught.value.hint or "")


def test_a_lock_that_stays_is_named(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that somebody left open: no retry, and where to look for it."""
    ledger, run = opened(postgres_url)
    ledger.register(run, "worker", 60.0, Role.WORKER, {})
    with monkeypatch.context() as patch, psycopg.connect(postgres_url) as other:
        patch.setitem(postgresql._SETTINGS, "lock_timeout", "100ms")
        hasty = SqlLedger(postgres_url)
        other.execute("SELECT * FROM workers FOR UPDATE")
        with pytest.raises(LedgerUnreachable, match="takes too long") as caught:
            hasty.beat("worker", 60.0)
        assert "pg_stat_activity" in (caught.value.hint or "")
        hasty.close()
    assert ledger.beat("worker", 60.0)


def test_what_was_acknowledged_is_durable_whatever_the_server_says(postgres_url: str) -> None:
    """A session of the ledger waits for its commits even where others do not."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        name = connection.info.dbname
        for given, wanted in (("off", "on"), ("remote_apply", "remote_apply")):
            connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = {given}")
            session = postgresql.Postgresql(postgres_url).connect()
            row = session.execute("SHOW synchronous_commit").fetchone()
            session.close()
            assert row == (wanted,)


def test_text_that_a_database_cannot_hold_is_refused_at_once(postgres_url: str) -> None:
    """Trying again cannot help, and contact is not lost."""
    ledger, run = opened(postgres_url)
    ledger.register(run, "enqueuer", 60.0, Role.ENQUEUER, {})
    with pytest.raises(BatchqError, match="refused a statement") as caught:
        ledger.enqueue("enqueuer", 1, [NewItem("a\0b", "sha256:1", 1, "file:///a", "file:///")])
    assert caught.value.exit_code is ExitCode.ERROR
