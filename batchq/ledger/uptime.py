"""How long workers of a run have lived: what its own rows tell of interruptions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from batchq.ledger.records import Role, WorkerState, WorkerStatus

__all__ = ["ERROR", "FINISHED", "Uptime", "uptime"]

FINISHED = "run finished"
"""The stop reason of a worker that nothing interrupted."""

ERROR = "error: "
"""What that of a worker begins with which ended by an error: nobody took its machine away."""


@dataclass(frozen=True, slots=True)
class Uptime:
    """Seconds that all workers of a run have lived, and how many of them were cut short."""

    worker_s: float
    interruptions: int

    @property
    def mean_s(self) -> float | None:
        """Seconds from one interruption to the next; none before the first."""
        return self.worker_s / self.interruptions if self.interruptions else None

    def expected_s(self, prior_s: float) -> float:
        """The estimate to plan with: `prior_s` weighs as much as one interruption.

        (observed + prior) / (interruptions + 1): with nothing observed it is the prior, and
        with much it is the mean.
        """
        return (self.worker_s + prior_s) / (self.interruptions + 1)

    def told(self, prior_s: float) -> dict[str, Any]:
        """The assumption beside what was seen, as JSON; see `expected_s`. Seconds."""
        return {
            "count": self.interruptions,
            "worker_s": round(self.worker_s, 1),
            "mean_uptime_s": None if self.mean_s is None else round(self.mean_s, 1),
            "expected_uptime_s": prior_s,
            "planned_uptime_s": round(self.expected_s(prior_s), 1),
        }


def uptime(workers: Iterable[WorkerStatus], now: float) -> Uptime:
    """Of processes with the role of a worker; `now` is the ledger's clock."""
    seconds, interruptions = 0.0, 0
    for worker in workers:
        if worker.role is not Role.WORKER:
            continue
        live = worker.state is WorkerState.LIVE
        seconds += max(0.0, (now if live else worker.beat_at) - worker.registered_at)
        interruptions += not live and not (worker.stop_reason or "").startswith((FINISHED, ERROR))
    return Uptime(seconds, interruptions)
