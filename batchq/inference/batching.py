"""Which items go to the device together: similar ones, up to a budget of tokens.

Padding is what batches of mixed lengths pay for. Sorted by tokens within a window of
512 to 1,024 documents, more than nine tokens in ten are useful; in arrival order half.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Batcher", "Step", "fixed_steps", "fixed_width", "packed_steps", "plan"]

Key = TypeVar("Key", bound=Hashable)

_LOOK_AHEAD = 16
"""Of the window in tokens, in budgets: enough to sort, and no more where documents are long."""

_LEAST_SHARE = 48
"""Tokens; below that a call costs more than it computes."""


@dataclass(frozen=True, slots=True)
class Step:
    """One call of the model: `members` (indices) in `rows` rows of `width` tokens.

    Rows beyond the members are dummies.
    """

    width: int
    rows: int
    members: list[int]


def packed_steps(lengths: Sequence[int], tokens: int, lanes: int = 1) -> list[Step]:
    """Steps of at most `tokens` tokens, padding included, longest first.

    Something longer than `tokens` gets a step to itself, and nothing is padded to more
    than twice its length. Longest first, so that what does not fit into memory shows
    at once. For several `lanes` that take them in turn the last ones are smaller, so that
    none waits long for another.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    left = sum(lengths)
    steps: list[Step] = []
    start = 0
    while start < len(order):
        width = max(1, lengths[order[start]])
        share = tokens if lanes == 1 else min(tokens, max(_LEAST_SHARE, left // (3 * lanes)))
        most = min(len(order), start + max(1, share // width))
        end = start + 1
        while end < most and 2 * lengths[order[end]] >= width:
            end += 1
        steps.append(Step(width, end - start, order[start:end]))
        left -= sum(lengths[index] for index in order[start:end])
        start = end
    return steps


def plan(costs: Sequence[int], budget: int) -> list[list[int]]:
    """Indices of `costs`, in batches of similar cost whose padded cost is within `budget`."""
    return [step.members for step in packed_steps(costs, budget)]


def fixed_width(length: int, limit: int) -> int:
    """The width that `length` tokens are padded to, at most `limit`.

    Widths are multiples of 8, and four per doubling from 32 on.
    """
    width = 8
    while width < length:
        width += max(8, 1 << (width.bit_length() - 3))
    return min(width, limit)


def fixed_steps(lengths: Sequence[int], tokens: int, limit: int) -> list[Step]:
    """Steps whose shape follows from each member's own length: `tokens` tokens, always.

    A row's value can then depend on nothing but the row. Members as wide as the step
    are kept apart, since a step without any padding runs another attention kernel,
    and whether it has any must not depend on neighbours. No length is above `limit`.
    """
    groups: dict[tuple[int, bool], list[int]] = {}
    for index, length in enumerate(lengths):
        width = fixed_width(length, limit)
        groups.setdefault((width, length == width), []).append(index)
    steps = []
    for width, full in sorted(groups, reverse=True):
        members = groups[width, full]
        rows = max(1, tokens // width)
        steps += [
            Step(width, rows, members[start : start + rows])
            for start in range(0, len(members), rows)
        ]
    return steps


class Batcher(Generic[Key]):
    """Sorts prepared items by cost, and hands out batches of them.

    `budget`: padded cost of a batch, in tokens (one item may exceed it alone).
    `window`: items that are worth waiting for. Each batch holds the item that has waited
    longest, with its neighbours by cost, so nothing waits for ever. Not thread-safe.
    """

    def __init__(self, budget: int, window: int) -> None:
        self._budget = max(1, budget)
        self._window = max(1, window)
        self._sorted: list[tuple[int, int]] = []
        self._keys: dict[int, Key] = {}
        self._entries: dict[Key, tuple[int, int]] = {}
        self._cost = 0
        self._added = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def cost(self) -> int:
        """Tokens waiting."""
        return self._cost

    @property
    def full(self) -> bool:
        """Whether so much waits that more would hardly sort better."""
        return len(self) >= self._window or self._cost >= _LOOK_AHEAD * self._budget

    def add(self, key: Key, cost: int) -> None:
        """Take in an item. `key` must not be waiting already."""
        if key in self._entries:
            raise ValueError(f"{key!r} is waiting already")
        entry = (cost, self._added)
        self._added += 1
        self._entries[key] = entry
        self._keys[entry[1]] = key
        insort(self._sorted, entry)
        self._cost += cost

    def next_batch(self) -> list[Key]:
        """The next batch of what waits, `full` or not; nothing if nothing does."""
        if not self._entries:
            return []
        oldest = self._entries[next(iter(self._entries))]
        position = bisect_left(self._sorted, oldest)
        costs = [cost for cost, _ in self._sorted]
        members = next(run for run in plan(costs, self._budget) if position in run)
        batch = [self._keys[self._sorted[member][1]] for member in members]
        for key in batch:
            self._forget(key)
        return batch

    def _forget(self, key: Key) -> None:
        cost, number = self._entries.pop(key)
        del self._keys[number]
        del self._sorted[bisect_left(self._sorted, (cost, number))]
        self._cost -= cost
