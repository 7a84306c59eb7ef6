"""`batchq config show`."""

from __future__ import annotations

from typing import Annotated

import typer

from batchq.cli.options import ConfigFile, Json, LedgerUrl, Results, RunName, given

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(rich_markup_mode=None)
    group.command()(show)
    app.add_typer(group, name="config", help="Settings, and where each comes from.")


def show(
    origin: Annotated[
        bool, typer.Option("--origin", help="Also say where each value comes from.")
    ] = False,
    run: RunName = None,
    ledger: LedgerUrl = None,
    results: Results = None,
    config: ConfigFile = None,
    json: Json = False,
) -> None:
    """Show every setting, without secrets, and where it comes from.

    An option comes before a BATCHQ_* variable, that before the file, that before the default.

    \b
    Examples:
      batchq config show --origin
      BATCHQ_LEASE_TTL=2m batchq config show --json
    """
    from json import dumps

    from batchq.cli.console import print_json, say
    from batchq.cli.session import settings

    loaded = settings(given(run=run, ledger=ledger, results=results, config=config))
    shown = loaded.shown(as_written=not json)
    if json:
        print_json({"settings": shown, "origin": dict(loaded.origin)})
        return
    for name, value in shown.items():
        line = f"{name} = {dumps(value, ensure_ascii=False)}"
        say(f"{line:<56} # {loaded.origin[name]}" if origin else line)
