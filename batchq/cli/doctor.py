"""`batchq doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

from batchq.cli import streams
from batchq.cli.options import ConfigFile, Json, LedgerUrl, Results, RunName, given

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(
    run: RunName = None,
    ledger: LedgerUrl = None,
    results: Results = None,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="D", help="cpu, cuda, cuda:1, mps. Default: auto."),
    ] = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Try out everything that a worker depends on here, one line each.

    Ends with the exit code of the first dependency that fails. It needs no run.

    \b
    Examples:
      batchq doctor
      batchq doctor --ledger postgresql://batchq@db/batchq --results s3://results/batchq
    """
    from batchq.cli.console import log_to_stderr, print_json, say
    from batchq.cli.session import settings
    from batchq.clock import SystemClock
    from batchq.doctor import Health, examine
    from batchq.errors import ExitCode
    from batchq.redact import redact

    if json:
        streams.keep_stdout_for_data()
    log_to_stderr()
    options = given(run=run, ledger=ledger, results=results, device=device, config=config)
    checks, code = [], ExitCode.OK
    for finding in examine(settings(options), SystemClock()):
        if finding.health is Health.FAIL and code is ExitCode.OK:
            code = finding.exit_code
        text = redact(finding.text)
        advice = None if finding.advice is None else redact(finding.advice)
        if json:
            checks.append(
                {
                    "name": finding.name,
                    "health": finding.health.value,
                    "text": text,
                    "advice": advice,
                    "exit_code": int(finding.exit_code),
                    **finding.facts,
                }
            )
            continue
        first, *more = text.split("\n")
        say(f"{finding.health.value:<5} {finding.name:<13} {first}")
        for line in more:
            say(f"{'':<20}{line}")
        if advice is not None:
            say(f"{'':<20}{advice}")
    if json:
        print_json({"ok": code is ExitCode.OK, "checks": checks})
    return code
