"""Put: results on their way from the device into the store, behind its back.

A few threads. Where the store is on this machine no more of them work than keep up with the
device: a CPU computes on the same cores, and all that are awake besides take turns with it at
Python's lock; over a network they mostly wait. Each result is made into the bytes that are
stored, in the layout's form, and gathered: layout `item` puts it at once, layout `shard` waits
for company, until there is enough of it, or for `Pace.gather_interval`, or until nothing else
is on its way. What is put was read back when the layout returns; then it is for `settle` to
commit.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchq.clock import Clock
from batchq.inference.base import Output
from batchq.lease import ReleaseReason
from batchq.result import Envelope
from batchq.store.base import StoreError
from batchq.store.layout import Made
from batchq.store.verified import BrokenObject
from batchq.worker.guarded import ProcessorFault
from batchq.worker.holdings import Holdings, Work
from batchq.worker.parts import Parts
from batchq.worker.settle import Settler

__all__ = ["Gather", "Putter", "give_up_key"]

log = logging.getLogger("batchq.worker")

TICK_S = 0.1

GATHER_BYTES = 8 * 1024 * 1024
"""Enough for a put to be worth its request; several of them are in memory at once."""


@dataclass(frozen=True, slots=True)
class Waiting:
    work: Work
    made: Made


class Gather:
    """Results that wait for each other. Thread-safe.

    A portion is due once it has `items` results or `size` bytes, or its oldest has waited
    for `seconds`; what is callable is asked each time.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        items: Callable[[], int],
        size: int,
        seconds: Callable[[], float],
    ) -> None:
        self._clock = clock
        self._items = items
        self._size = size
        self._seconds = seconds
        self._lock = threading.Lock()
        self._waiting: list[tuple[float, Waiting]] = []
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, waiting: Waiting) -> None:
        with self._lock:
            self._waiting.append((self._clock.monotonic(), waiting))
            self._bytes += len(waiting.made.data)

    def take(self, *, now: bool = False, most: int | None = None) -> list[Waiting]:
        """The oldest, up to a whole portion, if one is due or `now`; else nothing.

        `most`: bytes it may have, if it is more than one result.
        """
        with self._lock:
            if not (self._waiting and (now or self._due())):
                return []
            limit = self._size if most is None else min(self._size, most)
            number, size = 0, 0
            for _, each in self._waiting[: self._items()]:
                size += len(each.made.data)
                if number and size > limit:
                    break
                number += 1
            taken, self._waiting = self._waiting[:number], self._waiting[number:]
            self._bytes -= sum(len(each.made.data) for _, each in taken)
            return [each for _, each in taken]

    def _due(self) -> bool:
        return (
            len(self._waiting) >= self._items()
            or self._bytes >= self._size
            or self._clock.monotonic() - self._waiting[0][0] >= self._seconds()
        )


