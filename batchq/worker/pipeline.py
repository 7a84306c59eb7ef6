"""The pipeline: the story of an item, from its claim to its commit.

    claim → load, prepare → infer → gather, put, verify → settle

Each arrow is a queue, and each stage a thread or a few. The first is in `claim`, the last
two are in `put` and `settle`, and the device's is here. What is in the queues is bounded by
what is claimed (`Pace.hold`) and by the bytes in memory (`Holdings.reserve`). Loading and
preparing run ahead of the device; puts, read-backs and commits run behind it. The run's
layout says which results are gathered into one object.

An item leaves in one of three ways, all through `Settler`: completed, failed (charged
to the document) or released (not charged). An error that is nobody's document stops the
pipeline and is raised by `run`.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from batchq.errors import BatchqError, DocumentError
from batchq.inference.base import Output
from batchq.lease import ReleaseReason
from batchq.source.base import MAX_DOCUMENT_BYTES, SourceUnavailable
from batchq.source.rows import load_document
from batchq.store.base import StoreError
from batchq.store.verified import BrokenObject
from batchq.words import command
from batchq.worker.claim import Claimer
from batchq.worker.guarded import Guarded, ProcessorFault
from batchq.worker.holdings import Holdings, Work
from batchq.worker.parts import Parts
from batchq.worker.put import Putter, give_up_key
from batchq.worker.settle import Settler
from batchq.worker.window import Window

__all__ = ["Pipeline"]

log = logging.getLogger("batchq.worker")

T = TypeVar("T")

TICK_S = 0.1

ERROR_WINDOW_S = 5.0
"""After an error, how long results that are already made may take to be committed."""

HOPELESS_AFTER = 20
"""So many unexpected failures without an output are the processor's, not the documents'."""


class Pipeline:
    """One life of a worker. `run` returns when the run is finished or a drain is over."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._clock = parts.clock
        self._processor = Guarded(parts.processor)
        self.holdings = Holdings()
        # The way to the device, and how many items are on it before the window.
        # No SimpleQueue where several threads take: CPython's may wait on after its timeout, when
        # another has taken what woke it (3.11), and a stage that waits for ever cannot end.
        self._to_load: queue.Queue[Work] = queue.Queue()
        self._upstream = _Counter()
        self._window = Window(self._processor.batch_tokens)
        # Which work is with loaders or the device: suspect, should either not return.
        self._with_loaders: set[Work] = set()
        self._on_device: Sequence[Work] = ()
        self._on_device_since = 0.0
        self._outputs = _Counter()
        self._faults = _Counter()
        # In the order of a life: claiming may begin, it must end, and so must every stage.
        self._loaded = threading.Event()
        self._closing = threading.Event()
        self._halt = threading.Event()
        # `run` sleeps on this one between its ticks.
        self._attention = threading.Event()
        self._error: BaseException | None = None
        self._progress = self._clock.monotonic()
        self.claimer = Claimer(
            parts, self.holdings, self._closing, self._hand_out, self.reaped, self._step
        )
        self.settler = Settler(parts, self.holdings, self._halt, self._closing_early, self._step)
        self._putter = Putter(
            parts,
            self.holdings,
            self.settler,
            self._halt,
            self._closing_early,
            self._step,
            self._spoilt,
        )

    # -- from outside ------------------------------------------------------------

    def run(self, on_tick: Callable[[], None] = lambda: None) -> None:
        """Process until the run is finished or a drain is over. Raises what stopped it.

        `on_tick` is called often from this thread.
        """
        stages = [("claim", self._claim_stage), ("infer", self._infer_stage)]
        stages += [(f"load-{n}", self._load_stage) for n in range(self._parts.loaders)]
        stages += [(f"put-{n}", partial(self._putter.run, n)) for n in range(self._parts.putters)]
        stages += [("settle", self.settler.run)]
        threads = [
            threading.Thread(target=self._guard, args=(stage,), name=name, daemon=True)
            for name, stage in stages
        ]
        try:
            for thread in threads:
                thread.start()
            while not self._over():
                on_tick()
                self._clock.wait(self._attention, TICK_S)
            on_tick()
            self._closing.set()
            if self._error is not None:
                self._save_what_is_made()
        finally:
            # An error of `on_tick`, or a thread too many for this machine, must not leave the
            # stages claiming for nobody.
            self._closing.set()
            self._halt.set()
        for thread in threads:
            thread.join(timeout=min(1.0, max(0.0, self._parts.drain.seconds_left())))
        if self._error is not None:
            raise self._error

    def last_progress(self) -> float | None:
        """Monotonic time of the last step, or none while there is nothing to do."""
        idle = self._loaded.is_set() and len(self.holdings) == 0
        return None if idle else self._progress

    def reaped(self, name: str) -> None:
        """The ledger took back all that `name` held: drop it wherever it is."""
        if self._parts.registration.renew(name, self.holdings.cancel_all):
            log.warning("%s was reaped; what it held is others' now", name)

    def fail(self, error: BaseException) -> None:
        """Stop everything; `run` raises the first error it was given."""
        if self._error is None:
            self._error = error
        self._attention.set()

    def unsuspected(self) -> list[Work]:
        """What is held and was in nobody's hands, device or loader, when that was lost."""
        suspects = {*self._on_device, *self._with_loaders}
        return [work for work in self.holdings.all() if work not in suspects]

    # -- claim -------------------------------------------------------------------

    def _claim_stage(self) -> None:
        while not self._loaded.wait(TICK_S):
            if self._closing.is_set():
                return
        self.claimer.run()
        if not self._parts.drain.started:
            self._closing.set()
            self._attention.set()

    def _hand_out(self, works: Sequence[Work]) -> None:
        if self._parts.drain.started:
            self.settler.released(works, ReleaseReason.DRAIN)
            return
        self._upstream.add(len(works))
        for work in works:
            self._to_load.put(work)

    # -- load and prepare --------------------------------------------------------

    def _load_stage(self) -> None:
        while not self._halt.is_set():
            work = _next(self._to_load, TICK_S)
            if work is None:
                continue
            try:
                if self._closing_early():
                    self.settler.released([work], ReleaseReason.DRAIN)
                elif self.holdings.reserve(work):
                    self._with_loaders.add(work)
                    self._load(work)
            finally:
                self._with_loaders.discard(work)
                self._upstream.add(-1)
                # A batch that waits for company may be waiting for nobody now.
                self._window.look_again()

    def _closing_early(self) -> bool:
        return self._parts.drain.started or self._error is not None

    def _load(self, work: Work) -> None:
        parts, item = self._parts, work.item
        try:
            if item.attempt > 1 and self._adopt(work):
                return
            document = load_document(item, parts.reader, parts.extractor, MAX_DOCUMENT_BYTES)
            if not document.text.strip():
                self.holdings.unload(work)
                self._putter.made(work, Output(None, 0, 0))
                return
            work.prepared = self._processor.prepare(document)
        except SourceUnavailable as error:
            log.warning("%s: cannot be read now: %s", item.source_id, error)
            self.settler.released([work], ReleaseReason.CANCELLED)
        except DocumentError as error:
            self.settler.failed(work, error.cause, error.message, final=error.final)
        except StoreError as error:
            log.warning("%s: no answer from the store: %s", item.source_id, error)
            self.settler.released([work], ReleaseReason.STORE)
        except BrokenObject as error:
            give_up_key(self.settler, work, error)
        except ProcessorFault as fault:
            self._charge(work, fault)
        else:
            self._step()
            self._window.add(work)

    def _adopt(self, work: Work) -> bool:
        """Whether an earlier attempt's result lies in the store, whole and valid."""
        found = self._parts.layout.find(work.item)
        if found is not None:
            self.holdings.unload(work)
            self.settler.completed(work, found)
        return found is not None

    # -- infer -------------------------------------------------------------------

    def _infer_stage(self) -> None:
        self._processor.load(self._parts.device)
        # What suits the device, and what it is, are known only now; nothing is claimed yet.
        self._window = Window(self._processor.batch_tokens)
        self._putter.provenance = {**self._parts.provenance, **self._processor.provenance()}
        self._step()
        self._loaded.set()
        while not self._halt.is_set():
            batch = self._window.next_batch(self._upstream.value, TICK_S)
            if self._closing_early():
                self.settler.released(batch, ReleaseReason.DRAIN)
                continue
            batch = [work for work in batch if self.holdings.holds(work)]
            if batch:
                began = self._on_device_since = self._clock.monotonic()
                self._on_device = batch
                self._infer(batch)
                self._parts.pace.batch_done(len(batch), self._clock.monotonic() - began)
                self._on_device = ()

    def _infer(self, batch: Sequence[Work]) -> None:
        """Run a batch. If it fails it is halved, so that one bad document fails alone."""
        error = self._try_infer(batch)
        self._step()
        if error is None:
            return
        if len(batch) > 1:
            middle = len(batch) // 2
            self._infer(batch[:middle])
            self._infer(batch[middle:])
        elif isinstance(error, DocumentError):
            self.settler.failed(batch[0], error.cause, error.message, final=error.final)
        else:
            self._charge(batch[0], error)

    def _try_infer(self, batch: Sequence[Work]) -> DocumentError | ProcessorFault | None:
        try:
            outputs = self._processor.infer([work.prepared for work in batch if work.prepared])
        except (DocumentError, ProcessorFault) as error:
            return error.with_traceback(None)
        self._outputs.add(len(batch))
        for work, output in zip(batch, outputs, strict=True):
            self.holdings.unload(work)
            self._putter.made(work, output)
        return None

    def _spoilt(self, work: Work, fault: ProcessorFault) -> None:
        """What the device gave for `work` cannot be stored."""
        self._outputs.add(-1)
        self._charge(work, fault)

    def _charge(self, work: Work, fault: ProcessorFault) -> None:
        self.settler.failed(work, fault.cause, str(fault), final=False)
        self._faults.add(1)
        faults = self._faults.value()
        if self._outputs.value() <= 0 and faults >= HOPELESS_AFTER:
            retry = command("retry", self._parts.run.name)
            raise BatchqError(
                f"the processor failed {faults} times and gave no output; the last error: {fault}",
                hint="if only something here was missing, start the worker again; changed code is "
                "another processing version, to be enqueued under another name with --run. Each "
                f"time was charged to a document: `{retry}` sends back what has ended by that",
            )

    # -- the end -----------------------------------------------------------------

    def _over(self) -> bool:
        drain = self._parts.drain
        if self._error is not None:
            return True
        if drain.started:
            if not self._closing.is_set():
                self._closing.set()
                self._release_unstarted()
                self._release_hopeless()
            return len(self.holdings) == 0 or drain.seconds_left() <= 0
        return self._closing.is_set() and len(self.holdings) == 0

    def _release_unstarted(self) -> None:
        """Give back at once what no stage has begun, so that others need not wait a TTL."""
        waiting = self._window.take_all()
        while (work := _next(self._to_load, 0.0)) is not None:
            waiting.append(work)
            self._upstream.add(-1)
        self.settler.released(waiting, ReleaseReason.DRAIN)

    def _release_hopeless(self) -> None:
        """Give back what the device cannot finish in time, as far as was measured.

        Others may begin it now instead of at the deadline. What comes of it here is dropped.
        """
        batch = self._on_device
        spent = self._clock.monotonic() - self._on_device_since
        left = self._parts.pace.seconds_for_batch(len(batch)) - spent
        # One that takes longer than expected may end at any moment.
        if left > 0 and not self._parts.drain.fits(left + self._parts.pace.seconds_to_commit(0)):
            self.settler.released(batch, ReleaseReason.DRAIN)

    def _save_what_is_made(self) -> None:
        """After an error: release what has not begun and let results reach their commit."""
        self._release_unstarted()
        until = self._clock.monotonic() + ERROR_WINDOW_S
        while self.unsuspected():
            left = min(until - self._clock.monotonic(), self._parts.drain.seconds_left())
            if left <= 0:
                return
            self._clock.wait(self._halt, min(left, TICK_S))

    def _guard(self, stage: Callable[[], None]) -> None:
        try:
            stage()
        except BaseException as error:
            self.fail(error)

    def _step(self) -> None:
        self._progress = self._clock.monotonic()


class _Counter:
    """A number that several threads move."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._value = 0

    def add(self, number: int) -> None:
        with self._lock:
            self._value += number

    def value(self) -> int:
        return self._value


def _next(source: queue.Queue[T], seconds: float) -> T | None:
    try:
        return source.get(timeout=seconds) if seconds else source.get_nowait()
    except queue.Empty:
        return None
