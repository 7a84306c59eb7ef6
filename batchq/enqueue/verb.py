"""The verb: from sources to acknowledged items of a run.

    list → fingerprint → number a batch → ledger.enqueue, asked again until answered

Memory does not grow with the number of documents: every queue is bounded, and the batches
go out in listing order. What the ledger has acknowledged stays, whatever ends this.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from batchq.clock import Clock
from batchq.enqueue.ahead import Ahead
from batchq.enqueue.fingerprinting import Fingerprinting, Portion, Stage, as_it_lies, chunks
from batchq.enqueue.sending import Presence, Sender
from batchq.garbage import seldom_collected
from batchq.item import NewItem
from batchq.ledger.base import Enqueued, Ledger, Rejection, Run
from batchq.source.base import Reader, Source

__all__ = ["EnqueueReport", "Plan", "enqueue", "plan"]

MAX_REJECTED = 1_000
"""Rejections kept by name; those beyond are only counted."""


@dataclass(frozen=True, slots=True)
class EnqueueReport:
    """What an enqueue brought, in numbers of documents: seen = new + known + rejected_total.

    `superseded`: items that new ones replaced. `rejected` holds the first of them by name.
    """

    run: str
    processing_version: str
    seen: int
    new: int
    known: int
    superseded: int
    rejected: tuple[Rejection, ...]
    rejected_total: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What an enqueue would find: numbers of documents, and their size in bytes as listed."""

    seen: int
    size: int
    rejected: tuple[Rejection, ...]
    rejected_total: int


def plan(sources: Sequence[Source], *, on_progress: Callable[[int], None] | None = None) -> Plan:
    """What `enqueue` would see, without reading a document, the ledger or the store.

    With several sources it remembers a digest of each name, to find those that are named
    twice: about 70 bytes a document. With one it remembers nothing.
    """
    tally = _Tally(on_progress)
    named: set[int] = set()
    size = 0
    for chunk in chunks(sources, sized=True):
        rejected = list(chunk.rejected)
        for found in chunk.found:
            digest = hash(found.source_id)
            if digest in named:
                rejected.append(Rejection(found.source_id, "named twice in this enqueue"))
                continue
            size += found.size or 0
            if len(sources) > 1:
                named.add(digest)
        seen = len(chunk.found) + len(chunk.rejected)
        tally.add(Enqueued(new=seen - len(rejected), rejected=tuple(rejected)))
    return Plan(tally.seen, size, tuple(tally.rejected), tally.rejected_total)


def enqueue(
    ledger: Ledger,
    run: Run,
    sources: Sequence[Source],
    reader: Reader,
    *,
    clock: Clock,
    replace: bool = False,
    batch_size: int = 2_000,
    threads: int = max(1, min(8, os.cpu_count() or 1)),
    ttl: float = 60.0,
    stage: Stage = as_it_lies,
    on_progress: Callable[[int], None] | None = None,
) -> EnqueueReport:
    """Take up every document of `sources` as an item of `run`.

    `threads` fingerprint documents; `batch_size` is the number of items in one transaction
    of the ledger; `ttl`, in seconds, is how long workers wait for more items should this
    process die. `stage` may keep each document where workers reach it. `on_progress` is
    told the number of documents seen so far.

    Raises LedgerUnreachable when the ledger has given no answer to one batch for more than
    a minute. Batches that were acknowledged stay, also then and after a KeyboardInterrupt.
    """
    tally = _Tally(on_progress)
    with (
        seldom_collected(),
        Presence(ledger, run, clock, ttl) as presence,
        Fingerprinting(reader, threads, stage) as fingerprinted,
    ):
        sender = Sender(ledger, presence, clock, replace)
        # In a thread of its own, so that documents are read while the database writes.
        with Ahead(sender.send, threads=1, ahead=2, name="send") as sent:
            portions = fingerprinted.in_order(chunks(sources, sized=False))
            for answer in sent.each(_batches(portions, batch_size, tally)):
                tally.add(answer)
    return tally.report(run)


def _batches(
    portions: Iterable[Portion], batch_size: int, tally: _Tally
) -> Iterator[list[NewItem]]:
    """Items in batches for the ledger; what was rejected before is tallied."""
    items: list[NewItem] = []
    for portion in portions:
        items += portion.items
        tally.add(Enqueued(rejected=tuple(portion.rejected)))
        while len(items) >= batch_size:
            yield items[:batch_size]
            del items[:batch_size]
    if items:
        yield items


@dataclass(slots=True)
class _Tally:
    """The report, growing."""

    on_progress: Callable[[int], None] | None
    seen: int = 0
    new: int = 0
    known: int = 0
    superseded: int = 0
    rejected: list[Rejection] = field(default_factory=list)
    rejected_total: int = 0

    def add(self, answer: Enqueued) -> None:
        seen = answer.new + answer.known + len(answer.rejected)
        if seen == 0:
            return
        self.seen += seen
        self.new += answer.new
        self.known += answer.known
        self.superseded += answer.superseded
        self.rejected += answer.rejected[: MAX_REJECTED - len(self.rejected)]
        self.rejected_total += len(answer.rejected)
        if self.on_progress is not None:
            self.on_progress(self.seen)

    def report(self, run: Run) -> EnqueueReport:
        return EnqueueReport(
            run.name,
            run.processing_version,
            self.seen,
            self.new,
            self.known,
            self.superseded,
            tuple(self.rejected),
            self.rejected_total,
        )
