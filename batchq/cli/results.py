"""`batchq results`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from batchq.cli.options import ConfigFile, Json, LedgerUrl, Results, RunName, given, unicode

if TYPE_CHECKING:
    from batchq.ledger.base import Tallies

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    app.command()(results)


def results(
    source_id: Annotated[
        str | None, typer.Argument(metavar="[SOURCE_ID]", help="The document, as docs/a.md.")
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="Write all results to this .jsonl or .parquet, here or at s3://BUCKET/KEY.",
        ),
    ] = None,
    current: Annotated[
        bool,
        typer.Option("--current", help="Only the latest version of each document."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    run: RunName = None,
    ledger: LedgerUrl = None,
    results: Results = None,
    config: ConfigFile = None,
    json: Json = False,
) -> None:
    """Print one committed result, or write all to a file.

    Each is read back and checked against the ledger. The file appears whole or not at all;
    a command that was interrupted goes on where it stopped when it is repeated.

    \b
    Examples:
      batchq results docs/guide/a.md
      batchq results --output results.jsonl
      batchq results --output s3://bucket/vectors.parquet --current
    """
    from batchq import wiring
    from batchq.cli.console import note, print_json, progress, say
    from batchq.cli.meant import meant
    from batchq.cli.session import opened
    from batchq.enqueue import check_store
    from batchq.errors import UsageError
    from batchq.results import export, fetch
    from batchq.words import counted

    if (source_id is None) == (output is None):
        raise UsageError(
            "name one document, or a file for all results",
            hint="batchq results docs/a.md, or batchq results --output results.jsonl",
        )
    if current and output is None:
        raise UsageError(
            "--current chooses among all results",
            hint="one document's result is always that of its latest version",
        )
    unicode(source_id or "")
    unicode(output or "")
    with opened(given(run=run, ledger=ledger, results=results, config=config)) as session:
        parts = session.ledger, session.run, session.store
        check_store(session.store, session.run)
        if source_id is not None:
            try:
                print_json(fetch(*parts, source_id))
            except UsageError as error:
                if (near := meant(session.ledger, session.run, source_id)) is None:
                    raise
                raise UsageError(error.message, hint=f"did you mean {near}?") from None
            return
        assert output is not None
        destination = wiring.open_destination(output)
        # As it stood when the reading began: what is committed meanwhile may be left out.
        tallies = session.ledger.counts(session.run).tallies
        total = tallies.completed
        with progress("results", "results", total) as update:
            exported = export(
                *parts,
                destination,
                force=force,
                current_only=current,
                progress=lambda done: update(done, total),
            )
        if lacks := _lacks(tallies, session.run.name):
            note(f"warning: not every document has a result: {lacks}")
        if json:
            document = {"run": session.run.name, "output": output, "written": exported.written}
            print_json(document | {"resumed": exported.resumed})
            return
        resumed = f", {exported.resumed:,} of them earlier" if exported.resumed else ""
        say(f"{counted(exported.written, 'result')} written to {output}{resumed}")


def _lacks(tallies: Tallies, run: str) -> str:
    """What an export of all results leaves out, and what to do about it; else empty."""
    from batchq.words import command, counted

    lacks = []
    if unfinished := tallies.ready + tallies.leased:
        lacks.append(f"{counted(unfinished, 'item')} unfinished ({command('worker', run)})")
    if dead := tallies.dead_lettered:
        lacks.append(f"{counted(dead, 'dead letter')} ({command('failures', run)})")
    return ", ".join(lacks)
