"""Last calls: what a worker still asks of the ledger when its pipeline is over."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from batchq.errors import BatchqError, LedgerUnreachable
from batchq.worker.drain import Drain

__all__ = ["LastCalls"]

log = logging.getLogger("batchq.worker")

T = TypeVar("T")

LONGEST_S = 10.0
"""Where no deadline presses."""


class LastCalls:
    """Each is given up after a while, and after one without an answer no other is made.

    Whatever they were to achieve comes about by itself: leases expire.
    """

    def __init__(self, drain: Drain) -> None:
        self._drain = drain
        self._silent = False

    def seconds(self) -> float:
        """What a call may take now."""
        return min(LONGEST_S, self._drain.seconds_for_last_calls())

    def ask(self, call: Callable[[], T]) -> T | None:
        """The answer, or none if the ledger gives none. Raises what it refuses the call with."""
        if self._silent:
            return None
        answers: list[T] = []
        refusals: list[BatchqError] = []

        def ask() -> None:
            try:
                answers.append(call())
            except BatchqError as error:
                refusals.append(error)

        seconds = self.seconds()
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(seconds)
        if answers:
            return answers[0]
        if refusals and not isinstance(refusals[0], LedgerUnreachable):
            raise refusals[0]
        self._silent = True
        why = refusals[0] if refusals else f"no answer within {seconds:.1f} s"
        log.warning("last call to the ledger: %s; leases will expire", why)
        return None
