"""EC2's metadata as batchq reads it: tokens, deadlines, and what counts as the end."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from batchq.clock import ManualClock
from batchq.notice.ec2 import Ec2Source
from batchq.notice.metadata import ANSWER_S, MetadataService
from tests.faults.metadata_server import MetadataServer
from tests.stepped import SteppedClock, Watch

pytestmark = pytest.mark.usefixtures("patient_metadata")

TOKEN = "/latest/api/token"
SPOT = "/latest/meta-data/spot/instance-action"
LIFECYCLE = "/latest/meta-data/autoscaling/target-lifecycle-state"

Server = MetadataServer[ManualClock]
Watching = Callable[..., Watch]


@pytest.fixture
def server() -> Iterator[Server]:
    """A machine on EC2."""
    with MetadataServer(ManualClock()) as serving:
        yield serving


@pytest.fixture
def watch(server: Server) -> Watching:
    """A watch on that machine, which booted long ago unless a test says otherwise."""

    def watch(**options: Any) -> Watch:
        clock = SteppedClock(server.clock)
        given = {"uptime": lambda: 1e6} | options
        return Watch(Ec2Source(MetadataService(server.url, "test"), clock=clock, **given), clock)

    return watch


# -- deadlines -------------------------------------------------------------------


@pytest.mark.parametrize("action", ["terminate", "stop"])
@pytest.mark.parametrize("ahead", [1, 60, 119])
def test_the_deadline_is_as_far_ahead_as_the_stated_time(
    server: Server, watch: Watching, action: str, ahead: int
) -> None:
    """Carried from EC2's wall clock to this machine's monotonic one."""
    server.ec2.interrupt(action, ahead=ahead)
    seen_at = server.clock.monotonic()
    with watch() as watched:
        watched.polls()
    assert (watched.heard.only.kind, watched.heard.only.action) == ("spot", action)
    assert watched.heard.only.deadline == seen_at + ahead


def test_a_time_a_little_too_far_ahead_is_cut_to_two_minutes(
    server: Server, watch: Watching
) -> None:
    """EC2 calls its time approximate, and never warns earlier."""
    server.ec2.interrupt("terminate", ahead=127)
    seen_at = server.clock.monotonic()
    with watch() as watched:
        watched.polls()
    assert watched.heard.only.deadline == seen_at + 120


@pytest.mark.parametrize(
    "stated",
    [
        pytest.param({"ahead": 0}, id="now"),
        pytest.param({"ahead": -30}, id="past"),
        pytest.param({"ahead": 86_400}, id="a day ahead"),
        pytest.param({"time": ""}, id="blank"),
        pytest.param({"time": "soon"}, id="unparsable"),
        pytest.param({"time": None}, id="null"),
        pytest.param({"time": [1]}, id="a list"),
        pytest.param({"time": "9999-99-99T99:99:99Z"}, id="no such day"),
    ],
)
@pytest.mark.parametrize("window", [None, 17.0])
def test_a_time_that_cannot_be_right_gives_the_default_window(
    server: Server,
    watch: Watching,
    caplog: pytest.LogCaptureFixture,
    stated: dict[str, Any],
    window: float | None,
) -> None:
    """It is a notice all the same, and the log says what is odd about it, once."""
    server.ec2.interrupt("terminate", **stated)
    seen_at = server.clock.monotonic()
    with watch(window=window) as watched:
        watched.polls(3)
    expected = None if window is None else seen_at + window
    assert watched.heard.only.deadline == expected
    assert [line for line in caplog.messages if "clock skew or stale notice" in line] == [
        line for line in caplog.messages if line.startswith("ec2: ")
    ]
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("skew", [-86_400, 86_400])
def test_a_clock_off_by_a_day_gives_the_default_window(
    server: Server, watch: Watching, skew: int
) -> None:
    """The platform's time and ours then have nothing to do with each other."""
    with watch(window=17.0) as watched:
        watched.polls()
        server.ec2.interrupt("terminate")
        server.clock.jump(skew)
        seen_at = server.clock.monotonic()
        watched.polls()
    assert watched.heard.only.deadline == seen_at + 17.0


