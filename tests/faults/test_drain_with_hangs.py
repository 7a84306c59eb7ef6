"""A store or a ledger that never answers while a worker drains: it is gone by the deadline.

And the deadline may pass with the machine still there: then it is started again and works.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from batchq.clock import SystemClock
from batchq.errors import ExitCode
from batchq.ledger.base import Ledger, Role, WorkerState
from batchq.store.memory import MemoryStore
from tests.end_to_end.fleet import Site
from tests.end_to_end.test_interruptions import fill, some_committed, wait_until
from tests.faults.checker import audit
from tests.lateness import lateness
from tests.postgres import create_database, drop_database, running_server
from tests.unit.worker_kit import Kit

WINDOW_S = 3.0
DOCUMENTS = {f"doc-{n:03}": f"text number {n}" for n in range(60)}


class Tap:
    """Once `closed`, whatever flows through it hangs until the test is over."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.over = threading.Event()

    def pass_through(self) -> None:
        if self.closed.is_set():
            self.over.wait(60)


class HangingStore(MemoryStore):
    """A store whose puts never return once the tap is closed."""

    def __init__(self, tap: Tap) -> None:
        super().__init__()
        self._tap = tap

    def put_if_absent(self, key: str, data: bytes, sha256: str) -> bool:
        self._tap.pass_through()
        return super().put_if_absent(key, data, sha256)


class HangingLedger:
    """A ledger of which the named verbs, or all, never answer once the tap is closed."""

    def __init__(self, ledger: Ledger, tap: Tap, verbs: set[str] | None = None) -> None:
        self._ledger = ledger
        self._tap = tap
        self._verbs = verbs

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._ledger, name)
        if not callable(verb) or (self._verbs is not None and name not in self._verbs):
            return verb

        def hanging(*args: Any, **kwargs: Any) -> Any:
            self._tap.pass_through()
            return verb(*args, **kwargs)

        return hanging


@contextmanager
def notice_with(kit: Kit, tap: Tap, after: int = 2) -> Iterator[None]:
    """In the middle of a batch the tap is closed and a notice comes, WINDOW_S ahead."""

    deadline = float("inf")

    def close(texts: object) -> None:
        nonlocal deadline
        if len(kit.processor.batches) == after:
            tap.closed.set()
            deadline = SystemClock().monotonic() + WINDOW_S
            kit.notices.press(deadline)

    kit.processor.before_batch = close
    try:
        with lateness() as late:
            yield
        assert SystemClock().monotonic() < deadline + late.seconds
    finally:
        tap.over.set()


def test_a_store_that_hangs_holds_no_drain() -> None:
    """What could not be stored is given back by the last call, before the deadline."""
    tap = Tap()
    kit = Kit.of(DOCUMENTS, store=HangingStore(tap))
    with notice_with(kit, tap):
        assert kit.work() == ExitCode.STOPPED
        tallies = kit.tallies
        assert tallies.leased == 0
        assert tallies.ready == len(DOCUMENTS) - tallies.completed > 0
        assert (tallies.failures, tallies.lost_leases) == (0, 0)


@pytest.mark.parametrize(
    "verbs",
    [None, {"commit"}, {"release"}, {"stop"}, {"beat"}, {"counts"}, {"claim"}],
    ids=lambda verbs: "every verb" if verbs is None else next(iter(verbs)),
)
def test_a_ledger_that_hangs_holds_no_drain(verbs: set[str] | None) -> None:
    """Whichever call is never answered, the worker leaves with 75; leases expire by themselves."""
    tap = Tap()
    kit = Kit.of(DOCUMENTS)
    with notice_with(kit, tap):
        code = kit.work(ledger=HangingLedger(kit.ledger, tap, verbs))
        assert code == ExitCode.STOPPED


def test_a_notice_that_comes_too_late_still_ends_the_worker_at_once() -> None:
    """With no time at all the last call is tried for a moment, and that is all."""
    tap = Tap()
    kit = Kit.of(DOCUMENTS)

    deadline = float("inf")

    def press(texts: object) -> None:
        nonlocal deadline
        tap.closed.set()
        deadline = SystemClock().monotonic()
        kit.notices.press(deadline)

    kit.processor.before_batch = press
    try:
        with lateness() as late:
            assert kit.work(ledger=HangingLedger(kit.ledger, tap)) == ExitCode.STOPPED
        assert SystemClock().monotonic() < deadline + 1.5 + late.seconds
    finally:
        tap.over.set()


class SkippingClock(SystemClock):
    """The machine's clock, which a test may have skip some seconds."""

    skipped = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.skipped


def test_a_false_alarm_costs_a_restart_and_nothing_else() -> None:
    """The machine outlives the deadline: the worker has left in order, and the next one works."""
    clock = SkippingClock()
    kit = Kit.of(DOCUMENTS, clock=clock)
    deadline = clock.monotonic() + 60.0
    kit.processor.before_batch = lambda texts: kit.notices.press(deadline)
    assert kit.work() == ExitCode.STOPPED
    assert clock.monotonic() < deadline
    clock.skipped = 60.0
    kit.processor.before_batch = lambda texts: None
    assert kit.work() == ExitCode.OK
    assert len(kit.outputs()) == len(DOCUMENTS)
    tallies = kit.tallies
    assert (tallies.failures, tallies.lost_leases, tallies.fenced) == (0, 0, 0)
    states = [w.state for w in kit.ledger.workers(kit.run) if w.role is Role.WORKER]
    assert states == [WorkerState.STOPPED, WorkerState.STOPPED]


# -- real processes, real databases ----------------------------------------------------


def drained_with_hang(site: Site, hang: Any) -> None:
    """A worker gets SIGTERM while its ledger hangs, and is gone within the window."""
    fill(site, 200)
    site.hold(after=1)
    worker = site.start("worker", BATCHQ_NOTICE_WINDOW=f"{WINDOW_S}s")
    wait_until(lambda: some_committed(site))
    with hang(), lateness() as late:
        began = SystemClock().monotonic()
        worker.send_signal(signal.SIGTERM)
        site.let_go()
        worker.communicate(timeout=120)
        took = SystemClock().monotonic() - began
    assert worker.returncode == 75, (site.folder / "log.txt").read_text()[-2000:]
    assert took < WINDOW_S + late.seconds
    site.hurry()
    site.call("worker")
    assert audit(site.ledger, site.results, "default", site.documents) == []


def test_sqlite_locked_by_another_process_holds_no_drain(tmp_path: Path) -> None:
    """A shell left open in a transaction, say."""
    site = Site(tmp_path, f"sqlite:///{tmp_path}/ledger.db", seconds=0.01)

    @contextmanager
    def locked() -> Iterator[None]:
        connection = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None, timeout=60)
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            connection.close()

    drained_with_hang(site, locked)


@pytest.fixture
def postgres() -> Iterator[str]:
    """An empty database."""
    server, name = running_server(), f"hangs_{os.getpid()}"
    yield create_database(server, name)
    drop_database(server, name)


def test_a_postgresql_that_was_stopped_holds_no_drain(tmp_path: Path, postgres: str) -> None:
    """Its processes take connections and answer nothing."""
    site = Site(tmp_path, postgres, seconds=0.01)
    site.call("init")

    @contextmanager
    def stopped() -> Iterator[None]:
        # Not the test's own, which are leaving.
        ask = (
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
            "AND application_name = 'batchq'"
        )
        with psycopg.connect(postgres) as connection:
            pids = [row[0] for row in connection.execute(ask).fetchall()]
        assert pids
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                # Once it goes on, it may be gone.
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    drained_with_hang(site, stopped)
