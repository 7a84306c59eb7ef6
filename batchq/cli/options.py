"""Options that several commands share, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["ConfigFile", "Json", "LedgerUrl", "Results", "RunName", "given"]

RunName = Annotated[
    str | None,
    typer.Option("--run", metavar="NAME", help="The run to work on. Default: default."),
]
LedgerUrl = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="URL",
        help="sqlite:///PATH or postgresql://HOST/DATABASE. "
        "Default: sqlite:///batchq-data/ledger.db.",
    ),
]
Results = Annotated[
    str | None,
    typer.Option(
        "--results", metavar="FOLDER", help="The result store. Default: batchq-data/results."
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="The settings. Default: batchq.toml, if any."),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON; what it means is in docs/commands.md.")
]


def given(**options: Any) -> dict[str, Any]:
    """The settings that were named on the command line."""
    return {name: value for name, value in options.items() if value is not None}
