"""The reference ledger: every verb as plainly as it can be said, in one process.

It defines what the other backends mean, and serves tests and rehearsals. Searches
go through every row, so it is for thousands of items, not millions.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from batchq.clock import Clock, SystemClock, random_hex
from batchq.errors import UsageError, WorkerReaped
from batchq.item import Item, NewItem
from batchq.lease import Failure, Held, Lease, ReleaseReason
from batchq.ledger.base import (
    ISOLATED_LOSSES,
    Committed,
    CommittedResult,
    Counts,
    DeadLetter,
    Enqueued,
    Failed,
    ItemState,
    Policy,
    Reaped,
    Rejection,
    Role,
    Run,
    State,
    Tallies,
    WorkerState,
    WorkerStatus,
    lease_cap,
)
from batchq.ledger.contact import Contact
from batchq.result import Result, slug

__all__ = ["MemoryLedger"]

_COUNTED = {
    State.READY: ("total", "ready"),
    State.DELAYED: ("total", "ready", "delayed"),
    State.LEASED: ("total", "leased"),
    State.COMPLETED: ("total", "completed"),
    State.DEAD_LETTERED: ("total", "dead_lettered"),
    State.SUPERSEDED: ("superseded",),
}


@dataclass(slots=True)
class _Row:
    """An item and what its state keeps of it."""

    id: int
    run: int
    source_id: str
    source_version: str
    size: int
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

    def item(self) -> Item:
        return Item(
            self.id,
            self.source_id,
            self.source_version,
            self.size,
            self.locator,
            self.attempt,
            self.generation,
            self.failures,
            self.losses,
        )


@dataclass(slots=True)
class _Document:
    root: str
    current: _Row


@dataclass(slots=True)
class _Process:
    """A registered process, with the tallies of what it moved."""

    name: str
    run: int
    role: Role
    ttl: float
    about: Mapping[str, Any]
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
    named: set[str] = field(default_factory=set)

    def alive(self, now: float) -> bool:
        return self.state is WorkerState.LIVE and self.expires_at > now


@dataclass(slots=True)
class _Tables:
    """What all clients of one ledger share."""

    clock: Clock
    lock: threading.RLock = field(default_factory=threading.RLock)
    runs: dict[str, Run] = field(default_factory=dict)
    rows: dict[int, _Row] = field(default_factory=dict)
    versions: dict[tuple[int, str, str], _Row] = field(default_factory=dict)
    documents: dict[tuple[int, str], _Document] = field(default_factory=dict)
    processes: dict[str, _Process] = field(default_factory=dict)
    fenced: set[tuple[int, str]] = field(default_factory=set)


class MemoryLedger:
    """A ledger in this process's memory. Safe for threads.

    `clock.now` is the ledger's clock and `clock.monotonic` this client's; `client`
    gives further clients of the same ledger, each with its own contact.
    """

    url = "memory:"

    def __init__(self, *, policy: Policy | None = None, clock: Clock | None = None) -> None:
        self._policy = policy or Policy()
        self._clock = clock or SystemClock()
        self._contact = Contact()
        self._tables = _Tables(self._clock)

    def client(self, clock: Clock | None = None) -> MemoryLedger:
        """Another client of this ledger, as another process would be.

        `clock.monotonic` is that client's; the ledger's clock stays what it was.
        """
        other = MemoryLedger(policy=self._policy, clock=clock or self._clock)
        other._tables = self._tables
        return other

    # -- schema and runs ---------------------------------------------------------

    def initialise(self) -> None:
        """Memory has no schema."""

    def check(self) -> None:
        """Memory has no schema."""

    def create_run(
        self, name: str, processing_version: str, manifest: Mapping[str, Any], layout: str
    ) -> Run:
        with self._tables.lock:
            run = self._tables.runs.get(name)
            if run is None:
                number = len(self._tables.runs) + 1
                prefix = f"{slug(name)}-{random_hex(64)}"
                run = Run(number, name, prefix, processing_version, dict(manifest), layout)
                self._tables.runs[name] = run
            return run

    def find_run(self, name: str) -> Run | None:
        with self._tables.lock:
            return self._tables.runs.get(name)

    # -- processes ---------------------------------------------------------------

    def register(
        self, run: Run, worker: str, ttl: float, role: Role, about: Mapping[str, Any]
    ) -> None:
        self._check_ttl(ttl)
        with self._tables.lock:
            now = self._now(contact=True)
            process = self._tables.processes.get(worker)
            if process is None:
                self._tables.processes[worker] = _Process(
                    worker, run.id, role, ttl, dict(about), now, now, now + ttl
                )
            elif not self.beat(worker, ttl):
                raise WorkerReaped(
                    f"the name {worker} belongs to a process that has ended",
                    hint="register under a new name",
                )

    def beat(self, worker: str, ttl: float) -> bool:
        self._check_ttl(ttl)
        with self._tables.lock:
            now = self._now(contact=True)
            process = self._tables.processes.get(worker)
            if process is None or process.state is not WorkerState.LIVE:
                return False
            process.ttl, process.beat_at, process.expires_at = ttl, now, now + ttl
            return True

    def stop(self, worker: str, reason: str) -> None:
        with self._tables.lock:
            process = self._tables.processes.get(worker)
            if process is None or process.state is not WorkerState.LIVE:
                return
            for row in self._held_by(process):
                self._release(process, row, ReleaseReason.DRAIN)
            process.state, process.stop_reason = WorkerState.STOPPED, reason

    def reap(self, worker: str, limit: int) -> Reaped:
        with self._tables.lock:
            now = self._now(contact=True)
            reaper = self._process(worker)
            if not self._contact.lasted(reaper.ttl):
                return Reaped()
            self._pull_back(reaper, now)
            names = self._bury(reaper, now)
            returned = dead_lettered = 0
            for process in self._processes(reaper.run):
                if process.state is not WorkerState.REAPED:
                    continue
                for row in self._held_by(process)[: limit - returned - dead_lettered]:
                    self._lose(reaper, row, alone=process.lost_alone)
                    dead_lettered += row.state is State.DEAD_LETTERED
                    returned += row.state is State.DELAYED
            return Reaped(names, returned, dead_lettered)

    def _pull_back(self, reaper: _Process, now: float) -> None:
        for process in self._processes(reaper.run):
            if self._contact.lasted(process.ttl):
                process.expires_at = min(process.expires_at, now + process.ttl)
        for row in self._rows(reaper.run, State.DELAYED):
            row.not_before = min(row.not_before, now + self._policy.max_backoff)

    def _bury(self, reaper: _Process, now: float) -> tuple[str, ...]:
        """Mark the dead. From here on their beats are refused."""
        names = []
        for process in self._processes(reaper.run):
            if process is reaper or process.state is not WorkerState.LIVE:
                continue
            if process.expires_at <= now and self._contact.lasted(process.ttl):
                process.state = WorkerState.REAPED
                # Decided now: a later page of a large lease is no lone loss.
                process.lost_alone = len(self._held_by(process)) == 1
                names.append(process.name)
        return tuple(names)

    def _lose(self, reaper: _Process, row: _Row, *, alone: bool) -> None:
        reaper.tally["lost_leases"] += 1
        row.losses += 1
        row.lone_losses += alone
        if row.lone_losses >= self._policy.max_losses:
            error = f"{row.lone_losses} workers died while they held this item alone"
            self._bury_item(reaper, row, "worker_lost", error)
        else:
            self._delay(reaper, row, 0.0)

    # -- items -------------------------------------------------------------------

    def enqueue(
        self, worker: str, batch: int, items: Sequence[NewItem], *, replace: bool = False
    ) -> Enqueued:
        with self._tables.lock:
            process = self._process(worker)
            if batch < process.batch:
                raise UsageError(
                    f"batch {batch} of {worker} comes after its batch {process.batch}",
                    hint="number the batches of one process from 1, growing",
                )
            if batch > process.batch:
                answers: Counter[str] = Counter()
                rejected = []
                for new in items:
                    reason = self._take_up(process, new, replace, answers)
                    if reason is not None:
                        rejected.append(Rejection(new.source_id, reason))
                process.batch = batch
                process.answer = Enqueued(
                    answers["new"], answers["known"], answers["superseded"], tuple(rejected)
                )
            return process.answer

    def _take_up(
        self, process: _Process, new: NewItem, replace: bool, answers: Counter[str]
    ) -> str | None:
        """Enqueue one item; why it was rejected, or none."""
        tables = self._tables
        if new.source_id in process.named:
            return "named twice in this enqueue"
        process.named.add(new.source_id)
        row = tables.versions.get((process.run, new.source_id, new.source_version))
        document = tables.documents.get((process.run, new.source_id))
        changed = document is not None and document.current is not row
        if document is not None and changed and document.root != new.root and not replace:
            return (
                f"its version from {document.root} would be superseded by one from {new.root}; "
                "give one of them another --prefix, or --replace"
            )
        if row is None:
            answers["new"] += 1
            row = self._create(process, new)
        else:
            answers["known"] += 1
            process.tally["known"] += 1
            if row.state is not State.COMPLETED:
                row.locator = new.locator
            if row.state is State.SUPERSEDED:
                row.begin_anew()
                self._delay(process, row, 0.0)
        if document is None:
            tables.documents[process.run, new.source_id] = _Document(new.root, row)
        elif changed:
            if document.current.state is not State.COMPLETED:
                answers["superseded"] += 1
                self._move(process, document.current, State.SUPERSEDED)
            document.root, document.current = new.root, row
        return None

    def _create(self, process: _Process, new: NewItem) -> _Row:
        row = _Row(
            len(self._tables.rows) + 1,
            process.run,
            new.source_id,
            new.source_version,
            new.size,
            new.locator,
        )
        self._tables.rows[row.id] = row
        self._tables.versions[process.run, new.source_id, new.source_version] = row
        for name in _COUNTED[State.READY]:
            process.tally[name] += 1
        return row

    def claim(self, worker: str, token: str, limit: int, *, alone: bool) -> Lease | None:
        with self._tables.lock:
            now = self._now(contact=True)
            process = self._process(worker)
            if process.state is not WorkerState.LIVE:
                raise WorkerReaped(
                    f"worker {worker} is {process.state.value}: its leases are over",
                    hint="register under a new name",
                )
            if token == process.last_token:
                rows = [row for row in self._held_by(process) if row.token == token]
            else:
                rows = self._choose(process, now, limit, alone)
                for row in rows:
                    self._move(process, row, State.LEASED)
                    process.tally["attempts"] += 1
                    row.attempt += 1
                    row.holder, row.token, row.claimed_at = worker, token, now
                    row.holder_committed = process.committed
                if rows:
                    process.last_token = token
            items = tuple(row.item() for row in sorted(rows, key=lambda row: row.id))
            return Lease(token, items) if items else None

    def _choose(self, process: _Process, now: float, limit: int, alone: bool) -> list[_Row]:
        due = [
            row
            for row in self._rows(process.run, State.DELAYED)
            if row.not_before <= now and (alone or row.losses < ISOLATED_LOSSES)
        ]
        due.sort(key=lambda row: (row.not_before, row.id))
        if due and due[0].losses:
            cap = lease_cap(due[0].losses, limit)
            return [row for row in due if row.losses == due[0].losses][:cap]
        chosen = [row for row in due if not row.losses][:limit]
        ready = self._rows(process.run, State.READY)
        ready.sort(key=lambda row: (row.id <= process.cursor, row.id))
        fresh = ready[: limit - len(chosen)]
        if fresh:
            process.cursor = fresh[-1].id
        return chosen + fresh

    def commit(self, worker: str, results: Sequence[Result]) -> Committed:
        with self._tables.lock:
            process = self._process(worker)
            now = self._now()
            accepted: set[int] = set()
            fenced: set[int] = set()
            for result in results:
                row = self._tables.rows.get(result.item_id)
                if row is not None and self._holds(row, result.token):
                    self._accept(process, row, result, now)
                    accepted.add(result.item_id)
                elif row is not None and row.result is not None and self._same(row, result):
                    accepted.add(result.item_id)
                else:
                    if (result.item_id, result.token) not in self._tables.fenced:
                        self._tables.fenced.add((result.item_id, result.token))
                        process.tally["fenced"] += 1
                    fenced.add(result.item_id)
            return Committed(tuple(sorted(accepted)), tuple(sorted(fenced)))

    def _accept(self, process: _Process, row: _Row, result: Result, now: float) -> None:
        self._move(process, row, State.COMPLETED)
        process.committed += 1
        for name in ("empty", "adopted", "divergent"):
            process.tally[name] += getattr(result, name)
        row.result = CommittedResult(
            row.id,
            row.source_id,
            row.source_version,
            row.size,
            result.stored,
            row.attempt,
            row.generation,
            result.empty,
            result.adopted,
            row.holder,
            now,
        )

    @staticmethod
    def _same(row: _Row, result: Result) -> bool:
        committed = row.result
        return (
            committed is not None
            and row.token == result.token
            and committed.stored.sha256 == result.stored.sha256
        )

    def fail(self, worker: str, failures: Sequence[Failure]) -> Failed:
        with self._tables.lock:
            process = self._process(worker)
            retried: set[int] = set()
            dead_lettered: set[int] = set()
            fenced: set[int] = set()
            for failure in {failure.held: failure for failure in reversed(failures)}.values():
                row = self._tables.rows.get(failure.held.item_id)
                if row is None or not self._holds(row, failure.held.token):
                    fenced.add(failure.held.item_id)
                    continue
                self._charge(process, row, failure.cause, failure.error, final=failure.final)
                answer = dead_lettered if row.state is State.DEAD_LETTERED else retried
                answer.add(row.id)
            return Failed(
                tuple(sorted(retried)), tuple(sorted(dead_lettered)), tuple(sorted(fenced))
            )

    def release(self, worker: str, held: Sequence[Held], reason: ReleaseReason) -> int:
        with self._tables.lock:
            process = self._process(worker)
            took_effect = 0
            for one in held:
                row = self._tables.rows.get(one.item_id)
                if row is not None and self._holds(row, one.token):
                    self._release(process, row, reason)
                    took_effect += 1
            return took_effect

    def _release(self, process: _Process, row: _Row, reason: ReleaseReason) -> None:
        if reason is ReleaseReason.DRAIN:
            process.tally["interrupted"] += 1
            self._delay(process, row, 0.0)
        elif reason is ReleaseReason.BROKEN_OBJECT:
            row.generation += 1
            self._delay(process, row, 0.0)
        else:
            row.releases += 1
            others_committed = self._process(row.holder).committed > row.holder_committed
            if row.releases >= self._policy.max_releases and others_committed:
                error = f"released {row.releases} times ({reason.value}) while others committed"
                row.releases = 0
                self._charge(process, row, reason.value, error, final=False)
            else:
                self._delay(process, row, self._policy.delay(row.releases))

    def _charge(self, process: _Process, row: _Row, cause: str, error: str, *, final: bool) -> None:
        process.tally["failures"] += 1
        row.failures += 1
        if final or row.failures >= self._policy.max_failures:
            self._bury_item(process, row, cause, error)
        else:
            self._delay(process, row, self._policy.delay(row.failures))

    def _bury_item(self, process: _Process, row: _Row, cause: str, error: str) -> None:
        self._move(process, row, State.DEAD_LETTERED)
        row.dead_letter = DeadLetter(
            row.id,
            row.source_id,
            row.source_version,
            cause,
            error,
            row.attempt,
            row.generation,
            self._now(),
        )

    def _delay(self, process: _Process, row: _Row, seconds: float) -> None:
        self._move(process, row, State.DELAYED)
        row.not_before = self._now() + seconds

    def retry(
        self, worker: str, run: Run, *, source_ids: Sequence[str] = (), cause: str | None = None
    ) -> int:
        with self._tables.lock:
            process = self._process(worker)
            wanted = set(source_ids)
            sent_back = 0
            for row in self._rows(run.id, State.DEAD_LETTERED):
                letter = row.dead_letter
                if letter is None or (cause is not None and letter.cause != cause):
                    continue
                if not wanted or row.source_id in wanted:
                    row.begin_anew()
                    self._delay(process, row, 0.0)
                    sent_back += 1
            return sent_back

    # -- reading -----------------------------------------------------------------

    def counts(self, run: Run) -> Counts:
        with self._tables.lock:
            now = self._now()
            tally: Counter[str] = Counter()
            alive: Counter[Role] = Counter()
            for process in self._processes(run.id):
                tally.update(process.tally)
                alive[process.role] += process.alive(now)
            claimed = [row.claimed_at for row in self._rows(run.id, State.LEASED)]
            due = [row.not_before for row in self._rows(run.id, State.DELAYED)]
            return Counts(
                Tallies(**tally),
                alive[Role.WORKER],
                alive[Role.ENQUEUER],
                now,
                max(0.0, now - min(claimed)) if claimed else None,
                max(0.0, min(due) - now) if due else None,
            )

    def duplicates(self, run: Run) -> int | None:
        with self._tables.lock:
            versions = [row.source_version for row in self._rows(run.id)]
            return len(versions) - len(set(versions))

    def workers(self, run: Run) -> list[WorkerStatus]:
        with self._tables.lock:
            now = self._now()
            return [
                WorkerStatus(
                    process.name,
                    process.role,
                    process.state,
                    process.alive(now),
                    len(self._held_by(process)),
                    process.committed,
                    process.registered_at,
                    process.beat_at,
                    process.stop_reason,
                    process.about,
                )
                for process in self._processes(run.id)
            ]

    def lookup(self, run: Run, source_id: str) -> ItemState | None:
        with self._tables.lock:
            document = self._tables.documents.get((run.id, source_id))
            if document is None:
                return None
            row = document.current
            return ItemState(
                row.id, row.source_id, row.source_version, row.locator, row.state, row.result
            )

    def results(self, run: Run, after: int, limit: int) -> list[CommittedResult]:
        with self._tables.lock:
            rows = self._rows(run.id, State.COMPLETED)
            return [row.result for row in rows if row.result and row.id > after][:limit]

    def dead_letters(self, run: Run, after: int, limit: int) -> list[DeadLetter]:
        with self._tables.lock:
            rows = self._rows(run.id, State.DEAD_LETTERED)
            return [row.dead_letter for row in rows if row.dead_letter and row.id > after][:limit]

    def close(self) -> None:
        """Nothing to close: the tables live as long as a client does."""

    # -- below the verbs ---------------------------------------------------------

    def _now(self, *, contact: bool = False) -> float:
        now = self._tables.clock.now()
        if contact:
            self._contact.seen(self._clock.monotonic(), now)
        return now

    def _check_ttl(self, ttl: float) -> None:
        if not 0 < ttl <= self._policy.max_ttl:
            raise UsageError(
                f"a TTL of {ttl:g} s is not between 0 and {self._policy.max_ttl:g} s",
                hint="set --lease-ttl within these bounds",
            )

    def _process(self, name: str) -> _Process:
        process = self._tables.processes.get(name)
        if process is None:
            raise WorkerReaped(f"no process is registered as {name}", hint="register it first")
        return process

    def _processes(self, run_id: int) -> Iterator[_Process]:
        return (p for p in self._tables.processes.values() if p.run == run_id)

    def _rows(self, run_id: int, state: State | None = None) -> list[_Row]:
        """By id: rows are only ever added, and numbered as they come."""
        rows = self._tables.rows.values()
        return [r for r in rows if r.run == run_id and (state is None or r.state is state)]

    def _held_by(self, process: _Process) -> list[_Row]:
        return [r for r in self._rows(process.run, State.LEASED) if r.holder == process.name]

    @staticmethod
    def _holds(row: _Row, token: str) -> bool:
        return row.state is State.LEASED and row.token == token

    @staticmethod
    def _move(process: _Process, row: _Row, state: State) -> None:
        for name in _COUNTED[row.state]:
            process.tally[name] -= 1
        for name in _COUNTED[state]:
            process.tally[name] += 1
        row.state = state
