"""SQLite as a ledger: one file on a local disk, for the processes of one machine."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from batchq import mounts
from batchq.clock import random_fraction
from batchq.errors import (
    AccessDenied,
    BatchqError,
    LedgerNotInitialised,
    LedgerUnreachable,
    UsageError,
)
from batchq.ledger.sql.dialect import SQLITE
from batchq.ledger.sql.driver import Verdict

__all__ = ["Sqlite"]

_PREFIX = "sqlite:///"

_LOGGED_ROWS = 16_000
"""After how many rows that it changed a connection empties the log: 4 MiB of leases."""

_LOGGED_PAGES = 4_000
"""From how many pages on SQLite empties it by itself, at every commit: 16 MiB."""


class Sqlite:
    """Opens connections to one file and tells what their errors mean."""

    dialect = SQLITE
    engine_url = "sqlite://"
    engine_options: ClassVar[dict[str, Any]] = {}
    error: ClassVar[type[Exception]] = sqlite3.Error
    schema: str | None = None

    def __init__(self, url: str) -> None:
        path = url.removeprefix(_PREFIX)
        if not url.startswith(_PREFIX) or not path or path.startswith(":memory:"):
            raise UsageError(
                f"the ledger address {url} names no file",
                hint="write sqlite:///relative/path.db or sqlite:////absolute/path.db",
            )
        self.path = Path(path).absolute()
        self.url = f"{_PREFIX}{path}"
        self._file: tuple[int, int] | None = None

    def create(self) -> None:
        """The file, empty, and its folder, unless they exist."""
        self._refuse_network()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not self.path.exists():
                self.path.touch()
        except OSError as error:
            raise AccessDenied(
                f"cannot create the ledger {self.path}: {error.strerror}",
                hint="choose a folder that you may write, with --ledger",
            ) from None

    def connect(self) -> sqlite3.Connection:
        """A connection to the existing file, in autocommit mode."""
        self._refuse_network()
        file = self._found()
        if file is None and self._file is None:
            raise LedgerNotInitialised(
                f"there is no ledger at {self.path}",
                hint="create it with `batchq init` or a first `batchq enqueue`",
            )
        self._file = self._file or file
        self._refuse_another_file()
        connection = self._open()
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA cache_size = -32768")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_LOGGED_PAGES}")
        return connection

    def _open(self) -> sqlite3.Connection:
        # Waiting for the lock is `engine`'s. Threads share a connection one at a time.
        connection = sqlite3.connect(
            f"file:{quote(str(self.path))}?mode=rw",
            uri=True,
            timeout=0,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    def opening(self, connection: object, begin: str | None) -> str | None:
        """The usual word, if this is still the file that the connection was opened on.

        SQLite goes on with one that was removed, and all that is committed there is lost.
        """
        self._refuse_another_file()
        return begin

    def emptied(self, connection: Any) -> bool:
        """Empty the log now and then, while this transaction keeps others from writing.

        SQLite does so behind a commit, when others may write. Where several processes
        always do, it never comes to the end: the log grows, and each commit copies and syncs.
        """
        changed = connection.total_changes
        if "emptied" not in connection.info:
            # Processes that start together take turns.
            connection.info["emptied"] = changed - round(_LOGGED_ROWS * random_fraction())
        if changed - connection.info["emptied"] < _LOGGED_ROWS:
            return False
        connection.info["emptied"] = changed
        # As SQLite takes it: what cannot be moved is safe where it is.
        with suppress(sqlite3.Error), closing(self._open()) as other:
            other.execute("PRAGMA wal_checkpoint(PASSIVE)")
        return True

    def misplaced(self, error: BaseException) -> bool:
        """There is one file."""
        return False

    def _found(self) -> tuple[int, int] | None:
        """Which file the path names now: its device and inode."""
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _refuse_another_file(self) -> None:
        found = self._found()
        if found != self._file:
            what = "removed" if found is None else "replaced by another file"
            raise BatchqError(
                f"the ledger {self.path} was {what} while this process works on it",
                hint="put it back, or begin anew with `batchq enqueue`, which computes every "
                "result again; stop every worker before a ledger is moved",
            )

    def _refuse_network(self) -> None:
        # Where a link leads to: there the file lies, and its log.
        folder = Path(os.path.realpath(self.path)).parent
        kind = mounts.network_filesystem(folder, mounts.MOUNTS)
        if kind is not None:
            raise UsageError(
                f"the ledger {self.path} would lie on a network file system ({kind}), "
                "where SQLite's locks do not hold",
                hint="use a folder on a local disk, or a postgresql:// ledger",
            )

    def is_locked(self, error: BaseException) -> bool:
        return getattr(error, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))

    def judge(self, error: BaseException) -> Verdict:
        """What an error of the driver means."""
        name = getattr(error, "sqlite_errorname", "")
        if self.is_locked(error):
            return Verdict(
                LedgerUnreachable(
                    f"the ledger {self.path} stayed locked by another process",
                    hint="look for a stopped batchq, a backup or an open sqlite3 shell: "
                    f"fuser {self.path}",
                ),
                pause=0.005 * random_fraction(),
            )
        return Verdict(self._explain(name, str(error)))

    def _explain(self, name: str, said: str) -> BatchqError:
        if name.startswith(("SQLITE_READONLY", "SQLITE_PERM", "SQLITE_AUTH")):
            return AccessDenied(
                f"the ledger {self.path} cannot be written: {said}",
                hint="give this user write access to the file, to those beside it that end in "
                "-wal and -shm, and to its folder",
            )
        if name.startswith("SQLITE_CANTOPEN"):
            if os.access(self.path, os.R_OK) and os.access(self.path.parent, os.W_OK | os.X_OK):
                return LedgerUnreachable(
                    f"the ledger {self.path} cannot be opened: {said}",
                    hint="check its disk, and how many files this process may open (ulimit -n)",
                )
            if os.statvfs(self.path.parent).f_flag & os.ST_RDONLY:
                return AccessDenied(
                    f"the ledger {self.path} lies on a file system that is mounted read-only, "
                    "and SQLite writes beside it even to read it",
                    hint="mount it for writing, or copy the ledger, and the files beside it that "
                    "end in -wal and -shm, to a disk that can be written",
                )
            return AccessDenied(
                f"the ledger {self.path} cannot be opened: permission denied",
                hint="give this user access to the file and to its folder",
            )
        if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
            return BatchqError(
                f"the ledger {self.path} is damaged or no SQLite database: {said}",
                hint="name another file with --ledger, or restore this one from a copy",
            )
        if name.startswith("SQLITE_FULL"):
            return LedgerUnreachable(
                f"no space is left for the ledger {self.path}",
                hint="free some space on its disk; nothing that was acknowledged is lost",
            )
        if said.startswith("no such "):
            return LedgerNotInitialised(
                f"{self.path} holds no batchq ledger ({said})", hint="run `batchq init`"
            )
        return LedgerUnreachable(
            f"the ledger {self.path} failed: {said} ({name})",
            hint="check the disk that it lies on, and repeat the command",
        )
