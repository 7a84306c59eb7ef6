"""Claim: keep as much in hand as the device needs, and know when the run is over."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from batchq.clock import random_fraction
from batchq.errors import LedgerUnreachable, WorkerReaped
from batchq.lease import Lease, new_token
from batchq.ledger.base import ISOLATED_LOSSES, Counts
from batchq.words import counted
from batchq.worker.holdings import Holdings, Work
from batchq.worker.pace import POLL_S, poll_interval
from batchq.worker.parts import Parts

__all__ = ["Claimer"]

log = logging.getLogger("batchq.worker")

TICK_S = 0.1
COUNTS_MAX_AGE_S = 1.0


class Claimer:
    """The first stage, one thread.

    `hand_out` gets the work of each lease. `closing` or a drain ends the stage: no claim
    is sent afterwards, and what a claim in flight brings is handed out all the same, to
    be released. `reaped` is told the name under which the ledger no longer knows us.
    `step` is called when there is something to do: idling until then was no stall.
    """

    def __init__(
        self,
        parts: Parts,
        holdings: Holdings,
        closing: threading.Event,
        hand_out: Callable[[Sequence[Work]], None],
        reaped: Callable[[str], None],
        step: Callable[[], None],
    ) -> None:
        self._parts = parts
        self._holdings = holdings
        self._closing = closing
        self._hand_out = hand_out
        self._reaped = reaped
        self._step = step
        self._counted_at = float("-inf")
        self._idle_since = float("inf")
        self._said: set[str] = set()
        self.counts: Counts | None = None

    def run(self) -> None:
        """Claim until the run is over or `closing` is set."""
        pace = self._parts.pace
        while not self._closed():
            if not self._holdings.wait_below(self._hold(), TICK_S):
                continue
            try:
                counts = self._count(COUNTS_MAX_AGE_S)
                lease = self._claim(min(pace.claim_size(counts), self._hold()))
                if lease is not None:
                    self._idle_since = float("inf")
                    self._take(lease)
                    continue
                # Nothing is due. Is anything still to come?
                counts = self._count(0.0)
                if self._gave_up_what_was_forgotten(counts):
                    continue
            except LedgerUnreachable as error:
                log.warning("cannot claim: %s", error)
                self._pause(POLL_S)
                continue
            if self._run_is_over(counts):
                return
            self._say_what_for(counts)
            self._pause(poll_interval(counts))

    def _hold(self) -> int:
        return self._parts.pace.hold(lost_before=self._holdings.some_were_lost_before)

    def _claim(self, limit: int) -> Lease | None:
        """One claim. A lost answer is asked again under the same token."""
        parts = self._parts
        name = token = ""
        while not self._closed():
            if parts.registration.name != name:
                # What its token may have brought under another name is others' by now.
                name, token = parts.registration.name, new_token()
            try:
                lease = parts.ledger.claim(name, token, limit, alone=len(self._holdings) == 0)
            except WorkerReaped:
                self._reaped(name)
                continue
            except LedgerUnreachable as error:
                log.warning("no answer to a claim, asking again: %s", error)
                self._pause(POLL_S)
                continue
            if lease is not None and parts.registration.name != name:
                # Reaped between the claim and here: these items are others' already.
                continue
            return lease
        return None

    def _take(self, lease: Lease) -> None:
        # Before anything is held: from then on a step that is long ago is a stall.
        self._step()
        works = self._holdings.take(lease)
        if not self._closed():
            self._parts.events.emit(
                "claimed", lease=lease.token, items=[work.item.source_id for work in works]
            )
        self._hand_out(works)
        if any(work.item.losses >= ISOLATED_LOSSES for work in works):
            # It may be this document that kills workers: hold nothing beside it.
            while not self._closed() and not self._holdings.wait_below(1, TICK_S):
                pass

    def _closed(self) -> bool:
        return self._closing.is_set() or self._parts.drain.started

    def _count(self, max_age_s: float) -> Counts:
        now = self._parts.clock.monotonic()
        if self.counts is None or now - self._counted_at >= max_age_s:
            self.counts = self._parts.ledger.counts(self._parts.run)
            self._counted_at = now
        return self.counts

    def _run_is_over(self, counts: Counts) -> bool:
        nothing_held = len(self._holdings) == 0
        return not self._parts.follow and nothing_held and counts.run_is_over

    def _gave_up_what_was_forgotten(self, counts: Counts) -> bool:
        """End the name of a worker that holds nothing, if the ledger says that it holds items.

        It does after it was set back: restored from a copy, or lost to a server that had not
        heard of the last commits. From a worker that is alive nobody would take them over.
        Asked once a TTL, where nothing else is to be done.
        """
        ledger, registration = self._parts.ledger, self._parts.registration
        if len(self._holdings) > 0 or not (counts.exact and counts.tallies.leased):
            self._idle_since = float("inf")
            return False
        now, name = self._parts.clock.monotonic(), registration.name
        self._idle_since = min(self._idle_since, now)
        if now - self._idle_since < registration.ttl:
            return False
        self._idle_since = now
        held = sum(w.held for w in ledger.workers(self._parts.run) if w.name == name)
        if held == 0 or registration.name != name:
            return False
        log.warning(
            "the ledger was set back: what it says is held here has ended; given back: %s",
            counted(held, "item"),
        )
        ledger.stop(name, "the ledger was set back")
        self._reaped(name)
        return True

    def _say_what_for(self, counts: Counts) -> None:
        """Once for each reason to wait, while nothing is held."""
        if len(self._holdings) > 0 or self._parts.follow:
            return
        leased, ready = counts.tallies.leased, counts.tallies.ready
        if leased:
            reason = "waiting for items that other workers hold, should they lose them"
        elif ready:
            reason = "waiting for items that are to be tried again later"
        elif counts.enqueuers_alive:
            reason = (
                "nothing is left, but an enqueue is under way: waiting for what it may bring, or "
                "until it counts as dead, a minute after its last sign of life"
            )
        else:
            return
        if reason not in self._said:
            self._said.add(reason)
            log.info("%s", reason)

    def _pause(self, seconds: float) -> None:
        """Jittered, so that a fleet does not ask in step; over when nothing is held any more."""
        seconds = max(0.05, seconds) * (0.75 + random_fraction() / 2)
        if len(self._holdings) > 0:
            self._holdings.wait_below(1, seconds)
        else:
            self._parts.clock.wait(self._closing, seconds)
