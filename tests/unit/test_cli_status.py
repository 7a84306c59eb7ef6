"""What `batchq status` says of a run, on a ledger in memory with a clock of its own."""

from __future__ import annotations

import sys
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from batchq import status
from batchq.cli.render import render_status
from batchq.cli.status import display
from batchq.clock import ManualClock
from batchq.errors import ExitCode, WaitTimedOut
from batchq.item import NewItem
from batchq.lease import Failure, Held, Lease, new_token
from batchq.ledger.base import Policy, Role, Run
from batchq.ledger.memory import MemoryLedger
from batchq.result import Result, Stored
from batchq.words import duration

TTL = 60.0


class Scene:
    """A run of so many documents and one worker on it."""

    def __init__(self, documents: int) -> None:
        self.clock = ManualClock()
        self.ledger = MemoryLedger(clock=self.clock, policy=Policy(max_failures=1))
        self.run: Run = self.ledger.create_run("default", "stats-0123456789ab", {}, "item")
        self.ledger.register(self.run, "enqueuer", TTL, Role.ENQUEUER, {})
        if documents:
            names = [f"docs/{number}.md" for number in range(documents)]
            items = [NewItem(n, f"sha256:{n}", 1, f"file:///{n}", "file:///") for n in names]
            self.ledger.enqueue("enqueuer", 1, items)
        self.ledger.stop("enqueuer", "enqueued")
        self.ledger.register(self.run, "worker", TTL, Role.WORKER, {"device": "cpu"})

    def claim(self, limit: int) -> Lease:
        lease = self.ledger.claim("worker", new_token(), limit, alone=True)
        assert lease is not None
        return lease

    def commit(self, number: int) -> None:
        lease = self.claim(number)
        results = [
            Result(item.id, lease.token, Stored(f"key-{item.id}", 0, 1, "0" * 64))
            for item in lease.items
        ]
        self.ledger.commit("worker", results)

    def fail(self) -> None:
        lease = self.claim(1)
        failure = Failure(Held(lease.token, lease.items[0].id), "unreadable", "cannot be read")
        self.ledger.fail("worker", [failure])

    def snapshot(self, **options: Any) -> dict[str, Any]:
        return status.snapshot(self.ledger, self.run, expected_uptime=18_000.0, **options)

    def text(self) -> str:
        """The status as it is printed where there is no terminal."""
        out = StringIO()
        console = Console(file=out, width=100, highlight=False, markup=False)
        console.print(render_status(self.snapshot(), content=False))
        return out.getvalue()


def test_the_snapshot_has_the_documented_shape() -> None:
    """The keys are those that docs/commands.md names."""
    snapshot = Scene(3).snapshot()

    assert list(snapshot) == [
        "run",
        "processing_version",
        "exact",
        "items",
        "duplicates",
        "rework",
        "interruptions",
        "workers",
        "rate_per_s",
        "eta_s",
        "oldest_lease_s",
    ]
    assert snapshot["items"] == {
        "total": 3,
        "ready": 3,
        "delayed": 0,
        "leased": 0,
        "completed": 0,
        "empty": 0,
        "dead_lettered": 0,
        "superseded": 0,
    }


def test_rate_and_remaining_time_come_from_live_workers() -> None:
    """Six items in 12 s are 0.5 a second, so the other four take 8 s."""
    scene = Scene(10)
    scene.clock.advance(12)
    scene.commit(6)

    snapshot = scene.snapshot()

    assert snapshot["rate_per_s"] == 0.5
    assert snapshot["eta_s"] == 8.0


def test_a_dead_worker_has_no_rate() -> None:
    """What it committed while it lived says nothing about the time that is left."""
    scene = Scene(10)
    scene.commit(6)
    scene.clock.advance(TTL + 1)

    snapshot = scene.snapshot()

    assert snapshot["rate_per_s"] is None
    assert snapshot["eta_s"] is None
    assert "no worker is alive" in scene.text()


def test_equal_content_is_counted_only_when_asked_for() -> None:
    """It reads every item, which a status of millions must not."""
    scene = Scene(2)

    assert scene.snapshot()["duplicates"]["content"] is None
    assert scene.snapshot(duplicates=True)["duplicates"]["content"] == 0


