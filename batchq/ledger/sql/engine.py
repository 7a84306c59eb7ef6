"""The database behind the SQL ledger: its connections, transactions and second tries.

SQLAlchemy pools the connections and wraps the drivers; the statements reach them as
`statements` writes them, since building each one anew costs more than SQLite takes to
run it. Drivers are in autocommit mode and a transaction starts with its own BEGIN:
IMMEDIATE on SQLite, where a deferred one fails when it becomes a writer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection, create_engine
from sqlalchemy import exc as sa_exc
from sqlalchemy.pool import QueuePool

from batchq.clock import Clock, SystemClock
from batchq.errors import LedgerUnreachable
from batchq.ledger.sql.dialect import Dialect
from batchq.ledger.sql.verdict import Verdict

__all__ = ["Database", "Driver", "Repeat", "Transaction"]

T = TypeVar("T")

_CONNECTIONS = 2
"""One for the pipeline and one for the heartbeat, so that a fleet fits on one server."""


class Repeat(Exception):
    """Another transaction came between: run this one again from its start."""


class Driver(Protocol):
    """What `sqlite` and `postgresql` say of themselves."""

    dialect: Dialect
    engine_url: str
    url: str

    def connect(self) -> Any:
        """A new connection of the driver, in autocommit mode."""
        ...

    def judge(self, error: BaseException) -> Verdict:
        """What an error of the driver means."""
        ...


class Transaction:
    """Statements on one connection, between a BEGIN and a COMMIT or each for itself.

    Parameters that are lists become arrays.
    """

    def __init__(self, database: Database, connection: Connection) -> None:
        self.connection = connection
        self.dialect = database.driver.dialect
        self._database = database

    def rows(self, statement: str, **parameters: Any) -> Sequence[Any]:
        """What a query or a RETURNING brings, as tuples."""
        rows: Sequence[Any] = self._execute(statement, parameters).fetchall()
        return rows

    def row(self, statement: str, **parameters: Any) -> Any:
        """The first row, or none."""
        return self._execute(statement, parameters).first()

    def run(self, statement: str, **parameters: Any) -> int:
        """How many rows it changed."""
        return int(self._execute(statement, parameters).rowcount)

    def run_each(self, statement: str, many: Sequence[dict[str, Any]]) -> None:
        """The statement once for each of `many` parameters."""
        if many:
            sql, _ = self._database.rendered(statement)
            self.connection.exec_driver_sql(sql, list(many))

    def insert(
        self,
        table: str,
        columns: Sequence[str],
        rows: Sequence[tuple[Any, ...]],
        *,
        new_only: bool = False,
    ) -> int:
        """Insert many rows, with `new_only` those not known yet; how many there were."""
        if not rows:
            return 0
        statement = self._database.insert(table, tuple(columns), new_only)
        return self.connection.exec_driver_sql(statement, self.dialect.rows(rows)).rowcount

    def _execute(self, statement: str, parameters: dict[str, Any]) -> Any:
        sql, asks_now = self._database.rendered(statement)
        for name, value in parameters.items():
            if type(value) is list:
                parameters[name] = self.dialect.array(value)
        if asks_now:
            parameters["ledger_now"] = self._database.set_now()
        return self.connection.exec_driver_sql(sql, parameters)


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
        self._inserts: dict[tuple[str, tuple[str, ...], bool], str] = {}
        options = {"use_native_hstore": False} if driver.dialect.name == "postgresql" else {}
        self._engine = create_engine(
            driver.engine_url,
            creator=driver.connect,
            poolclass=QueuePool,
            pool_size=_CONNECTIONS,
            max_overflow=0,
            pool_timeout=patience,
            hide_parameters=True,
            **options,
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

    def close(self) -> None:
        self._engine.dispose()

    def rendered(self, statement: str) -> tuple[str, bool]:
        """The statement as the driver takes it, and whether the clock is a parameter."""
        known = self._rendered.get(statement)
        if known is None:
            bound = self._ledger_clock is not None
            sql = self.driver.dialect.render(statement, bound_now=bound)
            known = self._rendered[statement] = sql, bound and "$now" in statement
        return known

    def insert(self, table: str, columns: tuple[str, ...], new_only: bool) -> str:
        """The dialect's statement, made once."""
        known = self._inserts.get((table, columns, new_only))
        if known is None:
            known = self.driver.dialect.insert(table, columns, new_only=new_only)
            self._inserts[table, columns, new_only] = known
        return known

    def set_now(self) -> int:
        """What the clock that stands in for the database's shows, in milliseconds."""
        assert self._ledger_clock is not None
        return round(self._ledger_clock.now() * 1000)

    def _try(self, work: Callable[[Transaction], T], begin: str | None) -> T:
        give_up = self._clock.monotonic() + self._patience
        while True:
            try:
                with self._engine.connect() as connection:
                    if begin is not None:
                        connection.exec_driver_sql(begin)
                    answer = work(Transaction(self, connection))
                    connection.commit()
                    return answer
            except Repeat:
                continue
            except sa_exc.TimeoutError:
                # Every connection of this process is in use, and waited for long enough.
                raise LedgerUnreachable(
                    f"no connection to the ledger {self.driver.url} became free "
                    f"in {self._patience:g} s",
                    hint="see whether the database is overloaded",
                ) from None
            except sa_exc.DBAPIError as error:
                # The driver's error is not chained: SQLAlchemy's text holds the statement.
                verdict = self.driver.judge(error.orig or error)
            if verdict.pause is None or self._clock.monotonic() > give_up:
                raise verdict.error
            threading.Event().wait(verdict.pause)
