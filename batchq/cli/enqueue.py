"""`batchq enqueue`."""

from __future__ import annotations

from typing import Annotated

import typer

from batchq.cli.options import ConfigFile, Json, LedgerUrl, Results, RunName, given

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    app.command()(enqueue)


def enqueue() -> None:
    """x"""
