"""The worker: one process's life, from its registration to its exit code."""

from __future__ import annotations

import logging
import os
import platform
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from batchq.clock import Clock
from batchq.errors import BatchqError, DeviceLost, ExitCode, LedgerUnreachable
from batchq.event import Events
from batchq.inference.base import Processor
from batchq.lease import ReleaseReason
from batchq.ledger.base import Counts, Ledger, Run
from batchq.ledger.uptime import ERROR, FINISHED, uptime
from batchq.notice.base import Notice, NoticeSource
from batchq.source.base import Extractor, Reader
from batchq.store.base import Store
from batchq.store.layout import layout_named
from batchq.words import counted
from batchq.worker.drain import Drain, shortest_window, usable
from batchq.worker.heartbeat import Heartbeat, Registration
from batchq.worker.last_calls import LastCalls
from batchq.worker.pace import EXPECTED_UPTIME_S, Pace
from batchq.worker.parts import Parts
from batchq.worker.pipeline import Pipeline
from batchq.worker.settle import for_the_ledger

__all__ = ["Progress", "WorkerSettings", "run_worker"]

log = logging.getLogger("batchq.worker")

PROGRESS_EVERY_S = 0.5
LAST_BEAT_S = 2.0
"""How long a beat that is under way is waited for."""

LOCAL_PUTTERS, REMOTE_PUTTERS, SHARD_PUTTERS = 8, 32, 4
"""Threads that store results. In layout `item` a remote store answers each one's requests in
tens of milliseconds, in which they do nothing. In layout `shard` they mostly make frames, and
taking turns at that, 32 of them needed three times as long as 4."""

MAX_FLUSH_SHARE = 0.05
"""Of a worker's time; above it a person is told."""

OVERHEAD_AFTER_S = 60.0
"""A short life says little about it, but is told all the same at its end."""

LEFT_AT_ONCE = "left at once, at a second SIGINT"

