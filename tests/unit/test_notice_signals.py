"""Signals as notices, sent to this very process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from batchq.clock import ManualClock
from batchq.errors import BatchqError, ExitCode
from batchq.notice.signals import WATCHED, SignalSource
from tests.stepped import Heard


@pytest.fixture
def heard() -> Iterator[Heard]:
    """What is reported; whatever happens, the process keeps its own handlers.

    The tests themselves may have been started by nohup.
    """
    before = {number: signal.getsignal(number) for number in WATCHED}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield Heard()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", WATCHED)
def test_each_signal_is_a_notice_by_its_name(heard: Heard, number: signal.Signals) -> None:
    """Without a window its deadline is left open."""
    source = SignalSource()
    source.watch(heard)
    signal.raise_signal(number)
    source.close()
    assert (heard.only.kind, heard.only.action) == ("signal", number.name)
    assert heard.only.deadline is None
    assert heard.only.drains


def test_a_rehearsal_says_that_it_is_one(heard: Heard) -> None:
    """SIGUSR1 drains like any other notice; whoever reads of it must not look for a cause."""
    source = SignalSource()
    source.watch(heard)
    signal.raise_signal(signal.SIGUSR1)
    source.close()
    assert heard.only.detail == "a rehearsal"


def test_a_worker_under_nohup_outlives_its_terminal(heard: Heard) -> None:
    """What ignores SIGHUP from its start was told to."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    source = SignalSource()
    source.take_process()
    source.watch(heard)
    signal.raise_signal(signal.SIGHUP)
    source.close()
    assert heard.notices == []
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_the_window_runs_from_the_signal(heard: Heard) -> None:
    """Not from the start of the watch."""
    clock = ManualClock()
    source = SignalSource(clock=clock, window=30.0)
    source.watch(heard)
    clock.advance(100)
    signal.raise_signal(signal.SIGTERM)
    source.close()
    assert heard.only.deadline == clock.monotonic() + 30


def test_mixed_and_repeated_signals_are_one_notice_each(heard: Heard) -> None:
    """A scheduler that sends SIGTERM every second changes nothing."""
    source = SignalSource()
    source.watch(heard)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        signal.raise_signal(number)
    source.close()
    assert [notice.action for notice in heard.notices] == ["SIGTERM", "SIGUSR1", "SIGINT"]


def test_a_second_ctrl_c_ends_it(heard: Heard) -> None:
    """The person at the keyboard will not wait."""
    source = SignalSource()
    source.watch(heard)
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    source.close()


def test_the_signals_are_given_back(heard: Heard) -> None:
    """To the handlers that had them before."""
    theirs = Heard()
    signal.signal(signal.SIGUSR1, lambda number, frame: theirs.notices.clear())
    before = signal.getsignal(signal.SIGUSR1)
    source = SignalSource()
    source.watch(heard)
    assert signal.getsignal(signal.SIGUSR1) != before
    source.close()
    assert signal.getsignal(signal.SIGUSR1) == before


def test_a_process_that_took_its_signals_is_ended_in_order_before_the_watch(heard: Heard) -> None:
    """There is nothing to drain yet; afterwards a late one changes nothing."""
    at_once = set(WATCHED) - {signal.SIGINT}
    source = SignalSource()
    source.take_process()
    for number in at_once:
        with pytest.raises(SystemExit) as ended:
            signal.raise_signal(number)
        assert ended.value.code == ExitCode.STOPPED
    source.watch(heard)
    signal.raise_signal(signal.SIGTERM)
    source.close()
    for number in WATCHED:
        signal.raise_signal(number)
    assert heard.only.action == "SIGTERM"


def test_a_forked_process_ends_by_its_signals_as_any_other(heard: Heard) -> None:
    """A pool of processes ends its own with SIGTERM, and waits until they have gone."""
    source = SignalSource()
    source.take_process()
    source.watch(heard)
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(tell, b".")
        signal.alarm(120)
        signal.pause()
        os._exit(0)
    os.read(ready, 1)
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    source.close()
    assert (os.WIFSIGNALED(status), os.WTERMSIG(status)) == (True, signal.SIGTERM)
    assert heard.notices == []


def test_only_the_main_thread_may_watch(heard: Heard) -> None:
    """Python delivers signals to no other."""
    errors: list[Exception] = []

    def watch() -> None:
        try:
            SignalSource().watch(heard)
        except BatchqError as error:
            errors.append(error)

    thread = threading.Thread(target=watch)
    thread.start()
    thread.join()
    assert "main thread" in str(errors[0])


def test_the_description_names_the_platform_and_its_window() -> None:
    """Where it is known who will send SIGTERM."""
    said = SignalSource(window=30.0, platform="Kubernetes").describe()
    assert said == "signals: SIGTERM, SIGINT, SIGUSR1, SIGHUP from Kubernetes, 30 s ahead"
    assert SignalSource().describe().endswith(", 25 s ahead")
