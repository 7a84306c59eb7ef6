"""What an audit has seen so far, in a SQLite file: after an interruption it goes on there.

Whatever grows with the run is kept in the file, so that memory stays flat: which keys the
ledger names, as numbers; what is damaged; what is an orphan.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from batchq.errors import BatchqError, UsageError
from batchq.ledger.base import CommittedResult
from batchq.result import Stored

__all__ = ["Damage", "Journal", "Place"]

Place = tuple[int, int]
"""Where a key lies: a number for what its generations share, and its generation."""

_FORM = 1
"""Of the file. Another one is not understood."""

_SCHEMA = """
CREATE TABLE progress (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE sample (item BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE named (place INTEGER NOT NULL, generation INTEGER NOT NULL, item BLOB NOT NULL);
CREATE TABLE damage (
  item BLOB PRIMARY KEY, kind TEXT NOT NULL, what TEXT NOT NULL, result TEXT NOT NULL,
  open INTEGER NOT NULL DEFAULT 1
) WITHOUT ROWID;
CREATE TABLE orphans (key TEXT PRIMARY KEY, open INTEGER NOT NULL DEFAULT 1) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Damage:
    """A committed result that the store lost. `kind`: missing or corrupt; `what`: how."""

    result: CommittedResult
    kind: str
    what: str


class Journal:
    """The journal at `path`, begun anew or taken up again.

    `about` says what is audited: a journal of another audit raises UsageError. `resumed`:
    whether something was seen before. Raises BatchqError where the file cannot be used.
    """

    def __init__(self, path: Path, about: str) -> None:
        self._path = path
        with self._explained():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lite = sqlite3.connect(path, timeout=0, isolation_level=None)
            # A second audit with this file must not mix into this one.
            self._lite.execute("PRAGMA locking_mode = EXCLUSIVE")
            # A kill loses nothing, and a power failure the last pages, which are read again.
            self._lite.execute("PRAGMA journal_mode = WAL")
            self._lite.execute("PRAGMA synchronous = NORMAL")
            begun = self._rows("SELECT count(*) FROM sqlite_master")[0][0] > 0
            with self._transaction():
                if not begun:
                    for statement in _SCHEMA.split(";"):
                        self._lite.execute(statement)
                    self._note(about=about, form=_FORM)
                # Takes the lock even where there is nothing to write.
                self._note(form=self._noted("form"))
        if (self._noted("about"), self._noted("form")) != (about, _FORM):
            self._lite.close()
            raise UsageError(
                f"{path} is the journal of another audit",
                hint="delete it, or give this audit another one with --journal",
            )
        self.resumed = self.checked > 0 or self.sampled > 0

    def close(self, *, finished: bool) -> None:
        """A finished audit's journal is of no more use."""
        self._lite.close()
        if finished:
            with suppress(FileNotFoundError):
                self._path.unlink()

    # -- results -----------------------------------------------------------------

    @property
    def checked(self) -> int:
        """Results read so far."""
        return int(self._noted("checked") or 0)

    @property
    def last_result(self) -> int:
        """The item id to go on after."""
        return int(self._noted("last_result") or 0)

    @property
    def results_done(self) -> bool:
        return bool(self._noted("results_done"))

    @property
    def sampled(self) -> int:
        """How many items were chosen, where not all are read."""
        return int(self._noted("sampled") or 0)

    def choose(self, items: Iterable[int]) -> None:
        with self._explained(), self._transaction():
            self._lite.executemany(
                "INSERT INTO sample VALUES (?)", ((_packed(item),) for item in items)
            )
            self._note(sampled=self._rows("SELECT count(*) FROM sample")[0][0])

    def chosen(self, after: int, limit: int) -> list[int]:
        rows = self._rows(
            "SELECT item FROM sample WHERE item > ? ORDER BY item LIMIT ?", _packed(after), limit
        )
        return [int.from_bytes(row[0]) for row in rows]

    def saw_results(
        self, last: int, number: int, named: Iterable[tuple[Place, int]], damage: Iterable[Damage]
    ) -> None:
        """A page of `number` results up to item `last`: which keys they name, what is damaged."""
        with self._explained(), self._transaction():
            self._lite.executemany(
                "INSERT INTO named VALUES (?, ?, ?)",
                ((*place, _packed(item)) for place, item in named),
            )
            self._lite.executemany(
                "INSERT OR REPLACE INTO damage (item, kind, what, result) VALUES (?, ?, ?, ?)",
                (
                    (
                        _packed(one.result.item_id),
                        one.kind,
                        one.what,
                        json.dumps(asdict(one.result)),
                    )
                    for one in damage
                ),
            )
            self._note(last_result=str(last), checked=self.checked + number)

    def finish_results(self) -> None:
        with self._explained(), self._transaction():
            # Sorted in one go at the end: kept up to date all along, it would be written all over.
            self._lite.execute("CREATE INDEX ix_named ON named (place, generation, item)")
            self._note(results_done=1)

    def named_at(self, place: int) -> list[tuple[int, int]]:
        """Generation and item of each result that lies at `place`."""
        rows = self._rows("SELECT generation, item FROM named WHERE place = ?", place)
        return [(generation, int.from_bytes(item)) for generation, item in rows]

    def damage_count(self, kind: str) -> int:
        return int(self._rows("SELECT count(*) FROM damage WHERE kind = ?", kind)[0][0])

    def damage(self, limit: int) -> list[Damage]:
        """The first ones."""
        rows = self._rows("SELECT result, kind, what FROM damage ORDER BY item LIMIT ?", limit)
        return [Damage(_result(json.loads(text)), kind, what) for text, kind, what in rows]

    # -- repairing ---------------------------------------------------------------

    @property
    def repaired(self) -> int:
        return int(self._noted("repaired") or 0)

    @property
    def unrepaired_count(self) -> int:
        return int(self._rows("SELECT count(*) FROM damage WHERE open")[0][0])

    def unrepaired(self, after: int, limit: int) -> list[CommittedResult]:
        rows = self._rows(
            "SELECT result FROM damage WHERE open AND item > ? ORDER BY item LIMIT ?",
            _packed(after),
            limit,
        )
        return [_result(json.loads(row[0])) for row in rows]

    def forget(self, results: Iterable[CommittedResult]) -> None:
        """These turned out to be whole."""
        with self._explained(), self._transaction():
            self._lite.executemany(
                "DELETE FROM damage WHERE item = ?", ((_packed(one.item_id),) for one in results)
            )

    def repair(self, results: Sequence[CommittedResult], sent_back: int) -> None:
        """These are no longer committed; `sent_back` of them by this audit."""
        with self._explained(), self._transaction():
            self._lite.executemany(
                "UPDATE damage SET open = 0 WHERE item = ?",
                ((_packed(one.item_id),) for one in results),
            )
            self._note(repaired=self.repaired + sent_back)

    # -- objects -----------------------------------------------------------------

    @property
    def last_key(self) -> str:
        """The key to go on after."""
        return str(self._noted("last_key") or "")

    @property
    def objects_done(self) -> bool:
        return bool(self._noted("objects_done"))

    @property
    def unsettled(self) -> int:
        """Objects that no row names, and that are no orphans."""
        return int(self._noted("unsettled") or 0)

    def saw_objects(self, last: str, unsettled: int, orphans: Iterable[str]) -> None:
        with self._explained(), self._transaction():
            self._lite.executemany(
                "INSERT OR IGNORE INTO orphans (key) VALUES (?)", ((key,) for key in orphans)
            )
            self._note(last_key=last, unsettled=self.unsettled + unsettled)

    def finish_objects(self) -> None:
        with self._explained(), self._transaction():
            self._note(objects_done=1)

    def orphan_count(self, *, removed: bool = False) -> int:
        """How many were found, or how many of them were removed."""
        what = "count(*) - sum(open)" if removed else "count(*)"
        return int(self._rows(f"SELECT coalesce({what}, 0) FROM orphans")[0][0])

    def orphans(self, limit: int, *, left: bool = False) -> list[str]:
        """The first ones, or the first that are left."""
        which = "WHERE open" if left else ""
        return [row[0] for row in self._rows(f"SELECT key FROM orphans {which} LIMIT ?", limit)]

    def remove(self, keys: Iterable[str]) -> None:
        with self._explained(), self._transaction():
            self._lite.executemany(
                "UPDATE orphans SET open = 0 WHERE key = ?", ((key,) for key in keys)
            )

    # -- below -------------------------------------------------------------------

    def _noted(self, name: str) -> Any:
        rows = self._rows("SELECT value FROM progress WHERE name = ?", name)
        return rows[0][0] if rows else None

    def _note(self, **values: Any) -> None:
        self._lite.executemany("INSERT OR REPLACE INTO progress VALUES (?, ?)", values.items())

    def _rows(self, statement: str, *parameters: Any) -> list[Any]:
        with self._explained():
            return self._lite.execute(statement, parameters).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._lite.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._lite.rollback()
            raise
        self._lite.execute("COMMIT")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "")
            if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
                raise UsageError(
                    f"another audit is at work with the journal {self._path}",
                    hint="wait for it, or give this one its own with --journal",
                ) from None
            raise BatchqError(
                f"the audit's journal {self._path} cannot be used: {error}",
                hint="free some space there, or name another place with --journal; "
                "a file that is damaged may be deleted, and the audit begins anew",
            ) from None


def _packed(item: int) -> bytes:
    """An item's id in bytes that sort as it does: on DynamoDB it has 96 bits, SQLite takes 63."""
    return item.to_bytes(12)


def _result(fields: dict[str, Any]) -> CommittedResult:
    return CommittedResult(**{**fields, "stored": Stored(**fields["stored"])})