def test_hibernation_leaves_no_two_minutes(server: Server, watch: Watching) -> None:
    """It begins with its notice, whatever the time says."""
    server.ec2.interrupt("hibernate", ahead=120)
    seen_at = server.clock.monotonic()
    with watch() as watched:
        watched.polls()
    assert watched.heard.only.action == "hibernate"
    assert watched.heard.only.deadline == seen_at + 5


def test_a_time_that_slides_is_one_notice_with_its_first_deadline(
    server: Server, watch: Watching
) -> None:
    """The public mock states two minutes from whenever it is asked."""
    server.ec2.interrupt("terminate", sliding=True)
    seen_at = server.clock.monotonic()
    with watch() as watched:
        watched.polls(10)
    assert server.clock.monotonic() > seen_at + 40
    assert watched.heard.only.deadline == seen_at + 120


def test_a_notice_is_seen_within_one_interval(server: Server, watch: Watching) -> None:
    """Asked every 5 s, or as often as the settings say."""
    planned = server.clock.monotonic() + 32
    server.at(32, lambda: server.ec2.interrupt("terminate"))
    with watch() as watched:
        while not watched.heard.notices:
            watched.polls()
    assert watched.heard.only.deadline == planned + 120
    # The last poll was followed by one more pause.
    assert server.clock.monotonic() <= planned + 5 + 5


# -- what counts as the end ------------------------------------------------------


def test_two_actions_are_two_notices(server: Server, watch: Watching) -> None:
    """A stop that becomes a termination is told."""
    server.ec2.interrupt("stop")
    with watch() as watched:
        watched.polls()
        server.ec2.interrupt("terminate")
        watched.polls()
    assert [notice.action for notice in watched.heard.notices] == ["stop", "terminate"]


@pytest.mark.parametrize(
    "body", ["", "<html>Sign in</html>", "[]", '{"time": "x"}', '{"action": 1}']
)
def test_what_is_no_document_is_no_notice(
    server: Server, watch: Watching, caplog: pytest.LogCaptureFixture, body: str
) -> None:
    """A page of a captive portal drains nobody, and is complained about once."""
    server.fail(200, path=SPOT, body=body)
    with watch() as watched:
        watched.polls(3)
    assert watched.heard.notices == []
    assert len(caplog.messages) == 1


def test_the_older_path_counts_where_the_newer_is_empty(server: Server, watch: Watching) -> None:
    """`termination-time` alone announces a termination."""
    server.ec2.interrupt_legacy(ahead=90)
    seen_at = server.clock.monotonic()
    with watch() as watched:
        watched.polls(3)
    assert watched.heard.only.action == "terminate"
    assert watched.heard.only.deadline == seen_at + 90


@pytest.mark.parametrize(
    "legacy",
    [{"text": ""}, {"text": "not yet"}, {"text": "2015-01-05T18:02:00Z"}, {"ahead": -30}],
)
def test_the_older_path_without_a_time_ahead_means_nothing(
    server: Server, watch: Watching, legacy: dict[str, Any]
) -> None:
    """It is known to hold no time, or a past one."""
    server.ec2.interrupt_legacy(**legacy)
    with watch() as watched:
        watched.polls(3)
    assert watched.heard.notices == []


def test_both_paths_announce_one_termination(server: Server, watch: Watching) -> None:
    """They are the same notice, in either order."""
    server.ec2.interrupt_legacy()
    with watch() as watched:
        watched.polls()
        server.ec2.interrupt("terminate")
        watched.polls()
    assert watched.heard.only.action == "terminate"


@pytest.mark.parametrize(
    ("state", "action"),
    [
        ("Terminated", "terminate"),
        ("Warmed:Terminated", "terminate"),
        ("Warmed:Stopped", "stop"),
        ("Warmed:Hibernated", "hibernate"),
    ],
)
def test_auto_scaling_that_takes_the_instance_out_is_a_notice(
    server: Server, watch: Watching, state: str, action: str
) -> None:
    """Its target state names no time."""
    server.ec2.set_lifecycle("InService")
    with watch(window=17.0) as watched:
        watched.polls()
        assert watched.heard.notices == []
        server.ec2.set_lifecycle(state)
        watched.polls(2)
    notice = watched.heard.only
    assert (notice.kind, notice.action, notice.drains) == ("autoscaling", action, True)
    assert state in notice.detail


