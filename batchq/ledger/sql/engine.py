"""The database behind the SQL ledger: its connections, transactions and second tries.

SQLAlchemy pools the connections, and its Core describes the tables and runs the
migrations. The verbs' statements go to the driver as they are written: what Core does
for each execution took longer than SQLite takes to run it. Drivers are in autocommit
mode and a transaction starts with its own BEGIN: IMMEDIATE on SQLite, where a deferred
one fails when it becomes a writer.
"""

from __future__ import annotations

import json
import threading
from collections import namedtuple
from collections.abc import Callable, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, TypeVar

from sqlalchemy import Connection, create_engine
from sqlalchemy import exc as sa_exc
from sqlalchemy.pool import PoolProxiedConnection, QueuePool

from batchq.clock import Clock, SystemClock, random_fraction
from batchq.errors import LedgerUnreachable
from batchq.ledger.sql.dialect import SQLITE
from batchq.ledger.sql.driver import Driver

__all__ = ["Database", "Repeat", "Transaction"]

T = TypeVar("T")

_LOCK_PAUSE = 0.0005
"""The longest pause between two tries to get SQLite's lock, in seconds."""

_AT_ONCE = (1000, 250, 50, 10, 1)
"""Rows that a statement inserts on SQLite: as many as there are for.

Python's lock is handed on at each statement, and another thread takes its time with it; all
rows as one JSON array took three times as long.
"""

_CONNECTIONS = 2
"""One for the pipeline and one for the heartbeat, so that a fleet fits on one server."""


class Repeat(Exception):
    """Another transaction came between: run this one again from its start."""


