"""`batchq enqueue`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from batchq.cli import streams
from batchq.cli.options import ConfigFile, Json, LedgerUrl, Results, RunName, given

if TYPE_CHECKING:
    from batchq.cli.session import Session
    from batchq.enqueue import EnqueueReport, Plan
    from batchq.errors import ExitCode
    from batchq.inference.base import Processor
    from batchq.ledger.base import Run
    from batchq.source.base import Source

__all__ = ["add_to", "request_cost", "tell_requests"]

SHOWN_REJECTIONS = 20

COSTLY_ITEMS = 100_000
PUT_PRICE = 5.00
READ_PRICE = 0.40
"""US dollars for a million requests: the list prices of S3 in us-east-1, August 2026."""


def add_to(app: typer.Typer) -> None:
    app.command()(enqueue)


def enqueue(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE...", help="Folders or files, also s3://BUCKET/FOLDER."),
    ],
    processor: Annotated[
        str | None,
        typer.Option(
            "--processor", metavar="KIND", help="embed, stats or module:Class. Default: embed."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="M", help="The model's name or folder.")
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            "--layout",
            metavar="LAYOUT",
            help="One object for each result, or shards of many: item or shard. Default: item.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be taken up, and write nothing.")
    ] = False,
    prefix: Annotated[
        str | None,
        typer.Option("--prefix", metavar="P", help="Stands for the root's name in source ids."),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Let documents from another root supersede those of the same id."
        ),
    ] = False,
    include: Annotated[
        list[str] | None,
        typer.Option(
            "--include", metavar="G", help="Only paths that match, such as '*.md'. May be repeated."
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", metavar="G", help="No paths that match. May be repeated."),
    ] = None,
    no_stage: Annotated[
        bool,
        typer.Option(
            "--no-stage",
            help="Keep no copies in a remote result store: workers read where documents lie.",
        ),
    ] = False,
    text_column: Annotated[
        str | None,
        typer.Option(
            "--text-column",
            metavar="C",
            help="Each row of a table (.jsonl, .csv, .parquet) is a document; C holds its text.",
        ),
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option("--id-column", metavar="C", help="Names the rows. Default: their numbers."),
    ] = None,
    run: RunName = None,
    ledger: LedgerUrl = None,
    results: Results = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Take up documents as items of a run, each once.

    Known documents are left alone, changed ones become new items. The first enqueue
    creates the run and fixes what is done to its documents.

    \b
    Examples:
      batchq enqueue ./docs
      batchq enqueue ./docs --include '*.md' --exclude 'drafts/**' --dry-run
      batchq enqueue ./docs --run words --processor stats
      batchq enqueue s3://bucket/docs --results s3://bucket/results
      batchq enqueue reviews.jsonl --text-column text --id-column id
      batchq enqueue ./docs --run mine --processor my_module:MyProcessor
    """
    from batchq import wiring
    from batchq.cli.session import opened

    if json:
        streams.keep_stdout_for_data()
    options = given(
        run=run,
        ledger=ledger,
        results=results,
        config=config,
        processor=processor,
        model=model,
        layout=layout,
    )
    with opened(options) as session:
        found = wiring.open_sources(
            sources,
            session.config,
            prefix=prefix,
            include=include or (),
            exclude=exclude or (),
            id_column=id_column,
            text_column=text_column,
        )
        if dry_run:
            told: EnqueueReport | Plan = _plan(session, found, json=json)
        else:
            told = _enqueue(session, found, replace=replace, stage=not no_stage, json=json)
    if text_column is None:
        _tell_whole_tables(sources)
    return _outcome(told)


def _outcome(told: EnqueueReport | Plan) -> ExitCode:
    """An error where nothing of what was found could be taken up."""
    from batchq.cli.console import note
    from batchq.errors import ExitCode
    from batchq.words import counted

    if not told.seen or told.rejected_total < told.seen:
        return ExitCode.OK
    note(f"error: every document was rejected: {counted(told.seen, 'document')}")
    note("hint: the reasons stand above, and under `rejected` with --json")
    return ExitCode.ERROR


