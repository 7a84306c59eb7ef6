"""The window of prepared work from which the device's batches are cut."""

from __future__ import annotations

import threading
from collections.abc import Callable

from batchq.inference.batching import Batcher
from batchq.worker.holdings import Work

__all__ = ["Window"]

WINDOW_ITEMS = 512
"""Enough to sort by length: 94 % useful tokens, where arrival order gives 49 %."""

BATCH_SECONDS = 1.0
"""How long the device waits for one whole batch: a fraction of one costs nearly as much."""

FILL_SECONDS = 0.2
"""How long it waits, having a whole batch, for a window that is worth sorting."""


class Window:
    """Thread-safe. `batch_cost` is what one batch may cost, padding included, in tokens."""

    def __init__(self, batch_cost: int) -> None:
        self._batch_cost = batch_cost
        self._batcher: Batcher[Work] = Batcher(batch_cost, WINDOW_ITEMS)
        self._changed = threading.Condition()

    def add(self, work: Work) -> None:
        assert work.prepared is not None
        with self._changed:
            self._batcher.add(work, work.prepared.cost)
            self._changed.notify()

    def look_again(self) -> None:
        """What is upstream has changed without coming here, or has just come."""
        with self._changed:
            self._changed.notify()

    def next_batch(self, upstream: Callable[[], int], seconds: float) -> list[Work]:
        """A batch of like lengths, or nothing after `seconds`.

        While `upstream` says that more is on its way, waits shortly for a whole batch and
        a full window.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._batcher) > 0, seconds):
                return []
            self._changed.wait_for(
                lambda: self._batcher.cost >= self._batch_cost or upstream() == 0, BATCH_SECONDS
            )
            self._changed.wait_for(lambda: self._batcher.full or upstream() == 0, FILL_SECONDS)
            return self._batcher.next_batch()

    def take_all(self) -> list[Work]:
        taken: list[Work] = []
        with self._changed:
            while batch := self._batcher.next_batch():
                taken += batch
        return taken
