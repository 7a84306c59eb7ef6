"""Pace: how much to claim, and how often to commit, from what has been measured."""

from __future__ import annotations

import math
import threading

from batchq.ledger.base import Counts
from batchq.notice.base import DEFAULT_WINDOW_S
from batchq.worker.drain import usable

__all__ = ["EXPECTED_UPTIME_S", "POLL_S", "Pace", "poll_interval", "young_interval"]

POLL_S = 1.0
"""How long to wait for more work, or for a ledger that gave no answer."""

POLLS_PER_SECOND = 100.0
"""How often all workers of a run together ask for work where there is none."""

EXPECTED_UPTIME_S = 5 * 3600.0
"""Assumed mean time to an interruption: a few hours, as spot capacity shows."""

HOLD_SECONDS = 20.0
"""How much work a worker holds: enough to sort by length, little enough to give back."""

FIRST_HOLD = 64
"""Until a batch was measured."""

MAX_CLAIM = 1_000
MAX_HOLD = 4_096
MAX_HOLD_BYTES = 256 * 1024 * 1024
"""Of results as they are stored, in the hands of a store that takes them slower than they come."""

MIN_HOLD_BATCHES = 3
"""With fewer the device would wait for the loaders or for the store."""

HOLD_LOST = 100
"""Items in hand while one of them was lost before: ten leases of what was lost once."""

HELD_TO_FLUSHED = 4
"""What is held makes so many flushes, so that the device has work while one waits."""

SURELY_SMALL = 1024 * 1024
"""Bytes of an object that no store takes long for."""

PUT_MARGIN = 2
"""Results come in batches, and a store has slower moments."""

MAX_FLUSH_ITEMS = 1_000
CHEAP_SHARE = 0.01
"""Of the worker's time: commits that take no more of it need not be rarer."""

FIRST_COST_S = 0.01
"""Of a put, until one was measured."""

MAX_FLUSH_SECONDS = 5.0
"""Whatever was measured: until then others see the items as leased."""


def young_interval(flush_cost_s: float, expected_uptime_s: float) -> float:
    """Seconds between flushes that waste least: sqrt(2 * cost * time to interruption).

    Source: Young 1974, doi 10.1145/361147.361115, equation 10. It balances the cost of
    flushing often against the work lost at an interruption.
    """
    return math.sqrt(2.0 * flush_cost_s * expected_uptime_s)


def poll_interval(counts: Counts) -> float:
    """Seconds until a worker that found nothing asks again.

    POLL_S, or when the next delayed item is due if that is earlier. In a fleet of more than
    a hundred it grows with their number: a thousand idle workers that ask each second keep
    more than one core of the ledger busy, and the beats waiting.
    """
    interval = max(POLL_S, counts.workers_alive / POLLS_PER_SECOND)
    return interval if counts.next_due_s is None else min(interval, counts.next_due_s)


class _Average:
    """An exponentially weighted mean that starts at its first value."""

    WEIGHT = 0.2
    """Of the newest: the last few decide, since documents and stores change under way."""

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, sample: float) -> None:
        old = self.value
        self.value = sample if old is None else old + self.WEIGHT * (sample - old)


