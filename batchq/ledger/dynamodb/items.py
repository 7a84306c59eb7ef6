"""A document's row, and what each change of its item's state makes of it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from batchq.item import Item
from batchq.lease import ReleaseReason
from batchq.ledger.dynamodb.keys import Keys, item_id
from batchq.ledger.dynamodb.wire import Key
from batchq.ledger.records import (
    COUNTED,
    CommittedResult,
    DeadLetter,
    ItemState,
    Policy,
    State,
)
from batchq.ledger.refusals import WORKER_LOST, died_with_it, released_often
from batchq.result import Result, Stored

__all__ = [
    "ItemRow",
    "begin_anew",
    "bury",
    "charge",
    "committed",
    "delay",
    "lose",
    "move",
    "release",
    "reopen",
]

T = TypeVar("T", str, int, bool)

MAX_ERROR = 50_000
"""Characters that are kept of an error: a row may have 400 KB."""


def _kept(name: str, default: T) -> T:
    """A field with the short name under which the row keeps it, unless it is the default."""
    kept: T = field(default=default, metadata={"as": name})
    return kept


@dataclass(slots=True)
class ItemRow:
    """One version of a document. Times in milliseconds.

    `rev` grows by one with each change of state: writes are made on condition of it.
    `apart`: it lies beside the current row of its document, not in its place.
    `versions`, in the document's current row: the ordinals of all its versions as JSON,
    where there is more than one.
    """

    digest: int
    ordinal: int = _kept("n", 0)
    source_id: str = _kept("sid", "")
    source_version: str = _kept("ver", "")
    size: int = _kept("size", 0)
    locator: str = _kept("loc", "")
    root: str = _kept("root", "")
    named_by: str = _kept("by", "")
    versions: str = _kept("vs", "")
    state: str = _kept("st", State.READY.value)
    rev: int = _kept("v", 0)
    attempt: int = _kept("att", 0)
    generation: int = _kept("gen", 1)
    failures: int = _kept("fl", 0)
    losses: int = _kept("ls", 0)
    lone_losses: int = _kept("ll", 0)
    releases: int = _kept("rl", 0)
    not_before: int = _kept("nb", 0)
    holder: str = _kept("hold", "")
    token: str = _kept("tok", "")
    holder_committed: int = _kept("hc", 0)
    key: str = _kept("key", "")
    offset: int = _kept("off", 0)
    length: int = _kept("len", 0)
    sha256: str = _kept("sha", "")
    empty: bool = _kept("emp", False)
    adopted: bool = _kept("ado", False)
    divergent: bool = _kept("div", False)
    ended_at: int = _kept("at", 0)
    cause: str = _kept("cause", "")
    error: str = _kept("err", "")
    apart: bool = False

    @property
    def id(self) -> int:
        return item_id(self.digest, self.ordinal)

    def ordinals(self) -> dict[str, int]:
        """The ordinals of all versions of the document, as its current row knows them."""
        return {self.source_version: self.ordinal, **json.loads(self.versions or "{}")}

    def lies_at(self, keys: Keys) -> Key:
        return keys.version(self.id) if self.apart else keys.document(self.digest)

    def held_under(self, token: str) -> bool:
        return self.state == State.LEASED and self.token == token

    def committed_under(self, token: str) -> bool:
        return self.state == State.COMPLETED and self.token == token

    def pack(self, keys: Keys) -> dict[str, object]:
        """The attributes of the row, with its place in the index, without its key."""
        row = {
            short: value
            for short, name, default in KEPT
            if (value := getattr(self, name)) != default
        }
        if (place := self._place(keys)) is not None:
            row["q"], row["r"] = place
        return row

    def _place(self, keys: Keys) -> Key | None:
        if self.state == State.DELAYED:
            return keys.delayed(self.not_before, self.id)
        return keys.dead(self.id) if self.state == State.DEAD_LETTERED else None

    @classmethod
    def unpack(cls, row: dict[str, Any]) -> ItemRow:
        digest, apart, _ = row["sk"].partition("#")
        kept = {name: row[short] for short, name, _ in KEPT if short in row}
        return cls(int(digest, 16), **kept, apart=bool(apart))

    # -- as the protocol names it ----------------------------------------------------

    def item(self) -> Item:
        return Item(
            id=self.id,
            source_id=self.source_id,
            source_version=self.source_version,
            size=self.size,
            locator=self.locator,
            attempt=self.attempt,
            generation=self.generation,
            failures=self.failures,
            losses=self.losses,
        )

    def item_state(self) -> ItemState:
        result = self.result() if self.state == State.COMPLETED else None
        return ItemState(
            self.id, self.source_id, self.source_version, self.locator, State(self.state), result
        )

    def result(self) -> CommittedResult:
        return CommittedResult(
            item_id=self.id,
            source_id=self.source_id,
            source_version=self.source_version,
            size=self.size,
            stored=Stored(self.key, self.offset, self.length, self.sha256),
            attempt=self.attempt,
            generation=self.generation,
            empty=self.empty,
            adopted=self.adopted,
            worker=self.holder,
            committed_at=self.ended_at / 1000,
        )

    def dead_letter(self) -> DeadLetter:
        return DeadLetter(
            item_id=self.id,
            source_id=self.source_id,
            source_version=self.source_version,
            cause=self.cause,
            error=self.error,
            attempt=self.attempt,
            generation=self.generation,
            at=self.ended_at / 1000,
        )


KEPT = [(f.metadata["as"], f.name, f.default) for f in fields(ItemRow) if "as" in f.metadata]

# -- changes of state; `tally` is that of the process that makes them ------------------------


def move(row: ItemRow, state: State, tally: Counter[str]) -> None:
    """Count the item out of the state it was in and into `state`."""
    for name in COUNTED[State(row.state)]:
        tally[name] -= 1
    for name in COUNTED[state]:
        tally[name] += 1
    row.state = state.value
    row.rev += 1


def committed(row: ItemRow) -> Counter[str]:
    """What a commit that is already in the row has still to count."""
    tally = Counter(completed=1, leased=-1, committed=1)
    for name in ("empty", "adopted", "divergent"):
        tally[name] += getattr(row, name)
    return tally


def result_fields(result: Result) -> dict[str, object]:
    """What a commit sets, by the short names; what is false is left out."""
    stored = result.stored
    flags = {"emp": result.empty, "ado": result.adopted, "div": result.divergent}
    return {
        "key": stored.key,
        "off": stored.offset,
        "len": stored.length,
        "sha": stored.sha256,
        **{name: True for name, flag in flags.items() if flag},
    }


def delay(row: ItemRow, tally: Counter[str], not_before: int) -> None:
    move(row, State.DELAYED, tally)
    row.not_before = not_before


def bury(row: ItemRow, tally: Counter[str], now: int, cause: str, error: str) -> None:
    move(row, State.DEAD_LETTERED, tally)
    row.cause, row.error, row.ended_at = cause, error[:MAX_ERROR], now


def begin_anew(row: ItemRow, tally: Counter[str], now: int) -> None:
    """Due at once, as a new generation with clean counts."""
    row.generation += 1
    row.failures = row.losses = row.lone_losses = row.releases = 0
    row.cause = row.error = ""
    delay(row, tally, now)


def reopen(row: ItemRow, tally: Counter[str], now: int) -> None:
    """Take the result back; the row's commit has been counted."""
    tally["empty"] -= row.empty
    row.key = row.sha256 = ""
    row.offset = row.length = 0
    row.empty = row.adopted = row.divergent = False
    begin_anew(row, tally, now)


