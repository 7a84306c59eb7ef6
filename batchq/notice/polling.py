"""A source that asks again and again, from a thread of its own that nothing can end."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable

from batchq.clock import Clock
from batchq.notice.base import DEFAULT_WINDOW_S, Notice
from batchq.notice.deadline import seconds_left

__all__ = ["PollingSource", "Trouble"]

log = logging.getLogger("batchq.notice")

MAX_PAUSE_S = 20.0
"""After failures. Longer would sleep through the windows that matter."""


class Trouble(Exception):
    """A poll failed; the next may not. One `kind` is logged once, however often it comes."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class PollingSource(ABC):
    """`interval`: seconds between polls; `window`: seconds that a notice without a usable
    time is taken to give, or None to leave its deadline open.

    The attribute of that name is `NoticeSource`'s, and no more than the platform surely gives.
    """

    name: str
    medium = "metadata"
    window: float | None = None

    def __init__(self, *, clock: Clock, interval: float, window: float | None) -> None:
        self._clock = clock
        self._interval = interval
        self._window = window
        self._closed = threading.Event()
        self._report: Callable[[Notice], object] = lambda notice: None
        self._announced: set[Hashable] = set()
        self._troubles: set[str] = set()
        self._failures = 0

    @abstractmethod
    def describe(self) -> str: ...

    @abstractmethod
    def _look(self) -> float:
        """Ask the platform once; seconds to pause. Raises Trouble if it gives no answer."""

    def watch(self, report: Callable[[Notice], object]) -> None:
        self._report = report
        threading.Thread(target=self._run, name=f"notice-{self.name}", daemon=True).start()

    def close(self, *, drained: bool = False) -> None:
        self._closed.set()

    def _poll(self) -> float:
        """Look once, report what is new; seconds until the next look. Never raises."""
        try:
            pause = self._look()
        except Trouble as trouble:
            return self._failed(trouble)
        except Exception as error:
            # A worker whose watcher has died is one that nobody warns.
            return self._failed(Trouble(type(error).__name__, f"{type(error).__name__}: {error}"))
        if self._failures:
            log.debug("%s: answers again", self.name)
        self._failures = 0
        return pause

    def _run(self) -> None:
        while not self._closed.is_set():
            self._clock.wait(self._closed, self._poll())

    def _failed(self, trouble: Trouble) -> float:
        self._note(trouble)
        self._failures += 1
        return min(MAX_PAUSE_S, max(1.0, self._interval) * 2.0 ** min(self._failures - 1, 8))

    def _note(self, trouble: Trouble) -> None:
        if trouble.kind not in self._troubles:
            self._troubles.add(trouble.kind)
            log.warning("%s: %s", self.name, trouble)

    def _announce(
        self,
        key: Hashable,
        kind: str,
        action: str,
        deadline: Callable[[], float | None],
        *,
        detail: str = "",
        drains: bool = True,
    ) -> None:
        """Report one notice, unless it was reported before under this `key`.

        The deadline of the first time stands: some platforms move the time they state.
        """
        if key in self._announced or self._closed.is_set():
            return
        self._report(Notice(kind, action, deadline(), self.name, detail, drains, self.medium))
        self._announced.add(key)

    def _in(self, seconds: float | None) -> float | None:
        """A deadline so many seconds ahead; without, what `window` gives."""
        seconds = self._window if seconds is None else seconds
        return None if seconds is None else self._clock.monotonic() + seconds

    def _at(self, stated: float | None, longest: float, said: object) -> float | None:
        """The deadline that a stated time (wall clock) means, if it can be right.

        `said` is how the platform wrote it, `longest` how far ahead it ever warns.
        """
        left = seconds_left(stated, self._clock.now(), longest)
        if left is None:
            window = DEFAULT_WINDOW_S if self._window is None else self._window
            log.warning(
                "%s: clock skew or stale notice: it names %r; assuming %g s",
                self.name,
                said,
                window,
            )
        return self._in(left)
