"""`batchq verify`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batchq.cli.options import ConfigFile, Json, LedgerUrl, Results, RunName, given

if TYPE_CHECKING:
    from batchq.cli.session import Session
    from batchq.verify import Report

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    app.command()(verify)


def verify(
    repair: Annotated[
        bool, typer.Option("--repair", help="Send items back whose results are lost or altered.")
    ] = False,
    sample: Annotated[
        int | None,
        typer.Option("--sample", metavar="N", min=1, help="Read N results, chosen by chance."),
    ] = None,
    remove_orphans: Annotated[
        bool,
        typer.Option("--remove-orphans", help="Remove objects that nothing can ever commit."),
    ] = False,
    journal: Annotated[
        Path | None,
        typer.Option(
            "--journal",
            metavar="FILE",
            help="Where it keeps what it has seen, to go on there after an interruption.",
        ),
    ] = None,
    run: RunName = None,
    ledger: LedgerUrl = None,
    results: Results = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Read the results back, and compare them with the ledger.

    Finds results that are missing or altered, objects that no row names, and tallies that
    drifted. Ends with 15 if damage is left. Workers may be at work meanwhile.

    \b
    Examples:
      batchq verify
      batchq verify --sample 1000
      batchq verify --repair
      batchq verify --remove-orphans
    """
    from batchq.cli.console import note, print_json, progress
    from batchq.cli.session import opened
    from batchq.enqueue import check_store
    from batchq.errors import ExitCode, UsageError
    from batchq.verify import Journal, audit
    from batchq.words import counted

    if sample is not None and remove_orphans:
        raise UsageError(
            "a sample cannot tell an orphan from an object that it did not look at",
            hint="leave --sample out to remove orphans",
        )
    with opened(given(run=run, ledger=ledger, results=results, config=config)) as session:
        check_store(session.store, session.run)
        path = _journal_path(session) if journal is None else journal
        about = f"{session.run.prefix} {session.store.url} sample={sample}"
        seen = Journal(path, about)
        finished = False
        try:
            if seen.resumed:
                before = counted(seen.checked, "result")
                note(f"info: going on after {before}; to begin anew, delete {path}")
            with progress("verify", "seen") as update:
                report = audit(
                    session.ledger,
                    session.run,
                    session.store,
                    seen,
                    sample=sample,
                    repair_as=partial(session.operator, "verify") if repair else None,
                    remove_orphans=remove_orphans,
                    progress=lambda what, done, total: update(done, total),
                )
            finished = True
        finally:
            seen.close(finished=finished)
        if json:
            print_json({"run": session.run.name, **_document(report)})
        else:
            _tell(report, session.run.name, removed=remove_orphans)
    return ExitCode.OK if report.is_sound else ExitCode.DAMAGE_FOUND


def _journal_path(session: Session) -> Path:
    """Beside a SQLite ledger, else where this folder would have one."""
    from batchq import wiring

    folder = Path("batchq-data")
    if wiring.creates_ledger(session.config):
        folder = Path(session.config.ledger.removeprefix("sqlite:///")).parent
    return folder / f".verify-{session.run.prefix}.db"


def _document(report: Report) -> dict[str, Any]:
    return {
        "checked": report.checked,
        "ok": report.ok,
        "missing": report.missing,
        "corrupt": report.corrupt,
        "orphans": report.orphans,
        "unsettled": report.unsettled,
        "tally_drift": None if report.tally_drift is None else dict(report.tally_drift),
        "repaired": report.repaired,
        "removed": report.removed,
        "damage": [
            {
                "source_id": damage.result.source_id,
                "source_version": damage.result.source_version,
                "generation": damage.result.generation,
                "key": damage.result.stored.key,
                "kind": damage.kind,
                "what": damage.what,
            }
            for damage in report.damage
        ],
        "orphan_keys": list(report.orphan_keys),
    }


def _tell(report: Report, run: str, *, removed: bool) -> None:
    from batchq.cli.console import note, say
    from batchq.words import command, counted

    for damage in report.damage:
        say(f"{damage.kind}  {damage.result.source_id}  {damage.result.stored.key}")
    for key in report.orphan_keys:
        say(f"orphan  {key}")
    say(
        f"{counted(report.checked, 'result')} read: {report.ok:,} ok, {report.missing:,} missing, "
        f"{report.corrupt:,} corrupt"
    )
    if report.repaired:
        worker = command("worker", run)
        say(f"ready again: {counted(report.repaired, 'item')}; {worker} takes them")
    if report.unrepaired:
        again = command("verify --repair", run)
        damaged = counted(report.unrepaired, "damaged result")
        note(f"{damaged} left; send the documents back to the workers: {again}")
    if report.orphans:
        remove = command("verify --remove-orphans", run)
        left = f", {report.removed:,} removed" if removed else f"; to remove them: {remove}"
        say(f"{counted(report.orphans, 'orphan')}{left}")
    if report.unsettled:
        left = counted(report.unsettled, "object")
        note(f"{left} left alone: what is unsettled may yet be committed, or be nobody's")
    if report.tally_drift is None and report.orphans is not None:
        note("the tallies were not compared: the run did not stand still")
    for name, by in (report.tally_drift or {}).items():
        say(f"tally {name} differs: the rows say {by:+,}")
