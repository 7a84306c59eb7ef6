"""Signals: SIGTERM and SIGINT as notices.

Kubernetes, ECS, Slurm and RunPod announce the end this way.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from batchq.errors import BatchqError
from batchq.notice.base import Notice

__all__ = ["SignalSource"]

WATCHED = (signal.SIGTERM, signal.SIGINT)


class SignalSource:
    """The first signal is a notice; a repeated SIGTERM changes nothing.

    A second SIGINT raises KeyboardInterrupt in the main thread: the person at the
    keyboard will not wait.
    """

    name = "signals"

    def __init__(self) -> None:
        self._report: Callable[[Notice], object] | None = None
        self._previous: dict[signal.Signals, Any] = {}
        self._interrupts = 0

    def watch(self, report: Callable[[Notice], object]) -> None:
        """Take over both signals. Call from the main thread."""
        if threading.current_thread() is not threading.main_thread():
            raise BatchqError("signals can only be watched from the main thread")
        self._report = report
        for number in WATCHED:
            self._previous[number] = signal.signal(number, self._handle)

    def close(self) -> None:
        """Give the signals back to whoever had them."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        received = signal.Signals(number)
        if received is signal.SIGINT:
            self._interrupts += 1
            if self._interrupts > 1:
                raise KeyboardInterrupt
        if self._report is not None:
            self._report(Notice("signal", received.name, None, self.name))