LIBRARIES = ("batchq", "torch", "transformers", "sentence-transformers", "tokenizers", "numpy")


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a person may set. Times in seconds; none means measured or the default.

    `claim`: items a claim; `flush_items`: results a commit; `notice_window`: from a
    notice without a deadline to the end; `expected_uptime`: mean time to an interruption,
    until the run's own history says more.
    """

    lease_ttl: float = 60.0
    claim: int | None = None
    flush_items: int | None = None
    device: str = "auto"
    follow: bool = False
    stall_timeout: float = 600.0
    notice_window: float | None = None
    expected_uptime: float = EXPECTED_UPTIME_S


@dataclass(frozen=True, slots=True)
class Progress:
    """What a progress bar needs: this worker's commits, what it holds, the run's counts."""

    committed: int
    held: int
    counts: Counts


def run_worker(
    *,
    ledger: Ledger,
    run: Run,
    store: Store,
    reader: Reader,
    extractor: Extractor,
    processor: Processor,
    settings: WorkerSettings,
    events: Events,
    clock: Clock,
    notices: Sequence[NoticeSource] = (),
    watching: Sequence[str] = (),
    on_progress: Callable[[Progress], None] = lambda progress: None,
    on_overtime: Callable[[str], object] | None = None,
) -> ExitCode:
    """Process `run` until nothing is left, a notice stops it, or something breaks.

    `watching` says of `notices` what a person wants to know. `on_overtime` is called, from
    a thread, with the reason to stop shortly before a notice's deadline: whoever is still
    there then should end the process, since something hangs that cannot be interrupted.

    Returns OK, DEAD_LETTERS, STOPPED or INTERRUPTED_TWICE. Raises DeviceLost (start
    another process), StoreUnusable, LedgerUnreachable or another BatchqError.
    """
    drained = False
    drain = Drain(clock, settings.notice_window)
    for source in notices:
        source.watch(drain.begin)
    if on_overtime is not None:
        threading.Thread(target=_overtime, args=(drain, on_overtime), daemon=True).start()
    try:
        counts = ledger.counts(run)
        if not settings.follow and counts.run_is_over:
            return _nothing_to_do(counts, events)
        about = _about(settings, watching)
        registration = Registration(ledger, run, _host(), settings.lease_ttl, about)
        registration.register()
        history = uptime(ledger.workers(run), counts.now)
        parts = Parts(
            ledger=ledger,
            run=run,
            layout=layout_named(
                run.layout,
                store,
                prefix=run.prefix,
                processing_version=run.processing_version,
                clock=clock,
            ),
            reader=reader,
            extractor=extractor,
            processor=processor,
            registration=registration,
            events=events,
            clock=clock,
            drain=drain,
            pace=Pace(
                claim=settings.claim,
                flush_items=settings.flush_items,
                expected_uptime_s=history.expected_s(settings.expected_uptime),
                window_s=usable(shortest_window(settings.notice_window, notices)),
            ),
            device=settings.device,
            provenance={"device": settings.device, "versions": about["versions"]},
            follow=settings.follow,
            putters=_putters(run, store),
            remote=store.remote,
        )
        told = history.told(settings.expected_uptime)
        events.emit("started", worker=registration.name, run=run.name, **about, interruptions=told)
        code = _Life(parts, settings, on_progress, counts).live()
        drained = drain.started
        return code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED_TWICE
    finally:
        for source in notices:
            source.close(drained=drained)


class _Life:
    """From the registration to the last call."""

    def __init__(
        self,
        parts: Parts,
        settings: WorkerSettings,
        on_progress: Callable[[Progress], None],
        counts: Counts,
    ) -> None:
        self._parts = parts
        self._on_progress = on_progress
        self._counts = counts
        self._reported_at = float("-inf")
        self._announced = False
        self._warned = False
        self._last = LastCalls(parts.drain)
        self._began = parts.clock.monotonic()
        self._pipeline = Pipeline(parts)
        self._heartbeat = Heartbeat(
            parts.ledger,
            parts.registration,
            parts.clock,
            stall_timeout=settings.stall_timeout,
            last_progress=self._pipeline.last_progress,
            on_reaped=self._pipeline.reaped,
            on_fatal=self._pipeline.fail,
        )

    def live(self) -> ExitCode:
        parts, drain = self._parts, self._parts.drain
        self._heartbeat.start()
        try:
            self._pipeline.run(self._tick)
        except DeviceLost as error:
            # What was being worked on stays leased: as a loss it shrinks the next lease,
            # until the document that does this is alone.
            self._leave(self._release_unsuspected)
            self._stopped(str(error), error.exit_code)
            raise
        except LedgerUnreachable as error:
            if not drain.started:
                self._stopped(str(error), error.exit_code)
                raise
            # Time is over with a commit unresolved: what is in the store is adopted later.
            log.error("the drain ended without the ledger's answer: %s", error)
            reason = self._reason_to_stop()
            self._leave(lambda: parts.ledger.stop(parts.registration.name, reason))
            self._stopped(reason, ExitCode.STOPPED)
            return ExitCode.STOPPED
        except KeyboardInterrupt:
            self._leave(lambda: parts.ledger.stop(parts.registration.name, LEFT_AT_ONCE))
            self._stopped(LEFT_AT_ONCE, ExitCode.INTERRUPTED_TWICE)
            raise
        except BaseException as error:
            code = error.exit_code if isinstance(error, BatchqError) else ExitCode.ERROR
            began = ERROR if isinstance(error, Exception) else ""
            reason = for_the_ledger(f"{began}{type(error).__name__}: {error}")
            self._leave(lambda: parts.ledger.stop(parts.registration.name, reason))
            self._stopped(reason, code)
            raise
        reason = self._reason_to_stop()
        self._leave(lambda: parts.ledger.stop(parts.registration.name, reason))
        try:
            code = self._exit_code()
        except BatchqError as error:
            self._stopped(for_the_ledger(str(error)), error.exit_code)
            raise
        self._stopped(reason, code)
        return code

    def _tick(self) -> None:
        """Called often from the main thread, never from a signal handler."""
        parts = self._parts
        if parts.drain.notice is not None and not self._announced:
            self._announced = True
            left = parts.drain.seconds_left()
            log.warning("%s; %.0f s left to end in order", parts.drain.reason(), left)
            self._announce(parts.drain.notice, left)
        while not parts.drain.recorded.empty():
            notice = parts.drain.recorded.get()
            log.warning("%s %s by %s, recorded only", notice.kind, notice.action, notice.source)
            self._announce(notice, None)
        now = parts.clock.monotonic()
        if now - self._began >= OVERHEAD_AFTER_S:
            self._warn_of_overhead()
        if now - self._reported_at >= PROGRESS_EVERY_S:
            self._reported_at = now
            self._on_progress(
                Progress(
                    committed=self._pipeline.settler.accepted,
                    held=len(self._pipeline.holdings),
                    counts=self._pipeline.claimer.counts or self._counts,
                )
            )

    def _announce(self, notice: Notice, seconds_left: float | None) -> None:
        self._parts.events.emit(
            "notice",
            kind=notice.kind,
            action=notice.action,
            source=notice.source,
            deadline_s=None if seconds_left is None else round(seconds_left, 1),
            drains=notice.drains,
        )

    def _release_unsuspected(self) -> None:
        held = [work.held for work in self._pipeline.unsuspected()]
        self._parts.ledger.release(self._parts.registration.name, held, ReleaseReason.DRAIN)

    def _leave(self, last_call: Callable[[], object]) -> None:
        """Stop beating and make one last call: leases end by themselves too."""
        self._heartbeat.stop(min(LAST_BEAT_S, self._last.seconds() / 2))
        try:
            self._last.ask(last_call)
        except BatchqError as error:
            log.warning("last call to the ledger: %s", error)

    def _exit_code(self) -> ExitCode:
        if self._parts.drain.started and self._pipeline.holdings.all():
            return ExitCode.STOPPED
        counts = self._last.ask(lambda: self._parts.ledger.counts(self._parts.run))
        if counts is None or (self._parts.drain.started and not counts.run_is_over):
            return ExitCode.STOPPED
        return counts.outcome

    def _reason_to_stop(self) -> str:
        """With what the interruption cost: items given back, and seconds of the drain."""
        drain = self._parts.drain
        if not drain.started:
            return FINISHED
        given_back = self._pipeline.settler.given_back + len(self._pipeline.holdings)
        cost = f"{counted(given_back, 'item')} given back in {drain.seconds_since():.1f} s"
        return f"{drain.reason()}; {cost}"

    def _stopped(self, reason: str, code: ExitCode) -> None:
        share = self._warn_of_overhead()
        self._parts.events.emit(
            "stopped", reason=reason, exit_code=int(code), flush_share=round(share, 4)
        )

    def _warn_of_overhead(self) -> float:
        """Once, if commits take too much of the time; which part of it they take."""
        share = self._parts.pace.flush_share(self._parts.clock.monotonic() - self._began)
        if share > MAX_FLUSH_SHARE and not self._warned:
            self._warned = True
            log.warning(
                "commits take %.0f %% of the time; raise flush_items, or see what slows the ledger",
                100 * share,
            )
        return share


def _overtime(drain: Drain, on_overtime: Callable[[str], object]) -> None:
    drain.wait_for_the_end()
    on_overtime(drain.reason())


def _nothing_to_do(counts: Counts, events: Events) -> ExitCode:
    tallies = counts.tallies
    if tallies.total == 0:
        reason = "the run is empty: nothing was enqueued"
    else:
        reason = f"nothing to do: every item has ended, {counted(tallies.total, 'item')} in all"
    code = counts.outcome
    log.info("%s", reason)
    events.emit("stopped", reason=reason, exit_code=int(code))
    return code


def _putters(run: Run, store: Store) -> int:
    if run.layout == "shard":
        return SHARD_PUTTERS
    return REMOTE_PUTTERS if store.remote else LOCAL_PUTTERS


def _host() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


def _about(settings: WorkerSettings, watching: Sequence[str]) -> Mapping[str, Any]:
    """What a worker says of itself: kept on its row, shown by `status`."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "device": settings.device,
        "notices": list(watching) or ["none: lease expiry only"],
        "python": platform.python_version(),
        "versions": _versions(),
    }


def _versions() -> dict[str, str]:
    """Read from the installed packages, so that none need be imported."""
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
