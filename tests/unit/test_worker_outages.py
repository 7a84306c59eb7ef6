"""What a worker does when something around it fails, or is slow, at a bad moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from batchq.clock import ManualClock, SystemClock
from batchq.errors import DeviceLost, ExitCode, LedgerUnreachable, StoreUnusable
from batchq.lease import Lease, ReleaseReason, new_token
from batchq.ledger.base import Committed, Role, WorkerState
from batchq.notice.base import Notice
from batchq.result import Envelope, Result, Stored
from batchq.store.verified import Written
from batchq.worker import pipeline, settle
from batchq.worker.claim import Claimer
from batchq.worker.heartbeat import Heartbeat
from batchq.worker.holdings import Holdings, Work
from batchq.worker.pipeline import Pipeline
from batchq.worker.settle import Settler
from batchq.worker.worker import Progress
from tests.unit.patience import PATIENCE_S
from tests.unit.worker_kit import FAST, Kit


def numbered(count: int) -> dict[str, str]:
    return {f"doc-{n:04}": f"text number {n}" for n in range(count)}


class Alarm(ManualClock):
    """Calls `ring` once, when it has come to `at`."""

    def __init__(self) -> None:
        super().__init__(monotonic=0.0)
        self.at = float("inf")
        self.ring: Callable[[], object] = lambda: None

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        if self.monotonic() >= self.at:
            self.at = float("inf")
            self.ring()


@pytest.mark.parametrize("noticed_at", [25.5, 27.0], ids=["at a question", "in a pause"])
def test_a_drain_asks_a_silent_ledger_until_its_time_is_over(
    noticed_at: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silent for so long that the pauses have grown to 10 s; it is back before the deadline."""
    monkeypatch.setattr(settle, "random_fraction", lambda: 0.5)
    clock = Alarm()
    kit = Kit.of(numbered(3), clock=clock)
    parts, holdings, halt = kit.parts(), Holdings(), threading.Event()
    lease = kit.ledger.claim(parts.registration.name, new_token(), 3, alone=True)
    assert lease is not None
    settler = Settler(parts, holdings, halt, lambda: parts.drain.started, lambda: None)
    settler.released(holdings.take(lease), ReleaseReason.DRAIN)
    asked: list[float] = []
    release = kit.ledger.release

    def silent_for_half_a_minute(*arguments: Any) -> int:
        asked.append(clock.monotonic())
        if clock.monotonic() < 29.0:
            raise LedgerUnreachable("no route to host")
        halt.set()
        return release(*arguments)

    kit.ledger.release = silent_for_half_a_minute  # type: ignore[assignment,method-assign]
    clock.at = noticed_at
    clock.ring = lambda: parts.drain.begin(Notice("spot", "terminate", noticed_at + 6.0, "test"))
    settler.run()
    assert asked[:6] == [0.0, 0.5, 1.5, 3.5, 7.5, 15.5]
    assert 29.0 <= asked[-1] <= 29.5
    assert kit.tallies.leased == 0


def test_an_outage_does_not_count_as_the_cost_of_a_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or the next flushes would be put off, and a person told that the ledger is slow."""
    monkeypatch.setattr(settle, "random_fraction", lambda: 0.5)
    clock = ManualClock(monotonic=0.0)
    kit = Kit.of(numbered(1), clock=clock)
    parts, holdings, halt = kit.parts(), Holdings(), threading.Event()
    lease = kit.ledger.claim(parts.registration.name, new_token(), 1, alone=True)
    assert lease is not None
    settler = Settler(parts, holdings, halt, lambda: False, lambda: None)
    (work,) = holdings.take(lease)
    settler.completed(work, Written(Stored("key", 0, 1, "0" * 64), False, False, empty=False))
    commit = kit.ledger.commit

    def silent_for_half_a_minute(*arguments: Any) -> Committed:
        if clock.monotonic() < 29.0:
            raise LedgerUnreachable("no route to host")
        halt.set()
        clock.advance(0.25)
        return commit(*arguments)

    kit.ledger.commit = silent_for_half_a_minute  # type: ignore[assignment,method-assign]
    settler.run()
    assert settler.accepted == 1
    assert parts.pace.flush_share(100.0) == 0.0025


def test_a_drain_that_ends_without_an_answer_still_makes_its_last_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ledger may be back by then: what is still leased goes to others at once."""
    kit = Kit.of(numbered(3))

    def end_without_an_answer(running: Pipeline, on_tick: Callable[[], None]) -> None:
        name = running._parts.registration.name
        assert kit.ledger.claim(name, new_token(), 3, alone=True)
        kit.notices.press()
        raise LedgerUnreachable("no route to host")

    monkeypatch.setattr(Pipeline, "run", end_without_an_answer)
    assert kit.work(replace(FAST, lease_ttl=60)) == ExitCode.STOPPED
    assert (kit.tallies.leased, kit.tallies.ready) == (0, 3)
    [worker] = [w for w in kit.ledger.workers(kit.run) if w.role is Role.WORKER]
    assert worker.state is WorkerState.STOPPED


