"""Claim and commit in the common case, which is nearly every call of a worker.

A claim where nothing delayed is due, and a commit of results that are all still held:
in as few statements as each database allows (`hot_sqlite`, `hot_postgresql`). Whatever
else there is raises `Unusual`, and `holding` does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from batchq.item import Item
from batchq.lease import Lease
from batchq.ledger.records import ISOLATED_LOSSES
from batchq.ledger.sql.statements import LONGEST_TRANSACTION
from batchq.result import Result

__all__ = ["Claimed", "Cursor", "Unusual", "in_order", "most_losses", "nothing_due"]


class Unusual(Exception):
    """Not the common case."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a claim starts to look, so as not to pass over the remains of all before it.

    `ready`: behind this item. `due`: no delayed item's time was before that (Unix
    milliseconds). When a claim finds nothing, or the ledger's clock went back behind `due`,
    it looks from the start. An item that came back while the clock was a day behind, between
    two claims, waits until nothing else is ready.
    """

    ready: int = 0
    due: int = 0


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a claim brought, the cursor after it, and the ledger's clock in milliseconds.

    A row holds an item's fields.
    """

    rows: Sequence[Any]
    cursor: Cursor
    now: int

    def lease(self, token: str) -> Lease | None:
        """The lease of what was claimed under `token`, or none."""
        return Lease(token, tuple([Item(*row) for row in self.rows])) if self.rows else None


def most_losses(alone: bool) -> int:
    """How many losses an item may have that this claim takes."""
    return 2**31 - 1 if alone else ISOLATED_LOSSES - 1


def nothing_due(now: int) -> int:
    """Since when nothing can be due that a look at `now` did not find.

    An item is delayed until its transaction's own time at the least, and none lasts longer.
    """
    return now - LONGEST_TRANSACTION


def in_order(results: Sequence[Result]) -> list[Result]:
    """By id, like everybody who locks rows of items. Raises Unusual where two are of one item."""
    ids = {result.item_id for result in results}
    if not ids or len(ids) < len(results):
        raise Unusual
    return sorted(results, key=lambda result: result.item_id)