@pytest.mark.parametrize("state", ["InService", "Standby", "Detached", "Warmed:Running"])
def test_auto_scaling_that_keeps_the_instance_is_none(
    server: Server, watch: Watching, state: str
) -> None:
    """Standby and detached instances go on running."""
    server.ec2.set_lifecycle(state)
    with watch() as watched:
        watched.polls(2)
    assert watched.heard.notices == []


@pytest.mark.parametrize("drains", [False, True])
def test_a_rebalance_recommendation_drains_only_if_asked_to(
    server: Server, watch: Watching, drains: bool
) -> None:
    """It is a risk, not an end; recorded in any case."""
    server.ec2.recommend_rebalance()
    with watch(rebalance=drains) as watched:
        watched.polls(3)
    assert watched.heard.only.action == "rebalance"
    assert watched.heard.only.drains is drains


def test_scheduled_maintenance_is_recorded(server: Server, watch: Watching) -> None:
    """Each event once, with its date, and without a drain."""
    server.ec2.schedule_maintenance("system-reboot")
    with watch() as watched:
        watched.polls(2)
        server.ec2.schedule_maintenance("instance-retirement", number=2)
        watched.polls(2)
    reboot, retirement = watched.heard.notices
    assert (reboot.kind, reboot.action) == ("maintenance", "system-reboot")
    assert retirement.action == "instance-retirement"
    assert not reboot.drains
    assert not retirement.drains
    assert reboot.detail.startswith("not before ")
    assert reboot.detail.endswith(" GMT")


@pytest.mark.parametrize("state", ["completed", "canceled"])
def test_maintenance_that_is_over_is_not_told(server: Server, watch: Watching, state: str) -> None:
    """The list keeps events for a while after they have ended."""
    server.ec2.schedule_maintenance("system-reboot", state=state)
    with watch() as watched:
        watched.polls()
    assert watched.heard.notices == []


# -- a notice outlives a reboot --------------------------------------------------


def test_a_false_alarm_does_not_stop_the_next_worker(server: Server, watch: Watching) -> None:
    """Its time has long passed and the machine is still there; the next notice counts."""
    server.ec2.interrupt("terminate", ahead=-400)
    with watch() as watched:
        watched.polls(3)
        assert watched.heard.notices == []
        server.ec2.interrupt("terminate", ahead=100)
        watched.polls()
    assert watched.heard.only.action == "terminate"


def test_a_clock_that_is_ahead_hides_no_notice_that_appears(
    server: Server, watch: Watching
) -> None:
    """What came while somebody watched is new, however old it looks."""
    with watch() as watched:
        watched.polls()
        server.ec2.interrupt("terminate", ahead=-400)
        watched.polls()
    assert watched.heard.only.action == "terminate"


def test_a_notice_from_before_the_boot_is_ignored(server: Server, watch: Watching) -> None:
    """It stopped this instance once; the next one is taken."""
    server.ec2.interrupt("stop", ahead=-3600)
    server.ec2.recommend_rebalance()
    server.clock.advance(600)
    with watch(uptime=lambda: 300) as watched:
        watched.polls(3)
        assert watched.heard.notices == []
        server.ec2.interrupt("stop")
        watched.polls()
    assert watched.heard.only.action == "stop"


def test_a_notice_that_appears_while_watching_is_new(server: Server, watch: Watching) -> None:
    """Even if a wrong clock puts its time before the boot."""
    with watch(uptime=lambda: 300) as watched:
        watched.polls()
        server.ec2.interrupt("terminate", ahead=-3600)
        watched.polls()
    assert watched.heard.only.action == "terminate"


# -- tokens and errors -----------------------------------------------------------


def test_one_token_serves_many_polls_and_is_renewed_in_time(
    server: Server, watch: Watching
) -> None:
    """No request is ever refused for its age."""
    with watch(interval=600.0) as watched:
        watched.polls(10)
        assert len(server.asked(TOKEN)) == 1
        watched.polls(20)
        assert len(server.asked(TOKEN)) == 2
        server.ec2.interrupt("terminate")
        watched.polls()
    assert watched.heard.only.action == "terminate"


def test_a_token_that_is_refused_is_replaced_at_once(server: Server, watch: Watching) -> None:
    """The notice is seen in the same poll."""
    with watch() as watched:
        watched.polls()
        server.ec2.expire_tokens()
        server.ec2.interrupt("terminate")
        watched.polls()
    assert watched.heard.only.action == "terminate"
    assert len(server.asked(TOKEN)) == 2


