"""One process of a crowd: it tells one ledger a random story among others that do too."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from batchq.clock import SystemClock, random_hex
from batchq.errors import WorkerReaped
from batchq.lease import Failure, Lease, ReleaseReason, new_token
from batchq.ledger.base import Ledger, Policy, Role, Run
from batchq.ledger.sql import SqlLedger
from batchq.result import Result
from tests.conformance.world import document, held, stored

__all__ = ["DOCUMENTS", "POLICY", "History", "live"]

DOCUMENTS = 60
TTL = 0.5
POLICY = Policy(max_failures=2, max_losses=2, max_releases=2, backoff=0.05, max_backoff=0.2)


@dataclass
class History:
    """What one process was told: leases as (item, attempt, token), accepted commits as
    (item, token, digest), new items, and how many items it took back from the dead."""

    leases: list[tuple[int, int, str]] = field(default_factory=list)
    accepted: list[tuple[int, str, str]] = field(default_factory=list)
    new: int = 0
    lost: int = 0


def live(url: str, run_name: str, seed: int, seconds: float, verbs: int) -> History:
    """Tell random verbs for so many seconds, but so many at least, on the database's own clock."""
    ledger = SqlLedger(url, policy=POLICY, patience=60.0)
    run = ledger.find_run(run_name)
    assert run is not None
    story = _Story(ledger, run, seed)
    clock = SystemClock()
    end = clock.monotonic() + seconds
    told = 0
    while clock.monotonic() < end or told < verbs:
        story.go_on()
        told += 1
    ledger.close()
    return story.history


class _Story:
    def __init__(self, ledger: Ledger, run: Run, seed: int) -> None:
        self.ledger = ledger
        self.run = run
        self.random = random.Random(seed)
        self.history = History()
        self.leases: list[Lease] = []
        self.begin_anew()

    def begin_anew(self) -> None:
        """Another name; what the last one held is lost, unless it was stopped."""
        self.name = f"worker-{random_hex(64)}"
        self.ledger.register(self.run, self.name, TTL, Role.WORKER, {})
        self.leases = self.leases[-3:]

    def go_on(self) -> None:
        verbs = (self.claim, self.claim, self.commit, self.commit, self.give_back, self.enqueue)
        verb = self.random.choice((*verbs, *verbs, self.beat, self.reap, self.end, self.retry))
        try:
            verb()
        except WorkerReaped:
            self.begin_anew()

    def claim(self) -> None:
        token = new_token()
        lease = self.ledger.claim(self.name, token, self.random.randint(1, 8), alone=True)
        self.keep(lease)
        if self.random.random() < 0.2:
            again = self.ledger.claim(self.name, token, 8, alone=True)
            assert lease is None or again is None or {*again.items} <= {*lease.items}
            if lease is None:
                self.keep(again)

    def keep(self, lease: Lease | None) -> None:
        """At once: asked again, the ledger may answer that this worker has been reaped."""
        if lease is not None:
            self.leases.append(lease)
            self.history.leases += [(item.id, item.attempt, lease.token) for item in lease.items]

    def some_lease(self) -> Lease | None:
        """Mostly the last; sometimes one that may be somebody else's by now."""
        if not self.leases:
            return None
        return self.leases.pop(-1 if self.random.random() < 0.7 else 0)

    def commit(self) -> None:
        if (lease := self.some_lease()) is not None:
            where = stored(random_hex(32))
            results = [Result(item.id, lease.token, where) for item in lease.items]
            answer = self.ledger.commit(self.name, results)
            if self.random.random() < 0.2:
                again = self.ledger.commit(self.name, results)
                assert set(answer.accepted) == set(again.accepted)
            self.history.accepted += [(i, lease.token, where.sha256) for i in answer.accepted]
            if self.random.random() < 0.2:
                # It comes back to it later, when it holds no more.
                self.leases.append(lease)

    def give_back(self) -> None:
        if (lease := self.some_lease()) is not None:
            if self.random.random() < 0.3:
                final = self.random.random() < 0.2
                self.ledger.fail(self.name, [Failure(h, "c", "e", final) for h in held(lease)])
            else:
                reason = self.random.choice(list(ReleaseReason))
                self.ledger.release(self.name, held(lease), reason)

    def enqueue(self) -> None:
        name = f"enqueuer-{random_hex(64)}"
        self.ledger.register(self.run, name, TTL, Role.ENQUEUER, {})
        numbers = self.random.sample(range(DOCUMENTS), 10)
        batch = [document(f"{n:03}", f"v{self.random.randint(0, 3)}") for n in numbers]
        self.history.new += self.ledger.enqueue(name, 1, batch).new
        self.ledger.stop(name, "end")

    def beat(self) -> None:
        if not self.ledger.beat(self.name, TTL):
            self.begin_anew()

    def reap(self) -> None:
        self.ledger.beat(self.name, TTL)
        reaped = self.ledger.reap(self.name, self.random.randint(1, 10))
        self.history.lost += reaped.returned + reaped.dead_lettered

    def end(self) -> None:
        """In order, or by dying."""
        if self.random.random() < 0.5:
            self.ledger.stop(self.name, "end")
        self.begin_anew()

    def retry(self) -> None:
        self.ledger.retry(self.name, self.run)
