"""How much time a machine that does other things takes from a test."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["Late", "lateness"]

TURN_S = 0.01


@dataclass
class Late:
    """By how many `seconds` in all a thread was woken too late."""

    seconds: float = 0.0


@contextmanager
def lateness() -> Iterator[Late]:
    """Measured while the context lasts.

    What must be over by a deadline may be late by as much: it is the machine that kept it waiting.
    """
    late, over = Late(), threading.Event()

    def watch() -> None:
        asleep = time.monotonic()
        while not over.wait(TURN_S):
            awake = time.monotonic()
            late.seconds += awake - asleep - TURN_S
            asleep = awake

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield late
    finally:
        over.set()
        watcher.join()
