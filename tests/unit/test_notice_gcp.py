"""GCP's metadata server as batchq reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from batchq.clock import ManualClock
from batchq.notice.gcp import GcpSource
from batchq.notice.metadata import MetadataService
from tests.faults.metadata_server import MetadataServer
from tests.stepped import SteppedClock, Watch

pytestmark = pytest.mark.usefixtures("patient_metadata")

PREEMPTED = "/computeMetadata/v1/instance/preempted"
MAINTENANCE = "/computeMetadata/v1/instance/maintenance-event"

Server = MetadataServer[ManualClock]
Watching = Callable[..., Watch]


@pytest.fixture
def server() -> Iterator[Server]:
    """A machine on GCP."""
    with MetadataServer(ManualClock()) as serving:
        yield serving


@pytest.fixture
def watch(server: Server) -> Watching:
    """A watch on that machine."""

    def watch(**options: Any) -> Watch:
        clock = SteppedClock(server.clock)
        return Watch(GcpSource(MetadataService(server.url, "test"), clock=clock, **options), clock)

    return watch


@pytest.mark.parametrize(("window", "expected"), [(None, 30.0), (12.0, 12.0)])
def test_preemption_leaves_thirty_seconds_or_what_the_settings_say(
    server: Server, watch: Watching, window: float | None, expected: float
) -> None:
    """It names no time itself."""
    with watch(window=window) as watched:
        watched.polls(3)
        assert watched.heard.notices == []
        server.gcp.preempt()
        seen_at = server.clock.monotonic()
        watched.polls(3)
    notice = watched.heard.only
    assert (notice.kind, notice.action, notice.drains) == ("spot", "terminate", True)
    assert notice.deadline == seen_at + expected


def test_it_is_asked_every_second(server: Server, watch: Watching) -> None:
    """Five seconds would be a sixth of the window."""
    begin = server.clock.monotonic()
    with watch() as watched:
        watched.polls(10)
    assert server.clock.monotonic() - begin == 10


def test_another_server_at_that_address_is_not_believed(
    server: Server, watch: Watching, caplog: pytest.LogCaptureFixture
) -> None:
    """What does not carry Google's header is a proxy or a portal."""
    server.fail(200, path=PREEMPTED, body="TRUE")
    with watch() as watched:
        watched.polls(2)
    assert watched.heard.notices == []
    [line] = caplog.messages
    assert "not a Google metadata server" in line


def test_an_answer_that_is_neither_true_nor_false_is_no_notice(
    server: Server, watch: Watching, caplog: pytest.LogCaptureFixture
) -> None:
    """Said once, by name."""
    server.gcp.values["instance/preempted"] = "PERHAPS"
    with watch() as watched:
        watched.polls(2)
    assert watched.heard.notices == []
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("what", ["TERMINATE", "MIGRATE"])
def test_host_maintenance_is_recorded(server: Server, watch: Watching, what: str) -> None:
    """It comes an hour later, so no drain yet."""
    server.gcp.maintain(f"{what}_ON_HOST_MAINTENANCE")
    with watch() as watched:
        watched.polls(3)
    assert watched.heard.only.kind == "maintenance"
    assert watched.heard.only.action == what.lower()
    assert not watched.heard.only.drains


def test_a_server_that_hides_maintenance_still_tells_of_preemption(
    server: Server, watch: Watching
) -> None:
    """And is asked as often as any other."""
    server.fail(403, path=MAINTENANCE)
    begin = server.clock.monotonic()
    with watch() as watched:
        watched.polls(3)
        assert server.clock.monotonic() - begin == 3
        server.gcp.preempt()
        watched.polls()
    assert watched.heard.only.action == "terminate"
