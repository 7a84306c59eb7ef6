"""Drain: the first notice stops claiming, and a deadline bounds everything after it."""

from __future__ import annotations

import queue
import threading

from batchq.clock import Clock
from batchq.notice.base import Notice

__all__ = ["Drain"]

DEFAULT_WINDOW_S = 25.0
"""Where a notice names no deadline: what Kubernetes grants, less a margin."""

MARGIN_S = 2.0
"""Kept for the last calls to the ledger."""


class Drain:
    """Starts once, at the first notice that drains; later ones change nothing. Thread-safe.

    `window`: seconds between a notice without a deadline and the end. `recorded` holds
    the notices that only told of a risk.
    """

    def __init__(self, clock: Clock, window: float | None = None) -> None:
        self._clock = clock
        self._window = DEFAULT_WINDOW_S if window is None else window
        # Re-entrant, since a signal may arrive while another signal's notice is taken.
        self._lock = threading.RLock()
        self._began = 0.0
        self._deadline = 0.0
        self._started = threading.Event()
        self._ahead_s: float | None = None
        self.notice: Notice | None = None
        self.recorded: queue.SimpleQueue[Notice] = queue.SimpleQueue()

    def begin(self, notice: Notice) -> bool:
        """Take the notice; false if it starts no drain, or one had begun before."""
        if not notice.drains:
            self.recorded.put(notice)
            return False
        with self._lock:
            if self.notice is not None:
                return False
            self.notice = notice
            now = self._began = self._clock.monotonic()
            if notice.deadline is None:
                self._deadline = now + self._window
            else:
                self._deadline = notice.deadline
                self._ahead_s = max(0.0, notice.deadline - now)
        self._started.set()
        return True

    @property
    def started(self) -> bool:
        return self._started.is_set()

    def seconds_left(self) -> float:
        """Until the last moment for a call to the ledger; without bound if not started."""
        if not self.started:
            return float("inf")
        margin = min(MARGIN_S, self._window / 4)
        return self._deadline - margin - self._clock.monotonic()

    def seconds_since(self) -> float:
        """Since the notice; 0 if there was none."""
        return self._clock.monotonic() - self._began if self.started else 0.0

    def fits(self, seconds: float) -> bool:
        """Whether a step that takes `seconds` ends in time."""
        return seconds < self.seconds_left()

    def reason(self) -> str:
        """For the worker's row in the ledger; empty while no drain has begun."""
        notice = self.notice
        if notice is None:
            return ""
        ahead = "" if self._ahead_s is None else f" notice, {self._ahead_s:.0f} s ahead,"
        detail = f" ({notice.detail})" if notice.detail else ""
        return f"{notice.kind} {notice.action}{ahead} by {notice.source}{detail}"
