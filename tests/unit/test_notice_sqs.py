"""Whose messages are taken from a queue, whose are returned, and when ours are deleted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from batchq.clock import ManualClock, random_hex
from batchq.notice.ec2 import InstanceMetadata
from batchq.notice.metadata import MetadataService
from batchq.notice.sqs import SqsSource
from tests.conformance.notice_rigs import SqsRig
from tests.faults.metadata_server import MetadataServer
from tests.sqs import sqs_client, sqs_environment, sqs_server
from tests.stepped import SteppedClock, Watch

pytestmark = pytest.mark.usefixtures("patient_metadata")

REBALANCE = "EC2 Instance Rebalance Recommendation"

Watching = Callable[..., Watch]


@pytest.fixture(scope="module")
def sqs_url() -> Iterator[str]:
    """The address of the module's SQS."""
    with sqs_server() as url:
        yield url


@pytest.fixture
def server() -> Iterator[MetadataServer[ManualClock]]:
    """The machine whose messages are ours."""
    with MetadataServer(ManualClock()) as serving:
        yield serving


@pytest.fixture
def queue(
    server: MetadataServer[ManualClock], sqs_url: str, monkeypatch: pytest.MonkeyPatch
) -> SqsRig:
    """An empty queue, which the SDK finds through the environment."""
    for name, value in sqs_environment(sqs_url).items():
        monkeypatch.setenv(name, value)
    clock = SteppedClock(server.clock)
    return SqsRig(server, clock, sqs_client(sqs_url), f"notices-{random_hex(32)}")


@pytest.fixture
def ours(server: MetadataServer[ManualClock]) -> str:
    """This instance's id."""
    return server.ec2.instance_id


@pytest.fixture
def watch(queue: SqsRig, ours: str) -> Watching:
    """A watch on that queue."""

    def watch(**options: Any) -> Watch:
        given: dict[str, Any] = {"long_poll": 0, "uptime": lambda: 1e6} | options
        source = SqsSource(queue.url, lambda: ours, clock=queue.clock, **given)
        return Watch(source, queue.clock)

    return watch


def test_messages_about_others_are_returned_at_once(queue: SqsRig, watch: Watching) -> None:
    """They must reach theirs, and cost them no time."""
    queue.send("i-0aaaaaaaaaaaaaaaa")
    queue.send("i-0bbbbbbbbbbbbbbbb", about=REBALANCE)
    with watch() as watched:
        watched.polls(2)
        assert watched.heard.notices == []
        assert len(queue.visible()) == 2
    watched.source.close(drained=True)
    assert queue.total() == 2


def test_ours_is_found_among_others(queue: SqsRig, watch: Watching, ours: str) -> None:
    """It is hidden while the drain lasts, the others are not."""
    queue.send("i-0aaaaaaaaaaaaaaaa")
    queue.send(ours, action="stop")
    queue.send("i-0bbbbbbbbbbbbbbbb")
    with watch() as watched:
        watched.polls(2)
        assert watched.heard.only.action == "stop"
        assert len(queue.visible()) == 2
        assert queue.total() == 3


def test_ours_is_deleted_only_after_the_drain(queue: SqsRig, watch: Watching, ours: str) -> None:
    """Until then another process of this instance may need it."""
    queue.send(ours)
    with watch() as watched:
        watched.polls()
        assert queue.total() == 1
        watched.source.close(drained=True)
    assert queue.total() == 0


def test_without_a_drain_ours_stays(queue: SqsRig, watch: Watching, ours: str) -> None:
    """A worker that ended otherwise removes nothing."""
    queue.send(ours)
    with watch() as watched:
        watched.polls()
    assert watched.heard.only.drains
    assert queue.total() == 1


def test_an_event_delivered_twice_is_one_notice(queue: SqsRig, watch: Watching, ours: str) -> None:
    """And both messages are deleted."""
    for _ in range(2):
        queue.send(ours)
    with watch() as watched:
        watched.polls(3)
        watched.source.close(drained=True)
    assert watched.heard.only.action == "terminate"
    assert queue.total() == 0


def test_a_drain_with_more_messages_than_a_request_takes(
    queue: SqsRig, watch: Watching, ours: str
) -> None:
    """All are deleted, page by page."""
    for _ in range(23):
        queue.send(ours)
    with watch() as watched:
        watched.polls(5)
        watched.source.close(drained=True)
    assert queue.total() == 0


@pytest.mark.parametrize(("late", "left"), [(0, 120), (81, 39), (119, 1)])
def test_the_deadline_is_two_minutes_after_the_event(
    queue: SqsRig, watch: Watching, ours: str, late: int, left: int
) -> None:
    """Events have been seen as late as 39 seconds before the end."""
    queue.send(ours, ago=late)
    seen_at = queue.clock.monotonic()
    with watch() as watched:
        watched.polls()
    assert watched.heard.only.deadline == seen_at + left


