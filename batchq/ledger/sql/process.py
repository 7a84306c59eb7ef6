"""A registered process within one transaction, and the items that it moves.

Its row is locked before any item's, and the tallies of what it moves are written to
that row in the same transaction: no two processes write one row.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from batchq.lease import ReleaseReason
from batchq.ledger.records import COUNTED, Policy, State
from batchq.ledger.refusals import WORKER_LOST, died_with_it, released_often, stranger
from batchq.ledger.sql import statements as sql
from batchq.ledger.sql.engine import Transaction
from batchq.ledger.sql.names import COUNTERS, STATE_TABLES

__all__ = ["Moves", "Process", "Row", "milliseconds", "plain_text", "settle"]


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def plain_text(text: str) -> str:
    """`text` without what a database cannot store: NUL and lone surrogates."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()


class Row(NamedTuple):
    """What every state keeps of an item."""

    id: int
    attempt: int
    generation: int
    failures: int
    losses: int
    lone_losses: int
    releases: int

    def begin_anew(self) -> Row:
        return Row(self.id, self.attempt, self.generation + 1, 0, 0, 0, 0)


class Process:
    """The row of a registered process, locked until the transaction ends."""

    def __init__(self, tx: Transaction, name: str) -> None:
        """Raises WorkerReaped if no process is registered under `name`."""
        row = tx.record(sql.PROCESS, worker=name)
        if row is None:
            raise stranger(name)
        self.tx = tx
        self.name = name
        self.id: int = row.id
        self.run: int = row.run_id
        self.state: str = row.state
        self.ttl: float = row.ttl / 1000
        self.claims_since: int = row.claims_since
        self.last_token: str | None = row.last_token
        self.last_batch: int = row.last_batch
        self.last_answer: str | None = row.last_answer
        self.committed: int = row.committed
        self.now: int = row.now
        # What is to be added to columns of its row: tallies, and `committed`.
        self.tally: Counter[str] = Counter()

    def moved(self, source: State | None, target: State | None, number: int) -> None:
        """Count items that went from one state to another; none is outside the run."""
        for name in COUNTED[source] if source else ():
            self.tally[name] -= number
        for name in COUNTED[target] if target else ():
            self.tally[name] += number

    def save(self, **columns: Any) -> None:
        """Write the tallies, and `columns` as given.

        A process whose tallies were folded into the run's has some of its own again.
        """
        changes = {name: by for name, by in self.tally.items() if by}
        settings = [f"{name} = {name} + :{name}" for name in changes]
        settings += [f"{name} = :{name}" for name in columns]
        if changes:
            settings.append("settled = false")
        if settings:
            self.tx.run(
                f"UPDATE workers SET {', '.join(settings)} WHERE id = :worker",
                worker=self.id,
                **changes,
                **columns,
            )
        self.tally.clear()


def settle(tx: Transaction, run: int, worker: int) -> None:
    """Fold the tallies of a process that has ended into its run's."""
    tx.run(sql.FOLD_INTO_RUN, run=run, worker=worker)
    tx.run(sql.SETTLE, worker=worker)


class Moves:
    """Items on their way out of one state: collected first, then moved together."""

    def __init__(self, process: Process, source: State, policy: Policy) -> None:
        self._process = process
        self._source = source
        self._policy = policy
        self._delayed: list[tuple[Row, int]] = []
        self._buried: list[tuple[Row, str, str]] = []

    @property
    def delayed(self) -> list[int]:
        """Ids of the items that will be delayed."""
        return [row.id for row, _ in self._delayed]

    @property
    def buried(self) -> list[int]:
        """Ids of the items that will be dead letters."""
        return [row.id for row, _, _ in self._buried]

    def delay(self, row: Row, seconds: float = 0.0) -> None:
        self._delayed.append((row, self._process.now + milliseconds(seconds)))

    def bury(self, row: Row, cause: str, error: str) -> None:
        self._buried.append((row, plain_text(cause), plain_text(error)))

    def charge(self, row: Row, cause: str, error: str, *, final: bool = False) -> None:
        self._process.tally["failures"] += 1
        row = row._replace(failures=row.failures + 1)
        if final or row.failures >= self._policy.max_failures:
            self.bury(row, cause, error)
        else:
            self.delay(row, self._policy.delay(row.failures))

    def release(self, row: Row, reason: ReleaseReason, *, others_committed: bool) -> None:
        if reason is ReleaseReason.DRAIN:
            self._process.tally["interrupted"] += 1
            self.delay(row)
        elif reason is ReleaseReason.BROKEN_OBJECT:
            self.delay(row._replace(generation=row.generation + 1))
        elif row.releases + 1 >= self._policy.max_releases and others_committed:
            error = released_often(row.releases + 1)
            self.charge(row._replace(releases=0), reason.value, error)
        else:
            row = row._replace(releases=row.releases + 1)
            self.delay(row, self._policy.delay(row.releases))

    def lose(self, row: Row, *, alone: bool) -> None:
        self._process.tally["lost_leases"] += 1
        row = row._replace(losses=row.losses + 1, lone_losses=row.lone_losses + alone)
        if row.lone_losses >= self._policy.max_losses:
            self.bury(row, WORKER_LOST, died_with_it(row.lone_losses))
        else:
            self.delay(row)

    def save(self) -> None:
        """Move them, and count what was moved; the tallies are not written yet."""
        process, tx = self._process, self._process.tx
        ids = [*self.delayed, *self.buried]
        if not ids:
            return
        tx.run(sql.delete_from(STATE_TABLES[self._source]), run=process.run, ids=ids)
        delayed = [(process.run, *row, not_before) for row, not_before in self._delayed]
        tx.insert("delayed", ("run_id", "id", *COUNTERS, "not_before"), delayed)
        buried = [
            (process.run, *row, cause, error, process.now) for row, cause, error in self._buried
        ]
        tx.insert("dead_letters", ("run_id", "id", *COUNTERS, "cause", "error", "ended_at"), buried)
        process.moved(self._source, State.DELAYED, len(delayed))
        process.moved(self._source, State.DEAD_LETTERED, len(buried))
