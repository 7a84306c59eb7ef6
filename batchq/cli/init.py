"""`batchq init`."""

from __future__ import annotations

import typer

from batchq.cli.options import ConfigFile, Json, LedgerUrl, Results, given

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    app.command()(init)


def init(
    ledger: LedgerUrl = None,
    results: Results = None,
    config: ConfigFile = None,
    json: Json = False,
) -> None:
    """Create or upgrade the ledger, and prove the result store.

    Repeating it changes nothing. On SQLite enqueue does it by itself.

    \b
    Examples:
      batchq init
      batchq init --ledger postgresql://batchq@db/batchq --results /mnt/results
      batchq init --ledger 'dynamodb://batchq?region=eu-west-1&pitr=on&protect=on&tag.team=search'
    """
    from batchq.cli.console import print_json, say
    from batchq.cli.session import opened

    with opened(given(ledger=ledger, results=results, config=config)) as session:
        session.ledger.initialise()
        session.store.probe()
        if json:
            print_json({"ledger": session.ledger.url, "results": session.store.url})
        else:
            say(f"ledger ready: {session.ledger.url}")
            say(f"results ready: {session.store.url}")