def _enqueue(
    session: Session, sources: list[Source], *, replace: bool, stage: bool, json: bool
) -> EnqueueReport:
    from batchq import wiring
    from batchq.cli.console import note, print_json, progress, say
    from batchq.enqueue import as_it_lies, enqueue
    from batchq.words import command, counted

    run = _run(session)
    reader = wiring.open_reader(session.store)
    with progress("enqueue", "documents") as update:
        report = enqueue(
            session.ledger,
            run,
            sources,
            reader,
            clock=session.clock,
            replace=replace,
            stage=wiring.open_staging(session.store, reader) if stage else as_it_lies,
            on_progress=lambda seen: update(seen, None),
        )
    if json:
        numbers = {name: getattr(report, name) for name in ("seen", "new", "known", "superseded")}
        print_json(
            {
                "run": report.run,
                "processing_version": report.processing_version,
                **numbers,
                **_rejections(report),
            }
        )
        return report
    parts = [f"{report.new:,} new", f"{report.known:,} known"]
    if report.superseded:
        parts.append(f"{report.superseded:,} superseded")
    if report.rejected_total:
        parts.append(f"{report.rejected_total:,} rejected")
    if report.known and not report.new:
        parts[0] = "nothing is new"
    say(f"run {report.run} ({report.processing_version}): {', '.join(parts)}")
    _tell_rejections(report)
    tallies = session.ledger.counts(run).tallies
    tell_requests(session, run.layout, tallies.total)
    if report.known and tallies.dead_lettered:
        letters = counted(tallies.dead_lettered, "dead letter")
        again = command("retry", run.name)
        note(f"hint: {letters} in this run; only `{again}` sends a known document back")
    if not report.seen:
        note("hint: no document was found there; names that begin with a dot are passed over")
    return report


def _run(session: Session) -> Run:
    """The run to enqueue into, created if it is new."""
    from batchq import wiring
    from batchq.enqueue import ensure_run

    session.prepare_ledger()
    existing = session.ledger.find_run(session.config.run)
    processor, layout = _making(session, existing)
    if existing is None:
        session.store.probe()
    manifest = wiring.full_manifest(processor)
    return ensure_run(session.ledger, session.store, session.config.run, manifest, layout)


def _making(session: Session, existing: Run | None) -> tuple[Processor, str]:
    """Processor and layout: those of the run, if it is there, else those of the settings."""
    from batchq import wiring

    config, loaded = session.config, session.loaded
    if existing is None:
        return wiring.new_processor(config), config.layout
    layout = existing.layout if loaded.origin["layout"] == "default" else config.layout
    return wiring.run_processor(existing, loaded), layout


def _planned_run(session: Session) -> Run | None:
    """The run that an enqueue would find; a ledger that it would create holds none."""
    from batchq import wiring

    exists = wiring.ledger_exists(session.config, session.ledger)
    return session.ledger.find_run(session.config.run) if exists else None


def _plan(session: Session, sources: list[Source], *, json: bool) -> Plan:
    from batchq import wiring
    from batchq.cli.console import print_json, progress, say
    from batchq.enqueue import plan, require_layout
    from batchq.fingerprint import processing_version
    from batchq.words import counted

    existing = _planned_run(session)
    processor, layout = _making(session, existing)
    if existing is not None:
        require_layout(existing, layout)
    version = processing_version(wiring.full_manifest(processor))
    with progress("dry run", "documents") as update:
        found = plan(sources, on_progress=lambda seen: update(seen, None))
    if json:
        print_json(
            {
                "run": session.config.run,
                "processing_version": version,
                "seen": found.seen,
                "bytes": found.size,
                **_rejections(found),
            }
        )
        return found
    taken = found.seen - found.rejected_total
    say(
        f"would take up {counted(taken, 'document')} ({found.size:,} bytes) as {version}, "
        f"and reject {found.rejected_total:,}; nothing was written"
    )
    _tell_rejections(found)
    tell_requests(session, layout, taken)
    return found


def tell_requests(session: Session, layout: str, items: int) -> None:
    """What one object for each of many items will cost, while the layout can be changed."""
    from batchq.cli.console import note

    if layout == "item" and items > COSTLY_ITEMS and session.store.remote:
        note(request_cost(items))


def request_cost(items: int) -> str:
    """Each result is put and read back once, and a head counts as a read."""
    dollars = items * (PUT_PRICE + READ_PRICE) / 1_000_000
    return (
        f"layout item: {items:,} items are as many puts and read-backs, about ${dollars:,.2f} at "
        f"the list price of S3 (${PUT_PRICE:.2f} a million puts, ${READ_PRICE:.2f} a million "
        "reads); a new run with --layout shard needs about a hundredth"
    )


def _tell_whole_tables(sources: list[str]) -> None:
    """Whoever names a table probably means its rows."""
    from pathlib import Path

    from batchq.cli.console import note
    from batchq.source.table_formats import kind_of

    for source in sources:
        if kind_of(source) is not None and not Path(source).is_dir():
            note(f"hint: {source} is one document; with --text-column COLUMN each row is one")


def _rejections(found: EnqueueReport | Plan) -> dict[str, Any]:
    listed = [{"source": each.source, "reason": each.reason} for each in found.rejected]
    return {"rejected": listed, "rejected_total": found.rejected_total}


def _tell_rejections(found: EnqueueReport | Plan) -> None:
    from batchq.cli.console import note

    for each in found.rejected[:SHOWN_REJECTIONS]:
        note(f"rejected: {each.source}: {each.reason}")
    more = found.rejected_total - SHOWN_REJECTIONS
    if more > 0:
        note(f"and {more:,} more are rejected; --json lists them")