class Putter:
    """`made` may be called from any thread; `run` is the stage, in several.

    `hurried` says that nothing must wait any more. `step` is called when a put is over,
    `spoilt` for an output that is no JSON. `provenance` goes into every result.
    """

    def __init__(
        self,
        parts: Parts,
        holdings: Holdings,
        settler: Settler,
        halt: threading.Event,
        hurried: Callable[[], bool],
        step: Callable[[], None],
        spoilt: Callable[[Work, ProcessorFault], None],
    ) -> None:
        self._parts = parts
        self._holdings = holdings
        self._settler = settler
        self._halt = halt
        self._hurried = hurried
        self._step = step
        self._spoilt = spoilt
        # As `Pipeline._to_load`, for the same reason: the last of a shard is put after a timeout.
        self._made: queue.Queue[tuple[Work, Output]] = queue.Queue()
        self._gather = Gather(
            parts.clock,
            items=self._portion_items if parts.layout.gathers else lambda: 1,
            size=GATHER_BYTES,
            seconds=parts.pace.gather_interval,
        )
        self.provenance: Mapping[str, Any] = parts.provenance

    def made(self, work: Work, output: Output) -> None:
        """The device's answer for an item, to be stored and committed."""
        self._made.put((work, output))

    def run(self, number: int) -> None:
        """The stage in thread `number`, from 0."""
        # One thread may put what another has made: only over both is a result's time known.
        busy = 0.0
        while not self._halt.is_set():
            if number > 0 and self._others_keep_up(number):
                continue
            try:
                work, output = self._made.get(timeout=TICK_S)
            except queue.Empty:
                self._put_what_is_due(idle=True)
                continue
            began = self._parts.clock.monotonic()
            if self._holdings.holds(work):
                self._make(work, output)
            stored = self._put_what_is_due(idle=False)
            busy += self._parts.clock.monotonic() - began
            if stored:
                self._parts.pace.result_done(busy / stored)
                busy = 0.0

    def _others_keep_up(self, number: int) -> bool:
        """Whether the `number` threads before this one are enough, having watched them a moment.

        They are not while they leave more than half of what waited: what was measured is an
        average, and some batches are of many short documents. Or a put hangs.
        """
        parts = self._parts
        if self._hurried() or parts.remote or not parts.pace.puts_keep_up(number):
            return False
        waited = self._made.qsize()
        parts.clock.wait(self._halt, TICK_S)
        return waited == 0 or self._made.qsize() <= waited // 2

    def _put_what_is_due(self, *, idle: bool) -> int:
        """Put it, portion by portion; how many results that were."""
        stored = 0
        while portion := self._portion(idle):
            held = [each for each in portion if self._holdings.holds(each.work)]
            self._put(held)
            stored += len(held)
        return stored

    def _make(self, work: Work, output: Output) -> None:
        try:
            made = self._parts.layout.make(work.item, self._envelope(work, output))
        except (ValueError, TypeError, RecursionError) as error:
            self._spoilt(work, ProcessorFault("output_invalid", f"not JSON: {error}"))
            return
        self._parts.pace.made(len(made.data))
        self._gather.add(Waiting(work, made))
        work.made = True

    def _portion_items(self) -> int:
        lost_before = self._holdings.some_were_lost_before
        return self._parts.pace.flush_limit(lost_before=lost_before)

    def _portion(self, idle: bool) -> list[Waiting]:
        """What is to be put next. `idle`: nothing was made for a moment."""
        # A drain is no time for an object the like of which was never put before.
        most = self._parts.pace.familiar_size() if self._parts.drain.started else None
        return self._gather.take(most=most) or self._gather.take(
            now=self._nothing_to_wait_for(idle), most=most
        )

    def _nothing_to_wait_for(self, idle: bool) -> bool:
        """Whether no result could join those that wait, or none should."""
        if not len(self._gather) or not self._made.empty():
            return False
        return self._hurried() or (idle and all(work.made for work in self._holdings.all()))

    def _put(self, portion: Sequence[Waiting]) -> None:
        if not portion:
            return
        works = [each.work for each in portion]
        size = sum(len(each.made.data) for each in portion)
        parts = self._parts
        if parts.drain.started and not parts.drain.fits(parts.pace.seconds_to_commit(size)):
            self._settler.released(works, ReleaseReason.DRAIN)
            return
        try:
            began = parts.clock.monotonic()
            written = parts.layout.write([each.made for each in portion])
            parts.pace.put_done(size, parts.clock.monotonic() - began)
        except StoreError as error:
            log.warning("%s: not stored: %s", _named(works), error)
            self._settler.released(works, ReleaseReason.STORE)
        except BrokenObject as error:
            [work] = works
            give_up_key(self._settler, work, error)
        else:
            self._step()
            for work, one in zip(works, written, strict=True):
                self._settler.completed(work, one)

    def _envelope(self, work: Work, output: Output) -> Envelope:
        item = work.item
        return Envelope(
            source_id=item.source_id,
            source_version=item.source_version,
            processing_version=self._parts.run.processing_version,
            output=output.value,
            tokens_total=output.tokens_total,
            tokens_used=output.tokens_used,
            provenance={
                **self.provenance,
                "attempt": item.attempt,
                "generation": item.generation,
                "worker": self._parts.registration.name,
                "batch": output.batch,
            },
        )


def give_up_key(settler: Settler, work: Work, error: BrokenObject) -> None:
    log.error("%s: %s; the item begins anew under another key", work.item.source_id, error)
    settler.released([work], ReleaseReason.BROKEN_OBJECT)


def _named(works: Sequence[Work]) -> str:
    first = works[0].item.source_id
    return first if len(works) == 1 else f"{first} and {len(works) - 1} more"
