"""The clocks, the random digits and the lease tokens made of them."""

from __future__ import annotations

import string
import threading
import time

from batchq.clock import ManualClock, SystemClock, random_fraction, random_hex
from batchq.lease import new_token


def test_the_system_clock_shows_the_machines_time() -> None:
    """Seconds since 1970 on one side, seconds that never go back on the other."""
    clock = SystemClock()
    assert abs(clock.now() - time.time()) < 5
    readings = [clock.monotonic() for _ in range(1_000)]
    assert readings == sorted(readings)


def test_the_system_clock_waits_for_an_event_or_the_time() -> None:
    """True at once when the event is set; false when the time is over, or negative."""
    clock, event = SystemClock(), threading.Event()
    assert not clock.wait(event, 0.001)
    assert not clock.wait(event, -5.0)
    event.set()
    assert clock.wait(event, 60.0)


def test_a_manual_clock_stands_still() -> None:
    """Until it is told to move."""
    clock = ManualClock(now=100.0, monotonic=10.0)
    assert [(clock.now(), clock.monotonic()) for _ in range(3)] == [(100.0, 10.0)] * 3


def test_advancing_moves_both_clocks_and_jumping_one() -> None:
    """Time passes for both; a wrong time server fools only the wall clock."""
    clock = ManualClock(now=100.0, monotonic=10.0)
    clock.advance(5)
    assert (clock.now(), clock.monotonic()) == (105.0, 15.0)
    clock.jump(-86_400)
    assert (clock.now(), clock.monotonic()) == (105.0 - 86_400, 15.0)


def test_waiting_on_a_manual_clock_takes_no_time() -> None:
    """It passes on the clock, and says whether the event was set."""
    clock, event = ManualClock(now=0.0, monotonic=0.0), threading.Event()
    assert not clock.wait(event, 3_600)
    assert clock.monotonic() == 3_600
    event.set()
    assert clock.wait(event, -1)
    assert clock.monotonic() == 3_600


def test_a_manual_clock_loses_no_step_among_threads() -> None:
    """Eight threads advance it a thousand times each."""
    clock = ManualClock(now=0.0, monotonic=0.0)

    def advance() -> None:
        for _ in range(1_000):
            clock.advance(1)

    threads = [threading.Thread(target=advance) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (clock.now(), clock.monotonic()) == (8_000, 8_000)


def test_random_digits_have_the_width_that_was_asked_for() -> None:
    """A hex digit for four bits."""
    assert [len(random_hex(bits)) for bits in (32, 64, 128)] == [8, 16, 32]
    assert set(random_hex(1024)) <= set(string.hexdigits.lower())


def test_tokens_do_not_repeat() -> None:
    """128 bits each: among ten thousand there are no two alike."""
    tokens = {new_token() for _ in range(10_000)}
    assert len(tokens) == 10_000
    assert {len(token) for token in tokens} == {32}


def test_random_fractions_lie_below_one_and_spread() -> None:
    """Jitter between nothing and everything."""
    fractions = [random_fraction() for _ in range(1_000)]
    assert all(0 <= f < 1 for f in fractions)
    assert min(fractions) < 0.1
    assert max(fractions) > 0.9