def charge(
    row: ItemRow,
    tally: Counter[str],
    policy: Policy,
    now: int,
    cause: str,
    error: str,
    *,
    final: bool = False,
) -> None:
    tally["failures"] += 1
    row.failures += 1
    if final or row.failures >= policy.max_failures:
        bury(row, tally, now, cause, error)
    else:
        delay(row, tally, now + round(1000 * policy.delay(row.failures)))


def release(
    row: ItemRow,
    tally: Counter[str],
    policy: Policy,
    now: int,
    reason: ReleaseReason,
    holder_committed: int,
) -> None:
    """Give back; `holder_committed` is what the holder has committed by now."""
    if reason is ReleaseReason.DRAIN:
        tally["interrupted"] += 1
        delay(row, tally, now)
    elif reason is ReleaseReason.BROKEN_OBJECT:
        row.generation += 1
        delay(row, tally, now)
    else:
        row.releases += 1
        if row.releases >= policy.max_releases and holder_committed > row.holder_committed:
            error = released_often(row.releases)
            row.releases = 0
            charge(row, tally, policy, now, reason.value, error)
        else:
            delay(row, tally, now + round(1000 * policy.delay(row.releases)))


def lose(row: ItemRow, tally: Counter[str], policy: Policy, now: int, *, alone: bool) -> None:
    tally["lost_leases"] += 1
    row.losses += 1
    row.lone_losses += alone
    if row.lone_losses >= policy.max_losses:
        bury(row, tally, now, WORKER_LOST, died_with_it(row.lone_losses))
    else:
        delay(row, tally, now)
