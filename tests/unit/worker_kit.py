"""A worker of real parts in one process: the memory ledger and store, simple documents."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from batchq.clock import Clock, SystemClock, random_hex
from batchq.errors import DocumentError, ExitCode, LedgerUnreachable
from batchq.event import RecordedEvents
from batchq.inference.base import Output, Prepared
from batchq.item import Document, NewItem
from batchq.lease import Lease
from batchq.ledger.base import CommittedResult, Ledger, Policy, Role, Run, Tallies
from batchq.ledger.memory import MemoryLedger
from batchq.notice.base import Notice
from batchq.result import Envelope
from batchq.store.base import Store
from batchq.store.committed import read_committed
from batchq.store.layout import layout_named
from batchq.store.memory import MemoryStore
from batchq.worker.drain import Drain
from batchq.worker.heartbeat import Registration
from batchq.worker.pace import Pace
from batchq.worker.parts import Parts
from batchq.worker.worker import Progress, WorkerSettings, run_worker
from tests.unit.patience import PATIENCE_S

FAST = WorkerSettings(lease_ttl=0.6, stall_timeout=30.0, notice_window=60.0)
POLICY = Policy(backoff=0.01, max_backoff=0.05)


class Leaping(SystemClock):
    """The machine's clock, set forward where a test would otherwise let time pass."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self._ahead

    def leap(self, seconds: float) -> None:
        self._ahead += seconds


class Lapsing(Leaping):
    """Once `lapsed` is set, an hour passes between two beats."""

    def __init__(self) -> None:
        super().__init__()
        self.lapsed = threading.Event()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        over = super().wait(event, seconds)
        if self.lapsed.is_set() and threading.current_thread().name == "beat":
            self.leap(3_600)
        return over


class Shelf:
    """A reader over documents held in a dict, and the extractor that goes with it."""

    def __init__(self, documents: Mapping[str, str]) -> None:
        self.documents = dict(documents)

    def fingerprint(self, locator: str) -> tuple[str, int]:
        data = self.documents[locator].encode()
        return f"sha256:{hashlib.sha256(data).hexdigest()}", len(data)

    def read(self, locator: str, source_version: str, limit: int) -> bytes:
        if locator not in self.documents:
            raise DocumentError("source_missing", f"{locator} is gone", final=True)
        if self.fingerprint(locator)[0] != source_version:
            raise DocumentError("source_changed", f"{locator} has other bytes", final=True)
        return self.documents[locator].encode()

    def extract(self, data: bytes, source_id: str) -> tuple[str, str]:
        return "text/plain", data.decode()


class Shout:
    """A processor that answers in capitals, and misbehaves where a text asks for it."""

    batch_tokens = 64

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.before_batch: Callable[[Sequence[str]], None] = lambda texts: None

    def manifest(self) -> Mapping[str, Any]:
        return {"kind": "shout"}

    def load(self, device: str) -> None:
        pass

    def prepare(self, document: Document) -> Prepared:
        if document.text == "unpreparable":
            raise DocumentError("extract_failed", "cannot be read")
        return Prepared(document.text, max(1, len(document.text.split())))

    def infer(self, batch: Sequence[Prepared]) -> Sequence[Output]:
        texts = [prepared.payload for prepared in batch]
        self.batches.append(texts)
        self.before_batch(texts)
        if "poison" in texts:
            raise RuntimeError("the device chokes on this batch")
        return [
            Output({"shout": text.upper()}, prepared.cost, prepared.cost)
            for text, prepared in zip(texts, batch, strict=True)
        ]