@pytest.mark.usefixtures("last_minute")
def test_an_error_in_a_drain_does_not_outlast_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Results that cannot be stored any more are waited for no longer than others."""
    monkeypatch.setattr(pipeline, "ERROR_WINDOW_S", 100.0)
    kit = Kit.of(numbered(30))
    deadline: list[float] = []

    def unusable(key: str, data: bytes, sha256: str) -> bool:
        deadline.append(SystemClock().monotonic() + 60.5)
        kit.notices.press(deadline[0])
        raise StoreUnusable("no space is left")

    kit.store.put_if_absent = unusable  # type: ignore[method-assign]
    with pytest.raises(StoreUnusable):
        kit.work(replace(FAST, lease_ttl=60, notice_window=120))
    assert SystemClock().monotonic() < deadline[0]
    assert kit.tallies.leased == 0


def test_whoever_watches_fails_and_nothing_claims_on() -> None:
    """An error in the main thread ends every other, and what was held goes back."""
    kit = Kit.of(numbered(1_000))

    def take_a_while(texts: Sequence[str]) -> None:
        kit.clock.wait(threading.Event(), 0.02)

    kit.processor.before_batch = take_a_while
    before = set(threading.enumerate())

    def break_off(progress: Progress) -> None:
        if progress.held:
            raise BrokenPipeError("nobody reads this")

    with pytest.raises(BrokenPipeError):
        kit.work(on_progress=break_off)
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), f"{thread.name} goes on"
    assert kit.tallies.leased == 0
    assert len([w for w in kit.ledger.workers(kit.run) if w.role is Role.WORKER]) == 1


def test_what_is_made_is_committed_after_an_error_though_a_flush_is_not_full() -> None:
    """With `flush_items` nothing but their number counts, until nothing must wait any more."""
    kit = Kit.of(numbered(200))

    def die_at_the_third(texts: Sequence[str]) -> None:
        # The first commit comes at once; only then is a flush waited for.
        while len(kit.processor.batches) == 2 and not kit.tallies.completed:
            kit.clock.wait(threading.Event(), 0.01)
        if len(kit.processor.batches) == 3:
            raise DeviceLost("an illegal memory access was encountered")

    kit.processor.before_batch = die_at_the_third
    with pytest.raises(DeviceLost):
        kit.work(replace(FAST, claim=200, flush_items=1_000, lease_ttl=60))
    assert kit.tallies.completed == sum(len(batch) for batch in kit.processor.batches[:2])


@pytest.mark.parametrize("layout", ["item", "shard"])
def test_a_flush_is_filled_by_more_documents_than_memory_holds(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One without text takes no memory any more while its result waits to be committed."""
    monkeypatch.setattr(pipeline, "Holdings", partial(Holdings, 50))
    kit = Kit.of({f"doc-{n:04}": " " * (10 + n) for n in range(20)}, layout=layout)
    assert kit.work(replace(FAST, flush_items=1_000)) == ExitCode.OK
    assert kit.tallies.empty == 20


