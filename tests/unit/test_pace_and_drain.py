"""Sizes that follow from measurements, and the deadline that a notice sets."""

from __future__ import annotations

import math

import pytest

from batchq.clock import ManualClock
from batchq.ledger.base import Counts, Role, Tallies, WorkerState, WorkerStatus
from batchq.ledger.uptime import FINISHED, uptime
from batchq.notice.base import DEFAULT_WINDOW_S, Notice
from batchq.notice.signals import SignalSource
from batchq.worker.drain import Drain, shortest_window, usable
from batchq.worker.pace import (
    FIRST_HOLD,
    MAX_HOLD,
    MAX_HOLD_BYTES,
    Pace,
    poll_interval,
    young_interval,
)


def counts(ready: int, workers: int) -> Counts:
    return Counts(Tallies(total=ready, ready=ready), workers, 0, now=0.0)


def test_youngs_interval_is_the_published_example() -> None:
    """0.25 s a flush and 5 h between interruptions: 95 s, 47 items of 2 s."""
    interval = young_interval(0.25, 5 * 3600)
    assert math.isclose(94.868, interval, abs_tol=0.001)
    assert int(interval / 2) == 47


def test_the_first_claim_is_small_and_later_ones_follow_the_rate() -> None:
    """Nothing is known at first; then about twenty seconds of work are held."""
    pace = Pace()
    assert pace.hold() == FIRST_HOLD
    pace.batch_done(items=10, seconds=10.0)
    assert pace.hold() == 30
    fast = Pace()
    fast.batch_done(items=1_000, seconds=0.1)
    assert fast.hold() == MAX_HOLD


def test_as_many_threads_store_results_as_keep_up_with_the_device() -> None:
    """Twice over; of what was not measured, none is sure to."""
    pace = Pace()
    assert not pace.puts_keep_up(8)
    pace.result_done(0.02)
    assert not pace.puts_keep_up(8)
    pace.batch_done(items=10, seconds=0.1)
    assert [pace.puts_keep_up(number) for number in (1, 2, 3, 4)] == [False, False, False, True]


def test_of_large_results_no_more_are_held_than_there_is_room_for() -> None:
    """A store that is slower than the device would otherwise fill the memory with them."""
    pace = Pace()
    pace.batch_done(items=1_000, seconds=0.1)
    pace.made(5_000)
    assert pace.hold() == MAX_HOLD
    for _ in range(50):
        pace.made(4 * 1024 * 1024)
    assert pace.hold() == pytest.approx(MAX_HOLD_BYTES / (4 * 1024 * 1024), abs=1)
    for _ in range(50):
        pace.made(2 * MAX_HOLD_BYTES)
    assert pace.hold() == 2


def test_a_large_fleet_asks_less_often_for_work_that_is_not_there() -> None:
    """A hundred questions a second from all workers together; sooner when an item is due."""
    assert [poll_interval(counts(0, workers)) for workers in (1, 100, 1_000)] == [1.0, 1.0, 10.0]
    due = Counts(Tallies(total=1, ready=1, delayed=1), 1_000, 0, now=0.0, next_due_s=0.2)
    assert poll_interval(due) == 0.2


def test_claims_shrink_near_the_end_where_others_work_too() -> None:
    """ready / (2 * workers), and at least one; a lone worker takes all it can hold."""
    pace = Pace(claim=100)
    assert pace.claim_size(counts(10_000, 4)) == 100
    assert pace.claim_size(counts(80, 4)) == 10
    assert pace.claim_size(counts(3, 4)) == 1
    assert pace.claim_size(counts(80, 1)) == 100


def test_results_are_committed_at_once_until_a_commit_was_measured() -> None:
    """The first flush measures; dearer ones come less often, at most each five seconds."""
    pace = Pace()
    assert (pace.flush_size(), pace.flush_interval()) == (1, 0.0)
    pace.batch_done(items=10, seconds=1.0)
    pace.flush_done(1, 0.01)
    # A hundredth of the time: each second, ten items.
    assert (pace.flush_size(), pace.flush_interval()) == (10, 1.0)
    pace.flush_done(10, 60.0)
    assert pace.flush_interval() == 5.0
    assert Pace(flush_items=7).flush_size() == 7


