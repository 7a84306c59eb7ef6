"""Settle: tell the ledger how each item ended, and ask again until it answers.

The last stage, one thread. Results wait here until a flush is due; failures and
releases go at once. Every verb is safe to repeat, so a lost answer is asked again with
the same arguments, for as long as the worker lives.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from batchq.clock import random_fraction
from batchq.errors import LedgerUnreachable
from batchq.lease import Failure, ReleaseReason
from batchq.ledger.base import Committed
from batchq.redact import printable, redact
from batchq.result import Result
from batchq.store.verified import Written
from batchq.worker.holdings import Holdings, Work
from batchq.worker.parts import Parts

__all__ = ["Settler", "for_the_ledger"]

log = logging.getLogger("batchq.worker")

T = TypeVar("T")

TICK_S = 0.05
"""How long to wait for an outcome before looking whether what is here is due."""

MAX_ERROR_CHARACTERS = 2_000
MAX_CAUSE_CHARACTERS = 100

FIRST_PAUSE_S, MAX_PAUSE_S = 0.5, 10.0
"""Between two questions to a ledger that does not answer."""


@dataclass(frozen=True, slots=True)
class _Completed:
    work: Work
    written: Written


@dataclass(frozen=True, slots=True)
class _Failed:
    work: Work
    cause: str
    error: str
    final: bool


@dataclass(frozen=True, slots=True)
class _Released:
    works: Sequence[Work]
    reason: ReleaseReason


_Outcome = _Completed | _Failed | _Released


class Settler:
    """`completed`, `failed` and `released` may be called from any thread.

    `hurried` says that nothing must wait any more. `step` is called whenever the ledger
    was asked: waiting for it is no stall.
    `accepted` counts the results it took, `given_back` the items released.
    """

    def __init__(
        self,
        parts: Parts,
        holdings: Holdings,
        halt: threading.Event,
        hurried: Callable[[], bool],
        step: Callable[[], None],
    ) -> None:
        self._ledger = parts.ledger
        self._registration = parts.registration
        self._pace = parts.pace
        self._drain = parts.drain
        self._events = parts.events
        self._clock = parts.clock
        self._holdings = holdings
        self._halt = halt
        self._hurried = hurried
        self._step = step
        self.accepted = 0
        self.given_back = 0
        self._outcomes: queue.SimpleQueue[_Outcome] = queue.SimpleQueue()
        self._results: list[_Completed] = []
        self._oldest = 0.0

    # -- what the stages before this one say -------------------------------------

    def completed(self, work: Work, written: Written) -> None:
        self._outcomes.put(_Completed(work, written))

    def failed(self, work: Work, cause: str, error: str, *, final: bool) -> None:
        cause = for_the_ledger(cause)[:MAX_CAUSE_CHARACTERS]
        self._outcomes.put(_Failed(work, cause, for_the_ledger(error), final))

    def released(self, works: Sequence[Work], reason: ReleaseReason) -> None:
        if works:
            self._outcomes.put(_Released(works, reason))

    # -- the thread --------------------------------------------------------------

    def run(self) -> None:
        """Until the pipeline halts. Once it hurries, results are committed as they come."""
        while not self._halt.is_set():
            arrived = self._receive()
            self._fail([o for o in arrived if isinstance(o, _Failed)])
            for outcome in arrived:
                if isinstance(outcome, _Released):
                    self._release(outcome)
            self._results.extend(o for o in arrived if isinstance(o, _Completed))
            if self._results and self._flush_due():
                self._commit()

    def _receive(self) -> list[_Outcome]:
        """What has arrived, waiting a moment for the first."""
        arrived: list[_Outcome] = []
        try:
            arrived.append(self._outcomes.get(timeout=TICK_S))
            while True:
                arrived.append(self._outcomes.get_nowait())
        except queue.Empty:
            pass
        if not self._results and any(isinstance(o, _Completed) for o in arrived):
            self._oldest = self._clock.monotonic()
        return arrived

    def _flush_due(self) -> bool:
        waiting = len(self._results)
        return (
            waiting >= self._pace.flush_size(lost_before=self._holdings.some_were_lost_before)
            or self._clock.monotonic() - self._oldest >= self._pace.flush_interval()
            or self._hurried()
            # Nothing else is on its way that could join this flush.
            or waiting >= len(self._holdings)
        )

    def _commit(self) -> None:
        results = [
            Result(
                item_id=completed.work.item.id,
                token=completed.work.token,
                stored=completed.written.stored,
                empty=completed.written.empty,
                adopted=completed.written.adopted,
                divergent=completed.written.divergent,
            )
            for completed in self._results
        ]
        committed = self._ask(lambda: self._measured(results))
        accepted, fenced = set(committed.accepted), set(committed.fenced)
        self.accepted += len(accepted)
        done, self._results = self._results, []
        works = [completed.work for completed in done]
        self._holdings.settle(works)
        self._announce("committed", (w for w in works if w.item.id in accepted))
        self._announce("fenced", (w for w in works if w.item.id in fenced))
        self._announce(
            "adopted",
            (c.work for c in done if c.written.adopted and c.work.item.id in accepted),
        )

    def _measured(self, results: Sequence[Result]) -> Committed:
        """A commit, and how long the ledger took; one that it did not answer says nothing."""
        began = self._clock.monotonic()
        committed = self._ledger.commit(self._registration.name, results)
        self._pace.flush_done(len(results), self._clock.monotonic() - began)
        return committed

    def _fail(self, outcomes: Sequence[_Failed]) -> None:
        if not outcomes:
            return
        failures = [Failure(o.work.held, o.cause, o.error, o.final) for o in outcomes]
        self._ask(lambda: self._ledger.fail(self._registration.name, failures))
        self._holdings.settle(o.work for o in outcomes)
        for outcome in outcomes:
            log.warning("%s: %s: %s", outcome.work.item.source_id, outcome.cause, outcome.error)
        self._announce("failed", (o.work for o in outcomes))

    def _release(self, outcome: _Released) -> None:
        held = [work.held for work in outcome.works]
        self._ask(lambda: self._ledger.release(self._registration.name, held, outcome.reason))
        self._holdings.settle(outcome.works)
        self.given_back += len(held)
        self._announce("released", outcome.works)

    def _ask(self, verb: Callable[[], T]) -> T:
        """The ledger's answer, however often it must be asked.

        Raises LedgerUnreachable only once a drain's time is over.
        """
        pause = FIRST_PAUSE_S
        while True:
            self._step()
            try:
                return verb()
            except LedgerUnreachable as error:
                if self._halt.is_set() or self._drain.seconds_left() <= 0:
                    raise
                log.warning("no answer from the ledger, asking again in %.1f s: %s", pause, error)
                self._pause(pause * (0.5 + random_fraction()))
                pause = min(MAX_PAUSE_S, pause * 2)

    def _pause(self, seconds: float) -> None:
        """Cut short when nothing must wait any more: a ledger may be back before a deadline."""
        until = self._clock.monotonic() + seconds
        while not self._halt.is_set() and (left := until - self._clock.monotonic()) > 0:
            self._clock.wait(self._halt, min(left, FIRST_PAUSE_S))
            if self._hurried():
                return

    def _announce(self, kind: str, works: Iterable[Work]) -> None:
        """One event a lease."""
        by_token: dict[str, list[str]] = defaultdict(list)
        for work in works:
            by_token[work.token].append(work.item.source_id)
        for token, source_ids in by_token.items():
            self._events.emit(kind, lease=token, items=source_ids)


def for_the_ledger(text: str) -> str:
    """Without secrets, without what a database refuses (NUL, half a surrogate pair), bounded."""
    return printable(redact(text))[:MAX_ERROR_CHARACTERS]