class Pace:
    """Measured rates, and the sizes that follow from them. Thread-safe.

    `claim` and `flush_items` fix a size that is otherwise measured. `window_s`: what the
    shortest notice leaves for work. What is held, and each lease, fits into it, and one
    flush into half of it.
    """

    def __init__(
        self,
        *,
        claim: int | None = None,
        flush_items: int | None = None,
        expected_uptime_s: float = EXPECTED_UPTIME_S,
        window_s: float = usable(DEFAULT_WINDOW_S),
    ) -> None:
        self._claim = claim
        self._flush_items = flush_items
        self._expected_uptime_s = expected_uptime_s
        self._window_s = window_s
        self._lock = threading.Lock()
        self._seconds_per_item = _Average()
        self._batch_items = _Average()
        self._result_bytes = _Average()
        self._flush_seconds = _Average()
        self._flushed_items = _Average()
        self._flush_total = 0.0
        self._put_seconds = _Average()
        self._result_seconds = _Average()
        self._largest_put = 0

    def batch_done(self, items: int, seconds: float) -> None:
        """The device took `seconds` for a batch of `items`."""
        with self._lock:
            self._seconds_per_item.add(seconds / max(1, items))
            self._batch_items.add(items)

    def made(self, size: int) -> None:
        """A result takes `size` bytes to store."""
        with self._lock:
            self._result_bytes.add(size)

    def seconds_for_batch(self, items: int) -> float:
        """How long the device will take for so many; 0 where none was measured."""
        with self._lock:
            return items * (self._seconds_per_item.value or 0.0)

    def flush_done(self, items: int, seconds: float) -> None:
        """A commit of `items` took `seconds`."""
        with self._lock:
            self._flush_seconds.add(seconds)
            self._flushed_items.add(items)
            self._flush_total += seconds

    def flush_share(self, lifetime_s: float) -> float:
        """Which part of the worker's time went into commits."""
        with self._lock:
            return self._flush_total / lifetime_s if lifetime_s > 0 else 0.0

    def put_done(self, size: int, seconds: float) -> None:
        """An object of `size` bytes took `seconds` to store and read back."""
        with self._lock:
            self._put_seconds.add(seconds)
            self._largest_put = max(self._largest_put, size)

    def result_done(self, seconds: float) -> None:
        """A thread took `seconds` to make a result into bytes, store it and read it back."""
        with self._lock:
            self._result_seconds.add(seconds)

    def puts_keep_up(self, number: int) -> bool:
        """Whether so many threads store results PUT_MARGIN times as fast as they are made."""
        with self._lock:
            each, per_item = self._result_seconds.value, self._seconds_per_item.value
        return each is not None and per_item is not None and PUT_MARGIN * each <= number * per_item

    def seconds_to_commit(self, size: int) -> float:
        """How long an object of `size` bytes takes from here to the commit of what is in it.

        Without bound for a large one the like of which was never stored before: a drain
        is no time to find out.
        """
        if size > self.familiar_size():
            return float("inf")
        with self._lock:
            return (self._put_seconds.value or 0.0) + (self._flush_seconds.value or 0.0)

    def familiar_size(self) -> int:
        """Bytes that an object may have without being large beside all that were put."""
        with self._lock:
            return max(SURELY_SMALL, 2 * self._largest_put)

    def hold(self, *, lost_before: bool = False) -> int:
        """How many items to have in hand: never so few that the device waits.

        But no more than there is room for, should all their results wait for the store. Few
        if one of them was `lost_before` with its worker: all that is held when it strikes
        again is worked on alone from then on.
        """
        return min(HOLD_LOST, self._hold()) if lost_before else self._hold()

    def _hold(self) -> int:
        with self._lock:
            per_item = self._seconds_per_item.value
            batch = self._batch_items.value or 0.0
            size = self._result_bytes.value or 1.0
        if per_item is None:
            return FIRST_HOLD
        seconds = min(HOLD_SECONDS, self._window_s)
        enough = max(seconds / max(per_item, 1e-6), MIN_HOLD_BATCHES * batch)
        return max(2, min(MAX_HOLD, int(MAX_HOLD_BYTES / size), int(enough)))

    def claim_size(self, counts: Counts | None) -> int:
        """How many items the next claim asks for.

        Where others work too, the last of a run are shared out: at most
        ready / (2 * workers) at a time, so that no straggler keeps the rest waiting.
        """
        size = self._claim or max(1, min(MAX_CLAIM, self.hold() // 4, self._fits_the_window()))
        if counts is not None and counts.workers_alive > 1:
            share = counts.tallies.ready // (2 * counts.workers_alive)
            size = max(1, min(size, share))
        return size

    def flush_size(self, *, lost_before: bool = False) -> int:
        """After how many results to commit; `lost_before` as for `hold`."""
        if self._flush_items is not None:
            return self._flush_items
        interval = self.flush_interval()
        with self._lock:
            per_item = self._seconds_per_item.value
            items, seconds = self._flushed_items.value, self._flush_seconds.value
        if per_item is None or items is None or seconds is None:
            return 1
        # As if a flush cost nothing but its items: what it costs beside them is on the safe side.
        in_half_a_window = items * self._window_s / 2 / max(seconds, 1e-6)
        due = interval / max(per_item, 1e-6)
        limit = self.flush_limit(lost_before=lost_before)
        return max(1, int(min(limit, due, in_half_a_window)))

    def flush_limit(self, *, lost_before: bool = False) -> int:
        """The most results that are flushed together; `lost_before` as for `hold`.

        What waits is held, so no more than a share of that, or the device would wait too.
        """
        share = max(1, self.hold(lost_before=lost_before) // HELD_TO_FLUSHED)
        return self._flush_items or min(MAX_FLUSH_ITEMS, share)

    def flush_interval(self) -> float:
        """Seconds after which a waiting result is committed, however few there are.

        Young's interval, but no longer than what keeps commits to a hundredth of the time:
        a cheap one behind the device costs nothing, and the estimate of the time to an
        interruption may be far off. And no longer than half the notice window. Without bound
        where `flush_items` is fixed: then nothing but their number counts.
        """
        with self._lock:
            cost = self._flush_seconds.value
        return 0.0 if cost is None else self._interval(cost)

    def gather_interval(self) -> float:
        """Seconds after which results that share an object are put, however few there are.

        As `flush_interval`, for the cost of a put and the commit that follows it: until they
        are in the store, a loss of the worker means that they are computed again.
        """
        with self._lock:
            put, flush = self._put_seconds.value, self._flush_seconds.value
        return self._interval(FIRST_COST_S if put is None else put + (flush or 0.0))

    def _interval(self, cost: float) -> float:
        if self._flush_items is not None:
            return math.inf
        young = young_interval(cost, self._expected_uptime_s)
        return min(MAX_FLUSH_SECONDS, self._window_s / 2, young, cost / CHEAP_SHARE)

    def _fits_the_window(self) -> int:
        """How many items the device gets through in a notice window."""
        with self._lock:
            per_item = self._seconds_per_item.value
        return MAX_CLAIM if per_item is None else int(self._window_s / max(per_item, 1e-6))