def test_a_service_that_refuses_every_token_is_not_flooded(
    server: Server, watch: Watching, caplog: pytest.LogCaptureFixture
) -> None:
    """Two requests a poll, and one line in the log."""
    server.fail(401, path="/latest/meta-data")
    with watch() as watched:
        watched.polls(3)
    assert len(server.asked(SPOT)) == 6
    assert len(caplog.messages) == 1
    assert "401" in caplog.messages[0]


def test_no_token_reaches_the_log(
    server: Server, watch: Watching, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever goes wrong with it."""
    caplog.set_level(logging.DEBUG)
    with watch() as watched:
        watched.polls()
        server.fail(401, path="/latest/meta-data", times=3)
        server.fail(403, path="/latest/meta-data", times=1)
        watched.polls(4)
    tokens = {each.headers["x-aws-ec2-metadata-token"] for each in server.asked(SPOT)}
    assert len(tokens) > 1
    assert not [token for token in tokens if token in caplog.text]


def test_the_hop_limit_is_named(
    server: Server,
    watch: Watching,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a container the token request gets no answer: say what to do, once."""
    monkeypatch.setattr(MetadataService.ask, "__kwdefaults__", {"timeout": 0.2})
    server.limit_hops()
    with watch() as watched:
        watched.polls(2)
    [line] = caplog.messages
    assert "hop limit" in line
    assert "--http-put-response-hop-limit 2" in line


@pytest.mark.parametrize(
    ("status", "says"), [(400, "HTTP 400"), (403, "switched off"), (404, "HTTP 404")]
)
def test_a_refused_token_request_is_named(
    server: Server, watch: Watching, caplog: pytest.LogCaptureFixture, status: int, says: str
) -> None:
    """And tried again, less often."""
    server.fail(status, path=TOKEN)
    with watch() as watched:
        watched.polls(3)
        server.mend()
        server.ec2.interrupt("terminate")
        watched.polls()
    assert watched.heard.only.action == "terminate"
    assert says in caplog.messages[0]


def test_a_token_of_a_strange_kind_is_not_sent(
    server: Server, watch: Watching, caplog: pytest.LogCaptureFixture
) -> None:
    """A page instead of a token must not end up in a header."""
    server.fail(200, path=TOKEN, body="<html>\n</html>")
    with watch() as watched:
        watched.polls(2)
    assert server.asked(SPOT) == []
    [line] = caplog.messages
    assert "no token" in line


def test_what_ends_the_instance_is_seen_although_the_rest_is_throttled(
    server: Server, watch: Watching
) -> None:
    """It is asked for first."""
    server.ec2.interrupt("terminate")
    server.throttle(2)
    with watch() as watched:
        watched.polls()
    assert watched.heard.only.action == "terminate"


def test_a_proxy_that_forbids_the_rest_slows_nothing_down(
    server: Server, watch: Watching, caplog: pytest.LogCaptureFixture
) -> None:
    """Some environments let through only what they know."""
    server.fail(403, path=LIFECYCLE)
    server.fail(403, path="/latest/meta-data/events")
    begin = server.clock.monotonic()
    with watch() as watched:
        watched.polls(4)
    assert server.clock.monotonic() - begin == 20
    assert len(caplog.messages) == 3


def test_a_late_answer_is_an_answer(server: Server, watch: Watching) -> None:
    """Within the second that a request may take."""
    server.ec2.interrupt("terminate")
    server.delay(0.3, path=SPOT)
    with watch() as watched:
        watched.polls()
    assert watched.heard.only.action == "terminate"
    assert ANSWER_S > 0.3


def test_nobody_there_is_said_once(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """An address where nothing listens, named."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    clock = SteppedClock(server.clock)
    with Watch(Ec2Source(MetadataService(url, "test"), clock=clock), clock) as watched:
        watched.polls(4)
    [line] = caplog.messages
    assert line.startswith(f"ec2: no connection to {url}")


def test_metadata_is_never_asked_through_a_proxy(
    server: Server, watch: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy would answer for another machine, and learn the token."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    server.ec2.interrupt("terminate")
    with watch() as watched:
        watched.polls()
    assert watched.heard.only.action == "terminate"