class Transaction:
    """Statements on one connection, between a BEGIN and a COMMIT or each for itself.

    Parameters that are lists become arrays.
    """

    def __init__(self, database: Database, connection: PoolProxiedConnection) -> None:
        self.dialect = database.driver.dialect
        self._database = database
        self._cursor: Any = connection.cursor()

    def begin(self, statement: str) -> None:
        self._cursor.execute(statement)

    def rows(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """What a query or a RETURNING brings."""
        self._execute(statement, parameters)
        rows: list[tuple[Any, ...]] = self._cursor.fetchall()
        return rows

    def records(self, statement: str, **parameters: Any) -> list[Any]:
        """The same, as named tuples."""
        self._execute(statement, parameters)
        record = self._database.record(statement, self._cursor.description)
        return [record(*row) for row in self._cursor.fetchall()]

    def record(self, statement: str, **parameters: Any) -> Any:
        """The first of the records, or none."""
        records = self.records(statement, **parameters)
        return records[0] if records else None

    def page(
        self, statement: str, columns: Sequence[str], **parameters: Any
    ) -> list[Sequence[Any]]:
        """Many rows of a query that brings these columns, by the first of them.

        On SQLite in one step: its driver hands Python's lock on after each row, so that
        beside a busy thread a page took four times as long.
        """
        if self.dialect is not SQLITE:
            return list(self.rows(statement, **parameters))
        whole = f"SELECT json_group_array(json_array({', '.join(columns)})) FROM ({statement})"
        [(text,)] = self.rows(whole, **parameters)
        rows: list[Sequence[Any]] = json.loads(text)
        # The order in which an aggregate takes its rows is not promised.
        rows.sort(key=itemgetter(0))
        return rows

    def run(self, statement: str, **parameters: Any) -> int:
        """How many rows it changed."""
        self._execute(statement, parameters)
        return int(self._cursor.rowcount)

    def run_listed(self, statement: str, parameters: Sequence[Any]) -> int:
        """How many rows it changed, its parameters given in their order."""
        sql, _ = self._database.rendered(statement)
        self._cursor.execute(sql, parameters)
        return int(self._cursor.rowcount)

    def run_each(self, statement: str, many: Sequence[Any]) -> int:
        """The statement once for each of `many` parameters; how many rows it changed."""
        if not many:
            return 0
        sql, _ = self._database.rendered(statement)
        self._cursor.executemany(sql, many)
        return int(self._cursor.rowcount)

    def insert(
        self,
        table: str,
        columns: tuple[str, ...],
        rows: Sequence[tuple[Any, ...]],
        *,
        new_only: bool = False,
    ) -> int:
        """Insert many rows, with `new_only` those not known yet; how many it inserted."""
        if not rows:
            return 0
        if self.dialect is SQLITE:
            return self._insert_in_parts(table, columns, rows, new_only)
        statement = self._database.insert(table, columns, new_only)
        if new_only:
            columns_of = zip(*rows, strict=True)
            self._cursor.execute(statement, tuple(map(self.dialect.array, columns_of)))
        else:
            with self._cursor.copy(statement) as copy:
                for row in rows:
                    copy.write_row(row)
        return int(self._cursor.rowcount)

    def _insert_in_parts(
        self,
        table: str,
        columns: tuple[str, ...],
        rows: Sequence[tuple[Any, ...]],
        new_only: bool,
    ) -> int:
        inserted = first = 0
        for number in _AT_ONCE:
            statement = self._database.insert(table, columns, new_only, number)
            while first + number <= len(rows):
                part = rows[first : first + number]
                self._cursor.execute(statement, list(chain.from_iterable(part)))
                inserted += self._cursor.rowcount
                first += number
        return inserted

    def _execute(self, statement: str, parameters: dict[str, Any]) -> None:
        sql, asks_now = self._database.rendered(statement)
        for name, value in parameters.items():
            if type(value) is list:
                parameters[name] = self.dialect.array(value)
        if asks_now:
            parameters["ledger_now"] = self._database.bound_now()
        self._cursor.execute(sql, parameters)


class Database:
    """Runs transactions, again where that can help, and turns errors into ours.

    `ledger_clock` stands in for the database's own clock. Locks held by others and lost
    connections are tried again for `patience` seconds. Safe for threads.
    """

    def __init__(self, driver: Driver, ledger_clock: Clock | None, patience: float) -> None:
        self.driver = driver
        self._ledger_clock = ledger_clock
        self._patience = patience
        self._clock = SystemClock()
        self._rendered: dict[str, tuple[str, bool]] = {}
        self._records: dict[str, Any] = {}
        self._inserts: dict[tuple[str, tuple[str, ...], bool, int], str] = {}
        self._pool = QueuePool(
            driver.connect,
            pool_size=_CONNECTIONS,
            max_overflow=0,
            timeout=patience,
            # A transaction that fails is rolled back here; the others leave nothing behind.
            reset_on_return=None,
        )

    def write(self, work: Callable[[Transaction], T]) -> T:
        """`work` in one transaction that writes."""
        return self._try(work, self.driver.dialect.begin_write)

    def read(self, work: Callable[[Transaction], T]) -> T:
        """`work` in one transaction that reads: on SQLite one snapshot."""
        return self._try(work, "BEGIN")

    def single(self, work: Callable[[Transaction], T]) -> T:
        """`work` that is one statement, a transaction in itself."""
        return self._try(work, None)

    def migrate(self, work: Callable[[Transaction, Connection], None]) -> None:
        """`work` in one transaction that writes, on a connection that Core knows too."""
        # Made only for this: it loads a dialect, which the verbs do without.
        engine = create_engine(
            self.driver.engine_url,
            pool=self._pool,
            hide_parameters=True,
            **self.driver.engine_options,
        )

        def attempt() -> None:
            with engine.connect() as core:
                self._transact(
                    core.connection, lambda tx: work(tx, core), self.driver.dialect.begin_write
                )

        self._persist(attempt)

    def close(self) -> None:
        self._pool.dispose()

    def rendered(self, statement: str) -> tuple[str, bool]:
        """The statement as the driver takes it, and whether the clock is a parameter."""
        known = self._rendered.get(statement)
        if known is None:
            bound = self._ledger_clock is not None
            sql = self.driver.dialect.render(statement, bound_now=bound)
            known = self._rendered[statement] = sql, bound and "$now" in statement
        return known

    def insert(self, table: str, columns: tuple[str, ...], new_only: bool, number: int = 1) -> str:
        """The dialect's statement, made once."""
        which = table, columns, new_only, number
        known = self._inserts.get(which)
        if known is None:
            known = self.driver.dialect.insert(table, columns, new_only=new_only, number=number)
            self._inserts[which] = known
        return known

    def record(self, statement: str, description: Sequence[Sequence[Any]]) -> Any:
        """A type for what the statement brings."""
        if statement not in self._records:
            names = [column[0] for column in description]
            self._records[statement] = namedtuple("Record", names)
        return self._records[statement]

    def bound_now(self) -> int:
        """What the clock that stands in for the database's shows, in milliseconds."""
        assert self._ledger_clock is not None
        return round(self._ledger_clock.now() * 1000)

    def _try(self, work: Callable[[Transaction], T], begin: str | None) -> T:
        def attempt() -> T:
            connection = self._pool.connect()
            try:
                return self._transact(connection, work, begin)
            finally:
                connection.close()

        return self._persist(attempt)

    def _transact(
        self,
        connection: PoolProxiedConnection,
        work: Callable[[Transaction], T],
        begin: str | None,
    ) -> T:
        try:
            tx = Transaction(self, connection)
            begin = self.driver.opening(connection, begin)
            if begin is not None:
                self._begin(tx, begin)
                if begin == self.driver.dialect.begin_write and self.driver.emptied(connection):
                    connection.rollback()
                    self._begin(tx, begin)
            answer = work(tx)
            if begin is not None:
                connection.commit()
            return answer
        except BaseException as error:
            self._abandon(connection, error)
            raise

    def _begin(self, tx: Transaction, statement: str) -> None:
        """Begin, waiting for whoever holds SQLite's only lock.

        At random intervals, shorter than a transaction takes: SQLite's own wait doubles its
        pauses, so that whoever came last got the lock, and one process of four all the work.
        """
        give_up = None
        while True:
            try:
                return tx.begin(statement)
            except self.driver.error as error:
                now = self._clock.monotonic()
                give_up = give_up or now + self._patience
                if not self.driver.is_locked(error) or now > give_up:
                    raise
            threading.Event().wait(_LOCK_PAUSE * random_fraction())

    def _abandon(self, connection: PoolProxiedConnection, error: BaseException) -> None:
        """Undo what was begun; a connection that is of no more use is not kept."""
        # Core has thrown away a connection that it saw breaking.
        if not connection.is_valid:
            return
        try:
            connection.rollback()
        except self.driver.error:
            connection.invalidate()
        else:
            if self.driver.misplaced(error):
                connection.invalidate()

    def _persist(self, attempt: Callable[[], T]) -> T:
        give_up = self._clock.monotonic() + self._patience
        while True:
            try:
                return attempt()
            except Repeat:
                continue
            except sa_exc.TimeoutError:
                raise LedgerUnreachable(
                    f"this process had no connection to the ledger {self.driver.url} free "
                    f"for {self._patience:g} s",
                    hint="see whether the database is overloaded",
                ) from None
            except sa_exc.DBAPIError as error:
                # Its own text holds the statement and is not for people.
                verdict = self.driver.judge(error.orig or error)
            except self.driver.error as error:
                verdict = self.driver.judge(error)
            if verdict.pause is None or self._clock.monotonic() > give_up:
                raise verdict.error
            threading.Event().wait(verdict.pause)
