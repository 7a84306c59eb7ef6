"""The orphan rule, case by case, and each of its guards taken out."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from batchq.ledger.base import (
    CommittedResult,
    ItemState,
    Role,
    State,
    WorkerState,
    WorkerStatus,
)
from batchq.result import Stored
from batchq.verify import rule
from batchq.verify.rule import Verdict, judge

KEY = "run-1/ab/item.json"
OTHER = "run-1/ab/item.g2.json"

NAMED, ORPHAN, UNSETTLED = Verdict.NAMED, Verdict.ORPHAN, Verdict.UNSETTLED


def item(state: State, key: str = "") -> ItemState:
    result = None
    if state is State.COMPLETED:
        stored = Stored(key, 0, 1, "0" * 64)
        result = CommittedResult(1, "a", "sha256:0", 1, stored, 1, 1, False, False, "w", 0.0)
    return ItemState(1, "a", "sha256:0", "file:///a", state, result)


def writer(state: WorkerState) -> WorkerStatus:
    return WorkerStatus("w", Role.WORKER, state, False, 0, 0, 0.0, 0.0, None)


HERE = item(State.COMPLETED, KEY)
ELSEWHERE = item(State.COMPLETED, OTHER)
READY, DELAYED, LEASED = item(State.READY), item(State.DELAYED), item(State.LEASED)
DEAD, SUPERSEDED = item(State.DEAD_LETTERED), item(State.SUPERSEDED)
LIVE, STOPPED = writer(WorkerState.LIVE), writer(WorkerState.STOPPED)
REAPED = writer(WorkerState.REAPED)


class Case(NamedTuple):
    what: str
    items: list[ItemState | None]
    writer: WorkerStatus | None
    adoptable: bool
    verdict: Verdict


CASES = [
    Case("named by its item", [HERE], LIVE, True, NAMED),
    Case("named, its writer reaped", [HERE], REAPED, True, NAMED),
    Case("named by one of many", [ELSEWHERE, HERE, DEAD], REAPED, False, NAMED),
    Case("its item is completed elsewhere", [ELSEWHERE], None, True, ORPHAN),
    Case("completed elsewhere, its writer alive", [ELSEWHERE], LIVE, True, ORPHAN),
    Case("all of many are completed elsewhere", [ELSEWHERE] * 2, LIVE, False, ORPHAN),
    Case("one of many is still open", [ELSEWHERE, LEASED], LIVE, False, UNSETTLED),
    Case("one of many is unknown", [ELSEWHERE, None], LIVE, False, UNSETTLED),
    Case("about to be committed", [LEASED], LIVE, True, UNSETTLED),
    Case("about to be committed, in a shard", [LEASED], LIVE, False, UNSETTLED),
    Case("a dead letter's, its writer alive", [DEAD], LIVE, True, UNSETTLED),
    Case("a dead letter's, its writer stopped", [DEAD], STOPPED, True, ORPHAN),
    Case("a dead letter's, its writer reaped", [DEAD], REAPED, True, ORPHAN),
    Case("superseded, its writer reaped", [SUPERSEDED], REAPED, True, ORPHAN),
    Case("a later attempt may adopt it: ready", [READY], REAPED, True, UNSETTLED),
    Case("a later attempt may adopt it: delayed", [DELAYED], REAPED, True, UNSETTLED),
    Case("a later attempt may adopt it: leased", [LEASED], STOPPED, True, UNSETTLED),
    Case("nobody adopts a shard", [READY, DELAYED, ELSEWHERE], REAPED, False, ORPHAN),
    Case("a shard that a late commit may name", [READY, LEASED], REAPED, False, UNSETTLED),
    Case("a shard of a writer that stopped", [READY], STOPPED, False, ORPHAN),
    Case("an item the ledger does not know", [None], REAPED, True, UNSETTLED),
    Case("a shard of unknown items, its writer ended", [None], REAPED, False, ORPHAN),
    Case("nobody knows who wrote it", [DEAD], None, True, UNSETTLED),
    Case("garbage that is nobody's", [], None, True, UNSETTLED),
    Case("garbage that is nobody's, in a shard", [], None, False, UNSETTLED),
]


def verdicts(rule: Callable[..., Verdict]) -> dict[str, Verdict]:
    return {
        case.what: rule(KEY, case.items, case.writer, adoptable=case.adoptable) for case in CASES
    }


@pytest.mark.parametrize("case", CASES, ids=[case.what.replace(" ", "_") for case in CASES])
def test_the_rule_decides(case: Case) -> None:
    """Each case by name."""
    assert case.verdict is judge(KEY, case.items, case.writer, adoptable=case.adoptable)


MUTANTS = {
    "a named object is not recognised": (
        "item.result.stored.key == key for",
        "item.result.stored.key == '' for",
    ),
    "an empty list of items is all completed": ("if items and all(", "if all("),
    "one completed item is enough": ("if items and all(", "if items and any("),
    "any item at an end counts as completed": (
        "item.state is State.COMPLETED for",
        "item.state in _AT_AN_END for",
    ),
    "an unknown writer has ended": (
        "writer is None or writer.state is",
        "writer and writer.state is",
    ),
    "a live writer has ended": (" or writer.state is WorkerState.LIVE", ""),
    "nobody commits late": ("item.state is State.LEASED", "False"),
    "nobody adopts anything": ("if adoptable and not all(", "if False and not all("),
    "shards are adopted too": ("if adoptable and not all(", "if not all("),
    "an unknown item is at an end": (
        "all(item and item.state in _AT_AN_END",
        "all(item is None or item.state in _AT_AN_END",
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda name: name.replace(" ", "_"))
def test_each_guard_of_the_rule_is_noticed(mutant: str) -> None:
    """Without it some case is decided otherwise, or cannot be decided at all."""
    old, new = MUTANTS[mutant]
    source = inspect.getsource(judge)
    assert old in source
    scope: dict[str, Any] = dict(vars(rule))
    exec(source.replace(old, new), scope)
    assert verdicts(scope["judge"]) != {case.what: case.verdict for case in CASES}
