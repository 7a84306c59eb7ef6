"""What `batchq status` knows: one snapshot of a run, as it prints it with `--json`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from batchq.clock import Clock
from batchq.errors import WaitTimedOut
from batchq.ledger.base import Counts, Ledger, Role, Run, WorkerStatus
from batchq.ledger.uptime import uptime
from batchq.words import command, counted, duration

__all__ = ["rate_per_s", "snapshot", "uptime_line", "wait"]

POLL_S = 1.0


def snapshot(
    ledger: Ledger, run: Run, *, expected_uptime: float, duplicates: bool = False
) -> dict[str, Any]:
    """The run as it stands, at a cost that does not grow with its items.

    With `duplicates` the documents of equal content are counted too, which reads
    every item; otherwise `duplicates.content` is null. `expected_uptime`, the setting in
    seconds, is shown beside what the run's history says. `rate_per_s` and `eta_s` are
    null while nothing was committed by a live worker.
    """
    counts = ledger.counts(run)
    workers = ledger.workers(run)
    tallies = counts.tallies
    rate = rate_per_s(workers, counts.now)
    remaining = tallies.ready + tallies.leased
    return {
        "run": run.name,
        "processing_version": run.processing_version,
        "exact": counts.exact,
        "items": {
            "total": tallies.total,
            "ready": tallies.ready,
            "delayed": tallies.delayed,
            "leased": tallies.leased,
            "completed": tallies.completed,
            "empty": tallies.empty,
            "dead_lettered": tallies.dead_lettered,
            "superseded": tallies.superseded,
        },
        "duplicates": {
            "enqueue": tallies.known,
            "content": ledger.duplicates(run) if duplicates else None,
            "adopted": tallies.adopted,
            "fenced": tallies.fenced,
            # What an earlier attempt stored in a shard is found by nobody, so not compared.
            "divergent": None if run.layout == "shard" else tallies.divergent,
        },
        "rework": {
            "attempts": tallies.attempts,
            "lost_leases": tallies.lost_leases,
            "interrupted": tallies.interrupted,
            "failures": tallies.failures,
        },
        "interruptions": uptime(workers, counts.now).told(expected_uptime),
        "workers": [_worker(worker, counts.now) for worker in workers],
        "rate_per_s": None if rate is None else round(rate, 3),
        "eta_s": _eta(remaining, rate),
        "oldest_lease_s": counts.oldest_lease_s,
    }


def rate_per_s(workers: Iterable[WorkerStatus], now: float) -> float | None:
    """Items a second: each live worker's commits over its time so far, added up."""
    rates = [
        worker.committed / (now - worker.registered_at)
        for worker in workers
        if worker.role is Role.WORKER and worker.alive and now > worker.registered_at
    ]
    return sum(rates) or None


def wait(
    ledger: Ledger,
    run: Run,
    clock: Clock,
    timeout: float | None,
    *,
    each: Callable[[], None] = lambda: None,
) -> Counts:
    """Return once the run has ended, looking every POLL_S seconds and then calling `each`.

    Raises WaitTimedOut after `timeout` seconds; with none it waits for ever.
    """
    never = threading.Event()
    deadline = None if timeout is None else clock.monotonic() + timeout
    while not (counts := ledger.counts(run)).run_is_over:
        each()
        left = POLL_S if deadline is None else deadline - clock.monotonic()
        if left <= 0:
            raise WaitTimedOut(
                f"run {run.name!r} has not ended after {timeout:g} s: "
                f"{counts.tallies.ready} ready, {counts.tallies.leased} leased, "
                f"{counted(counts.workers_alive, 'worker')} alive",
                hint="wait longer with --timeout"
                if counts.workers_alive
                else f"no worker is alive; start one: {command('worker', run.name)}",
            )
        clock.wait(never, min(POLL_S, left))
    return counts


def uptime_line(told: Mapping[str, Any]) -> str:
    """What `ledger.uptime.Uptime.told` says, in a line: the assumption beside the history."""
    assumed = f"expected {duration(told['expected_uptime_s'])} (expected_uptime)"
    number = told["count"]
    if not number:
        return f"{assumed}; no interruption in {duration(told['worker_s'])} of work so far"
    often = f"one in {duration(told['mean_uptime_s'])} of work"
    return (
        f"{assumed}; {counted(number, 'interruption')}, {often}; "
        f"planned with {duration(told['planned_uptime_s'])}"
    )


def _eta(remaining: int, rate: float | None) -> float | None:
    if remaining == 0:
        return 0.0
    return None if rate is None else round(remaining / rate, 1)


def _worker(worker: WorkerStatus, now: float) -> dict[str, Any]:
    return {
        "id": worker.name,
        "role": worker.role.value,
        "state": worker.state.value,
        "alive": worker.alive,
        "held": worker.held,
        "committed": worker.committed,
        "stop_reason": worker.stop_reason,
        "registered_at": worker.registered_at,
        "beat_age_s": round(max(0.0, now - worker.beat_at), 3),
        "about": dict(worker.about),
    }
