"""Options that several commands share, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from batchq.errors import UsageError

__all__ = ["ConfigFile", "Json", "LedgerUrl", "Results", "RunName", "given", "unicode"]

RunName = Annotated[
    str | None,
    typer.Option("--run", metavar="NAME", help="The run to work on. Default: default."),
]
LedgerUrl = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="URL",
        help="sqlite:///PATH, postgresql://HOST/DATABASE or dynamodb://TABLE?region=REGION. "
        "Default: sqlite:///batchq-data/ledger.db.",
    ),
]
Results = Annotated[
    str | None,
    typer.Option(
        "--results",
        metavar="STORE",
        help="A folder or s3://BUCKET/PREFIX. Default: batchq-data/results.",
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
    named = {name: value for name, value in options.items() if value is not None}
    for value in named.values():
        unicode(str(value))
    return named


def unicode(argument: str) -> str:
    """`argument` as it is. Raises UsageError if its bytes were no UTF-8."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"the argument {argument!r} is not valid UTF-8",
            hint="source ids are: bytes that are not stand percent-escaped in them",
        ) from None
    return argument
