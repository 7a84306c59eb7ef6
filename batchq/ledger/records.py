"""What the ledger's verbs take and give: states, policy, tallies and answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from batchq.errors import ExitCode
from batchq.result import Stored

__all__ = [
    "COUNTED",
    "ISOLATED_LOSSES",
    "TALLY_NAMES",
    "Committed",
    "CommittedResult",
    "Counts",
    "DeadLetter",
    "Enqueued",
    "Failed",
    "ItemState",
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

ISOLATED_LOSSES = 2
"""From this many losses on an item is leased alone, to a worker that holds nothing else."""


class State(StrEnum):
    READY = "ready"
    DELAYED = "delayed"
    LEASED = "leased"
    COMPLETED = "completed"
    DEAD_LETTERED = "dead_lettered"
    SUPERSEDED = "superseded"


class Role(StrEnum):
    """What a registered process does. `operator`: a command such as `retry`."""

    WORKER = "worker"
    ENQUEUER = "enqueuer"
    OPERATOR = "operator"


class WorkerState(StrEnum):
    LIVE = "live"
    STOPPED = "stopped"
    REAPED = "reaped"


@dataclass(frozen=True, slots=True)
class Policy:
    """The bounds a ledger applies. Times in seconds.

    `max_failures` charged failures, or `max_losses` lone losses, end an item as a
    dead letter. A charged or backed-off item waits `backoff * 2**(n - 1)`, at most
    `max_backoff`, where n counts its failures or releases. The `max_releases`-th
    release of one item, while its worker commits others, is charged as a failure.
    `max_ttl` is the longest TTL that a process may register or beat with.
    """

    max_failures: int = 3
    max_losses: int = 3
    max_releases: int = 5
    backoff: float = 2.0
    max_backoff: float = 300.0
    max_ttl: float = 3600.0

    def delay(self, count: int) -> float:
        """Seconds to wait after the `count`-th failure or release (from 1)."""
        # Releases are not bounded: the power of a long outage's count would overflow.
        doublings = min(max(1, count) - 1, 64)
        return min(self.max_backoff, self.backoff * 2.0**doublings)


def lease_cap(losses: int, limit: int) -> int:
    """The largest lease an item with `losses` may be in: tenfold smaller for each.

    limit, then 10, then 1: a lease of a hundred that was lost is searched in two steps.
    """
    if losses == 0:
        return limit
    return max(1, min(limit, int(100 // 10**losses)))


@dataclass(frozen=True, slots=True)
class Run:
    """A named set of items with one processing version and one result store.

    `prefix` is the first part of every key of this run in the store: its slug and
    random id, so that no two runs or ledgers share one.
    """

    id: int
    name: str
    prefix: str
    processing_version: str
    manifest: Mapping[str, Any]
    layout: str


@dataclass(frozen=True, slots=True)
class Tallies:
    """Counters that move in the transaction that moves the items.

    Up to `superseded` they are numbers of items now in a state (`ready` with the
    delayed ones; `empty` is part of `completed`; `total` without the superseded). The
    rest count events: `known`, enqueue requests that named a known item; `adopted`,
    `divergent`, `fenced`, see `Result` and `commit`; `attempts`, claims of items;
    `lost_leases`, items reaped; `interrupted`, items released by a drain;
    `failures`, charged returns.
    """

    total: int = 0
    ready: int = 0
    delayed: int = 0
    leased: int = 0
    completed: int = 0
    empty: int = 0
    dead_lettered: int = 0
    superseded: int = 0
    known: int = 0
    adopted: int = 0
    divergent: int = 0
    fenced: int = 0
    attempts: int = 0
    lost_leases: int = 0
    interrupted: int = 0
    failures: int = 0

    def __add__(self, other: Tallies) -> Tallies:
        return Tallies(*(getattr(self, n) + getattr(other, n) for n in TALLY_NAMES))


TALLY_NAMES: tuple[str, ...] = tuple(f.name for f in fields(Tallies))

COUNTED = {
    State.READY: ("total", "ready"),
    State.DELAYED: ("total", "ready", "delayed"),
    State.LEASED: ("total", "leased"),
    State.COMPLETED: ("total", "completed"),
    State.DEAD_LETTERED: ("total", "dead_lettered"),
    State.SUPERSEDED: ("superseded",),
}
"""The tallies that an item in each state is part of."""


@dataclass(frozen=True, slots=True)
class Counts:
    """One snapshot of a run.

    `exact` is false where open leases are not yet settled in the tallies (DynamoDB).
    `workers_alive` and `enqueuers_alive` are live processes whose beat has not expired.
    `now` is the ledger's clock (Unix seconds); `oldest_lease_s` the age of the oldest
    open lease in seconds, or none. `next_due_s`: seconds until the earliest delayed
    item is due (0 if one is due already), or none if none is delayed.
    """

    tallies: Tallies
    workers_alive: int
    enqueuers_alive: int
    now: float
    oldest_lease_s: float | None = None
    next_due_s: float | None = None
    exact: bool = True

    @property
    def run_is_over(self) -> bool:
        """Whether nothing is left to do and nobody alive is about to bring more."""
        remaining = self.tallies.ready + self.tallies.leased
        return self.exact and remaining == 0 and self.enqueuers_alive == 0

    @property
    def outcome(self) -> ExitCode:
        """The exit code that a run which is over stands for."""
        return ExitCode.DEAD_LETTERS if self.tallies.dead_lettered else ExitCode.OK


@dataclass(frozen=True, slots=True)
class Rejection:
    """A document that was not taken up, and why."""

    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What one batch brought: numbers of items, and the rejected ones by name."""

    new: int = 0
    known: int = 0
    superseded: int = 0
    rejected: tuple[Rejection, ...] = ()


@dataclass(frozen=True, slots=True)
class Committed:
    """Item ids. `fenced`: the named token no longer holds the item."""

    accepted: tuple[int, ...] = ()
    fenced: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """Item ids, each in one of the three."""

    retried: tuple[int, ...] = ()
    dead_lettered: tuple[int, ...] = ()
    fenced: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Reaped:
    """Names of the workers taken back, and how many items went where."""

    workers: tuple[str, ...] = ()
    returned: int = 0
    dead_lettered: int = 0


@dataclass(frozen=True, slots=True)
class CommittedResult:
    """A row of the results: what was committed, by whom, and where it lies."""

    item_id: int
    source_id: str
    source_version: str
    size: int
    stored: Stored
    attempt: int
    generation: int
    empty: bool
    adopted: bool
    worker: str
    committed_at: float


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An item that ended without a result, with its cause."""

    item_id: int
    source_id: str
    source_version: str
    cause: str
    error: str
    attempt: int
    generation: int
    at: float


@dataclass(frozen=True, slots=True)
class ItemState:
    """Where an item stands; `result` where it is completed."""

    item_id: int
    source_id: str
    source_version: str
    locator: str
    state: State
    result: CommittedResult | None = None


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A registered process. `held`: items it holds now; `committed`: items so far.

    `about` is what it said of itself when it registered (device, host, notices).
    Times are the ledger's Unix seconds; `beat_at` is that of the last sign of life.
    """

    name: str
    role: Role
    state: WorkerState
    alive: bool
    held: int
    committed: int
    registered_at: float
    beat_at: float
    stop_reason: str | None
    about: Mapping[str, Any] = field(default_factory=dict)
