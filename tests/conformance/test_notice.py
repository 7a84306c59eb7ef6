"""What every notice source promises, asked of each."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from batchq.clock import ManualClock, SystemClock, random_hex
from batchq.notice import sqs
from batchq.notice.base import Notice, NoticeSource
from batchq.worker.drain import Drain
from tests.conformance.notice_rigs import (
    AzureRig,
    Ec2Rig,
    GcpRig,
    Rig,
    SignalRig,
    SqsRig,
)
from tests.faults.metadata_server import MetadataServer
from tests.sqs import sqs_client, sqs_environment, sqs_server
from tests.stepped import Heard, SteppedClock

POLLED = ("ec2", "sqs", "gcp", "azure")
KINDS = (*POLLED, "signals")


@pytest.fixture(scope="module")
def sqs_url() -> Iterator[str]:
    """The address of the module's SQS."""
    with sqs_server() as url:
        yield url


@pytest.fixture
def server() -> Iterator[MetadataServer[ManualClock]]:
    """The metadata services of a machine."""
    with MetadataServer(ManualClock()) as serving:
        yield serving


@pytest.fixture
def build(
    server: MetadataServer[ManualClock], request: pytest.FixtureRequest
) -> Callable[[str], Rig]:
    """A rig for a platform by its name; all share the machine and its time."""

    def build(kind: str) -> Rig:
        clock = SteppedClock(server.clock)
        if kind == "signals":
            return SignalRig(clock)
        if kind == "sqs":
            url = request.getfixturevalue("sqs_url")
            monkeypatch = request.getfixturevalue("monkeypatch")
            for name, value in sqs_environment(url).items():
                monkeypatch.setenv(name, value)
            # Whoever shares the cores with the server makes it slow, and not broken.
            monkeypatch.setattr(sqs, "QUICK_S", 120)
            return SqsRig(server, clock, sqs_client(url), f"notices-{random_hex(32)}")
        polled: dict[str, type[Ec2Rig | GcpRig | AzureRig]] = {
            "ec2": Ec2Rig,
            "gcp": GcpRig,
            "azure": AzureRig,
        }
        return polled[kind](server, clock)

    return build


@pytest.fixture(params=KINDS)
def rig(request: pytest.FixtureRequest, build: Callable[[str], Rig]) -> Rig:
    """Each platform in turn, with nothing to announce yet."""
    return build(request.param)


@contextmanager
def watching(
    rig: Rig, report: Callable[[Notice], object], window: float | None = None
) -> Iterator[NoticeSource]:
    source = rig.source(window)
    source.watch(report)
    try:
        yield source
    finally:
        source.close()


def test_a_quiet_platform_says_nothing(rig: Rig) -> None:
    """No notice, however often it is asked."""
    heard = Heard()
    with watching(rig, heard):
        rig.polls(5)
    assert heard.notices == []


def test_a_notice_says_who_announced_it_and_by_when(rig: Rig) -> None:
    """It drains, it names its source, and its deadline is ahead but not too far."""
    heard = Heard()
    with watching(rig, heard) as source:
        rig.polls()
        rig.announce()
        before = rig.clock.monotonic()
        rig.polls(2)
    [notice] = heard.notices
    assert notice.drains
    assert notice.source == source.name == rig.name
    assert notice.kind
    assert notice.action
    assert notice.deadline is None or before < notice.deadline <= before + rig.longest


def test_a_notice_is_reported_once_and_its_first_deadline_stands(rig: Rig) -> None:
    """What the platform repeats, with a time that has moved, is the same notice."""
    heard = Heard()
    with watching(rig, heard):
        rig.announce()
        rig.polls(2)
        for _ in range(4):
            rig.clock.advance(3)
            rig.announce()
            rig.polls(2)
    assert len(heard.notices) == 1