def test_frequent_interruptions_bring_frequent_commits() -> None:
    """Young's interval counts where it is the shorter one."""
    pace = Pace(expected_uptime_s=60.0)
    pace.flush_done(1, 0.03)
    assert math.isclose(pace.flush_interval(), young_interval(0.03, 60.0))


@pytest.mark.parametrize("window", [0.5, 3.0, 5.0, 25.0])
def test_one_flush_fits_half_of_a_short_window(window: float) -> None:
    """Neither results that wait longer, nor so many that their commit takes longer."""
    pace = Pace(window_s=usable(window))
    pace.batch_done(items=100, seconds=0.1)
    pace.flush_done(100, 0.5)
    assert pace.flush_interval() <= usable(window) / 2
    # Five milliseconds an item.
    assert pace.flush_size() * 0.005 <= usable(window) / 2
    # A dear commit of one item, which a person's settings cannot make cheaper.
    pace = Pace(window_s=usable(window))
    pace.batch_done(items=1, seconds=0.001)
    pace.flush_done(1, 60.0)
    assert pace.flush_size() == 1


@pytest.mark.parametrize(("window", "seconds_held"), [(3.0, 2.25), (5.0, 3.75), (25.0, 20.0)])
def test_what_is_held_and_each_lease_fit_the_notice_window(
    window: float, seconds_held: float
) -> None:
    """A platform that gives 5 s, as RunPod does, has no use for 20 s of work in hand."""
    pace = Pace(window_s=usable(window))
    pace.batch_done(items=1, seconds=0.05)
    assert math.isclose(pace.hold() * 0.05, seconds_held, abs_tol=0.05)
    assert pace.claim_size(None) * 0.05 <= usable(window)
    # With batches as long as the window the device still never waits, but no lease is longer.
    slow = Pace(window_s=usable(window))
    slow.batch_done(items=8, seconds=window)
    assert slow.hold() >= 3 * 8
    assert slow.claim_size(None) * window / 8 <= usable(window)


def test_what_waits_for_its_flush_never_starves_the_device() -> None:
    """It is held too: at most a quarter of what may be, also where that is little."""
    pace = Pace()
    pace.batch_done(items=100, seconds=0.1)
    pace.flush_done(100, 10.0)
    assert pace.flush_size() <= pace.hold() // 4
    assert pace.flush_limit(lost_before=True) == pace.hold(lost_before=True) // 4 == 25
    assert pace.flush_size(lost_before=True) <= 25
    # What a person fixes stays fixed.
    assert Pace(flush_items=1_000).flush_limit(lost_before=True) == 1_000


def test_the_shortest_window_of_all_that_is_watched_counts() -> None:
    """Of every source and the setting; what a signal gives where nobody knows."""
    ec2, pod = SignalSource(window=120.0), SignalSource(window=5.0)
    nobody_knows = SignalSource()
    assert shortest_window(None, [ec2, pod, nobody_knows]) == 5.0
    assert shortest_window(3.0, [ec2, pod]) == 3.0
    assert shortest_window(None, [nobody_knows]) == DEFAULT_WINDOW_S


def test_the_first_notice_sets_the_deadline_and_repeats_change_nothing() -> None:
    """A later notice, however urgent, starts no second drain."""
    clock = ManualClock(monotonic=100.0)
    drain = Drain(clock)
    assert math.inf == drain.seconds_left()
    assert drain.begin(Notice("spot", "terminate", 220.0, "ec2", medium="metadata"))
    assert not drain.begin(Notice("signal", "SIGTERM", 101.0, "signals"))
    assert drain.seconds_left() == 118.0
    clock.advance(100)
    assert drain.fits(17.0)
    assert not drain.fits(18.5)
    assert drain.reason() == "spot terminate notice, 120 s ahead, by ec2 metadata"


