"""`DynamoLedger`: the verbs, in one table of DynamoDB."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from batchq.clock import Clock, SystemClock
from batchq.errors import BatchqError, LedgerUnreachable
from batchq.item import NewItem
from batchq.lease import Failure, Held, Lease, ReleaseReason
from batchq.ledger.contact import Contact
from batchq.ledger.dynamodb import ended, enqueueing, reading, reaping, runs, table
from batchq.ledger.dynamodb.calls import PARALLEL, PATIENCE, Calls, connect
from batchq.ledger.dynamodb.claiming import Claiming
from batchq.ledger.dynamodb.fleet import Process, newcomer
from batchq.ledger.dynamodb.keys import Keys, RandomRanks, Ranks, name_key
from batchq.ledger.dynamodb.reaping import Ending, Watch
from batchq.ledger.dynamodb.refusals import ConditionFailed, Refused
from batchq.ledger.dynamodb.settling import Settling
from batchq.ledger.dynamodb.unit import current_rows
from batchq.ledger.dynamodb.wire import absent, present, write
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
from batchq.ledger.refusals import ended_name, require_ttl, stranger
from batchq.result import Result

__all__ = ["DynamoLedger"]

T = TypeVar("T")

LOOKS_PER_TTL = 5
"""How often in a TTL a client looks at the beats of the others."""


@dataclass
class _Place:
    """What a client knows of a process: its run, the others there, and where it claims."""

    keys: Keys
    watch: Watch
    ttl: float = 60.0
    cursor: int = field(default=0)


class DynamoLedger:
    """The ledger in a table of DynamoDB. Safe for threads.

    `url` is `dynamodb://TABLE?region=…` (see `table`). `clock` gives the monotonic time by
    which a reaper judges; `ledger_clock`, for tests, stands in for the server's own clock.
    What may pass is sent again for `patience` seconds. `ranks` and `shards` say how items
    spread, and `parallel` how many writes are in flight. `client` is the SDK's, made when it
    is first needed.
    """

    def __init__(
        self,
        url: str,
        *,
        policy: Policy | None = None,
        clock: Clock | None = None,
        ledger_clock: Clock | None = None,
        patience: float = PATIENCE,
        ranks: Ranks | None = None,
        shards: int = table.SHARDS,
        parallel: int = PARALLEL,
        client: Any = None,
    ) -> None:
        self._address = address = table.Address.parse(url)
        self.url = str(address)
        self._policy = policy or Policy()
        self._clock = clock or SystemClock()
        self._ledger_clock = ledger_clock
        self._ranks = ranks or RandomRanks()
        self._new_shards = shards
        self._contact = Contact()
        self._places: dict[str, _Place] = {}
        self._watches: dict[int, Watch] = {}
        self._calls = Calls(
            lambda: client or connect(address.region),
            address.table,
            self.url,
            self._clock,
            patience,
            parallel=parallel,
            transaction=address.transaction,
        )

    # -- schema and runs ---------------------------------------------------------

    def initialise(self) -> None:
        """Create the table with what the address asks for. Repeating it changes nothing."""
        self._in_contact(
            lambda: table.initialise(self._calls, self._address, self._clock, self._new_shards)
        )

    def check(self) -> None:
        """Raise LedgerNotInitialised unless the schema is the one this code speaks."""
        self._in_contact(lambda: table.read_shards(self._calls))

    def create_run(
        self, name: str, processing_version: str, manifest: Mapping[str, Any], layout: str
    ) -> Run:
        return self._in_contact(
            lambda: runs.create(self._calls, name, processing_version, manifest, layout)
        )

    def find_run(self, name: str) -> Run | None:
        return self._in_contact(lambda: runs.find(self._calls, name))

    def run_names(self, limit: int) -> list[str]:
        return self._in_contact(lambda: runs.names(self._calls, limit))

    # -- processes ---------------------------------------------------------------

    def register(
        self, run: Run, worker: str, ttl: float, role: Role, about: Mapping[str, Any]
    ) -> None:
        require_ttl(self._policy, ttl)

        def work() -> bool:
            rows = newcomer(self._keys(run), worker, ttl, role, about, self._now())
            try:
                self._calls.transact(
                    [
                        write(self._calls.table, key, put=row, only_if=[absent()])
                        for key, row in rows.items()
                    ]
                )
            except ConditionFailed:
                return False
            self._known(worker, run.id, ttl).watch.note(worker, 1, self._clock.monotonic())
            self._look(worker)
            return True

        if not self._in_contact(work) and not self.beat(worker, ttl):
            raise ended_name(worker)

    def beat(self, worker: str, ttl: float) -> bool:
        require_ttl(self._policy, ttl)

        def work() -> bool:
            place = self._find_place(worker)
            if place is None:
                return False
            place.ttl = ttl
            changed = {"at": self._now(), "ttl": round(1000 * ttl)}
            try:
                row = self._calls.write(
                    place.keys.beat(worker), set=changed, add={"n": 1}, only_if=[present()]
                )
            except ConditionFailed:
                self._look(worker)
                return False
            place.watch.note(worker, row["n"], self._clock.monotonic())
            self._look(worker)
            return True

        return self._in_contact(work)

    def stop(self, worker: str, reason: str) -> None:
        def work() -> None:
            place = self._find_place(worker)
            if place is None:
                return
            reaping.stop(self._calls, place.keys, self._policy, worker, reason, self._now())

        self._in_contact(work)

    def reap(self, worker: str, limit: int) -> Reaped:
        def work() -> Reaped:
            place, process = self._process(worker)
            self._look(worker, fresh=True)
            return reaping.reap(
                self._calls,
                place.keys,
                self._policy,
                process,
                place.watch,
                self._contact,
                self._clock.monotonic(),
                self._now(),
                limit,
            )

        return self._in_contact(work)

    # -- items -------------------------------------------------------------------

    def enqueue(
        self, worker: str, batch: int, items: Sequence[NewItem], *, replace: bool = False
    ) -> Enqueued:
        def work() -> Enqueued:
            place, process = self._process(worker)
            return enqueueing.enqueue(
                self._calls,
                place.keys,
                self._ranks,
                process,
                batch,
                items,
                self._now(),
                replace=replace,
            )

        return self._in_contact(work)

    def claim(self, worker: str, token: str, limit: int, *, alone: bool) -> Lease | None:
        def work() -> Lease | None:
            place, process = self._process(worker)
            claiming = Claiming(self._calls, place.keys, worker, place.cursor)
            now = self._now()
            lease = claiming.claim(process, token, limit, now, alone=alone)
            place.cursor = claiming.cursor
            if lease is None:
                # An intent may land after its claim was asked again and found nothing. What it
                # wants counts as leased, and would keep the run from its end.
                Ending(self._calls, place.keys, self._policy, worker, now).settle()
            self._look(worker)
            return lease

        return self._in_contact(work)

    def commit(self, worker: str, results: Sequence[Result]) -> Committed:
        return self._in_contact(lambda: self._settling(worker).commit(results))

    def fail(self, worker: str, failures: Sequence[Failure]) -> Failed:
        return self._in_contact(lambda: self._settling(worker).fail(failures))

    def release(self, worker: str, held: Sequence[Held], reason: ReleaseReason) -> int:
        return self._in_contact(lambda: self._settling(worker).release(held, reason))

    def retry(
        self, worker: str, run: Run, *, source_ids: Sequence[str] = (), cause: str | None = None
    ) -> int:
        def work() -> int:
            digests = list(dict.fromkeys(map(self._ranks.digest, source_ids)))
            return self._settling(worker).retry(
                digests if source_ids else None, {*source_ids}, cause
            )

        return self._in_contact(work)

    def reopen(self, worker: str, run: Run, broken: Sequence[CommittedResult]) -> int:
        def work() -> int:
            place, _ = self._process(worker)
            # Ids of another run lead nowhere in the run of this process.
            return self._settling(worker).reopen(broken) if place.keys.run == run.id else 0

        return self._in_contact(work)

    # -- reading -----------------------------------------------------------------

    def counts(self, run: Run) -> Counts:
        return self._in_contact(lambda: reading.counts(self._calls, self._keys(run), self._now()))

    def recount(self, run: Run) -> Tallies:
        return self._in_contact(lambda: reading.recount(self._calls, self._keys(run)))

    def duplicates(self, run: Run) -> int | None:
        """None: equal contents would have to be searched through every item."""
        return None

    def workers(self, run: Run) -> list[WorkerStatus]:
        return self._in_contact(lambda: reading.workers(self._calls, self._keys(run), self._now()))

    def lookup(self, run: Run, source_id: str) -> ItemState | None:
        def work() -> ItemState | None:
            digest = self._ranks.digest(source_id)
            row = current_rows(self._calls, self._keys(run), [digest]).get(digest)
            return row.item_state() if row and row.source_id == source_id else None

        return self._in_contact(work)

    def states(self, run: Run, identities: Sequence[tuple[str, str]]) -> list[ItemState | None]:
        asked = [(self._ranks.digest(name), name, version) for name, version in identities]
        return self._in_contact(lambda: reading.states(self._calls, self._keys(run), asked))

    def results(
        self, run: Run, after: int, limit: int, *, current_only: bool = False
    ) -> list[CommittedResult]:
        def work() -> list[CommittedResult]:
            keys = self._keys(run)
            return reading.results(self._calls, keys, after, limit, current_only=current_only)

        return self._in_contact(work)

    def dead_letters(self, run: Run, after: int, limit: int) -> list[DeadLetter]:
        return self._in_contact(
            lambda: reading.dead_letters(self._calls, self._keys(run), after, limit)
        )

    def close(self) -> None:
        self._calls.close()

    # -- below the verbs ---------------------------------------------------------

    def _in_contact(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except LedgerUnreachable:
            self._contact.lost()
            raise
        except Refused as error:
            hint = "this is a request that DynamoDB does not understand: report it"
            raise BatchqError(str(error), hint=hint) from None

    @cached_property
    def _shards(self) -> int:
        return table.read_shards(self._calls)

    def _keys(self, run: Run) -> Keys:
        return Keys(run.id, self._shards)

    def _known(self, worker: str, run: int, ttl: float = 60.0) -> _Place:
        watch = self._watches.setdefault(run, Watch())
        place = _Place(Keys(run, self._shards), watch, ttl, self._ranks.start())
        return self._places.setdefault(worker, place)

    def _find_place(self, worker: str) -> _Place | None:
        if (place := self._places.get(worker)) is not None:
            return place
        row = self._calls.get(name_key(worker))
        return None if row is None else self._known(worker, row["run"])

    def _process(self, worker: str) -> tuple[_Place, Process]:
        """The row of a process as it is now. Raises WorkerReaped for a stranger."""
        place = self._find_place(worker)
        row = None if place is None else ended.find(self._calls, place.keys, worker)
        if place is None or row is None:
            raise stranger(worker)
        process = Process.unpack(row)
        place.ttl = process.ttl / 1000
        return place, process

    def _settling(self, worker: str) -> Settling:
        place = self._find_place(worker)
        if place is None:
            raise stranger(worker)
        return Settling(self._calls, place.keys, self._policy, worker, self._now())

    def _look(self, worker: str, *, fresh: bool = False) -> None:
        """This call was answered: that is contact. Now and then, see who else beats."""
        place, now = self._places[worker], self._clock.monotonic()
        self._contact.seen(now, self._now() / 1000)
        age = 1.0 if fresh else place.ttl / LOOKS_PER_TTL
        if place.watch.stale(now, min(age, place.ttl / LOOKS_PER_TTL)):
            rows = list(reaping.rows_of_the_living(self._calls, place.keys))
            place.watch.look(rows, now)

    def _now(self) -> int:
        """The ledger's clock in milliseconds: the server's, as its answers show it.

        An emulator that dates no answer leaves the clock of this machine.
        """
        if self._ledger_clock is not None:
            return round(1000 * self._ledger_clock.now())
        server = self._calls.server_time.at(self._clock.monotonic())
        return round(1000 * (self._clock.now() if server is None else server))