def test_waiting_ends_with_the_run() -> None:
    """With dead letters the outcome is 3, as a worker's is."""
    scene = Scene(3)
    scene.commit(2)
    scene.fail()

    counts = status.wait(scene.ledger, scene.run, scene.clock, timeout=10)

    assert counts.outcome is ExitCode.DEAD_LETTERS


def test_waiting_gives_up_after_its_timeout() -> None:
    """It says how far the run was, and that nobody works on it."""
    scene = Scene(3)
    scene.commit(1)
    started = scene.clock.monotonic()
    scene.ledger.stop("worker", "gone")

    with pytest.raises(WaitTimedOut, match="2 ready, 0 leased, 0 workers") as caught:
        status.wait(scene.ledger, scene.run, scene.clock, timeout=10)

    assert scene.clock.monotonic() - started == pytest.approx(10)
    assert "batchq worker" in str(caught.value.hint)


def test_waiting_does_not_end_while_somebody_enqueues() -> None:
    """A run that is empty for the moment has not ended."""
    scene = Scene(0)
    scene.ledger.register(scene.run, "second", 5.0, Role.ENQUEUER, {})
    started = scene.clock.monotonic()

    status.wait(scene.ledger, scene.run, scene.clock, timeout=100)

    assert scene.clock.monotonic() - started >= 5.0


def test_the_text_shows_counts_and_workers() -> None:
    """Numbers a person asks for first: how far, how fast, what went wrong."""
    scene = Scene(10)
    scene.clock.advance(10)
    scene.commit(5)
    scene.fail()

    text = scene.text()

    assert "6 of 10" in text
    assert "60.0%" in text
    assert "1 dead letter\n" in text
    assert "0.5 items/s, about 8 s left" in text
    assert "\nand 1 more process in --json" in text
    assert "worker" in text


def test_what_idle_workers_wait_for_is_said() -> None:
    """An enqueuer that was killed counts as alive for a TTL: its last beat tells."""
    scene = Scene(1)
    scene.commit(1)
    assert "nothing left to do\n" in scene.text()
    scene.ledger.register(scene.run, "killed", TTL, Role.ENQUEUER, {})
    scene.clock.advance(20)
    assert "an enqueue is under way, last heard of 20 s ago" in scene.text()
    scene.clock.advance(TTL)
    assert "nothing left to do\n" in scene.text()


def test_the_expected_uptime_stands_beside_what_was_seen() -> None:
    """In one line: the setting, the run's own history, and what workers plan with."""
    scene = Scene(1)
    scene.clock.advance(3_600)
    assert "uptime      expected 5 h (expected_uptime); no interruption in 1 h of work" in " ".join(
        scene.text().split("\n")
    )
    scene.ledger.beat("worker", TTL)
    scene.ledger.stop("worker", "spot terminate by ec2 metadata")
    said = scene.snapshot()["interruptions"]
    assert said == {
        "count": 1,
        "worker_s": 3_600.0,
        "mean_uptime_s": 3_600.0,
        "expected_uptime_s": 18_000.0,
        "planned_uptime_s": 10_800.0,
    }
    line = next(line for line in scene.text().split("\n") if line.startswith("uptime"))
    assert line.endswith("1 interruption, one in 1 h of work; planned with 3 h")


def test_what_is_redrawn_is_wrapped_and_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a long line says what to do."""

    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    for name, value in {"TERM": "xterm", "COLUMNS": "60", "LINES": "40", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    scene = Scene(1)
    scene.ledger.stop("worker", "spot terminate by ec2 metadata")

    with display(json=False, watch=True, duplicates=False) as show:
        show(scene.snapshot())

    assert "planned with 2 h 30 min" in " ".join(terminal.getvalue().split())


def test_names_cannot_steer_the_terminal() -> None:
    """A worker may call itself what it likes."""
    scene = Scene(1)
    scene.ledger.register(scene.run, "evil\x1b[2J", TTL, Role.WORKER, {})

    assert "\x1b" not in scene.text()
    assert r"evil\x1b[2J" in scene.text()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.6, "1 min"),
        (61, "1 min 1 s"),
        (3_600, "1 h"),
        (18_610, "5 h 10 min"),
        (187_200, "2 d 4 h"),
    ],
)
def test_durations_are_told_in_two_units(seconds: float, text: str) -> None:
    """More digits than that help nobody."""
    assert duration(seconds) == text
