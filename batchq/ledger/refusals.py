"""What every backend says alike: why it refuses a process, a batch, a document or an item."""

from __future__ import annotations

from batchq.errors import UsageError, WorkerReaped
from batchq.ledger.records import Policy, WorkerState

__all__ = [
    "NAMED_TWICE",
    "WORKER_LOST",
    "died_with_it",
    "earlier_batch",
    "ended_name",
    "leases_over",
    "other_root",
    "released_often",
    "require_ttl",
    "stranger",
]

# -- processes -------------------------------------------------------------------


def require_ttl(policy: Policy, ttl: float) -> None:
    """Raise UsageError for a TTL (seconds) that nobody may register or beat with."""
    if not 0 < ttl <= policy.max_ttl:
        raise UsageError(
            f"a TTL of {ttl:g} s is not above 0 and at most {policy.max_ttl:g} s",
            hint="set --lease-ttl within these bounds",
        )


def stranger(name: str) -> WorkerReaped:
    return WorkerReaped(f"no process is registered as {name}", hint="register it first")


def ended_name(name: str) -> WorkerReaped:
    """For who registers under it."""
    return WorkerReaped(
        f"the name {name} belongs to a process that has ended",
        hint="register under a new name",
    )


def leases_over(name: str, state: WorkerState | str) -> WorkerReaped:
    """For who claims under it; `state` is what has become of its process."""
    return WorkerReaped(
        f"worker {name} is {state}: its leases are over",
        hint="register under a new name",
    )


# -- documents -------------------------------------------------------------------

NAMED_TWICE = "named twice in this enqueue"


def earlier_batch(worker: str, batch: int, last: int) -> UsageError:
    """For a batch that is not the last one of its enqueuer, nor a later one."""
    return UsageError(
        f"batch {batch} of {worker} comes after its batch {last}",
        hint="number the batches of one process from 1, growing",
    )


def other_root(known: str, new: str) -> str:
    """Why a version is not taken up from `new`."""
    return (
        f"it is enqueued from {known}, and {new} has another version of it; "
        "give one of the two another --prefix, or supersede it with --replace"
    )


# -- items: what their dead letters say --------------------------------------------

WORKER_LOST = "worker_lost"
"""The cause of who died of lone losses."""


def died_with_it(lone_losses: int) -> str:
    return f"{lone_losses} workers died while they held this item and no other"


def released_often(releases: int) -> str:
    return f"released {releases} times while its workers committed other items"
