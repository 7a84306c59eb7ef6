"""Steps of a model side by side: on a CPU every core runs one of its own.

Torch's way is to share each operation among all cores, which then wait for one another
after every one of them, and for whichever is held up by another thread or program. A step a
core was 10 % faster on two idle cores, and several times as fast on two busy ones.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

__all__ = ["side_by_side"]

Step = TypeVar("Step")
Made = TypeVar("Made")


def side_by_side(
    call: Callable[[Step], Made], steps: Sequence[Step], lanes: int
) -> list[Made | Exception | None]:
    """What `call` made of each step, or raised, in order; `lanes` of them at a time.

    After an error no further step is begun: none for those. The caller's thread is one of
    the lanes, and the others are gone when this returns.
    """
    outcomes: list[Made | Exception | None] = [None] * len(steps)
    waiting = deque(range(len(steps)))

    def lane() -> None:
        while True:
            try:
                place = waiting.popleft()
            except IndexError:
                return
            try:
                outcomes[place] = call(steps[place])
            except Exception as error:
                outcomes[place] = error
                waiting.clear()

    # As daemons: a device that hangs must not keep the process from its end.
    others = [
        threading.Thread(target=lane, name=f"lane-{n}", daemon=True)
        for n in range(1, min(lanes, len(steps)))
    ]
    for thread in others:
        thread.start()
    lane()
    for thread in others:
        thread.join()
    return outcomes