def test_a_signal_is_told_without_a_medium() -> None:
    """Nobody brought it: it has a name, and what it means on a cluster."""
    drain = Drain(ManualClock())
    assert drain.begin(Notice("signal", "SIGUSR1", None, "signals", "as Slurm sends it"))
    assert drain.reason() == "signal SIGUSR1 (as Slurm sends it)"


def test_a_signal_with_a_deadline_is_told_in_whole_sentences() -> None:
    """As a cluster sends it whose grace is known."""
    drain = Drain(ManualClock(monotonic=100.0))
    assert drain.begin(Notice("signal", "SIGTERM", 130.0, "signals"))
    assert drain.reason() == "signal SIGTERM notice, 30 s ahead"


@pytest.mark.parametrize(("window", "left"), [(30.0, 28.0), (4.0, 3.0)])
def test_a_notice_without_a_deadline_gets_the_window_less_a_margin(
    window: float, left: float
) -> None:
    """The margin is kept for the last calls, and never eats a short window."""
    drain = Drain(ManualClock(), window)
    drain.begin(Notice("signal", "SIGTERM", None, "signals"))
    assert left == drain.seconds_left()


def test_a_deadline_that_is_near_leaves_a_smaller_margin() -> None:
    """Of RunPod's five seconds four are for work, whatever the default window is."""
    clock = ManualClock(monotonic=100.0)
    drain = Drain(clock)
    drain.begin(Notice("signal", "SIGTERM", 105.0, "signals"))
    assert drain.seconds_left() == 3.75


@pytest.mark.parametrize("ahead", [0.0, 1.0, 5.0, 120.0])
def test_the_process_is_gone_before_the_deadline_whatever_hangs(ahead: float) -> None:
    """First the work, then the last calls, then the process itself: each has its end."""
    clock = ManualClock(monotonic=100.0)
    drain = Drain(clock)
    drain.begin(Notice("signal", "SIGTERM", 100.0 + ahead, "signals"))
    left, calls = drain.seconds_left(), drain.seconds_for_last_calls()
    drain.wait_for_the_end()
    gone = clock.monotonic() - 100.0
    assert left < calls < gone
    assert gone < ahead or ahead < 2.0


def test_a_first_large_upload_does_not_fit_into_any_drain() -> None:
    """What was never stored before at this size has no known duration."""
    pace = Pace()
    pace.put_done(size=4_000, seconds=0.2)
    pace.flush_done(1, 0.1)
    assert math.isclose(pace.seconds_to_commit(8_000), 0.3)
    assert pace.seconds_to_commit(50_000_000) == math.inf
    pace.put_done(size=40_000_000, seconds=0.2)
    assert math.isclose(pace.seconds_to_commit(50_000_000), 0.3)


def test_the_runs_own_history_outweighs_the_assumption() -> None:
    """(observed + prior) / (interruptions + 1); a finished worker was not interrupted, nor was
    one that a broken processor or a full disk ended."""

    def lived(seconds: float, state: WorkerState, reason: str | None) -> WorkerStatus:
        return WorkerStatus("w", Role.WORKER, state, False, 0, 0, 0.0, seconds, reason)

    history = uptime(
        [
            lived(3_000, WorkerState.STOPPED, FINISHED),
            lived(600, WorkerState.STOPPED, "error: StoreUnusable: no space left on device"),
            lived(1_200, WorkerState.REAPED, "no sign of life for 60 s, items lost: 3"),
            lived(600, WorkerState.STOPPED, "spot terminate by ec2; 0 items given back in 1.0 s"),
        ],
        now=5_000.0,
    )
    assert (history.worker_s, history.interruptions, history.mean_s) == (5_400, 2, 2_700)
    assert history.expected_s(18_000) == 7_800
    assert uptime([], now=0.0).expected_s(18_000) == 18_000


def test_the_share_of_commits_is_told() -> None:
    """Seconds in commits over the worker's life."""
    pace = Pace()
    pace.flush_done(1, 0.5)
    pace.flush_done(1, 1.5)
    assert pace.flush_share(40.0) == 0.05
