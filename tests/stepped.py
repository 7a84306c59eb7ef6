"""Watching threads that a test takes step by step, and an ear for what they report."""

from __future__ import annotations

import threading
from types import TracebackType

from batchq.clock import ManualClock
from batchq.notice.base import Notice, NoticeSource

__all__ = ["Heard", "SteppedClock", "Watch"]


class SteppedClock:
    """A clock whose `wait` holds one watching thread until the test lets it poll again.

    Its times are those of `time`, which several may share.
    """

    def __init__(self, time: ManualClock) -> None:
        self._time = time
        self.now, self.monotonic, self.advance = time.now, time.monotonic, time.advance
        self._done = threading.Semaphore(0)
        self._go = threading.Semaphore(0)
        self._is_held = False

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self._time.advance(seconds)
        self._done.release()
        while not event.is_set() and not self._go.acquire(timeout=0.02):
            pass
        return event.is_set()

    def polls(self, times: int = 1) -> None:
        """Let the thread poll so often, and return when it waits again."""
        for _ in range(times):
            if self._is_held:
                self._go.release()
            assert self._done.acquire(timeout=120), "the source did not poll"
            self._is_held = True


class Heard:
    """What a source has reported. Thread-safe."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self._lock = threading.Lock()

    def __call__(self, notice: Notice) -> None:
        with self._lock:
            self.notices.append(notice)

    @property
    def only(self) -> Notice:
        [notice] = self.notices
        return notice


class Watch:
    """A source that watches for as long as the context lasts, poll by poll."""

    def __init__(self, source: NoticeSource, clock: SteppedClock) -> None:
        self.source = source
        self.heard = Heard()
        self.polls = clock.polls

    def __enter__(self) -> Watch:
        self.source.watch(self.heard)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.source.close()
