"""Enqueue: from folders to acknowledged items, whatever happens in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batchq import wiring
from batchq.cli import main
from batchq.cli.enqueue import request_cost, tell_requests
from batchq.clock import SystemClock
from batchq.enqueue import check_store, enqueue, ensure_run, plan
from batchq.enqueue.ahead import Ahead
from batchq.enqueue.fingerprinting import CHUNK_FILES, MAX_SOURCE_ID, SMALL, _Elapsed
from batchq.enqueue.sending import ATTEMPTS, BEATS_PER_TTL
from batchq.enqueue.verb import MAX_REJECTED
from batchq.errors import (
    DocumentError,
    LedgerUnreachable,
    ProcessingVersionMismatch,
    StoreUnusable,
    UsageError,
    WorkerReaped,
)
from batchq.fingerprint import processing_version
from batchq.item import NewItem
from batchq.ledger.base import Enqueued, Ledger, Rejection, Role, Run, State, WorkerState
from batchq.ledger.memory import MemoryLedger
from batchq.ledger.sql import SqlLedger
from batchq.result import canonical_json, sha256_hex
from batchq.source.base import Found, Skipped
from batchq.source.directory import DirectorySource, LocalReader
from batchq.store.base import StoreError
from batchq.store.memory import MemoryStore
from tests.unit.patience import PATIENCE_S, comes_true

MainThread = "MainThread"

MANIFEST = {"kind": "stats", "parameters": {"overlap": 16}, "code": "1"}


LARGE = SMALL * CHUNK_FILES + 1
"""Those listed beside a document of so many bytes are read in threads."""


class HastyClock(SystemClock):
    """The machine's clock, but those who ask the ledger again do not wait for it."""

    def __init__(self) -> None:
        self.waited = 0.0

    def wait(self, event: threading.Event, seconds: float) -> bool:
        if threading.current_thread().name != "beat":
            self.waited += seconds
            return event.is_set()
        return super().wait(event, seconds)


class Listed:
    """A source that lists what it was given, however little of it is there."""

    root = "file:///listed"

    def __init__(self, listed: Sequence[Found | Skipped]) -> None:
        self._listed = listed

    def list(self, *, sized: bool = True) -> Iterator[Found | Skipped]:
        yield from self._listed


class Numbered:
    """A source of any number of documents, and a reader that takes no time over them.

    `size` in bytes: large ones are read by threads. As with files, reading tells it.
    """

    root = "file:///numbered"

    def __init__(
        self, documents: int, fingerprinted: Callable[[], object] = lambda: None, *, size: int = 7
    ) -> None:
        self._documents = documents
        self._fingerprinted = fingerprinted
        self._size = size

    def list(self, *, sized: bool = True) -> Iterator[Found | Skipped]:
        for number in range(self._documents):
            yield Found(f"numbered/{number:07}", f"file:///numbered/{number:07}", None)

    def fingerprint(self, locator: str) -> tuple[str, int]:
        self._fingerprinted()
        return f"sha256:{sha256_hex(locator.encode())}", self._size

    def read(self, locator: str, source_version: str, limit: int) -> bytes:
        raise DocumentError("source_missing", f"{locator} is made up", final=True)


class Unsteady:
    """A ledger, but for what a test does to its enqueue."""

    def __init__(self, ledger: Ledger, act: Callable[[Callable[[], Enqueued]], Enqueued]) -> None:
        self._ledger = ledger
        self._act = act
        self.calls: list[tuple[str, int]] = []

    def enqueue(
        self, worker: str, batch: int, items: Sequence[NewItem], *, replace: bool = False
    ) -> Enqueued:
        self.calls.append((worker, batch))
        return self._act(lambda: self._ledger.enqueue(worker, batch, items, replace=replace))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)


