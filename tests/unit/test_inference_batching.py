"""Batches: what goes to the device together, and what padding that costs."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchq.inference.batching import Batcher, Step, fixed_steps, fixed_width, packed_steps, plan

lengths = st.lists(st.integers(1, 256), max_size=60)


def natural_lengths(count: int) -> list[int]:
    """Token counts as real documents have them: a median of 80 and a long tail."""
    draw = random.Random(7)
    return [max(3, min(256, round(math.exp(draw.gauss(4.4, 0.9))))) for _ in range(count)]


def useful(steps: Sequence[Step], costs: Sequence[int]) -> float:
    return sum(costs) / sum(step.rows * step.width for step in steps)


@given(lengths, st.integers(1, 2_000))
def test_every_item_is_in_one_batch(costs: list[int], budget: int) -> None:
    """A plan is a partition: nothing is left out and nothing is run twice."""
    planned = [member for batch in plan(costs, budget) for member in batch]
    assert list(range(len(costs))) == sorted(planned)


@given(lengths, st.integers(1, 2_000))
def test_packed_steps_keep_to_the_budget_with_their_padding(costs: list[int], budget: int) -> None:
    """Rows times width is within the budget, unless one row alone is more."""
    for step in packed_steps(costs, budget):
        assert step.rows == len(step.members)
        assert step.width == max(costs[member] for member in step.members)
        assert step.rows * step.width <= budget or step.rows == 1


@given(lengths, st.integers(1, 2_000))
def test_nothing_is_padded_to_more_than_twice_its_length(costs: list[int], budget: int) -> None:
    """A few short items among long ones get a step of their own."""
    for step in packed_steps(costs, budget):
        assert 2 * min(costs[member] for member in step.members) >= step.width


@given(lengths, st.integers(1, 2_000), st.integers(2, 16))
def test_for_several_lanes_the_last_steps_are_small(
    costs: list[int], budget: int, lanes: int
) -> None:
    """No lane is left with more than its share of what remains, if that can be cut at all."""
    steps = packed_steps(costs, budget, lanes)
    assert sorted(member for step in steps for member in step.members) == list(range(len(costs)))
    left = sum(costs)
    for step in steps:
        share = min(budget, max(48, left // (3 * lanes)))
        assert step.rows == 1 or step.rows * step.width <= share
        left -= sum(costs[member] for member in step.members)


def test_packed_steps_begin_with_the_longest() -> None:
    """What does not fit into memory shows in the first step."""
    widths = [step.width for step in packed_steps([5, 250, 70, 9, 120], 256)]
    assert sorted(widths, reverse=True) == widths


@given(lengths, st.integers(1, 300), st.integers(8, 2_000))
def test_a_fixed_shape_follows_from_the_members_own_length(
    costs: list[int], own: int, tokens: int
) -> None:
    """Whatever else is in the batch, an item's step has the same rows and width."""
    own = min(own, 256)
    (alone,) = fixed_steps([own], tokens, 256)
    among = fixed_steps([*costs, own], tokens, 256)
    (step,) = [step for step in among if len(costs) in step.members]
    assert (alone.rows, alone.width) == (step.rows, step.width)


@given(lengths)
def test_full_rows_are_kept_apart_from_padded_ones(costs: list[int]) -> None:
    """Whether a step has any padding is settled by each of its members alone."""
    for step in fixed_steps(costs, 1_024, 256):
        assert len({costs[member] == step.width for member in step.members}) == 1


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_a_fixed_width_holds_its_length_at_little_cost(length: int, limit: int) -> None:
    """At least the length, at most a quarter more (from 32 tokens on), never above the limit."""
    length = min(length, limit)
    width = fixed_width(length, limit)
    assert length <= width <= limit
    assert width - length < max(8, math.ceil(length / 4))


def test_a_window_of_512_leaves_little_padding() -> None:
    """Looking ahead keeps more than 93 tokens in 100 useful; arrival order does not."""
    costs = natural_lengths(4_000)
    batcher: Batcher[int] = Batcher(16_384, 512)
    steps: list[Step] = []
    for index, cost in enumerate(costs):
        batcher.add(index, cost)
        batch = batcher.next_batch() if batcher.full else []
        own = packed_steps([costs[member] for member in batch], 2_048)
        steps += [Step(s.width, s.rows, [batch[m] for m in s.members]) for s in own]
    while batch := batcher.next_batch():
        own = packed_steps([costs[member] for member in batch], 2_048)
        steps += [Step(s.width, s.rows, [batch[m] for m in s.members]) for s in own]
    in_order = [Step(max(costs[start : start + 16]), 16, []) for start in range(0, len(costs), 16)]
    assert list(range(len(costs))) == sorted(member for step in steps for member in step.members)
    assert useful(steps, costs) > 0.93
    assert useful(in_order, costs) < 0.6


def test_a_batch_is_of_like_costs_and_leaves_the_rest() -> None:
    """The oldest with its nearest neighbour, whether the window was full or not."""
    batcher: Batcher[str] = Batcher(100, 3)
    assert batcher.next_batch() == []
    batcher.add("a", 10)
    batcher.add("b", 90)
    assert not batcher.full
    batcher.add("c", 11)
    assert batcher.full
    assert set(batcher.next_batch()) == {"a", "c"}
    assert (len(batcher), batcher.cost) == (1, 90)
    assert batcher.next_batch() == ["b"]
    assert batcher.next_batch() == []


def test_a_batcher_of_long_documents_does_not_wait_for_many() -> None:
    """A look-ahead is also full by its tokens, so long documents don't pile up."""
    batcher: Batcher[int] = Batcher(1_000, 512)
    for index in range(16):
        assert not batcher.full
        batcher.add(index, 1_000)
    assert batcher.full
    assert batcher.cost == 16_000


def test_the_item_that_waited_longest_is_in_the_next_batch() -> None:
    """However odd its length, an item waits for one batch at most once it is the oldest."""
    batcher: Batcher[int] = Batcher(200, 50)
    costs = natural_lengths(500)
    waiting: list[int] = []
    for index, cost in enumerate(costs):
        batcher.add(index, cost)
        waiting.append(index)
        if batcher.full:
            batch = batcher.next_batch()
            assert waiting[0] in batch
            waiting = [key for key in waiting if key not in batch]


def test_an_item_cannot_wait_twice() -> None:
    """The same key twice would be run twice."""
    batcher: Batcher[str] = Batcher(100, 10)
    batcher.add("a", 5)
    with pytest.raises(ValueError, match="waiting already"):
        batcher.add("a", 5)
