"""The ledger: what every backend promises.

An item is in exactly one state: ready, delayed, leased, completed, dead-lettered or
superseded. Each verb is one transaction, or a few that are each complete in themselves
(`commit` with fenced results, `retry` of a large run), and may be repeated with the same
arguments when its answer was lost; a verb that gets no answer raises `LedgerUnreachable`.
`ledger.memory` is the reference: where this text leaves a question open, its
behaviour is the answer, and `tests/conformance/` asks every backend the same.

    enqueue → ready → leased → completed
            delayed ↗        ↘ delayed (fail, release, reap)
                             ↘ dead_lettered → delayed (retry)
    any of these but completed → superseded → delayed (enqueued again)
    completed → delayed (reopen)

DynamoDB differs where it must: ids follow no order of enqueue, and ready items are handed
out by a random rank, from a random cursor; verbs that move many items are several
transactions; `counts` is exact only while no lease is open; there is no clock that could
expire a beat, so a worker is dead when a reaper has seen it not move for a TTL, which may
be a fifth of a TTL later; `duplicates` has no answer.

All times in the ledger are the ledger's own; workers' clocks are never compared.
Answers list item ids ascending, each once. A name that never registered gets
`WorkerReaped` from every verb but `beat` (False) and `stop` (nothing).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from batchq.item import NewItem
from batchq.lease import Failure, Held, Lease, ReleaseReason
from batchq.ledger.records import (
    ISOLATED_LOSSES,
    TALLY_NAMES,
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
from batchq.result import Result

__all__ = [
    "ISOLATED_LOSSES",
    "TALLY_NAMES",
    "Committed",
    "CommittedResult",
    "Counts",
    "DeadLetter",
    "Enqueued",
    "Failed",
    "ItemState",
    "Ledger",
    "Policy",
    "Reaped",
    "Rejection",
    "Role",
    "Run",
    "State",
    "Tallies",
    "WorkerState",
    "WorkerStatus",
    "lease_cap",
]


class Ledger(Protocol):
    """The verbs. `worker` is the name a process registered under, never used twice."""

    url: str
    """The address without its password."""

    # -- schema and runs ---------------------------------------------------------

    def initialise(self) -> None:
        """Create or upgrade the schema. Repeating it changes nothing."""
        ...

    def check(self) -> None:
        """Raise LedgerNotInitialised unless the schema is the one this code speaks."""
        ...

    def create_run(
        self, name: str, processing_version: str, manifest: Mapping[str, Any], layout: str
    ) -> Run:
        """The run called `name`, created if absent.

        An existing run is returned as it is; whether it fits is the caller's question.
        """
        ...

    def find_run(self, name: str) -> Run | None: ...

    def run_names(self, limit: int) -> list[str]:
        """Names of runs, in alphabetical order; where there are more than `limit`, some of them."""
        ...

    # -- processes ---------------------------------------------------------------

    def register(
        self, run: Run, worker: str, ttl: float, role: Role, about: Mapping[str, Any]
    ) -> None:
        """Make `worker` known and alive for `ttl` seconds.

        A name that is live is beaten. Raises WorkerReaped for a name that has ended, and
        UsageError for a `ttl` that is not above 0 and at most `max_ttl`, as `beat` does.
        """
        ...

    def beat(self, worker: str, ttl: float) -> bool:
        """Live `ttl` seconds more. False: reaped, stopped or unknown; register anew.

        A beat that had expired, but was not reaped, goes on.
        """
        ...

    def stop(self, worker: str, reason: str) -> None:
        """The process ends in order. What it still holds is released as by a drain.

        It is its last sign of life.
        """
        ...

    def reap(self, worker: str, limit: int) -> Reaped:
        """Take back what workers with expired beats hold, at most `limit` items.

        `worker` is who reaps: never itself, and in its own run. Does nothing until this
        ledger object has had one TTL of unbroken contact during which the ledger's clock
        and the monotonic clock here agreed (`contact`), so that an outage or a suspended
        machine kills nobody who is alive; the TTL is the longer of the reaper's and the
        reaped's. An answered register, beat, claim or reap is contact. An expiry or a
        not_before further ahead than could have been set is pulled back to the longest
        that could: the worker's own TTL, `max_backoff`.

        All the dead are marked at once and named in this answer only; what a marked
        worker holds beyond `limit` goes back with later calls, and until then its token
        still holds. Enqueuers and operators are reaped too: they just stop counting. The
        stop reason tells the cost: for how long there was no beat, and how many items.

        A returned item is due at once and its `losses` grows by one. If its worker held
        just this item when it was marked, in all its leases, the loss is a lone one and
        counts towards `max_losses` (dead letter, cause `worker_lost`).
        """
        ...

    # -- items -------------------------------------------------------------------

    def enqueue(
        self, worker: str, batch: int, items: Sequence[NewItem], *, replace: bool = False
    ) -> Enqueued:
        """Take up `items`. `batch` numbers this worker's calls, from 1, growing.

        The last batch asked again returns the same answer and changes nothing; an
        earlier one raises UsageError. A reaped enqueuer may go on: nothing of it is fenced.

        - unknown document: a new item, ready.
        - same version as the document's current item: known; its locator is updated
          unless it is completed.
        - another version: a new item, or the known one of that version, becomes the
          document's current item and supersedes the previous one if that is not completed
          (leased ones are fenced, dead letters go). A superseded item named again is known,
          and due at once as a new generation with clean counts.
        - another version from another root: rejected, naming both, unless `replace`. The
          document's root is that of the enqueue which last changed its current item.
        - a source id that this worker has already named, in any batch, and that no other
          enqueuer has named since: rejected.
        """
        ...

    def claim(self, worker: str, token: str, limit: int, *, alone: bool) -> Lease | None:
        """Lease up to `limit` items under `token`, or none if nothing is due.

        Due delayed items come first, by (not_before, id), then ready ones by id from
        this worker's cursor, which starts before the first and wraps once. A lease holds
        at most `lease_cap` items of every one in it, and never mixes an item with losses
        with ready ones: the first due item decides, the lease takes those with as many
        losses as it, and only a lease without losses is filled up from the ready ones.
        Items with ISOLATED_LOSSES or more are handed out one at a time and only where
        `alone` says that the worker holds nothing else; otherwise they are passed over.
        Within the lease, items are in the order of their ids. DynamoDB keeps no order among
        ready items, and brings fewer of them where some were superseded while they waited.

        The worker's last token asked again returns what that token still holds and
        claims nothing; a claim that brought nothing has used up no token. A worker sends
        one claim at a time. Should one arrive after its worker has gone on without its
        answer, it takes nothing, or what it took is due again at the next one. Raises
        WorkerReaped if `worker` is reaped or stopped; an expired beat alone hinders nothing.
        """
        ...

    def commit(self, worker: str, results: Sequence[Result]) -> Committed:
        """Accept each result whose token still holds its item; the item is completed.

        A result already committed with the same token and digest is accepted again
        and moves no counter. Everything else is fenced, and counted once for each
        item and token. A late commit whose token still holds is never refused. Two
        results of one item in one call are taken one after the other.
        """
        ...

    def fail(self, worker: str, failures: Sequence[Failure]) -> Failed:
        """Charge each failure: the item is delayed with backoff, or dead-lettered.

        Asked again, the tokens no longer hold: fenced, and no counter moves. Of two
        failures under one token the first is charged.
        """
        ...

    def release(self, worker: str, held: Sequence[Held], reason: ReleaseReason) -> int:
        """Give items back uncharged; how many took effect. Asked again: none.

        DRAIN: due at once, counted as interrupted. BROKEN_OBJECT: due at once as a
        new generation, which keeps its counts. Others: with backoff; the
        `max_releases`-th of one item, or the first later one where it applies, is
        charged (cause: the reason) if its holder committed anything since the claim,
        and their count starts again.
        """
        ...

    def retry(
        self, worker: str, run: Run, *, source_ids: Sequence[str] = (), cause: str | None = None
    ) -> int:
        """Send dead letters back as a new generation with clean counts; how many.

        Empty `source_ids` means all; `cause` narrows either. They are due at once.
        """
        ...

    def reopen(self, worker: str, run: Run, broken: Sequence[CommittedResult]) -> int:
        """Send back completed items whose objects are lost or altered; how many.

        Each takes effect only while its item is completed in the generation and with the
        digest that are given; else, and asked again, it changes nothing. The item is due
        at once, as a new generation with clean counts, also where it is no longer its
        document's current one; the row that it had among the results goes to their
        history. Its commit asked again is fenced from then on.
        """
        ...

    # -- reading -----------------------------------------------------------------

    def counts(self, run: Run) -> Counts:
        """One snapshot, at a cost that does not grow with the number of items."""
        ...

    def recount(self, run: Run) -> Tallies:
        """The numbers of items in each state, counted row by row in one snapshot.

        What `counts` keeps account of without looking; counters of events are 0 here.
        """
        ...

    def duplicates(self, run: Run) -> int | None:
        """Items ever enqueued less their distinct source versions, or none on DynamoDB.

        Reads every item.
        """
        ...

    def workers(self, run: Run) -> list[WorkerStatus]:
        """Every process registered for the run, oldest first."""
        ...

    def lookup(self, run: Run, source_id: str) -> ItemState | None:
        """The document's current item, or none if it was never enqueued."""
        ...

    def states(self, run: Run, identities: Sequence[tuple[str, str]]) -> list[ItemState | None]:
        """Each item named by (source id, source version), current or not, in their order.

        None where it was never enqueued.
        """
        ...

    def results(
        self, run: Run, after: int, limit: int, *, current_only: bool = False
    ) -> list[CommittedResult]:
        """Up to `limit` results with item ids above `after`, by id.

        `current_only`: none of a version that is no longer its document's current item,
        whether or not the newer one has a result yet.
        """
        ...

    def dead_letters(self, run: Run, after: int, limit: int) -> list[DeadLetter]:
        """Up to `limit` dead letters with item ids above `after`, by id."""
        ...

    def close(self) -> None: ...
