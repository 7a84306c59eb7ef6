"""`SqlLedger`: the verbs, each one transaction."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from batchq.clock import Clock, SystemClock, random_hex
from batchq.errors import LedgerUnreachable, UsageError
from batchq.item import NewItem
from batchq.lease import Failure, Held, Lease, ReleaseReason
from batchq.ledger.contact import Contact
from batchq.ledger.records import (
    Committed,
    CommittedResult,
    Counts,
    DeadLetter,
    Enqueued,
    Failed,
    ItemState,
    Policy,
    Reaped,
    Role,
    Run,
    Tallies,
    WorkerStatus,
)
from batchq.ledger.refusals import ended_name, require_ttl
from batchq.ledger.sql import (
    enqueueing,
    familiar,
    fresh,
    holding,
    hot,
    hot_postgresql,
    hot_sqlite,
    reading,
    upgrade,
)
from batchq.ledger.sql import statements as sql
from batchq.ledger.sql.dialect import POSTGRESQL
from batchq.ledger.sql.driver import Driver
from batchq.ledger.sql.engine import Database, Transaction
from batchq.ledger.sql.process import Process, milliseconds, plain_text
from batchq.ledger.sql.reaping import reap
from batchq.ledger.sql.sqlite import Sqlite
from batchq.result import Result, canonical_json, slug

__all__ = ["SqlLedger"]

T = TypeVar("T")

_Shortcut = Callable[[str, int, Sequence[NewItem]], Callable[[Transaction], Enqueued]]
"""A batch in one statement, where it is as the shortcut expects."""


class SqlLedger:
    """The ledger in a SQL database. Safe for threads.

    `url` is `sqlite:///path` or `postgresql://...` with libpq's parameters. `clock` gives
    the monotonic time against which a reaper checks its contact; `ledger_clock`, for
    tests, stands in for the database's own clock. Locks of others and lost connections
    are waited out for `patience` seconds.
    """

    def __init__(
        self,
        url: str,
        *,
        policy: Policy | None = None,
        clock: Clock | None = None,
        ledger_clock: Clock | None = None,
        patience: float = 10.0,
    ) -> None:
        driver = _driver(url)
        self.url = driver.url
        self._database = Database(driver, ledger_clock, patience)
        self._on_postgresql = driver.dialect is POSTGRESQL
        self._policy = policy or Policy()
        self._clock = clock or SystemClock()
        self._contact = Contact()
        self._cursors: dict[str, int] = {}
        self._last_tokens: dict[str, str | None] = {}
        self._due: dict[tuple[str, bool], int] = {}
        # By enqueuer, as its last batch was: the next one most likely is like it.
        self._shortcuts: dict[str, _Shortcut | None] = {}

    # -- schema and runs ---------------------------------------------------------

    def initialise(self) -> None:
        """Create or upgrade the schema. Repeating it changes nothing."""
        upgrade.initialise(self._database)

    def check(self) -> None:
        """Raise LedgerNotInitialised unless the schema is the one this code speaks."""
        self._read(lambda tx: upgrade.check(tx, self.url))

    def create_run(
        self, name: str, processing_version: str, manifest: Mapping[str, Any], layout: str
    ) -> Run:
        prefix = f"{slug(name)}-{random_hex(64)}"
        text = canonical_json(dict(manifest)).decode()

        def work(tx: Transaction) -> Run:
            run = reading.find_run(tx, name)
            if run is None:
                tx.run(
                    sql.CREATE_RUN,
                    name=name,
                    prefix=prefix,
                    processing_version=processing_version,
                    manifest=text,
                    layout=layout,
                )
                run = reading.find_run(tx, name)
            assert run is not None
            return run

        return self._write(work)

    def find_run(self, name: str) -> Run | None:
        return self._single(lambda tx: reading.find_run(tx, name))

    def run_names(self, limit: int) -> list[str]:
        return self._single(lambda tx: reading.run_names(tx, limit))

    # -- processes ---------------------------------------------------------------

    def register(
        self, run: Run, worker: str, ttl: float, role: Role, about: Mapping[str, Any]
    ) -> None:
        require_ttl(self._policy, ttl)
        said = plain_text(json.dumps(about))
        rows = self._single(
            lambda tx: tx.rows(
                sql.REGISTER,
                run=run.id,
                worker=worker,
                ttl=milliseconds(ttl),
                role=role.value,
                about=said,
            )
        )
        if rows:
            self._last_tokens[worker] = None
            self._seen(rows[0][0])
        elif not self.beat(worker, ttl):
            raise ended_name(worker)

    def beat(self, worker: str, ttl: float) -> bool:
        require_ttl(self._policy, ttl)
        rows = self._single(lambda tx: tx.rows(sql.BEAT, worker=worker, ttl=milliseconds(ttl)))
        if rows:
            self._seen(rows[0][0])
        return bool(rows)

    def stop(self, worker: str, reason: str) -> None:
        self._write(lambda tx: holding.stop(tx, self._policy, worker, plain_text(reason)))

    def reap(self, worker: str, limit: int) -> Reaped:
        def work(tx: Transaction) -> Reaped:
            process = Process(tx, worker)
            self._seen(process.now)
            if not self._contact.lasted(process.ttl):
                return Reaped()
            return reap(process, self._policy, self._contact, limit)

        return self._write(work)

    # -- items -------------------------------------------------------------------

    def enqueue(
        self, worker: str, batch: int, items: Sequence[NewItem], *, replace: bool = False
    ) -> Enqueued:
        def whole(tx: Transaction) -> Enqueued:
            return enqueueing.enqueue(tx, self._policy, worker, batch, items, replace=replace)

        if not self._on_postgresql:
            return self._write(whole)
        if shortcut := self._shortcuts.get(worker, fresh.enqueue):
            with suppress(hot.Unusual):
                return self._single(shortcut(worker, batch, items))
        answer = self._write(whole)
        if answer.known == len(items):
            self._shortcuts[worker] = familiar.enqueue
        else:
            self._shortcuts[worker] = fresh.enqueue if answer.new == len(items) else None
        return answer

    def claim(self, worker: str, token: str, limit: int, *, alone: bool) -> Lease | None:
        due = self._due.get((worker, alone), 0)
        cursor = hot.Cursor(self._cursors.get(worker, 0), due)
        last = self._last_tokens.get(worker, "")
        most = hot.most_losses(alone)

        def claim(tx: Transaction) -> hot.Claimed:
            if self._on_postgresql:
                return hot_postgresql.claim(tx, worker, token, limit, most, cursor, last)
            return hot_sqlite.claim(tx, worker, token, limit, most, cursor)

        try:
            claimed = self._hot(claim)
        except hot.Unusual:
            rest = partial(holding.claim, alone=alone, cursor=cursor, last=last)
            claimed = self._write(lambda tx: rest(tx, self._policy, worker, token, limit))
        if claimed.rows:
            self._last_tokens[worker] = token
        self._cursors[worker] = claimed.cursor.ready
        # Who may not claim alone does not see all that is due.
        self._due[worker, alone] = claimed.cursor.due
        self._seen(claimed.now)
        return claimed.lease(token)

    def commit(self, worker: str, results: Sequence[Result]) -> Committed:
        commit = hot_postgresql.commit if self._on_postgresql else hot_sqlite.commit
        try:
            return self._hot(commit(worker, hot.in_order(results)))
        except hot.Unusual:
            return self._write(lambda tx: holding.commit(tx, worker, results))

    def fail(self, worker: str, failures: Sequence[Failure]) -> Failed:
        return self._write(lambda tx: holding.fail(tx, self._policy, worker, failures))

    def release(self, worker: str, held: Sequence[Held], reason: ReleaseReason) -> int:
        return self._write(lambda tx: holding.release(tx, self._policy, worker, held, reason))

    def retry(
        self, worker: str, run: Run, *, source_ids: Sequence[str] = (), cause: str | None = None
    ) -> int:
        """Send dead letters back; how many. All of a run go page by page.

        Each page is a transaction, so that a million of them keep nobody waiting.
        """
        if source_ids:
            return self._write(
                lambda tx: enqueueing.retry_named(
                    Process(tx, worker), self._policy, run, source_ids, cause
                )
            )
        sent_back = 0
        after: int | None = 0
        while after is not None:
            page = partial(self._retry_page, worker, run, after, cause)
            number, after = self._write(page)
            sent_back += number
        return sent_back

    def _retry_page(
        self, worker: str, run: Run, after: int, cause: str | None, tx: Transaction
    ) -> tuple[int, int | None]:
        return enqueueing.retry_page(Process(tx, worker), self._policy, run, after, cause)

    def reopen(self, worker: str, run: Run, broken: Sequence[CommittedResult]) -> int:
        return self._write(
            lambda tx: enqueueing.reopen(Process(tx, worker), self._policy, run, broken)
        )

    # -- reading -----------------------------------------------------------------

    def counts(self, run: Run) -> Counts:
        return self._single(lambda tx: reading.counts(tx, run))

    def recount(self, run: Run) -> Tallies:
        return self._read(lambda tx: reading.recount(tx, run))

    def duplicates(self, run: Run) -> int | None:
        return self._read(lambda tx: reading.duplicates(tx, run))

    def workers(self, run: Run) -> list[WorkerStatus]:
        return self._single(lambda tx: reading.workers(tx, run))

    def lookup(self, run: Run, source_id: str) -> ItemState | None:
        return self._read(lambda tx: reading.lookup(tx, run, source_id))

    def states(self, run: Run, identities: Sequence[tuple[str, str]]) -> list[ItemState | None]:
        return self._read(lambda tx: reading.states(tx, run, identities))

    def results(
        self, run: Run, after: int, limit: int, *, current_only: bool = False
    ) -> list[CommittedResult]:
        return self._single(lambda tx: reading.results(tx, run, after, limit, current_only))

    def dead_letters(self, run: Run, after: int, limit: int) -> list[DeadLetter]:
        return self._single(lambda tx: reading.dead_letters(tx, run, after, limit))

    def close(self) -> None:
        self._database.close()

    # -- below the verbs ---------------------------------------------------------

    def _write(self, work: Callable[[Transaction], T]) -> T:
        return self._in_contact(self._database.write, work)

    def _hot(self, work: Callable[[Transaction], T]) -> T:
        return self._single(work) if self._on_postgresql else self._write(work)

    def _read(self, work: Callable[[Transaction], T]) -> T:
        return self._in_contact(self._database.read, work)

    def _single(self, work: Callable[[Transaction], T]) -> T:
        return self._in_contact(self._database.single, work)

    def _in_contact(
        self,
        run: Callable[[Callable[[Transaction], T]], T],
        work: Callable[[Transaction], T],
    ) -> T:
        try:
            return run(work)
        except LedgerUnreachable:
            self._contact.lost()
            raise

    def _seen(self, now: int) -> None:
        self._contact.seen(self._clock.monotonic(), now / 1000)


def _driver(url: str) -> Driver:
    if url.startswith("sqlite:"):
        return Sqlite(url)
    if url.startswith(("postgresql:", "postgresql+psycopg:", "postgres:")):
        # Its import costs more than all of a SQLite ledger's start.
        from batchq.ledger.sql.postgresql import Postgresql

        return Postgresql(url)
    raise UsageError(
        f"no SQL ledger is addressed as {url.partition(':')[0]}:",
        hint="write sqlite:///path or postgresql://user@host/database",
    )