@pytest.fixture(params=["memory", "sqlite"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    """Each ledger that needs no server."""
    made: Ledger = (
        MemoryLedger()
        if request.param == "memory"
        else SqlLedger(f"sqlite:///{tmp_path}/ledger.db")
    )
    made.initialise()
    yield made
    made.close()


@pytest.fixture
def store() -> MemoryStore:
    """A store in memory."""
    return MemoryStore()


@pytest.fixture
def run(ledger: Ledger, store: MemoryStore) -> Run:
    """A run without items."""
    return ensure_run(ledger, store, "default", MANIFEST, "item")


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A folder with three documents."""
    folder = tmp_path / "docs"
    write(folder, {"a.md": "one", "b.md": "two", "sub/c.md": "three"})
    return folder


def write(folder: Path, contents: dict[str, str]) -> None:
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def take(ledger: Any, run: Run, *sources: Any, **options: Any) -> Any:
    """Enqueue with a reader of local files, unless the source brings its own."""
    reader = sources[0] if isinstance(sources[0], Numbered) else LocalReader()
    options.setdefault("clock", SystemClock())
    return enqueue(ledger, run, sources, reader, **options)


def readers(ledger: Ledger, run: Run, documents: int, *, size: int) -> list[str]:
    """Which thread read each of them: the kind of its name."""
    seen: list[str] = []
    source = Numbered(
        documents, lambda: seen.append(threading.current_thread().name.split("-")[0]), size=size
    )
    take(ledger, run, source, threads=2)
    return seen


def numbers(report: Any) -> tuple[int, int, int, int, int]:
    return report.seen, report.new, report.known, report.superseded, report.rejected_total


def listed_ids(ledger: Ledger, run: Run) -> list[str]:
    """Source ids of everything ready, in the order in which it is handed out."""
    ledger.register(run, "reader", 60.0, Role.WORKER, {})
    lease = ledger.claim("reader", "token", 100_000, alone=False)
    return [item.source_id for item in lease.items] if lease else []


# -- documents -----------------------------------------------------------------------------


def test_every_document_becomes_an_item_once(ledger: Ledger, run: Run, docs: Path) -> None:
    """The second enqueue of the same folder finds all of them known."""
    assert numbers(take(ledger, run, DirectorySource(docs))) == (3, 3, 0, 0, 0)
    assert numbers(take(ledger, run, DirectorySource(docs))) == (3, 0, 3, 0, 0)
    assert ledger.counts(run).tallies.total == 3


def test_a_changed_document_supersedes_its_item(ledger: Ledger, run: Run, docs: Path) -> None:
    """The others are left as they are."""
    take(ledger, run, DirectorySource(docs))
    (docs / "a.md").write_text("changed")
    assert numbers(take(ledger, run, DirectorySource(docs))) == (3, 1, 2, 1, 0)


def test_the_version_is_the_digest_of_the_bytes(ledger: Ledger, run: Run, docs: Path) -> None:
    """What a worker will hold the document against."""
    take(ledger, run, DirectorySource(docs))
    state = ledger.lookup(run, "docs/sub/c.md")
    assert state is not None
    assert State.READY is state.state
    assert f"sha256:{sha256_hex(b'three')}" == state.source_version
    assert f"file://{docs.resolve()}//sub/c.md" == state.locator


def test_an_empty_folder_is_no_error(ledger: Ledger, run: Run, tmp_path: Path) -> None:
    """There was just nothing to do."""
    (tmp_path / "empty").mkdir()
    report = take(ledger, run, DirectorySource(tmp_path / "empty"))
    assert numbers(report) == (0, 0, 0, 0, 0)
    assert ("default", run.processing_version) == (report.run, report.processing_version)


def test_a_document_named_twice_is_rejected_by_name(
    ledger: Ledger, run: Run, tmp_path: Path
) -> None:
    """Two roots of one name: the first counts, and a prefix helps."""
    for team in ("x", "y"):
        write(tmp_path / team / "docs", {"a.md": team, f"{team}.md": team})
    sources = [DirectorySource(tmp_path / team / "docs") for team in ("x", "y")]
    report = take(ledger, run, *sources)
    assert numbers(report) == (4, 3, 0, 0, 1)
    assert [each.source for each in report.rejected] == ["docs/a.md"]
    state = ledger.lookup(run, "docs/a.md")
    assert state is not None
    assert f"sha256:{sha256_hex(b'x')}" == state.source_version


def test_another_root_supersedes_only_when_told_to(
    ledger: Ledger, run: Run, tmp_path: Path
) -> None:
    """Both roots are named, so that one sees which to rename."""
    for team in ("x", "y"):
        write(tmp_path / team / "docs", {"a.md": team})
    first, second = (DirectorySource(tmp_path / team / "docs") for team in ("x", "y"))
    take(ledger, run, first)
    report = take(ledger, run, second)
    assert numbers(report) == (1, 0, 0, 0, 1)
    assert first.root in report.rejected[0].reason
    assert second.root in report.rejected[0].reason
    assert numbers(take(ledger, run, second, replace=True)) == (1, 1, 0, 1, 0)


def test_documents_that_vanish_or_close_are_rejected_by_name(
    ledger: Ledger, run: Run, docs: Path
) -> None:
    """Between listing and reading, a folder goes on living."""
    listed = list(DirectorySource(docs).list())
    (docs / "a.md").unlink()
    (docs / "b.md").unlink()
    (docs / "b.md").symlink_to("sub/c.md")
    report = take(ledger, run, Listed(listed))
    assert numbers(report) == (3, 1, 0, 0, 2)
    reasons = {each.source: each.reason.split(":")[0] for each in report.rejected}
    assert reasons == {"docs/a.md": "source_missing", "docs/b.md": "source_changed"}


def test_what_was_skipped_while_listing_is_rejected_by_name(
    ledger: Ledger, run: Run, docs: Path
) -> None:
    """Everything seen is new, known or rejected."""
    os.mkfifo(docs / "pipe")
    report = take(ledger, run, DirectorySource(docs))
    assert numbers(report) == (4, 3, 0, 0, 1)
    assert (Rejection("docs/pipe", "a pipe, no regular file"),) == report.rejected


def test_a_source_id_that_no_index_holds_is_rejected(ledger: Ledger, run: Run) -> None:
    """Measured in bytes, as the index does."""
    names = ["x" * MAX_SOURCE_ID, "x" * (MAX_SOURCE_ID + 1), "é" * (MAX_SOURCE_ID // 2 + 1)]
    report = take(ledger, run, Listed([Found(name, "file:///proc/version", 0) for name in names]))
    assert numbers(report) == (3, 1, 0, 0, 2)
    assert names[1:] == [each.source for each in report.rejected]


def test_a_version_that_the_listing_tells_needs_no_reading(ledger: Ledger, run: Run) -> None:
    """As for objects in a store, which are not downloaded."""
    found = Found("bucket/a", "file:///does/not/exist", 12, "etag:1")
    assert numbers(take(ledger, run, Listed([found]))) == (1, 1, 0, 0, 0)


def test_a_million_rejections_are_counted_and_a_thousand_named(ledger: Ledger, run: Run) -> None:
    """A folder of sockets must not fill the memory."""
    skipped = [Skipped(f"docs/{number}", "a socket") for number in range(MAX_REJECTED + 500)]
    report = take(ledger, run, Listed(skipped))
    assert MAX_REJECTED + 500 == report.seen == report.rejected_total
    assert len(report.rejected) == MAX_REJECTED
    assert report.rejected[0].source == "docs/0"


# -- batches and threads -------------------------------------------------------------------


@pytest.mark.parametrize("size", [7, LARGE])
def test_items_are_numbered_in_listing_order(ledger: Ledger, run: Run, size: int) -> None:
    """Whichever thread was faster."""
    take(ledger, run, Numbered(1500, size=size), threads=4, batch_size=100)
    assert [f"numbered/{number:07}" for number in range(1500)] == listed_ids(ledger, run)


@pytest.fixture
def unhindered(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is, the process was never seen to wait."""
    monkeypatch.setattr(_Elapsed, "now", lambda: _Elapsed(0.0, 0.0))


@pytest.mark.usefixtures("unhindered")
def test_small_documents_are_read_by_the_callers_own_thread(ledger: Ledger, run: Run) -> None:
    """Several would pass Python's lock to and fro for each of them."""
    assert readers(ledger, run, 600, size=7) == [MainThread] * 600


@pytest.mark.usefixtures("unhindered")
def test_what_is_listed_beside_a_large_document_is_read_by_threads(
    ledger: Ledger, run: Run
) -> None:
    """They digest without Python's lock; of each chunk the first shows how large they are."""
    threads = readers(ledger, run, CHUNK_FILES + 20, size=LARGE)
    assert threads.count(MainThread) == 2
    assert threads.count("fingerprint") == CHUNK_FILES + 18


@pytest.mark.parametrize(
    ("used", "in_threads"),
    [([0.5, 0.5, 0.5], 2), ([0.5, 0.7, 0.5], 0), ([0.5, 0.5, 0.7], 1), ([0.7, 0.5, 0.5], 1)],
)
def test_documents_that_a_process_waits_for_are_read_by_threads(
    ledger: Ledger,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    used: list[float],
    in_threads: int,
) -> None:
    """As from a slow disk: before each chunk, what it used or wanted of the last second."""
    measured = [_Elapsed(n, sum(used[:n])) for n in range(4)]
    monkeypatch.setattr(_Elapsed, "now", iter(measured).__next__)
    threads = readers(ledger, run, 3 * CHUNK_FILES, size=7)
    assert threads.count("fingerprint") == in_threads * CHUNK_FILES
    assert threads.count(MainThread) == (3 - in_threads) * CHUNK_FILES


MEASUREMENTS = 40
"""Of which one may do: a virtual machine stands still now and then, and its kernel sees nothing."""


def share_used(half_a_second: Callable[[], object]) -> float:
    """What of that time this process used, or wanted and did not get."""
    start = _Elapsed.now()
    half_a_second()
    now = _Elapsed.now()
    return (now.used - start.used) / (now.elapsed - start.elapsed)


def compute() -> None:
    until = SystemClock().monotonic() + 0.5
    while SystemClock().monotonic() < until:
        pass


def sleep() -> None:
    SystemClock().wait(threading.Event(), 0.5)


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="Linux alone tells")
def test_a_process_that_others_keep_from_a_core_does_not_wait() -> None:
    """Of two that never pause, on one core, each wants all of it."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            assert any(share_used(compute) > 0.9 for _ in range(MEASUREMENTS))
        finally:
            other.kill()
            os.sched_setaffinity(0, allowed)


def test_a_process_that_sleeps_is_seen_to_wait() -> None:
    """As it does while a disk is at work for it, and on however busy a machine."""
    assert any(share_used(sleep) < 0.5 for _ in range(MEASUREMENTS))


def test_batches_have_the_size_that_was_asked_for(run: Run, ledger: Ledger) -> None:
    """And the numbers 1, 2, 3, under one name; the last may be smaller."""
    sizes: list[int] = []
    unsteady = Unsteady(ledger, lambda call: call())
    seen: list[int] = []
    take(unsteady, run, Numbered(1001), batch_size=300, on_progress=seen.append)
    sizes = [after - before for before, after in zip([0, *seen], seen, strict=False)]
    assert sizes == [300, 300, 300, 101]
    assert [batch for _, batch in unsteady.calls] == [1, 2, 3, 4]
    assert len({worker for worker, _ in unsteady.calls}) == 1


@pytest.mark.parametrize("size", [7, LARGE])
def test_a_slow_ledger_stops_the_readers(ledger: Ledger, run: Run, size: int) -> None:
    """Memory stays flat because nobody runs far ahead."""
    threads = 2
    read = threading.Semaphore(0)
    stuck: list[int] = []

    def slowly(call: Callable[[], Enqueued]) -> Enqueued:
        if not stuck:
            ahead = 0
            while read.acquire(timeout=0.5):
                ahead += 1
            stuck.append(ahead)
        return call()

    source = Numbered(20_000, fingerprinted=read.release, size=size)
    report = take(Unsteady(ledger, slowly), run, source, threads=threads, batch_size=500)
    assert report.new == 20_000
    assert stuck[0] <= 5 * 500 + (2 * threads + 4) * CHUNK_FILES


def test_memory_does_not_grow_with_the_number_of_documents(tmp_path: Path) -> None:
    """What is held are a few batches, of 24,000 documents that would take 14 MB."""
    ledger = SqlLedger(f"sqlite:///{tmp_path}/ledger.db")
    ledger.initialise()
    run = ledger.create_run("default", "stats-0", MANIFEST, "item")
    take(ledger, run, Numbered(1_000), batch_size=200)
    tracemalloc.start()
    take(ledger, run, Numbered(24_000), batch_size=200)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    ledger.close()
    assert peak < 3_000_000


def test_two_enqueues_of_one_folder_make_one_item_each(
    ledger: Ledger, run: Run, docs: Path
) -> None:
    """At the same time, from two threads as from two machines."""
    write(docs, {f"{number}.md": str(number) for number in range(200)})
    reports: list[Any] = []
    threads = [
        threading.Thread(
            target=lambda: reports.append(take(ledger, run, DirectorySource(docs), batch_size=20))
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(report.new for report in reports) == 203
    assert sum(report.seen for report in reports) == 406
    assert ledger.counts(run).tallies.total == 203


def test_a_reader_that_breaks_ends_the_enqueue(ledger: Ledger, run: Run) -> None:
    """An error that is no document's is not swallowed in a thread."""

    def broken() -> None:
        raise RuntimeError("broken reader")

    with pytest.raises(RuntimeError, match="broken reader"):
        take(ledger, run, Numbered(10, fingerprinted=broken))
    assert ledger.counts(run).enqueuers_alive == 0


# -- a ledger that gives no answer ---------------------------------------------------------


def test_a_lost_answer_is_asked_for_again(ledger: Ledger, run: Run) -> None:
    """The batch was taken up; nothing is counted twice."""
    lose = iter([True, True, False, True])

    def losing(call: Callable[[], Enqueued]) -> Enqueued:
        answer = call()
        if next(lose, False):
            raise LedgerUnreachable("the answer was lost")
        return answer

    unsteady = Unsteady(ledger, losing)
    report = take(unsteady, run, Numbered(250), batch_size=100, clock=HastyClock())
    assert numbers(report) == (250, 250, 0, 0, 0)
    assert [batch for _, batch in unsteady.calls] == [1, 1, 1, 2, 2, 3]
    assert ledger.counts(run).tallies.known == 0


def test_a_silent_ledger_ends_the_enqueue_after_a_minute(ledger: Ledger, run: Run) -> None:
    """What was acknowledged before stays; with the exit code for an unreachable ledger."""
    answers = iter([True])

    def silent(call: Callable[[], Enqueued]) -> Enqueued:
        if next(answers, False):
            return call()
        raise LedgerUnreachable("no answer")

    clock = HastyClock()
    unsteady = Unsteady(ledger, silent)
    with pytest.raises(LedgerUnreachable):
        take(unsteady, run, Numbered(250), batch_size=100, clock=clock)
    assert len(unsteady.calls) == 1 + ATTEMPTS
    assert 30 < clock.waited < 90
    assert ledger.counts(run).tallies.total == 100


def test_an_unknown_registration_is_renewed(ledger: Ledger, run: Run) -> None:
    """The batch goes out again under the new name, from number 1."""
    refuse = iter([False, True])

    def forgetting(call: Callable[[], Enqueued]) -> Enqueued:
        if next(refuse, False):
            raise WorkerReaped("no process is registered as that")
        return call()

    unsteady = Unsteady(ledger, forgetting)
    assert take(unsteady, run, Numbered(250), batch_size=100).new == 250
    first, second, third, fourth = unsteady.calls
    assert first[0] == second[0] != third[0] == fourth[0]
    assert [first[1], second[1], third[1], fourth[1]] == [1, 2, 1, 2]


# -- presence ------------------------------------------------------------------------------


def enqueuers(ledger: Ledger, run: Run) -> list[Any]:
    return [each for each in ledger.workers(run) if each.role is Role.ENQUEUER]


def test_workers_see_that_more_is_coming(ledger: Ledger, run: Run) -> None:
    """While it lasts, and not a moment longer."""
    alive: list[int] = []
    take(
        ledger,
        run,
        Numbered(10),
        on_progress=lambda seen: alive.append(ledger.counts(run).enqueuers_alive),
    )
    assert alive == [1]
    assert ledger.counts(run).enqueuers_alive == 0
    [process] = enqueuers(ledger, run)
    assert (process.state, process.stop_reason) == (WorkerState.STOPPED, "finished")


def test_beats_go_on_while_a_document_takes_long(ledger: Ledger, run: Run) -> None:
    """A document that is read for several TTLs lets nobody take this process for dead."""
    beats: list[bool] = []
    several = threading.Event()

    class Listening(Unsteady):
        def beat(self, worker: str, ttl: float) -> bool:
            beats.append(ledger.beat(worker, ttl))
            if len(beats) == 3 * BEATS_PER_TTL:
                several.set()
            return beats[-1]

    slow = Numbered(1, fingerprinted=lambda: several.wait(PATIENCE_S))
    report = take(Listening(ledger, lambda call: call()), run, slow, ttl=0.3)
    assert several.is_set()
    assert all(beats)
    assert report.new == 1
    assert len(enqueuers(ledger, run)) == 1


def test_a_process_that_was_taken_for_dead_registers_anew(ledger: Ledger, run: Run) -> None:
    """A suspended laptop goes on where it was, under another name."""
    woken = threading.Event()

    def suspended(seen: int) -> None:
        if not woken.is_set():
            # As a reaper would: its beats are refused from now on.
            ledger.stop(enqueuers(ledger, run)[0].name, "reaped")
            assert comes_true(lambda: len(enqueuers(ledger, run)) > 1)
            woken.set()

    report = take(ledger, run, Numbered(300), batch_size=100, ttl=0.3, on_progress=suspended)
    assert numbers(report) == (300, 300, 0, 0, 0)
    first, second = enqueuers(ledger, run)
    assert first.name != second.name
    assert WorkerState.STOPPED is second.state


def test_a_ctrl_c_leaves_what_was_acknowledged(ledger: Ledger, run: Run) -> None:
    """And says so to the workers; the next enqueue goes on from there."""

    def interrupt(seen: int) -> None:
        if seen >= 200:
            raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        take(ledger, run, Numbered(5000), batch_size=100, on_progress=interrupt)
    for thread in threading.enumerate():
        if thread.name.startswith(("fingerprint-", "send-", "beat")):
            thread.join(PATIENCE_S)
    assert before >= threading.active_count()
    counts = ledger.counts(run)
    assert counts.enqueuers_alive == 0
    assert "KeyboardInterrupt" in str(enqueuers(ledger, run)[0].stop_reason)
    # The two that were counted, and those that the ledger was about to answer.
    taken = counts.tallies.total
    assert taken in range(200, 600, 100)
    assert numbers(take(ledger, run, Numbered(5000))) == (5000, 5000 - taken, taken, 0, 0)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """What a shell starts in the background ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_ctrl_c_waits_for_no_more_than_the_document_in_hand(ledger: Ledger, run: Run) -> None:
    """The rest of what a thread was given is left unread."""
    gate = threading.Event()
    calls: list[None] = []

    def gated() -> None:
        calls.append(None)
        if len(calls) > CHUNK_FILES:
            os.kill(os.getpid(), signal.SIGINT)
            gate.wait(2 * PATIENCE_S)

    with pytest.raises(KeyboardInterrupt):
        take(
            ledger,
            run,
            Numbered(1000, fingerprinted=gated, size=LARGE),
            threads=1,
            batch_size=100,
        )
    gate.set()
    for thread in threading.enumerate():
        if thread.name.startswith("fingerprint-"):
            thread.join(PATIENCE_S)
    assert len(calls) <= CHUNK_FILES + 1


def test_a_failure_behind_a_piece_ends_the_wait_for_it() -> None:
    """A thread that takes a piece up after another has failed leaves nobody waiting."""
    taken, failed = threading.Event(), threading.Event()

    def work(piece: int) -> int:
        if piece == 0:
            taken.set()
            failed.wait(PATIENCE_S)
            return piece
        taken.wait(PATIENCE_S)
        failed.set()
        raise ValueError("the second piece")

    with Ahead(work, threads=2, ahead=8, name="work") as ahead:
        outcomes = ahead.each(range(6))
        assert next(outcomes) == 0
        with pytest.raises(ValueError, match="the second piece"):
            list(outcomes)


# -- dry run -------------------------------------------------------------------------------


def test_a_plan_counts_and_rejects_without_reading(docs: Path) -> None:
    """Sizes as listed; what would be rejected while listing."""
    os.mkfifo(docs / "pipe")
    found = plan([DirectorySource(docs)])
    assert (4, len("onetwothree"), 1) == (found.seen, found.size, found.rejected_total)
    assert (Rejection("docs/pipe", "a pipe, no regular file"),) == found.rejected


def test_a_plan_finds_what_several_sources_name_twice(docs: Path) -> None:
    """As the ledger would."""
    seen: list[int] = []
    found = plan([DirectorySource(docs), DirectorySource(docs / "a.md")], on_progress=seen.append)
    assert (4, len("onetwothree")) == (found.seen, found.size)
    assert [each.source for each in found.rejected] == ["docs/a.md"]
    assert seen[-1] == 4


# -- the run and its store -----------------------------------------------------------------


def test_a_run_is_created_with_its_marker(ledger: Ledger, store: MemoryStore) -> None:
    """Where the results will lie, it says whose they are; hints are nobody's business."""
    run = ensure_run(ledger, store, "docs", {**MANIFEST, "hints": {"model": "/home/me"}}, "item")
    marker = json.loads(store.read(f"{run.prefix}/run.json"))
    assert {
        "schema": "batchq-run/1",
        "run": "docs",
        "prefix": run.prefix,
        "processing_version": run.processing_version,
        "manifest": MANIFEST,
    } == marker
    check_store(store, run)


def test_the_same_run_is_found_again(ledger: Ledger, store: MemoryStore, run: Run) -> None:
    """Before and after there are items in it."""
    assert run == ensure_run(ledger, store, "default", MANIFEST, "item")
    take(ledger, run, Numbered(3))
    assert run == ensure_run(ledger, store, "default", MANIFEST, "item")


def test_another_configuration_is_refused_field_by_field(
    ledger: Ledger, store: MemoryStore, run: Run
) -> None:
    """With the way out: another run."""
    other = {**MANIFEST, "parameters": {"overlap": 32}}
    with pytest.raises(ProcessingVersionMismatch) as error:
        ensure_run(ledger, store, "default", other, "item")
    assert "parameters.overlap: 32 here, 16 in the run" in error.value.message
    assert "code" not in error.value.message
    assert "--run" in str(error.value.hint)


def test_another_layout_is_refused(ledger: Ledger, store: MemoryStore, run: Run) -> None:
    """It was fixed when the run was created."""
    with pytest.raises(UsageError, match="layout item"):
        ensure_run(ledger, store, "default", MANIFEST, "shard")


def test_another_store_is_refused_once_there_are_items(ledger: Ledger, run: Run) -> None:
    """Or a run's results would lie in two places; and nothing is written there."""
    take(ledger, run, Numbered(1))
    other = MemoryStore()
    with pytest.raises(StoreUnusable, match=r"not that of run 'default'"):
        ensure_run(ledger, other, "default", MANIFEST, "item")
    assert list(other.list("")) == []


def test_a_run_that_lost_its_marker_before_its_first_item_gets_it(
    ledger: Ledger, store: MemoryStore
) -> None:
    """A crash between the two writes leaves a run that can still be used."""
    run = ledger.create_run("crashed", processing_version(MANIFEST), MANIFEST, "item")
    with pytest.raises(StoreUnusable, match=r"run\.json"):
        check_store(store, run)
    assert run == ensure_run(ledger, store, "crashed", MANIFEST, "item")
    check_store(store, run)


def test_the_store_of_another_ledgers_run_is_refused(ledger: Ledger, run: Run) -> None:
    """Two ledgers may both have a run called default."""
    store = MemoryStore()
    foreign = canonical_json({"schema": "batchq-run/1", "run": "default", "prefix": run.prefix})
    store.put_if_absent(f"{run.prefix}/run.json", foreign, sha256_hex(foreign))
    for check in (
        lambda: check_store(store, run),
        lambda: ensure_run(ledger, store, "default", MANIFEST, "item"),
    ):
        with pytest.raises(StoreUnusable, match="describes another run"):
            check()


def test_a_store_that_fails_is_unusable(ledger: Ledger) -> None:
    """Before anything is enqueued for it."""

    class Full(MemoryStore):
        def put_if_absent(self, key: str, data: bytes, sha256: str) -> bool:
            raise StoreError("no space left on device")

    with pytest.raises(StoreUnusable, match="no space left"):
        ensure_run(ledger, Full(), "default", MANIFEST, "item")


def test_the_requests_of_layout_item_are_priced() -> None:
    """A hundred million results cost five hundred dollars in puts and forty in heads."""
    assert "about $540.00" in request_cost(100_000_000)
    assert "150,000 items" in request_cost(150_000)


@pytest.mark.parametrize(
    ("layout", "items", "remote", "told"),
    [
        ("item", 100_001, True, True),
        ("item", 100_000, True, False),
        ("shard", 100_001, True, False),
        ("item", 100_001, False, False),
    ],
)
def test_the_price_is_told_while_the_layout_can_be_chosen(
    layout: str, items: int, remote: bool, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only where requests are paid for, and there are many."""
    session: Any = SimpleNamespace(store=SimpleNamespace(remote=remote))
    tell_requests(session, layout, items)
    assert ("--layout shard" in capsys.readouterr().err) == told


def test_a_dry_run_tells_the_price(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before a run exists is when its layout can be chosen."""
    # What a demo left in the current folder would be looked at, too.
    monkeypatch.chdir(tmp_path)
    for number in range(2):
        (tmp_path / f"{number}.txt").write_text("a")
    monkeypatch.setattr("batchq.cli.enqueue.COSTLY_ITEMS", 1)
    monkeypatch.setattr("batchq.cli.session.log_to_stderr", lambda: None)
    monkeypatch.setattr(wiring, "open_store", lambda config: SimpleNamespace(remote=True))

    code = main(["enqueue", str(tmp_path), "--processor", "stats", "--dry-run"])

    out, err = capsys.readouterr()
    assert code == 0
    assert "would take up 2 documents" in out
    assert "2 items are as many puts" in err