def test_a_platform_that_breaks_down_and_comes_back_is_still_heard(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """Errors end no watch, and the same error is logged once."""
    heard = Heard()
    with watching(rig, heard), caplog.at_level(logging.INFO, "batchq.notice"):
        rig.polls()
        rig.break_down()
        rig.polls(6)
        assert heard.notices == []
        rig.mend()
        rig.announce()
        rig.polls(2)
    assert len(heard.notices) == 1
    warnings = [line for line in caplog.messages if line.startswith(f"{rig.name}: ")]
    assert len(set(warnings)) == len(warnings)


@pytest.mark.parametrize("rig", POLLED, indirect=True)
def test_a_broken_platform_is_asked_less_often(rig: Rig) -> None:
    """Pauses grow up to a limit, and begin anew after an answer."""
    with watching(rig, Heard()):
        rig.polls()
        rig.break_down()
        pauses = []
        for _ in range(8):
            before = rig.clock.monotonic()
            rig.polls()
            pauses.append(rig.clock.monotonic() - before)
        rig.mend()
        rig.polls()
        rig.break_down()
        before = rig.clock.monotonic()
        rig.polls()
        after_recovery = rig.clock.monotonic() - before
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[-1] == 20.0
    assert after_recovery == pauses[0]


@pytest.mark.parametrize("rig", POLLED, indirect=True)
def test_a_report_that_fails_is_made_again(rig: Rig) -> None:
    """An error of whoever listens ends no watch and loses no notice."""
    heard = Heard()

    def fail_once(notice: Notice) -> None:
        heard(notice)
        if len(heard.notices) == 1:
            raise RuntimeError("the listener is broken")

    with watching(rig, fail_once):
        rig.announce()
        rig.polls(2)
        rig.announce()
        rig.polls(2)
    assert len(heard.notices) == 2
    assert heard.notices[0].action == heard.notices[1].action


def test_after_the_close_nothing_is_reported(rig: Rig) -> None:
    """Even if the platform announces the end right then."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        heard = Heard()
        with watching(rig, heard):
            rig.polls()
        rig.announce()
        assert heard.notices == []
        for thread in _threads(rig.name):
            thread.join(120)
            assert not thread.is_alive()
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("drained", [False, True])
def test_closing_is_harmless_at_any_time(rig: Rig, drained: bool) -> None:
    """Before the watch began, twice, and where nothing was announced."""
    rig.source().close(drained=drained)
    with watching(rig, Heard()) as source:
        rig.polls()
        source.close(drained=drained)
        source.close(drained=drained)


@pytest.mark.parametrize("rig", POLLED, indirect=True)
def test_a_watch_keeps_no_process_alive(rig: Rig) -> None:
    """Its thread is a daemon: a worker that is done does not wait for a platform."""
    with watching(rig, Heard()):
        rig.polls()
        [thread] = _threads(rig.name)
        assert thread.daemon


def test_a_source_describes_itself_in_one_line(rig: Rig) -> None:
    """Its name first, and a window: this is what `started` and `status` show."""
    said = rig.source(window=17).describe()
    assert said.startswith(f"{rig.name}: ")
    assert "\n" not in said
    assert "ahead" in said


def test_all_sources_at_once_start_one_drain(build: Callable[[str], Rig]) -> None:
    """The first notice counts; the other platforms' repeats change nothing."""
    rigs = [build(kind) for kind in KINDS]
    drain = Drain(SystemClock())
    began = []
    sources = [rig.source() for rig in rigs]
    for source in sources:
        source.watch(lambda notice: began.append((drain.begin(notice), notice.source)))
    try:
        for rig in rigs:
            rig.announce()
            rig.polls(2)
    finally:
        for source in sources:
            source.close(drained=True)
    assert [source for _, source in began] == list(KINDS)
    assert [first for first, _ in began] == [True, False, False, False, False]
    assert drain.notice is not None
    assert drain.notice.source == "ec2"


def _threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == f"notice-{name}"]
