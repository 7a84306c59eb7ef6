"""Processes that have ended: their tallies in one sum, so that counting does not grow with them.

Whoever asks how much is left reads a row for each process. One that has ended, and holds
nothing any more, is moved out of the way for good, and its tallies are added to those of all
that have ended before. It may still have something to say: a stopped enqueuer goes on, a worker
that was reaped asks for a commit again. What that moves is added to the sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from batchq.ledger.dynamodb.calls import Calls
from batchq.ledger.dynamodb.keys import Keys
from batchq.ledger.dynamodb.refusals import ConditionFailed
from batchq.ledger.dynamodb.wire import Condition, Wire, absent, equal, present, write
from batchq.ledger.records import TALLY_NAMES

__all__ = ["count", "find", "put_away", "was_put_away"]


def find(calls: Calls, keys: Keys, name: str) -> dict[str, Any] | None:
    """The row of a process, wherever it lies."""
    return calls.get(keys.process(name)) or calls.get(keys.ended(name))


def was_put_away(calls: Calls, keys: Keys, name: str) -> bool:
    return calls.get(keys.ended(name)) is not None


def count(
    table: str,
    keys: Keys,
    name: str,
    change: Mapping[str, object],
    add: Mapping[str, int],
    only_if: Iterable[Condition] = (),
    *,
    away: bool,
) -> list[dict[str, Wire]]:
    """What changes the row of a process, and its tallies there or in the sum."""
    only_if = [*only_if, present()]
    if not away:
        return [write(table, keys.process(name), set=change, add=add, only_if=only_if)]
    own = {tally: number for tally, number in add.items() if tally not in TALLY_NAMES}
    rest = {tally: number for tally, number in add.items() if tally in TALLY_NAMES}
    actions = [write(table, keys.ended(name), set=change, add=own, only_if=only_if)]
    return [*actions, write(table, keys.sum(name), add=rest)] if rest else actions


def put_away(calls: Calls, keys: Keys, name: str) -> None:
    """Add the tallies of a process that has ended to the sum. Repeating it changes nothing."""
    while (row := calls.get(keys.process(name))) is not None:
        rest = {n: value for n, value in row.items() if n not in (*TALLY_NAMES, "pk", "sk")}
        tallies = {n: row[n] for n in TALLY_NAMES if row.get(n)}
        # Whatever is counted to a process that has ended leaves another `call`.
        unchanged = equal("call", row["call"])
        # Another has put it away, or counted something to it meanwhile: look again.
        with suppress(ConditionFailed):
            calls.transact(
                [
                    write(calls.table, keys.process(name), delete=True, only_if=[unchanged]),
                    write(calls.table, keys.ended(name), put=rest, only_if=[absent()]),
                    write(calls.table, keys.over(name), delete=True),
                    *([write(calls.table, keys.sum(name), add=tallies)] if tallies else []),
                ]
            )
