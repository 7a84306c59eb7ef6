"""The rows of the in-memory reference, and how each state change moves them.

`memory` says what each verb does; this module, what it means for an item to be
delayed, charged, lost or superseded. Searches go through every row.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from batchq.clock import Clock
from batchq.item import Item, NewItem
from batchq.lease import ReleaseReason
from batchq.ledger.records import (
    COUNTED,
    ISOLATED_LOSSES,
    CommittedResult,
    DeadLetter,
    Enqueued,
    ItemState,
    Policy,
    Role,
    Run,
    State,
    WorkerState,
    lease_cap,
)
from batchq.ledger.refusals import (
    NAMED_TWICE,
    WORKER_LOST,
    died_with_it,
    other_root,
    released_often,
    stranger,
)
from batchq.result import Result

__all__ = ["Process", "Row", "Tables"]


@dataclass(slots=True)
class Row:
    """An item and what its state keeps of it. A completed one keeps its last token."""

    id: int
    run: int
    new: NewItem
    locator: str
    state: State = State.READY
    attempt: int = 0
    generation: int = 1
    failures: int = 0
    losses: int = 0
    lone_losses: int = 0
    releases: int = 0
    not_before: float = 0.0
    holder: str = ""
    token: str = ""
    claimed_at: float = 0.0
    holder_committed: int = 0
    result: CommittedResult | None = None
    dead_letter: DeadLetter | None = None

    def begin_anew(self) -> None:
        self.generation += 1
        self.failures = self.losses = self.lone_losses = self.releases = 0

    def held_under(self, token: str) -> bool:
        return self.state is State.LEASED and self.token == token

    def item(self) -> Item:
        return Item(
            id=self.id,
            source_id=self.new.source_id,
            source_version=self.new.source_version,
            size=self.new.size,
            locator=self.locator,
            attempt=self.attempt,
            generation=self.generation,
            failures=self.failures,
            losses=self.losses,
        )

    def item_state(self) -> ItemState:
        new = self.new
        return ItemState(
            self.id, new.source_id, new.source_version, self.locator, self.state, self.result
        )


@dataclass(slots=True)
class Document:
    root: str
    current: Row
    named_by: str


@dataclass(slots=True)
class Process:
    """A registered process, with the tallies of what it moved."""

    name: str
    run: int
    role: Role
    about: Mapping[str, Any]
    ttl: float
    registered_at: float
    beat_at: float
    expires_at: float
    state: WorkerState = WorkerState.LIVE
    stop_reason: str | None = None
    tally: Counter[str] = field(default_factory=Counter)
    committed: int = 0
    cursor: int = 0
    last_token: str = ""
    lost_alone: bool = False
    batch: int = 0
    answer: Enqueued = field(default_factory=Enqueued)

    def alive(self, now: float) -> bool:
        return self.state is WorkerState.LIVE and self.expires_at > now

    def be_lost(self, now: float, held: int) -> None:
        self.state = WorkerState.REAPED
        # Decided now: the last page of a large lease is no lone loss.
        self.lost_alone = held == 1
        self.stop_reason = f"no sign of life for {int(now - self.beat_at)} s, items lost: {held}"


class Tables:
    """What all clients of one in-memory ledger share."""

    def __init__(self, policy: Policy, clock: Clock) -> None:
        self.policy = policy
        self.clock = clock
        self.lock = threading.RLock()
        self.runs: dict[str, Run] = {}
        self.items: dict[int, Row] = {}
        self.versions: dict[tuple[int, str, str], Row] = {}
        self.documents: dict[tuple[int, str], Document] = {}
        self.processes: dict[str, Process] = {}
        self.fenced: set[tuple[int, str]] = set()
        self.history: list[CommittedResult] = []

    # -- finding -----------------------------------------------------------------

    def now(self) -> float:
        return self.clock.now()

    def process(self, name: str) -> Process:
        process = self.processes.get(name)
        if process is None:
            raise stranger(name)
        return process

    def of_run(self, run_id: int) -> list[Process]:
        return [process for process in self.processes.values() if process.run == run_id]

    def rows(self, run_id: int, state: State | None = None) -> list[Row]:
        """By id: rows are only ever added, and numbered as they come."""
        rows = self.items.values()
        return [row for row in rows if row.run == run_id and state in (None, row.state)]

    def is_current(self, row: Row) -> bool:
        return self.documents[row.run, row.new.source_id].current is row

    def held_by(self, process: Process) -> list[Row]:
        return [row for row in self.rows(process.run, State.LEASED) if row.holder == process.name]

    def choose(self, process: Process, now: float, limit: int, *, alone: bool) -> list[Row]:
        """What the process's next claim takes; moves its cursor."""
        due = [
            row
            for row in self.rows(process.run, State.DELAYED)
            if row.not_before <= now and (alone or row.losses < ISOLATED_LOSSES)
        ]
        due.sort(key=lambda row: (row.not_before, row.id))
        if due and due[0].losses:
            cap = lease_cap(due[0].losses, limit)
            return [row for row in due if row.losses == due[0].losses][:cap]
        due = [row for row in due if not row.losses][:limit]
        ready = self.rows(process.run, State.READY)
        ready.sort(key=lambda row: (row.id <= process.cursor, row.id))
        ready = ready[: limit - len(due)]
        if ready:
            process.cursor = ready[-1].id
        return due + ready

    # -- taking up ---------------------------------------------------------------

    def take_up(
        self, process: Process, new: NewItem, replace: bool, answer: Counter[str]
    ) -> str | None:
        """Enqueue one item and count it in `answer`; why it was rejected, or none."""
        document = self.documents.get((process.run, new.source_id))
        if document is not None and document.named_by == process.name:
            return NAMED_TWICE
        row = self.versions.get((process.run, new.source_id, new.source_version))
        if document is None:
            row = self.create(process, new)
            answer["new"] += 1
            self.documents[process.run, new.source_id] = Document(new.root, row, process.name)
            return None
        document.named_by = process.name
        outdated = document.current if document.current is not row else None
        if outdated and document.root != new.root and not replace:
            return other_root(document.root, new.root)
        if row is None:
            row = self.create(process, new)
            answer["new"] += 1
        else:
            self._name_again(process, row, new)
            answer["known"] += 1
        if outdated:
            if outdated.state is not State.COMPLETED:
                self.move(process, outdated, State.SUPERSEDED)
                answer["superseded"] += 1
            document.root, document.current = new.root, row
        return None

    def _name_again(self, process: Process, row: Row, new: NewItem) -> None:
        process.tally["known"] += 1
        if row.state is not State.COMPLETED:
            row.locator = new.locator
        if row.state is State.SUPERSEDED:
            row.begin_anew()
            self.delay(process, row)

    # -- moving: the process that moves a row keeps count of it ---------------------

    def move(self, process: Process, row: Row, state: State) -> None:
        for name in COUNTED[row.state]:
            process.tally[name] -= 1
        for name in COUNTED[state]:
            process.tally[name] += 1
        row.state = state

    def delay(self, process: Process, row: Row, seconds: float = 0.0) -> None:
        self.move(process, row, State.DELAYED)
        row.not_before = self.now() + seconds

    def bury(self, process: Process, row: Row, cause: str, error: str) -> None:
        self.move(process, row, State.DEAD_LETTERED)
        row.dead_letter = DeadLetter(
            item_id=row.id,
            source_id=row.new.source_id,
            source_version=row.new.source_version,
            cause=cause,
            error=error,
            attempt=row.attempt,
            generation=row.generation,
            at=self.now(),
        )

    def create(self, process: Process, new: NewItem) -> Row:
        row = Row(len(self.items) + 1, process.run, new, new.locator)
        self.items[row.id] = row
        self.versions[process.run, new.source_id, new.source_version] = row
        for name in COUNTED[State.READY]:
            process.tally[name] += 1
        return row

    def lease(self, process: Process, row: Row, token: str) -> None:
        self.move(process, row, State.LEASED)
        process.tally["attempts"] += 1
        row.attempt += 1
        row.holder, row.token, row.claimed_at = process.name, token, self.now()
        row.holder_committed = process.committed

    def complete(self, process: Process, row: Row, result: Result) -> None:
        self.move(process, row, State.COMPLETED)
        process.committed += 1
        for name in ("empty", "adopted", "divergent"):
            process.tally[name] += getattr(result, name)
        row.result = CommittedResult(
            item_id=row.id,
            source_id=row.new.source_id,
            source_version=row.new.source_version,
            size=row.new.size,
            stored=result.stored,
            attempt=row.attempt,
            generation=row.generation,
            empty=result.empty,
            adopted=result.adopted,
            worker=row.holder,
            committed_at=self.now(),
        )

    def reopen(self, process: Process, row: Row, result: CommittedResult) -> None:
        process.tally["empty"] -= result.empty
        self.history.append(result)
        row.result = None
        row.begin_anew()
        self.delay(process, row)

    def charge(
        self, process: Process, row: Row, cause: str, error: str, *, final: bool = False
    ) -> None:
        process.tally["failures"] += 1
        row.failures += 1
        if final or row.failures >= self.policy.max_failures:
            self.bury(process, row, cause, error)
        else:
            self.delay(process, row, self.policy.delay(row.failures))

    def release(self, process: Process, row: Row, reason: ReleaseReason) -> None:
        if reason is ReleaseReason.DRAIN:
            process.tally["interrupted"] += 1
            self.delay(process, row)
        elif reason is ReleaseReason.BROKEN_OBJECT:
            row.generation += 1
            self.delay(process, row)
        else:
            row.releases += 1
            others_committed = self.process(row.holder).committed > row.holder_committed
            if row.releases >= self.policy.max_releases and others_committed:
                error = released_often(row.releases)
                row.releases = 0
                self.charge(process, row, reason.value, error)
            else:
                self.delay(process, row, self.policy.delay(row.releases))

    def lose(self, reaper: Process, row: Row, *, alone: bool) -> None:
        reaper.tally["lost_leases"] += 1
        row.losses += 1
        row.lone_losses += alone
        if row.lone_losses >= self.policy.max_losses:
            self.bury(reaper, row, WORKER_LOST, died_with_it(row.lone_losses))
        else:
            self.delay(reaper, row)
