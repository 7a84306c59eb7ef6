"""`batchq results`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from batchq.cli.options import ConfigFile, Json, LedgerUrl, Results, RunName, given, unicode

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    app.command()(results)


def results(
    source_id: Annotated[
        str | None, typer.Argument(metavar="[SOURCE_ID]", help="The document, as docs/a.md.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE.jsonl", help="Write all results to this file."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    run: RunName = None,
    ledger: LedgerUrl = None,
    results: Results = None,
    config: ConfigFile = None,
    json: Json = False,
) -> None:
    """Print one committed result, or write all to a file.

    Each is read back and checked against the ledger. The file appears whole or not at all.

    \b
    Examples:
      batchq results docs/guide/a.md
      batchq results --output results.jsonl
    """
    from batchq.cli.console import print_json, progress, say
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
    unicode(source_id or "")
    with opened(given(run=run, ledger=ledger, results=results, config=config)) as session:
        parts = session.ledger, session.run, session.store
        check_store(session.store, session.run)
        if source_id is not None:
            print_json(fetch(*parts, source_id))
            return
        assert output is not None
        total = session.ledger.counts(session.run).tallies.completed
        with progress("results", "results") as update:
            written = export(*parts, output, force=force, progress=lambda done: update(done, total))
        if json:
            document = {"run": session.run.name, "output": str(output), "written": written}
            print_json({"schema": 1, **document})
        else:
            say(f"{counted(written, 'result')} written to {output}")
