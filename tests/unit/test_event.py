"""Events: one line each, whatever they hold and whoever emits them."""

from __future__ import annotations

import io
import json
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from batchq.clock import ManualClock
from batchq.event import Event, Events, JsonEvents, LogEvents, RecordedEvents


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def json_events() -> tuple[JsonEvents, io.StringIO]:
    stream = io.StringIO()
    return JsonEvents(stream, ManualClock(now=1_750_000_000.25)), stream


def test_an_event_is_one_json_line_with_schema_and_time() -> None:
    """What a program reads: the schema, the kind, UTC, and the data beside them."""
    events, stream = json_events()
    events.emit("claimed", lease="3f2a", items=["docs/a.md"])
    assert lines(stream) == [
        {
            "schema": 1,
            "event": "claimed",
            "time": "2025-06-15T15:06:40.250Z",
            "lease": "3f2a",
            "items": ["docs/a.md"],
        }
    ]


def test_the_kind_of_a_notice_does_not_collide_with_the_events() -> None:
    """A notice has a kind of its own, and both are told."""
    events, stream = json_events()
    events.emit("notice", kind="spot", action="terminate", source="ec2", deadline_s=118.5)
    (event,) = lines(stream)
    assert (event["event"], event["kind"], event["deadline_s"]) == ("notice", "spot", 118.5)


def test_names_of_every_kind_stay_one_ascii_line() -> None:
    """Newlines, escapes, other scripts and lone surrogates arrive as they were."""
    events, stream = json_events()
    names = ["a\nb", "\x1b[31m", "文書/ä.md", "\u202ecod", "\udcff", "\u2028"]
    events.emit("claimed", lease="1", items=names)
    assert stream.getvalue().isascii()
    assert stream.getvalue().count("\n") == 1
    assert lines(stream)[0]["items"] == names


def test_no_secret_is_told() -> None:
    """At any depth."""
    events, stream = json_events()
    dsn = "postgresql://alice:hunter2@db.example/ledger"
    events.emit("stopped", reason=f"lost {dsn}", about={"ledger": [dsn]})
    assert "hunter2" not in stream.getvalue()
    assert "alice" in stream.getvalue()


def test_what_json_cannot_say_does_not_stop_the_worker() -> None:
    """Paths, sets, NaN, objects: told as well as can be."""
    events, stream = json_events()
    events.emit("started", path=Path("a/b"), rate=float("nan"), kinds={1}, by={2: None}, on=True)
    (event,) = lines(stream)
    assert event["path"] == "a/b"
    assert event["rate"] is None
    assert event["kinds"] == [1]
    assert event["by"] == {"2": None}
    assert event["on"] is True


def test_lines_of_many_threads_are_not_mixed() -> None:
    """Each line whole, none lost."""
    events, stream = json_events()

    def emit(number: int) -> None:
        events.emit("committed", lease=str(number), items=["x" * 500] * 20)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(emit, range(400)))
    assert sorted(int(event["lease"]) for event in lines(stream)) == list(range(400))


def test_an_event_is_readable_as_soon_as_it_was_emitted() -> None:
    """The reader at the other end of a pipe does not wait for a buffer to fill."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream, os.fdopen(reader) as other_end:
        JsonEvents(stream, ManualClock()).emit("started")
        assert json.loads(other_end.readline())["event"] == "started"


def test_a_reader_that_has_gone_does_not_stop_the_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """`batchq worker --json | head` must not cost the work; it is said once."""
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    events = JsonEvents(stream, ManualClock())
    for _ in range(3):
        events.emit("claimed", lease="1", items=[])
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no longer written" in caplog.text
    with pytest.raises(BrokenPipeError):
        stream.close()


def test_a_line_for_people_says_how_many_and_under_which_lease(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Many items are counted, one is named."""
    caplog.set_level(logging.DEBUG, "batchq")
    events: Events = LogEvents()
    events.emit("committed", lease="0123456789abcdef", items=["docs/a.md", "docs/b.md"])
    events.emit("failed", lease="0123456789abcdef", items=["docs/a.md"])
    events.emit("stopped", reason="finished", exit_code=0)
    assert caplog.messages == [
        "committed 2 items under lease 01234567",
        "failed docs/a.md under lease 01234567",
        "stopped reason=finished exit_code=0",
    ]
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "INFO"]


def test_a_line_for_people_cannot_steer_their_terminal(caplog: pytest.LogCaptureFixture) -> None:
    """A document's name is chosen by others."""
    LogEvents().emit("failed", lease="1", items=["a\nb\x1b[2J"])
    assert caplog.messages == ["failed a\\nb\\x1b[2J under lease 1"]


def test_recorded_events_are_kept_in_order() -> None:
    """From any thread."""
    events = RecordedEvents()
    threads = [
        threading.Thread(target=lambda: events.emit("claimed", lease="1", items=[]))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events.emit("stopped", reason="finished", exit_code=0)
    assert len(events.of("claimed")) == 8
    assert events.all()[-1] == Event("stopped", {"reason": "finished", "exit_code": 0})
