"""`batchq status`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import Annotated, Any

import typer

from batchq.cli.options import ConfigFile, Json, LedgerUrl, Results, RunName, given

__all__ = ["add_to", "display"]

REFRESH_S, REFRESH_LOG_S = 2.0, 30.0
"""Between two looks of `--watch`: on a terminal or as JSON, and where they pile up."""


def add_to(app: typer.Typer) -> None:
    app.command()(status)


def status(
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Keep showing it, until Ctrl-C; with --wait until the end."),
    ] = False,
    duplicates: Annotated[
        bool,
        typer.Option(
            "--duplicates", help="Also count documents of equal content, which reads every item."
        ),
    ] = False,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Return when the run has ended: 0, or 3 with dead letters."),
    ] = False,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", metavar="TIME", help="With --wait: give up with 16. E.g. 10m."),
    ] = None,
    run: RunName = None,
    ledger: LedgerUrl = None,
    results: Results = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Show progress, duplicates, and work that was done again.

    \b
    Examples:
      batchq status --watch
      batchq status --duplicates --json
      batchq status --wait --timeout 2h
    """
    from batchq import status as report
    from batchq.cli.session import opened
    from batchq.config import seconds
    from batchq.errors import ExitCode, UsageError

    if timeout is not None and not wait:
        raise UsageError("--timeout says how long to wait", hint="give --wait with it")
    try:
        limit = None if timeout is None else seconds(timeout)
    except ValueError:
        raise UsageError(
            f"--timeout: {timeout!r} is no duration", hint="write it as 90s, 10m or 2h"
        ) from None

    refresh = REFRESH_S if json or sys.stdout.isatty() else REFRESH_LOG_S
    with opened(given(run=run, ledger=ledger, results=results, config=config)) as session:
        clock = session.clock
        shown_at = float("-inf")

        def show_now() -> None:
            nonlocal shown_at
            shown_at = clock.monotonic()
            show(
                report.snapshot(
                    session.ledger,
                    session.run,
                    expected_uptime=session.config.expected_uptime,
                    duplicates=duplicates,
                )
            )

        def show_when_due() -> None:
            if watch and clock.monotonic() - shown_at >= refresh:
                show_now()

        with display(json=json, watch=watch, duplicates=duplicates) as show:
            if wait:
                counts = report.wait(session.ledger, session.run, clock, limit, each=show_when_due)
                show_now()
                return counts.outcome
            show_now()
            while watch:
                clock.wait(Event(), refresh)
                show_now()
    return ExitCode.OK


@contextmanager
def display(
    *, json: bool, watch: bool, duplicates: bool
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """How a snapshot is shown: as JSON, drawn over the last one, or below it."""
    if json:
        from batchq.cli.console import print_json

        yield print_json
        return
    from batchq.cli.render import render_status, stdout_console

    console = stdout_console()

    if not (watch and console.is_terminal):
        yield lambda status: console.print(render_status(status, content=duplicates))
        return
    from rich.live import Live

    with Live(console=stdout_console(redrawn=True), auto_refresh=False) as live:
        yield lambda status: live.update(render_status(status, content=duplicates), refresh=True)