def test_an_event_that_comes_after_the_end_gives_the_default_window(
    queue: SqsRig, watch: Watching, ours: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Something is odd about it, and the log says so."""
    queue.send(ours, ago=200)
    seen_at = queue.clock.monotonic()
    with watch(window=8.0) as watched:
        watched.polls()
    assert watched.heard.only.deadline == seen_at + 8.0
    assert "clock skew or stale notice" in caplog.text


def test_hibernation_leaves_no_two_minutes(queue: SqsRig, watch: Watching, ours: str) -> None:
    """It begins with its event."""
    queue.send(ours, action="hibernate")
    seen_at = queue.clock.monotonic()
    with watch() as watched:
        watched.polls()
    assert watched.heard.only.deadline == seen_at + 5


def test_an_event_from_before_the_boot_is_ignored_and_deleted(
    queue: SqsRig, watch: Watching, ours: str
) -> None:
    """It is about an earlier life of this instance, and nobody else wants it."""
    queue.send(ours, action="stop", ago=3600)
    with watch(uptime=lambda: 300) as watched:
        watched.polls()
    assert watched.heard.notices == []
    assert queue.total() == 0


def test_a_rebalance_recommendation_is_recorded_and_deleted(
    queue: SqsRig, watch: Watching, ours: str
) -> None:
    """No drain follows it, so there is nothing to wait for."""
    queue.send(ours, about=REBALANCE)
    with watch() as watched:
        watched.polls(2)
    assert watched.heard.only.action == "rebalance"
    assert not watched.heard.only.drains
    assert queue.total() == 0


def test_a_rebalance_recommendation_that_drains_is_kept_until_then(
    queue: SqsRig, watch: Watching, ours: str
) -> None:
    """As a warning is."""
    queue.send(ours, about=REBALANCE)
    with watch(rebalance=True) as watched:
        watched.polls(2)
        assert watched.heard.only.drains
        assert queue.total() == 1
        watched.source.close(drained=True)
    assert queue.total() == 0


@pytest.mark.parametrize("body", ["hello", "[1]", '{"detail-type": 3}', "{}"])
def test_what_is_no_event_is_returned(queue: SqsRig, watch: Watching, body: str) -> None:
    """The queue may carry what others understand."""
    queue.send_text(body)
    with watch() as watched:
        watched.polls(2)
        assert queue.visible() == [body]
    assert watched.heard.notices == []


def test_events_of_another_kind_about_us_are_returned(
    queue: SqsRig, watch: Watching, ours: str
) -> None:
    """They are for whoever asked for them."""
    queue.send(ours, about="EC2 Instance State-change Notification")
    with watch() as watched:
        watched.polls(2)
        assert len(queue.visible()) == 1
    assert watched.heard.notices == []


def test_what_arrives_after_the_close_is_returned(
    queue: SqsRig, watch: Watching, ours: str
) -> None:
    """A request that was under way may still bring a message of ours."""
    queue.send(ours)
    watched = watch()
    closing = SqsSource(
        queue.url, lambda: _close(closing, ours), clock=queue.clock, uptime=lambda: 1e6, long_poll=0
    )
    watched.source = closing
    with watched:
        watched.polls()
    assert watched.heard.notices == []
    assert len(queue.visible()) == 1


def _close(source: SqsSource, instance_id: str) -> str:
    source.close()
    return instance_id


def test_the_instance_finds_its_own_id(
    queue: SqsRig, server: MetadataServer[ManualClock], ours: str
) -> None:
    """From its metadata, again and again until there is an answer."""
    server.fail(503, times=1)
    queue.send(ours)
    metadata = InstanceMetadata(MetadataService(server.url, "test"), queue.clock)
    source = SqsSource(
        queue.url, metadata.instance_id, clock=queue.clock, uptime=lambda: 1e6, long_poll=0
    )
    with Watch(source, queue.clock) as watched:
        watched.polls()
        assert watched.heard.notices == []
        watched.polls()
    assert watched.heard.only.action == "terminate"


def test_missing_rights_are_named(
    queue: SqsRig,
    watch: Watching,
    server: MetadataServer[ManualClock],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once, with what to grant; the worker goes on."""
    caplog.set_level(logging.WARNING, "batchq.notice")
    denied = '{"__type": "com.amazonaws.sqs#AccessDeniedException", "message": "not authorized"}'
    server.fail(403, path="/", body=denied)
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", server.url)
    with watch() as watched:
        watched.polls(2)
    [line] = caplog.messages
    assert "sqs:ReceiveMessage, sqs:ChangeMessageVisibility and sqs:DeleteMessage" in line


def test_the_description_names_the_queue(queue: SqsRig, watch: Watching) -> None:
    """And neither the account nor the rest of the address."""
    said = watch().source.describe()
    assert queue.url.rsplit("/", 1)[1] in said
    assert "://" not in said
