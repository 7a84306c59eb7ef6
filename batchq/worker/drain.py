"""Drain: the first notice stops claiming, and a deadline bounds everything after it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable

from batchq.clock import Clock
from batchq.notice.base import DEFAULT_WINDOW_S, Notice, NoticeSource

__all__ = ["Drain", "shortest_window", "usable"]

MARGIN_S = 2.0
"""Kept for the last calls to the ledger."""

MARGIN_SHARE = 0.25
"""Of a short window; the rest is for work."""

LAST_CALLS_SHARE, PROCESS_SHARE = 0.5, 0.75
"""Of the margin: when the last calls are given up, and when the process is ended."""

LAST_CALLS_AT_LEAST_S, PROCESS_AT_LEAST_S = 0.5, 1.0
"""The same from the notice on, however late that comes."""


def shortest_window(setting: float | None, notices: Iterable[NoticeSource]) -> float:
    """Seconds from the latest of all warnings to the end."""
    windows = [setting, *(source.window for source in notices)]
    return min((w for w in windows if w is not None), default=DEFAULT_WINDOW_S)


def usable(window: float) -> float:
    """What `window` seconds leave for work: less the margin for the last calls."""
    return window - min(MARGIN_S, MARGIN_SHARE * window)


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
        self._end_of_work = 0.0
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
            ahead = self._window
            if notice.deadline is not None:
                ahead = self._ahead_s = max(0.0, notice.deadline - now)
            self._deadline = now + ahead
            self._end_of_work = now + usable(ahead)
        self._started.set()
        return True

    @property
    def started(self) -> bool:
        return self._started.is_set()

    def seconds_left(self) -> float:
        """Until work must have ended, its last commit too; without bound if not started."""
        return self._end_of_work - self._clock.monotonic() if self.started else float("inf")

    def seconds_for_last_calls(self) -> float:
        """What the calls that follow the work may take; without bound if not started."""
        if not self.started:
            return float("inf")
        return max(0.0, self._left_of_margin(LAST_CALLS_SHARE, LAST_CALLS_AT_LEAST_S))

    def wait_for_the_end(self) -> None:
        """Return when the process must be gone; never if no drain begins."""
        self._started.wait()
        left = self._left_of_margin(PROCESS_SHARE, PROCESS_AT_LEAST_S)
        self._clock.wait(threading.Event(), left)

    def _left_of_margin(self, share: float, least: float) -> float:
        """Until `share` of the margin has passed, but for `least` seconds from the notice."""
        end = self._end_of_work + share * (self._deadline - self._end_of_work)
        return max(end, self._began + least) - self._clock.monotonic()

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
        ahead = "" if self._ahead_s is None else f" notice, {self._ahead_s:.0f} s ahead"
        detail = f" ({notice.detail})" if notice.detail else ""
        by = f" by {notice.source} {notice.medium}".rstrip()
        if notice.kind == "signal":
            # It comes from nowhere.
            by = ""
        elif ahead:
            by = f",{by}"
        return f"{notice.kind} {notice.action}{ahead}{by}{detail}"
