"""The reference ledger: every verb as plainly as it can be said, in one process.

It defines what the other backends mean, and serves tests and rehearsals. Searches
go through every row, so it is for thousands of items, not millions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from batchq.clock import Clock, SystemClock, random_hex
from batchq.item import NewItem
from batchq.lease import Failure, Held, Lease, ReleaseReason
from batchq.ledger.contact import Contact
from batchq.ledger.records import (
    COUNTED,
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
)
from batchq.ledger.refusals import earlier_batch, ended_name, leases_over, require_ttl
from batchq.ledger.rows import Process, Row, Tables
from batchq.result import Result, slug

__all__ = ["MemoryLedger"]


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
        self._tables = Tables(self._policy, self._clock)

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

    def run_names(self, limit: int) -> list[str]:
        with self._tables.lock:
            return sorted(self._tables.runs)[:limit]

    # -- processes ---------------------------------------------------------------

    def register(
        self, run: Run, worker: str, ttl: float, role: Role, about: Mapping[str, Any]
    ) -> None:
        require_ttl(self._policy, ttl)
        with self._tables.lock:
            now = self._now_in_contact()
            if worker not in self._tables.processes:
                self._tables.processes[worker] = Process(
                    worker, run.id, role, dict(about), ttl, now, now, now + ttl
                )
            elif not self.beat(worker, ttl):
                raise ended_name(worker)

    def beat(self, worker: str, ttl: float) -> bool:
        require_ttl(self._policy, ttl)
        with self._tables.lock:
            now = self._now_in_contact()
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
            for row in self._tables.held_by(process):
                self._tables.release(process, row, ReleaseReason.DRAIN)
            process.state, process.stop_reason = WorkerState.STOPPED, reason
            process.beat_at = self._clock.now()

    def reap(self, worker: str, limit: int) -> Reaped:
        with self._tables.lock:
            now = self._now_in_contact()
            reaper = self._tables.process(worker)
            if not self._contact.lasted(reaper.ttl):
                return Reaped()
            self._pull_back(reaper, now)
            names = self._mark_the_dead(reaper, now)
            orphaned = [
                (process, row)
                for process in self._tables.of_run(reaper.run)
                if process.state is WorkerState.REAPED
                for row in self._tables.held_by(process)
            ][:limit]
            for process, row in orphaned:
                self._tables.lose(reaper, row, alone=process.lost_alone)
            returned = sum(row.state is State.DELAYED for _, row in orphaned)
            return Reaped(names, returned, len(orphaned) - returned)

    def _pull_back(self, reaper: Process, now: float) -> None:
        for process in self._tables.of_run(reaper.run):
            if self._contact.lasted(process.ttl):
                process.expires_at = min(process.expires_at, now + process.ttl)
        for row in self._tables.rows(reaper.run, State.DELAYED):
            row.not_before = min(row.not_before, now + self._policy.max_backoff)

    def _mark_the_dead(self, reaper: Process, now: float) -> tuple[str, ...]:
        """From here on their beats are refused, so what they hold may go page by page."""
        names = []
        for process in self._tables.of_run(reaper.run):
            live = process is reaper or process.expires_at > now
            if process.state is not WorkerState.LIVE or live:
                continue
            if self._contact.lasted(process.ttl):
                process.be_lost(now, held=len(self._tables.held_by(process)))
                names.append(process.name)
        return tuple(names)

    # -- items -------------------------------------------------------------------

    def enqueue(
        self, worker: str, batch: int, items: Sequence[NewItem], *, replace: bool = False
    ) -> Enqueued:
        with self._tables.lock:
            process = self._tables.process(worker)
            if batch < process.batch:
                raise earlier_batch(worker, batch, process.batch)
            if batch > process.batch:
                answer: Counter[str] = Counter()
                rejected = []
                for new in items:
                    reason = self._tables.take_up(process, new, replace, answer)
                    if reason is not None:
                        rejected.append(Rejection(new.source_id, reason))
                process.batch = batch
                process.answer = Enqueued(**answer, rejected=tuple(rejected))
            return process.answer

    def claim(self, worker: str, token: str, limit: int, *, alone: bool) -> Lease | None:
        with self._tables.lock:
            now = self._now_in_contact()
            process = self._tables.process(worker)
            if process.state is not WorkerState.LIVE:
                raise leases_over(worker, process.state)
            if token == process.last_token:
                rows = [row for row in self._tables.held_by(process) if row.token == token]
            else:
                rows = self._tables.choose(process, now, limit, alone=alone)
                for row in rows:
                    self._tables.lease(process, row, token)
                if rows:
                    process.last_token = token
            items = tuple(row.item() for row in sorted(rows, key=lambda row: row.id))
            return Lease(token, items) if items else None

    def commit(self, worker: str, results: Sequence[Result]) -> Committed:
        with self._tables.lock:
            process = self._tables.process(worker)
            accepted, fenced = set(), set()
            for result in results:
                row = self._tables.items.get(result.item_id)
                if row and row.held_under(result.token):
                    self._tables.complete(process, row, result)
                    accepted.add(row.id)
                elif row and self._committed_before(row, result):
                    accepted.add(row.id)
                else:
                    fenced.add(result.item_id)
                    if (result.item_id, result.token) not in self._tables.fenced:
                        self._tables.fenced.add((result.item_id, result.token))
                        process.tally["fenced"] += 1
            return Committed(tuple(sorted(accepted)), tuple(sorted(fenced)))

    @staticmethod
    def _committed_before(row: Row, result: Result) -> bool:
        same_token = row.state is State.COMPLETED and row.token == result.token
        return bool(same_token and row.result and row.result.stored.sha256 == result.stored.sha256)

    def fail(self, worker: str, failures: Sequence[Failure]) -> Failed:
        with self._tables.lock:
            process = self._tables.process(worker)
            outcomes: dict[Held, State | None] = {}
            for failure in failures:
                held = failure.held
                row = self._tables.items.get(held.item_id)
                if row and row.held_under(held.token):
                    self._tables.charge(
                        process, row, failure.cause, failure.error, final=failure.final
                    )
                    outcomes[held] = row.state
                else:
                    outcomes.setdefault(held, None)

            def ids(state: State | None) -> tuple[int, ...]:
                return tuple(sorted({h.item_id for h, s in outcomes.items() if s is state}))

            return Failed(ids(State.DELAYED), ids(State.DEAD_LETTERED), ids(None))

    def release(self, worker: str, held: Sequence[Held], reason: ReleaseReason) -> int:
        with self._tables.lock:
            process = self._tables.process(worker)
            took_effect = 0
            for one in held:
                row = self._tables.items.get(one.item_id)
                if row and row.held_under(one.token):
                    self._tables.release(process, row, reason)
                    took_effect += 1
            return took_effect

    def retry(
        self, worker: str, run: Run, *, source_ids: Sequence[str] = (), cause: str | None = None
    ) -> int:
        with self._tables.lock:
            process = self._tables.process(worker)
            wanted = set(source_ids)
            sent_back = 0
            for row in self._tables.rows(run.id, State.DEAD_LETTERED):
                named = not wanted or row.new.source_id in wanted
                if named and row.dead_letter and cause in (None, row.dead_letter.cause):
                    row.begin_anew()
                    self._tables.delay(process, row)
                    sent_back += 1
            return sent_back

    def reopen(self, worker: str, run: Run, broken: Sequence[CommittedResult]) -> int:
        with self._tables.lock:
            process = self._tables.process(worker)
            reopened = 0
            for one in broken:
                row = self._tables.items.get(one.item_id)
                if row and row.run == run.id and row.result and _same_result(row.result, one):
                    self._tables.reopen(process, row, row.result)
                    reopened += 1
            return reopened

    # -- reading -----------------------------------------------------------------

    def counts(self, run: Run) -> Counts:
        with self._tables.lock:
            now = self._tables.now()
            tally: Counter[str] = Counter()
            alive: Counter[Role] = Counter()
            for process in self._tables.of_run(run.id):
                tally.update(process.tally)
                alive[process.role] += process.alive(now)
            claimed = [row.claimed_at for row in self._tables.rows(run.id, State.LEASED)]
            due = [row.not_before for row in self._tables.rows(run.id, State.DELAYED)]
            return Counts(
                Tallies(**tally),
                workers_alive=alive[Role.WORKER],
                enqueuers_alive=alive[Role.ENQUEUER],
                now=now,
                oldest_lease_s=max(0.0, now - min(claimed)) if claimed else None,
                next_due_s=max(0.0, min(due) - now) if due else None,
            )

    def recount(self, run: Run) -> Tallies:
        with self._tables.lock:
            tally: Counter[str] = Counter()
            for row in self._tables.rows(run.id):
                tally.update(COUNTED[row.state])
                tally["empty"] += bool(row.result and row.result.empty)
            return Tallies(**tally)

    def duplicates(self, run: Run) -> int | None:
        with self._tables.lock:
            versions = [row.new.source_version for row in self._tables.rows(run.id)]
            return len(versions) - len(set(versions))

    def workers(self, run: Run) -> list[WorkerStatus]:
        with self._tables.lock:
            now = self._tables.now()
            return [
                WorkerStatus(
                    name=process.name,
                    role=process.role,
                    state=process.state,
                    alive=process.alive(now),
                    held=len(self._tables.held_by(process)),
                    committed=process.committed,
                    registered_at=process.registered_at,
                    beat_at=process.beat_at,
                    stop_reason=process.stop_reason,
                    about=process.about,
                )
                for process in self._tables.of_run(run.id)
            ]

    def lookup(self, run: Run, source_id: str) -> ItemState | None:
        with self._tables.lock:
            document = self._tables.documents.get((run.id, source_id))
            return document.current.item_state() if document else None

    def states(self, run: Run, identities: Sequence[tuple[str, str]]) -> list[ItemState | None]:
        with self._tables.lock:
            rows = [self._tables.versions.get((run.id, *identity)) for identity in identities]
            return [row.item_state() if row else None for row in rows]

    def results(
        self, run: Run, after: int, limit: int, *, current_only: bool = False
    ) -> list[CommittedResult]:
        with self._tables.lock:
            rows = self._tables.rows(run.id, State.COMPLETED)
            if current_only:
                rows = [row for row in rows if self._tables.is_current(row)]
            return [row.result for row in rows if row.result and row.id > after][:limit]

    def dead_letters(self, run: Run, after: int, limit: int) -> list[DeadLetter]:
        with self._tables.lock:
            rows = self._tables.rows(run.id, State.DEAD_LETTERED)
            return [row.dead_letter for row in rows if row.dead_letter and row.id > after][:limit]

    def close(self) -> None:
        """Nothing to close: the tables live as long as a client does."""

    # -- below the verbs ---------------------------------------------------------

    def _now_in_contact(self) -> float:
        now = self._tables.now()
        self._contact.seen(self._clock.monotonic(), now)
        return now


def _same_result(one: CommittedResult, other: CommittedResult) -> bool:
    return (one.generation, one.stored.sha256) == (other.generation, other.stored.sha256)
