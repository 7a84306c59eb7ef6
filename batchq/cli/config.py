"""`batchq config show`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batchq.cli.options import ConfigFile, Json, LedgerUrl, Results, RunName, given

if TYPE_CHECKING:
    from batchq.config import Loaded

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
    What is shown may be kept as a batchq.toml.

    \b
    Examples:
      batchq config show --origin
      BATCHQ_LEASE_TTL=2m batchq config show --json
    """
    from batchq.cli.console import print_json, say
    from batchq.cli.session import settings

    loaded = settings(given(run=run, ledger=ledger, results=results, config=config))
    if json:
        print_json({"settings": loaded.shown(), "origin": dict(loaded.origin)})
        return
    for line, name in _lines(loaded):
        say(f"{line:<56} # {loaded.origin[name]}" if origin and name else line)


def _lines(loaded: Loaded) -> Iterator[tuple[str, str]]:
    """The settings as a file that sets the same, each line with what it sets, if anything."""
    from batchq.config import SETTINGS

    shown = loaded.shown(as_written=True)
    in_table = {"processor": "kind", "model": "model"}
    table = []
    for name, value in shown.items():
        key = in_table.get(name) or name.removeprefix("processor.")
        line = f"{key} = {_toml(value)}"
        setting = SETTINGS.get(name)
        if setting and getattr(loaded.config, name) is None and setting.unset != "auto":
            # What is said in place of a value is none.
            line = f"# {key}: {setting.unset}"
        if name in in_table or setting is None:
            table.append((line, name))
        else:
            yield line, name
    yield "", ""
    yield "[processor]", ""
    yield from table


def _toml(value: Any) -> str:
    from json import dumps

    if isinstance(value, Mapping):
        inner = ", ".join(f"{_toml(key)} = {_toml(each)}" for key, each in value.items())
        return f"{{ {inner} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return dumps(value, ensure_ascii=False)
