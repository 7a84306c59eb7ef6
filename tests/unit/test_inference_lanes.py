"""Steps side by side: each once, in order, and none after an error."""

from __future__ import annotations

import threading

import pytest

from batchq.inference.lanes import side_by_side


@pytest.mark.parametrize("lanes", [1, 2, 5])
@pytest.mark.parametrize("steps", [0, 1, 4, 33])
def test_outcomes_come_in_the_order_of_the_steps(lanes: int, steps: int) -> None:
    """Whichever lane made them, and whether there are more lanes than steps."""
    assert side_by_side(lambda step: step * step, range(steps), lanes) == [
        step * step for step in range(steps)
    ]


def test_as_many_steps_as_lanes_are_under_way_at_once() -> None:
    """Each waits for the others here, and they all get through."""
    met = threading.Barrier(3)
    side_by_side(lambda _: met.wait(timeout=60), range(6), 3)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("lane-")]


def test_no_step_begins_after_an_error() -> None:
    """The error stands in its place; what was not begun has none; what was made is kept."""
    begun: list[int] = []

    def step(number: int) -> int:
        begun.append(number)
        if number == 2:
            raise MemoryError("no room")
        return number

    first, second, third, *rest = side_by_side(step, range(50), 1)
    assert (first, second, rest) == (0, 1, [None] * 47)
    assert isinstance(third, MemoryError)
    assert begun == [0, 1, 2]


def test_an_error_in_one_lane_lets_the_others_finish_their_step() -> None:
    """Their results are there, and their memory is free, when the caller makes room."""
    failed = threading.Event()

    def step(number: int) -> int:
        if number == 0:
            failed.set()
            raise MemoryError("no room")
        assert failed.wait(timeout=60)
        return number

    outcomes = side_by_side(step, range(2), 2)
    assert isinstance(outcomes[0], MemoryError)
    assert outcomes[1] in (1, None)
