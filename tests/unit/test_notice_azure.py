"""Azure's scheduled events as batchq reads them, and never acknowledges them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from batchq.clock import ManualClock
from batchq.notice.azure import AzureSource
from batchq.notice.metadata import MetadataService
from tests.faults.metadata_server import MetadataServer
from tests.stepped import SteppedClock, Watch

pytestmark = pytest.mark.usefixtures("patient_metadata")

EVENTS = "/metadata/scheduledevents"
NAME = "/metadata/instance/compute/name"

Server = MetadataServer[ManualClock]
Watching = Callable[..., Watch]


@pytest.fixture
def server() -> Iterator[Server]:
    """One machine of a scale set."""
    with MetadataServer(ManualClock()) as serving:
        yield serving


@pytest.fixture
def watch(server: Server) -> Watching:
    """A watch on that machine."""

    def watch(**options: Any) -> Watch:
        clock = SteppedClock(server.clock)
        service = MetadataService(server.url, "test")
        return Watch(AzureSource(service, clock=clock, **options), clock)

    return watch


@pytest.mark.parametrize(
    ("what", "ahead", "kind"), [("Preempt", 30, "spot"), ("Terminate", 300, "scheduled")]
)
def test_preemption_and_deletion_drain_by_the_stated_time(
    server: Server, watch: Watching, what: str, ahead: int, kind: str
) -> None:
    """The first warns half a minute ahead, the second up to a quarter of an hour."""
    server.azure.schedule(what, ahead=ahead)
    seen_at = server.clock.monotonic()
    with watch() as watched:
        watched.polls(3)
    notice = watched.heard.only
    assert (notice.kind, notice.action, notice.drains) == (kind, "terminate", True)
    assert notice.deadline == seen_at + ahead


def test_events_of_other_machines_are_none_of_ours(server: Server, watch: Watching) -> None:
    """All machines of a scale set are told of all."""
    server.azure.schedule("Preempt", machine="scaleset_1")
    with watch() as watched:
        watched.polls(2)
        assert watched.heard.notices == []
        server.azure.schedule("Preempt")
        watched.polls()
    assert len(watched.heard.notices) == 1


def test_an_event_that_starts_is_the_same_notice(server: Server, watch: Watching) -> None:
    """Its time goes blank then; the first deadline stands."""
    event = server.azure.schedule("Preempt", ahead=40)
    seen_at = server.clock.monotonic()
    with watch() as watched:
        watched.polls()
        server.azure.start(event)
        watched.polls(2)
    assert watched.heard.only.deadline == seen_at + 40


@pytest.mark.parametrize("not_before", ["", "sometime", "Mon, 19 Sep 2016 18:29:47 GMT"])
def test_a_time_that_is_blank_or_wrong_gives_the_default_window(
    server: Server, watch: Watching, not_before: str
) -> None:
    """Blank is how an event looks that is under way."""
    server.azure.schedule("Preempt", not_before=not_before)
    seen_at = server.clock.monotonic()
    with watch(window=9.0) as watched:
        watched.polls()
    assert watched.heard.only.deadline == seen_at + 9.0


def test_an_event_without_a_usable_id_is_still_one_notice(server: Server, watch: Watching) -> None:
    """Whatever stands in its place."""
    server.azure.schedule("Preempt")
    server.azure.events[0]["EventId"] = ["odd"]
    with watch() as watched:
        watched.polls(3)
    assert len(watched.heard.notices) == 1


@pytest.mark.parametrize("what", ["Freeze", "Reboot", "Redeploy"])
def test_maintenance_is_recorded(server: Server, watch: Watching, what: str) -> None:
    """A pause of seconds, or an appointment in minutes: no drain."""
    server.azure.schedule(what, ahead=900)
    with watch() as watched:
        watched.polls(2)
    assert (watched.heard.only.kind, watched.heard.only.action) == ("maintenance", what.lower())
    assert not watched.heard.only.drains


def test_nothing_is_ever_acknowledged(server: Server, watch: Watching) -> None:
    """That would bring the end forward."""
    event = server.azure.schedule("Preempt")
    with watch() as watched:
        watched.polls(2)
        server.azure.start(event)
        watched.polls()
    watched.source.close(drained=True)
    assert {request.method for request in server.requests} == {"GET"}
    assert server.azure.acknowledged == []


def test_without_this_machines_name_no_event_can_be_ours(
    server: Server, watch: Watching, caplog: pytest.LogCaptureFixture
) -> None:
    """It is asked for again until it is known."""
    server.azure.schedule("Preempt")
    server.fail(404, path=NAME)
    with watch() as watched:
        watched.polls(2)
        assert watched.heard.notices == []
        server.mend()
        watched.polls(2)
    assert len(watched.heard.notices) == 1
    assert len(server.asked(NAME)) == 3
    assert len(caplog.messages) == 1


def test_the_first_answer_may_take_its_time(server: Server, watch: Watching) -> None:
    """The first request switches the service on, which has taken minutes."""
    server.azure.schedule("Preempt")
    server.delay(1.3, path=EVENTS, times=1)
    with watch() as watched:
        watched.polls()
    assert len(watched.heard.notices) == 1


@pytest.mark.parametrize("body", ["[]", "{}", '{"Events": 3}', "<html/>"])
def test_what_is_no_list_of_events_is_no_notice(
    server: Server, watch: Watching, caplog: pytest.LogCaptureFixture, body: str
) -> None:
    """Complained about once."""
    server.fail(200, path=EVENTS, body=body)
    with watch() as watched:
        watched.polls(2)
    assert watched.heard.notices == []
    assert len(caplog.messages) == 1