@dataclass
class Kit:
    """A run with its documents enqueued, and what is needed to work on it."""

    shelf: Shelf
    ledger: Ledger = field(default_factory=lambda: MemoryLedger(policy=POLICY))
    store: Store = field(default_factory=MemoryStore)
    processor: Shout = field(default_factory=Shout)
    events: RecordedEvents = field(default_factory=RecordedEvents)
    notices: Button = field(default_factory=lambda: Button())
    clock: Clock = field(default_factory=SystemClock)
    layout: str = "item"

    def __post_init__(self) -> None:
        manifest = {"kind": "shout"}
        self.run: Run = self.ledger.create_run("default", "shout-1", manifest, self.layout)
        self.enqueue(self.shelf.documents)

    @classmethod
    def of(cls, documents: Mapping[str, str], **parts: Any) -> Kit:
        return cls(Shelf(documents), **parts)

    def enqueue(self, names: Mapping[str, str]) -> None:
        worker = f"enqueuer-{random_hex(32)}"
        self.ledger.register(self.run, worker, 60, Role.ENQUEUER, {})
        items = [
            NewItem(name, *self.shelf.fingerprint(name), locator=name, root="shelf")
            for name in names
        ]
        self.ledger.enqueue(worker, 1, items)
        self.ledger.stop(worker, "done")

    def parts(self) -> Parts:
        """Of a worker that is registered and holds nothing, for a stage on its own."""
        registration = Registration(self.ledger, self.run, "host", 60, {})
        registration.register()
        return Parts(
            ledger=self.ledger,
            run=self.run,
            layout=layout_named(
                self.layout,
                self.store,
                prefix=self.run.prefix,
                processing_version=self.run.processing_version,
                clock=self.clock,
            ),
            reader=self.shelf,
            extractor=self.shelf,
            processor=self.processor,
            registration=registration,
            events=self.events,
            clock=self.clock,
            drain=Drain(self.clock),
            pace=Pace(),
            device="cpu",
            putters=1,
        )

    def work(
        self,
        settings: WorkerSettings = FAST,
        ledger: Ledger | None = None,
        on_progress: Callable[[Progress], None] = lambda progress: None,
    ) -> ExitCode:
        return run_worker(
            ledger=ledger or self.ledger,
            run=self.run,
            store=self.store,
            reader=self.shelf,
            extractor=self.shelf,
            processor=self.processor,
            settings=settings,
            events=self.events,
            clock=self.clock,
            notices=[self.notices],
            on_progress=on_progress,
        )

    def work_in_thread(self, settings: WorkerSettings = FAST) -> Working:
        return Working(self, settings)

    @property
    def tallies(self) -> Tallies:
        return self.ledger.counts(self.run).tallies

    def results(self) -> list[CommittedResult]:
        return self.ledger.results(self.run, 0, 1_000_000)

    def outputs(self) -> dict[str, Any]:
        """Source id to output, of every committed result, as read from the store."""
        lines = {
            row.source_id: read_committed(
                self.store,
                self.layout,
                row.stored,
                source_id=row.source_id,
                source_version=row.source_version,
                processing_version="shout-1",
            ).whole
            for row in self.results()
        }
        return {name: Envelope.from_bytes(line).output for name, line in lines.items()}

    def events_of(self, kind: str) -> list[Mapping[str, Any]]:
        return [event.data for event in self.events.of(kind)]


def nothing_due(kit: Kit) -> threading.Event:
    """Set once a claim brought nothing: it is a while until the worker asks again."""
    seen, claim = threading.Event(), kit.ledger.claim

    def watched(worker: str, token: str, limit: int, *, alone: bool) -> Lease | None:
        lease = claim(worker, token, limit, alone=alone)
        if lease is None:
            seen.set()
        return lease

    kit.ledger.claim = watched  # type: ignore[method-assign]
    return seen


class Working:
    """A worker that runs in a thread."""

    def __init__(self, kit: Kit, settings: WorkerSettings) -> None:
        self.code: ExitCode | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(kit, settings), daemon=True)
        self._thread.start()

    def _run(self, kit: Kit, settings: WorkerSettings) -> None:
        try:
            self.code = kit.work(settings)
        except BaseException as error:
            self.error = error

    def join(self) -> ExitCode | None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the worker did not end"
        return self.code


class Button:
    """A notice source that a test presses."""

    name = "button"
    window: float | None = None

    def __init__(self) -> None:
        self._report: Callable[[Notice], object] = lambda notice: None
        self.drained = False

    def describe(self) -> str:
        return "button: when pressed"

    def watch(self, report: Callable[[Notice], object]) -> None:
        self._report = report

    def press(self, deadline: float | None = None) -> None:
        self._report(Notice("spot", "terminate", deadline, self.name))

    def warn(self) -> None:
        self._report(Notice("rebalance", "rebalance", None, self.name, drains=False))

    def close(self, *, drained: bool = False) -> None:
        self.drained = drained


class LossyLedger:
    """Loses answers: each verb named in `verbs` takes effect, then raises, `times` times."""

    def __init__(self, ledger: Ledger, verbs: set[str], times: int) -> None:
        self._ledger = ledger
        self._left = dict.fromkeys(verbs, times)

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._ledger, name)
        if name not in self._left:
            return verb

        def lossy(*args: Any, **kwargs: Any) -> Any:
            answer = verb(*args, **kwargs)
            if self._left[name] > 0:
                self._left[name] -= 1
                raise LedgerUnreachable("the answer was lost")
            return answer

        return lossy
