"""How much time a machine that does other things takes from a test."""

from __future__ import annotations

import threading
import time
from types import TracebackType

__all__ = ["Lateness"]

TURN_S = 0.01


class Lateness:
    """By how many `seconds` in all a thread was woken too late, while the context lasts.

    What must be over by a deadline may be late by as much: it is the machine that kept it waiting.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Lateness:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        asleep = time.monotonic()
        while not self._over.wait(TURN_S):
            awake = time.monotonic()
            self.seconds += awake - asleep - TURN_S
            asleep = awake
