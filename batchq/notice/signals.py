"""Signals: SIGTERM, SIGINT, SIGUSR1 and SIGHUP as notices.

Kubernetes, ECS, Slurm and RunPod announce the end with SIGTERM. SIGUSR1 is the same
drain for a rehearsal, or for a scheduler that is told to send it early. SIGHUP comes when the
terminal of a worker has gone.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from batchq.clock import Clock
from batchq.errors import BatchqError, ExitCode
from batchq.notice.base import DEFAULT_WINDOW_S, Notice

__all__ = ["SignalSource"]

WATCHED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)

DETAILS = {signal.SIGUSR1: "a rehearsal", signal.SIGHUP: "the terminal has gone"}


class SignalSource:
    """The first of each is a notice; a repeated SIGTERM changes nothing.

    A second SIGINT raises KeyboardInterrupt in the main thread: the person at the
    keyboard will not wait. `window`: seconds from a signal to the kill, where
    `platform` or a setting tells; without it or a `clock` the deadline is left open.
    `hung_up` is called at once when the terminal has gone.
    """

    name = "signals"

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        window: float | None = None,
        platform: str | None = None,
        hung_up: Callable[[], object] = lambda: None,
    ) -> None:
        self.clock = clock
        self.window = window
        self.platform = platform
        self._hung_up = hung_up
        self._report: Callable[[Notice], object] | None = None
        self._previous: dict[signal.Signals, Any] = {}
        self._is_the_process = False
        self._interrupts = 0
        self._reported: set[signal.Signals] = set()

    def describe(self) -> str:
        where = f" from {self.platform}" if self.platform else ""
        window = DEFAULT_WINDOW_S if self.window is None else self.window
        names = ", ".join(number.name for number in WATCHED)
        return f"signals: {names}{where}, {window:g} s ahead"

    def take_process(self) -> None:
        """Take the signals for as long as this process lives. Call from the main thread.

        Until `watch`, all but SIGINT end it with exit code STOPPED: there is nothing to
        drain yet. After `close` they are ignored, so that one which comes late does not
        change how the process ends. A process that is forked from this one gets them as they
        were before: a processor that ends its helpers with SIGTERM waits for them.
        """
        self._is_the_process = True
        os.register_at_fork(after_in_child=self._give_back)
        for number in WATCHED:
            if number is not signal.SIGINT:
                self._take(number, self._end_process)

    def watch(self, report: Callable[[Notice], object]) -> None:
        """Take the signals over. Call from the main thread."""
        self._report = report
        for number in WATCHED:
            self._take(number, self._handle)

    def close(self, *, drained: bool = False) -> None:
        """Give the signals back to whoever had them, unless they are the process's own."""
        if self._is_the_process:
            for number in self._previous:
                signal.signal(number, signal.SIG_IGN)
        else:
            self._give_back()
        self._previous.clear()

    def _give_back(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _take(self, number: signal.Signals, handler: Callable[[int, Any], None]) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise BatchqError("signals can only be watched from the main thread")
        if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
            # Started by nohup, it is to outlive its terminal.
            return
        previous = signal.signal(number, handler)
        self._previous.setdefault(number, previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        received = signal.Signals(number)
        if received is signal.SIGHUP:
            self._hung_up()
        if received is signal.SIGINT:
            self._interrupts += 1
            if self._interrupts > 1:
                raise KeyboardInterrupt
        if self._report is not None and received not in self._reported:
            self._reported.add(received)
            detail = DETAILS.get(received, "")
            self._report(Notice("signal", received.name, self._deadline(), self.name, detail))

    def _end_process(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self._hung_up()
        raise SystemExit(int(ExitCode.STOPPED))

    def _deadline(self) -> float | None:
        if self.clock is None or self.window is None:
            return None
        return self.clock.monotonic() + self.window