def test_adopted_results_take_no_memory_while_they_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their documents are not even read."""
    kit = Kit.of(numbered(20))
    kit.ledger.register(kit.run, "first", 60, Role.WORKER, {})
    lease = kit.ledger.claim("first", new_token(), 20, alone=True)
    assert lease is not None
    layout = kit.parts().layout
    for item in lease.items:
        envelope = Envelope(item.source_id, item.source_version, "shout-1", {}, 1, 1)
        layout.write([layout.make(item, envelope)])
    kit.ledger.stop("first", "vanished after the puts")
    monkeypatch.setattr(pipeline, "Holdings", partial(Holdings, 50))
    assert kit.work(replace(FAST, flush_items=1_000)) == ExitCode.OK
    assert kit.tallies.adopted == 20


def test_time_spent_idle_is_no_stall_once_something_is_claimed() -> None:
    """The last step of an idle worker is long ago: it takes one before it holds anything."""
    kit = Kit.of(numbered(3))
    holdings, closing = Holdings(), threading.Event()
    held: list[int] = []

    def hand_out(works: Sequence[Work]) -> None:
        held.append(len(holdings))
        closing.set()

    claimer = Claimer(
        kit.parts(),
        holdings,
        closing,
        hand_out,
        reaped=lambda name: pytest.fail("nobody was reaped"),
        step=lambda: held.append(len(holdings)),
    )
    claimer.run()
    assert held == [0, 3]


def test_no_token_is_sent_under_two_names() -> None:
    """The answer to a claim was lost, and its worker reaped before it could ask again."""
    kit = Kit.of(numbered(3))
    parts, holdings, closing = kit.parts(), Holdings(), threading.Event()
    claim, sent = kit.ledger.claim, []

    def lost_at_first(worker: str, token: str, limit: int, *, alone: bool) -> Lease | None:
        lease = claim(worker, token, limit, alone=alone)
        sent.append((worker, token))
        if len(sent) > 1:
            return lease
        kit.ledger.stop(worker, "as good as reaped")
        parts.registration.renew(worker, holdings.cancel_all)
        raise LedgerUnreachable("the answer is lost")

    kit.ledger.claim = lost_at_first  # type: ignore[method-assign]
    claimer = Claimer(
        parts,
        holdings,
        closing,
        hand_out=lambda works: closing.set(),
        reaped=lambda name: pytest.fail("it is known already"),
        step=lambda: None,
    )
    claimer.run()
    (first, old), (second, new) = sent
    assert first != second
    assert old != new
    assert {work.token for work in holdings.all()} == {new}


def test_a_beat_without_an_answer_is_sent_again_within_a_sixth_of_the_ttl() -> None:
    """An outage that reapers do not notice must not have cost the lease when it is over."""
    pauses, over = [], threading.Event()

    class Listening(ManualClock):
        def wait(self, event: threading.Event, seconds: float) -> bool:
            if threading.current_thread().name == "beat":
                pauses.append(seconds)
                if len(pauses) == 2:
                    over.set()
            return event.wait(0.01)

    kit = Kit.of({})
    beats: list[str] = []

    def beat(worker: str, ttl: float) -> bool:
        beats.append(worker)
        if len(beats) == 2:
            raise LedgerUnreachable("the answer is lost")
        return True

    kit.ledger.beat = beat  # type: ignore[method-assign]
    heartbeat = Heartbeat(
        kit.ledger,
        kit.parts().registration,
        Listening(),
        stall_timeout=30,
        last_progress=lambda: None,
        on_reaped=lambda name: pytest.fail("nobody was reaped"),
        on_fatal=lambda error: pytest.fail(str(error)),
    )
    heartbeat.start()
    assert over.wait(PATIENCE_S)
    heartbeat.stop(PATIENCE_S)
    assert pauses[:2] == [60 / 3, 60 / 6]


def test_what_a_ledger_has_forgotten_does_not_stay_leased_to_a_living_worker() -> None:
    """It was restored from a copy, or failed over to a server that lacks the last commits."""
    kit = Kit.of(numbered(20))
    commit = kit.ledger.commit
    forgotten: list[int] = []

    def forget(worker: str, results: Sequence[Result]) -> Committed:
        if forgotten:
            return commit(worker, results)
        forgotten.extend(result.item_id for result in results)
        return Committed(accepted=tuple(forgotten))

    kit.ledger.commit = forget  # type: ignore[method-assign]
    assert kit.work() == ExitCode.OK
    assert forgotten
    assert kit.tallies.completed == 20
    assert kit.tallies.lost_leases == 0
    assert {worker.stop_reason for worker in kit.ledger.workers(kit.run)} >= {
        "the ledger was set back",
        "run finished",
    }
