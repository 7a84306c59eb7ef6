"""When an object that no row of the results names may be removed: the orphan rule.

Removing is the one thing batchq does that nothing mends, so an object is an orphan only
where nothing that may still happen can commit it:

- Each item whose result it holds is completed, and the ledger names other keys for them.
  A completed item that is reopened goes on under a new generation, and so a new key.
- Or no row names it, its writer has ended, and nobody holds any of its items: a token
  that holds an item no more never will again, so that no late commit can name it. Where
  a later attempt at an item looks for what an earlier one left, which is in layout
  `item`, the item must be at an end too: it comes back from there only as a new
  generation.

Age alone says nothing. The writer's end must be known before the items' states are read:
whatever it committed is then in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from batchq.ledger.base import ItemState, State, WorkerState, WorkerStatus

__all__ = ["Verdict", "judge"]

_AT_AN_END = (State.COMPLETED, State.DEAD_LETTERED, State.SUPERSEDED)


class Verdict(StrEnum):
    NAMED = "named"
    """A row of the results names it after all."""
    ORPHAN = "orphan"
    UNSETTLED = "unsettled"
    """It may still be committed or adopted, or nobody can say whose it is: it stays."""


def judge(
    key: str,
    items: Sequence[ItemState | None],
    writer: WorkerStatus | None,
    *,
    adoptable: bool,
) -> Verdict:
    """What the object under `key` is.

    `items`: the state of each item whose result it holds, none for an item the ledger does
    not know. `writer`: the process that wrote it, none where that is not known.
    `adoptable`: whether later attempts find it, as in layout `item`.
    """
    if any(item and item.result and item.result.stored.key == key for item in items):
        return Verdict.NAMED
    if items and all(item and item.state is State.COMPLETED for item in items):
        return Verdict.ORPHAN
    if writer is None or writer.state is WorkerState.LIVE:
        return Verdict.UNSETTLED
    if any(item and item.state is State.LEASED for item in items):
        return Verdict.UNSETTLED
    if adoptable and not all(item and item.state in _AT_AN_END for item in items):
        return Verdict.UNSETTLED
    return Verdict.ORPHAN
