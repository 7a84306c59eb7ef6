"""`batchq worker`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batchq.cli import streams
from batchq.cli.options import ConfigFile, Json, LedgerUrl, Results, RunName, given

if TYPE_CHECKING:
    from batchq.cli.session import Session
    from batchq.errors import ExitCode
    from batchq.event import Events
    from batchq.wiring import SignalSource

__all__ = ["add_to"]

TELLING_S = 0.2
"""How long a last word may keep a process from its end."""

TOLD_BY_THE_BAR = frozenset({"started", "claimed", "committed", "adopted", "stopped"})
TOLD_BY_THE_LOG = frozenset({"failed", "notice", "released"})
"""With why, which the event does not say; what a drain released stands in the last line."""


def add_to(app: typer.Typer) -> None:
    app.command()(worker)


def worker(
    follow: Annotated[
        bool, typer.Option("--follow", help="When nothing is left, wait for more.")
    ] = False,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="D", help="cpu, cuda, cuda:1, mps. Default: auto."),
    ] = None,
    lease_ttl: Annotated[
        str | None,
        typer.Option(
            "--lease-ttl",
            metavar="TIME",
            help="Without a sign of life for so long, others take over. Default: 60s.",
        ),
    ] = None,
    claim: Annotated[
        str | None,
        typer.Option("--claim", metavar="N", help="Items a claim. Default: by their cost."),
    ] = None,
    notice: Annotated[
        str | None,
        typer.Option(
            "--notice", metavar="SOURCES", help="auto, none, or ec2,sqs,gcp,azure. Default: auto."
        ),
    ] = None,
    run: RunName = None,
    ledger: LedgerUrl = None,
    results: Results = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Process the run's items until none is left. Start as many as you like.

    Takes processor and parameters from the run, and is refused (13) if code, weights or
    settings here differ. Ctrl-C or SIGTERM: finishes what it has begun, releases the rest.

    \b
    Examples:
      batchq worker
      batchq worker --run bge-small --device cuda:1
      batchq worker --ledger postgresql://batchq@db/batchq --results /mnt/results --follow

    Exit codes: 0 run finished, 3 finished with dead letters, 75 stopped and work remains,
    76 device or stall: start another.
    """
    from batchq import wiring

    # Before all that takes time.
    signals = wiring.take_signals(streams.leave_terminal)
    if json:
        streams.keep_stdout_for_data()
    options = given(
        run=run,
        ledger=ledger,
        results=results,
        config=config,
        device=device,
        lease_ttl=lease_ttl,
        claim=claim,
        notice=notice,
    )
    try:
        from batchq.cli.session import opened

        with opened(options) as session:
            return _work(session, signals, follow=follow, json=json)
    except SystemExit:
        # A signal's: see `SignalSource.take_process`.
        from batchq.cli.console import note

        note("stopped by a signal before anything was claimed: start another worker")
        raise
    finally:
        signals.close()


def _work(session: Session, signals: SignalSource, *, follow: bool, json: bool) -> ExitCode:
    from batchq import wiring
    from batchq.cli.console import note, progress
    from batchq.enqueue import check_store
    from batchq.event import JsonEvents
    from batchq.worker.worker import Progress, WorkerSettings, run_worker

    config, run = session.config, session.run
    check_store(session.store, run)
    session.store.probe()
    processor = wiring.run_processor(run, session.loaded)
    notices, watching = wiring.open_notices(config, session.clock, signals)
    settings = WorkerSettings(
        lease_ttl=config.lease_ttl,
        claim=config.claim,
        flush_items=config.flush_items,
        device=config.device,
        follow=follow,
        stall_timeout=config.stall_timeout,
        notice_window=config.notice_window,
        expected_uptime=config.expected_uptime,
    )
    note(f"run {run.name}: {run.processing_version}, results in {session.store.url}")
    note(f"notices: {'; '.join(watching)}")
    with progress("worker", "items") as update, wiring.open_extractor() as extractor:

        def show(now: Progress) -> None:
            tallies = now.counts.tallies
            update(tallies.completed + tallies.dead_lettered, tallies.total)

        unusual = _Unusual()
        events: Events = JsonEvents(streams.data(), session.clock) if json else unusual
        code = run_worker(
            ledger=session.ledger,
            run=run,
            store=session.store,
            reader=wiring.open_reader(session.store),
            extractor=extractor,
            processor=processor,
            settings=settings,
            events=events,
            clock=session.clock,
            notices=notices,
            watching=watching,
            on_progress=show,
            on_overtime=_leave_at_once,
        )
    # Events that nobody could read are no failure of what was done.
    streams.flush()
    if unusual.started:
        note(_farewell(session, code, unusual.stopped))
    return code


def _leave_at_once(reason: str) -> None:
    """End the process, whatever it hangs in: the machine is about to be taken away."""
    from batchq.cli.console import note
    from batchq.errors import ExitCode

    said = f"{reason}: something hangs, so this process ends before its deadline"
    # Writing may be what hangs.
    telling = threading.Thread(target=note, args=(said,), daemon=True)
    telling.start()
    telling.join(TELLING_S)
    os._exit(ExitCode.STOPPED)


def _farewell(session: Session, code: ExitCode, reason: str) -> str:
    """How the run stands, for whoever sees the worker end for that reason."""
    from batchq.errors import BatchqError, ExitCode
    from batchq.words import command, counted

    if code is ExitCode.STOPPED:
        # Without asking the ledger, for which there may be no time left.
        return f"{reason}; work remains: start another worker"
    stands = "run finished"
    if code is ExitCode.INTERRUPTED_TWICE:
        stands = "left at once: what was held comes back within a TTL"
    try:
        tallies = session.ledger.counts(session.run).tallies
    except BatchqError:
        return stands
    stands += f": {tallies.completed:,} of {tallies.total:,} items completed"
    if tallies.dead_lettered:
        why = command("failures", session.run.name)
        stands += f", {counted(tallies.dead_lettered, 'dead letter')}; see why: {why}"
    return stands


class _Unusual:
    """Events for people: those that they learn of in no other way."""

    def __init__(self) -> None:
        from batchq.event import LogEvents

        self._emit: Callable[..., None] = LogEvents().emit
        self.started = False
        self.stopped = ""

    def emit(self, kind: str, /, **data: Any) -> None:
        from batchq.cli.console import note
        from batchq.status import uptime_line

        if kind == "started":
            self.started = True
            note(f"uptime: {uptime_line(data['interruptions'])}")
        if kind == "stopped":
            self.stopped = data["reason"]
        if kind not in TOLD_BY_THE_BAR | TOLD_BY_THE_LOG:
            self._emit(kind, **data)
