"""Waiting for what comes at once where nothing is wrong, and on a busy machine a little later."""

from __future__ import annotations

import threading
from collections.abc import Callable

from batchq.clock import SystemClock

__all__ = ["PATIENCE_S", "comes_true"]

PATIENCE_S = 60.0


def comes_true(what: Callable[[], object]) -> bool:
    """Whether it does, within PATIENCE_S."""
    clock = SystemClock()
    until = clock.monotonic() + PATIENCE_S
    while not what():
        if clock.monotonic() > until:
            return False
        clock.wait(threading.Event(), 0.01)
    return True
