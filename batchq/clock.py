"""Time and randomness, the only module that reads either.

Everything else is handed a `Clock`, so that tests of leases set the time instead
of sleeping.
"""

from __future__ import annotations

import secrets
import threading
import time
from typing import Protocol

__all__ = ["Clock", "ManualClock", "SystemClock", "random_fraction", "random_hex"]


class Clock(Protocol):
    """Two clocks, both in seconds: one that may jump and one that never does."""

    def now(self) -> float:
        """Wall clock: seconds since 1970-01-01 UTC. May be wrong, may jump."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait for `event`, for at most `seconds`; true if it was set."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(max(0.0, seconds))


class ManualClock:
    """A clock that moves only when told to. `wait` advances it and returns at once."""

    def __init__(self, now: float = 1_750_000_000.0, monotonic: float = 1_000.0) -> None:
        self._now = now
        self._monotonic = monotonic
        self._lock = threading.Lock()

    def now(self) -> float:
        with self._lock:
            return self._now

    def monotonic(self) -> float:
        with self._lock:
            return self._monotonic

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.advance(max(0.0, seconds))
        return event.is_set()

    def advance(self, seconds: float) -> None:
        """Let time pass: both clocks move together."""
        with self._lock:
            self._now += seconds
            self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Move the wall clock alone, as a wrong time server would."""
        with self._lock:
            self._now += seconds


def random_hex(bits: int = 128) -> str:
    """Unguessable hexadecimal digits from the operating system, `bits / 4` of them."""
    return secrets.token_hex(bits // 8)


def random_fraction() -> float:
    """A number in [0, 1), for jitter."""
    return secrets.randbelow(1 << 30) / (1 << 30)
