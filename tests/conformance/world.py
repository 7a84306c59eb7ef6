"""A ledger with one run, and short ways to act on it: the language of the suite."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from batchq.clock import Clock
from batchq.item import Item, NewItem
from batchq.lease import Failure, Held, Lease, ReleaseReason, new_token
from batchq.ledger.base import (
    Committed,
    CommittedResult,
    DeadLetter,
    Enqueued,
    Failed,
    Ledger,
    Policy,
    Reaped,
    Role,
    Run,
    State,
    Tallies,
)
from batchq.result import Result, Stored
from tests.conformance.backends import Backend

__all__ = ["TTL", "World", "digest", "document", "held", "moved", "stored"]

TTL = 60.0

TALLIES_OF_STATES = ("ready", "leased", "completed", "dead_lettered")
OF_STATES = (*TALLIES_OF_STATES, "total", "delayed", "empty", "superseded")


def document(
    source_id: str, version: str = "v1", *, root: str = "file:///docs", size: int = 1
) -> NewItem:
    """What an enqueue says of one document."""
    return NewItem(source_id, f"sha256:{version}", size, f"{root}/{source_id}", root)


def digest(text: str) -> str:
    """A string that looks like the SHA-256 of `text`, and is told apart like one."""
    return text.encode().hex().ljust(64, "0")[:64]


def stored(text: str = "output") -> Stored:
    """Where the result with this content would lie."""
    return Stored(f"run/{text}.json", 0, len(text), digest(text))


def held(lease: Lease) -> list[Held]:
    """Every item of the lease, as fail and release name it."""
    return [Held(lease.token, item.id) for item in lease.items]


def moved(before: Tallies, after: Tallies) -> dict[str, int]:
    """The tallies that differ, and by how much."""
    old, new = asdict(before), asdict(after)
    return {name: new[name] - old[name] for name in new if new[name] != old[name]}


class World:
    """One run in one ledger. Time stands still until a test lets it pass."""

    def __init__(self, backend: Backend, policy: Policy | None = None, run: str = "run") -> None:
        self.backend = backend
        self.clock = backend.clock
        self.ledger = backend.client(policy=policy)
        self.run: Run = self.ledger.create_run(run, "stats-0123456789ab", {"kind": "stats"}, "item")
        self._enqueuers = 0
        self._reopened = 0

    def client(self, clock: Clock | None = None) -> Ledger:
        """Another client of the same ledger, with its own contact."""
        return self.backend.client(clock)

    # -- processes ---------------------------------------------------------------

    def register(self, name: str, role: Role = Role.WORKER, ttl: float = TTL) -> str:
        self.ledger.register(self.run, name, ttl, role, {})
        return name

    def worker(self, name: str = "worker", ttl: float = TTL) -> str:
        return self.register(name, ttl=ttl)

    def pass_time(self, seconds: float, beating: Iterable[str] = (), ttl: float = TTL) -> None:
        """Let time pass in steps of TTL/4; `beating` beat at each, so contact is unbroken."""
        beating = list(beating)
        while seconds > 0:
            step = min(seconds, ttl / 4)
            self.clock.advance(step)
            seconds -= step
            for name in beating:
                assert self.ledger.beat(name, ttl)

    def lose(self, *victims: str, reaper: str = "reaper", limit: int = 1_000) -> Reaped:
        """Let the victims' beats expire and reap them; every other process lives on."""
        names = [w.name for w in self.ledger.workers(self.run) if w.alive]
        if reaper not in names:
            self.register(reaper, Role.OPERATOR)
        self.pass_time(1.25 * TTL, [reaper, *(n for n in names if n not in {*victims, reaper})])
        return self.ledger.reap(reaper, limit)

    # -- items -------------------------------------------------------------------

    def enqueue(self, *documents: NewItem | str, by: str = "", replace: bool = False) -> Enqueued:
        """Enqueue documents as one batch of a process of its own, or as the first of `by`."""
        if not by:
            self._enqueuers += 1
            by = self.register(f"enqueuer-{self._enqueuers}", Role.ENQUEUER)
        items = [document(d) if isinstance(d, str) else d for d in documents]
        answer = self.ledger.enqueue(by, 1, items, replace=replace)
        self.ledger.stop(by, "end")
        return answer

    def enqueue_many(self, count: int) -> None:
        """Enqueue documents 000, 001, ..."""
        self.enqueue(*(f"{n:03}" for n in range(count)))

    def claim(
        self, worker: str, limit: int = 100, *, alone: bool = True, token: str = ""
    ) -> Lease | None:
        return self.ledger.claim(worker, token or new_token(), limit, alone=alone)

    def hold(self, worker: str, limit: int = 100, *, alone: bool = True, token: str = "") -> Lease:
        """A claim that must bring something."""
        lease = self.claim(worker, limit, alone=alone, token=token)
        assert lease is not None, "the claim brought nothing"
        return lease

    def hold_one(self, worker: str) -> tuple[Lease, Item]:
        """A claim of one item, and the item."""
        lease = self.hold(worker, 1)
        assert len(lease.items) == 1
        return lease, lease.items[0]

    def results(self, lease: Lease, text: str = "output") -> list[Result]:
        return [Result(item.id, lease.token, stored(text)) for item in lease.items]

    def commit(self, worker: str, lease: Lease, text: str = "output") -> Committed:
        return self.ledger.commit(worker, self.results(lease, text))

    def fail(
        self, worker: str, lease: Lease, cause: str = "bad_document", *, final: bool = False
    ) -> Failed:
        failures = [Failure(one, cause, f"{cause} happened", final) for one in held(lease)]
        return self.ledger.fail(worker, failures)

    def release(
        self, worker: str, lease: Lease, reason: ReleaseReason = ReleaseReason.DRAIN
    ) -> int:
        return self.ledger.release(worker, held(lease), reason)

    def dead_letter(self, source_id: str, worker: str, cause: str = "bad_document") -> None:
        """Enqueue a document and end it as a dead letter; nothing else may be due."""
        self.enqueue(source_id)
        lease, item = self.hold_one(worker)
        assert item.source_id == source_id
        self.fail(worker, lease, cause, final=True)

    def reopen(self, *broken: CommittedResult, by: str = "auditor") -> int:
        self.register(by, Role.OPERATOR)
        number = self.ledger.reopen(by, self.run, broken)
        self._reopened += number
        return number

    # -- looking -----------------------------------------------------------------

    @property
    def tallies(self) -> Tallies:
        return self.ledger.counts(self.run).tallies

    def state(self, source_id: str) -> State:
        """The state of a document's current item."""
        found = self.ledger.lookup(self.run, source_id)
        assert found is not None, f"{source_id} was never enqueued"
        return found.state

    def states(self, source_ids: Sequence[str]) -> list[State]:
        return [self.state(source_id) for source_id in source_ids]

    def result(self, source_id: str) -> CommittedResult:
        rows = self.ledger.results(self.run, 0, 1_000)
        return next(row for row in rows if row.source_id == source_id)

    def letter(self, source_id: str) -> DeadLetter:
        letters = self.ledger.dead_letters(self.run, 0, 1_000)
        return next(letter for letter in letters if letter.source_id == source_id)

    def check_accounting(self) -> Tallies:
        """Invariant 15, and that the lists agree with the tallies."""
        tallies = self.tallies
        assert tallies.total == sum(getattr(tallies, name) for name in TALLIES_OF_STATES)
        assert 0 <= tallies.delayed <= tallies.ready
        assert all(count >= 0 for count in asdict(tallies).values())
        assert len(self.ledger.results(self.run, 0, 10_000)) == tallies.completed
        assert len(self.ledger.dead_letters(self.run, 0, 10_000)) == tallies.dead_lettered
        processes = self.ledger.workers(self.run)
        assert sum(process.held for process in processes) == tallies.leased
        committed = sum(process.committed for process in processes)
        assert committed == tallies.completed + self._reopened
        recounted = asdict(self.ledger.recount(self.run))
        assert recounted == {n: asdict(tallies)[n] if n in OF_STATES else 0 for n in recounted}
        return tallies
