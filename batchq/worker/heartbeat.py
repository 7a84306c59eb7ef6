"""Heartbeat: this process's sign of life, and its watch over the others'."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from batchq.clock import Clock, random_hex
from batchq.errors import DeviceLost, LedgerUnreachable
from batchq.ledger.base import Ledger, Role, Run
from batchq.words import counted

__all__ = ["BEATS_PER_TTL", "Heartbeat", "Registration"]

log = logging.getLogger("batchq.worker")

BEATS_PER_TTL = 3
"""Two beats may be lost before the third saves the leases, since one is sent sooner then."""

REAP_PAGE = 1_000


class Registration:
    """The name this process is known under. Reaped, it registers anew under another.

    A name is never used twice, so that a worker which was thought dead cannot keep its
    successor's leases alive.
    """

    def __init__(
        self, ledger: Ledger, run: Run, host: str, ttl: float, about: Mapping[str, Any]
    ) -> None:
        self._ledger = ledger
        self._run = run
        self._host = host
        self._about = about
        self._lock = threading.Lock()
        self.ttl = ttl
        self.name = ""

    def register(self) -> None:
        """Become known. A lost answer leaves a row without leases, which is reaped."""
        name = f"{self._host}-{random_hex(32)}"
        self._ledger.register(self._run, name, self.ttl, Role.WORKER, self._about)
        self.name = name

    def renew(self, lost_name: str, cancel: Callable[[], object]) -> bool:
        """Register anew, having called `cancel`, unless another thread already has."""
        with self._lock:
            if self.name != lost_name:
                return False
            cancel()
            self.register()
            return True


class Heartbeat:
    """Two threads: one beats every TTL/3, one reaps. Neither waits for the pipeline.

    `last_progress` gives the monotonic time of the pipeline's last step, or none while
    it has nothing to do. When that is longer ago than `stall_timeout` seconds the beats
    stop and `on_fatal` gets a DeviceLost: a hung device must not hold items for ever.
    """

    def __init__(
        self,
        ledger: Ledger,
        registration: Registration,
        clock: Clock,
        *,
        stall_timeout: float,
        last_progress: Callable[[], float | None],
        on_reaped: Callable[[str], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._ledger = ledger
        self._registration = registration
        self._clock = clock
        self._stall_timeout = stall_timeout
        self._last_progress = last_progress
        self._on_reaped = on_reaped
        self._on_fatal = on_fatal
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._guard, args=(step,), name=name, daemon=True)
            for name, step in (("beat", self._beat), ("reap", self._reap))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, seconds: float) -> None:
        """End both threads; within `seconds`, since a ledger that hangs may hold one."""
        self._stop.set()
        until = self._clock.monotonic() + seconds
        for thread in self._threads:
            thread.join(timeout=max(0.0, until - self._clock.monotonic()))

    def _guard(self, step: Callable[[], None]) -> None:
        interval = self._registration.ttl / BEATS_PER_TTL
        try:
            while not self._stop.is_set():
                pause = interval
                try:
                    step()
                except LedgerUnreachable as error:
                    log.warning("no answer from the ledger: %s", error)
                    # Reapers may miss an outage of half a TTL: after one a beat must not be long.
                    pause = interval / 2
                self._clock.wait(self._stop, pause)
        except BaseException as error:
            self._on_fatal(error)

    def _beat(self) -> None:
        self._refuse_stall()
        name = self._registration.name
        if not self._ledger.beat(name, self._registration.ttl) and not self._stop.is_set():
            self._on_reaped(name)

    def _refuse_stall(self) -> None:
        last = self._last_progress()
        if last is not None and self._clock.monotonic() - last > self._stall_timeout:
            raise DeviceLost(
                f"no progress for {self._stall_timeout:.0f} s",
                hint="look at the device and the result store; raise stall_timeout if loading "
                "the model or a single step may take that long. What is held returns to others "
                "by itself",
            )

    def _reap(self) -> None:
        while not self._stop.is_set():
            reaped = self._ledger.reap(self._registration.name, REAP_PAGE)
            taken = reaped.returned + reaped.dead_lettered
            if taken:
                names = ", ".join(reaped.workers) or "workers lost before"
                log.info("took back %s of %s", counted(taken, "item"), names)
            if taken < REAP_PAGE:
                return
