"""Batches on their way to the ledger, and the beats that announce more of them."""

from __future__ import annotations

import logging
import os
import platform
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

from batchq.clock import Clock, random_fraction, random_hex
from batchq.errors import BatchqError, LedgerUnreachable, WorkerReaped
from batchq.item import NewItem
from batchq.ledger.base import Enqueued, Ledger, Role, Run

__all__ = ["Presence", "Sender"]

log = logging.getLogger("batchq.enqueue")

BEATS_PER_TTL = 3

ATTEMPTS, FIRST_PAUSE_S, LONGEST_PAUSE_S = 10, 0.5, 15.0
"""A ledger that gives no answer is asked for about a minute and a quarter."""


class Presence:
    """This process in the ledger: while it beats, workers wait for what it may still bring."""

    def __init__(self, ledger: Ledger, run: Run, clock: Clock, ttl: float) -> None:
        self._ledger = ledger
        self._run = run
        self._clock = clock
        self._ttl = ttl
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="beat", daemon=True)
        self.name = ""

    def __enter__(self) -> Presence:
        self._register()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        reason = "finished" if kind is None else f"ended by {kind.__name__}"
        with self._lock, suppress(LedgerUnreachable):
            self._ledger.stop(self.name, reason)

    def renew(self, lost: str) -> None:
        """Register anew, unless another thread has done so since the name was `lost`."""
        with self._lock:
            if self.name == lost and not self._over.is_set():
                self._register()

    def _register(self) -> None:
        name = f"enqueue-{random_hex(64)}"
        about = {"host": platform.node(), "pid": os.getpid()}
        self._ledger.register(self._run, name, self._ttl, Role.ENQUEUER, about)
        self.name = name

    def _beat(self) -> None:
        while not self._clock.wait(self._over, self._ttl / BEATS_PER_TTL):
            name = self.name
            try:
                if not self._ledger.beat(name, self._ttl):
                    self.renew(name)
            except BatchqError as error:
                # The batches go through the same ledger and will say what is wrong with it.
                log.warning("no beat: %s", error)


class Sender:
    """Sends batches, each until it is answered, numbered for the name that they go under."""

    def __init__(self, ledger: Ledger, presence: Presence, clock: Clock, replace: bool) -> None:
        self._ledger = ledger
        self._presence = presence
        self._clock = clock
        self._replace = replace
        self._name = ""
        self._number = 0

    def send(self, items: Sequence[NewItem]) -> Enqueued:
        # A batch keeps its name until it is answered: under another one, what a lost call
        # has brought would be counted as known.
        self._use(self._presence.name)
        for attempt in range(ATTEMPTS):
            try:
                return self._ledger.enqueue(self._name, self._number, items, replace=self._replace)
            except WorkerReaped:
                self._presence.renew(self._name)
                self._use(self._presence.name)
            except LedgerUnreachable as error:
                if attempt == ATTEMPTS - 1:
                    raise
                log.warning("no answer from the ledger, asking again: %s", error)
                pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**attempt)
                self._clock.wait(threading.Event(), pause * (0.5 + 0.5 * random_fraction()))
        raise LedgerUnreachable(
            "the ledger does not keep this process's registration",
            hint="another process may be deleting it; see `batchq status`",
        )

    def _use(self, name: str) -> None:
        self._number = self._number + 1 if name == self._name else 1
        self._name = name
