"""Events: what a worker tells the world about what it does.

started    {"worker", "run", "device", "notices", "interruptions", …}
claimed    committed    failed    fenced    adopted    released
           {"lease", "items": [source id…]}
notice     {"kind", "action", "source", "deadline_s", "drains"}
stopped    {"reason", "exit_code", "flush_share"}; the last one only if it had started
"""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, TextIO

from batchq.clock import Clock
from batchq.redact import printable, redact

__all__ = ["Event", "Events", "JsonEvents", "LogEvents", "RecordedEvents"]

SCHEMA = 1
"""Of the events that a worker prints with `--json`."""

log = logging.getLogger("batchq.event")


class Events(Protocol):
    """Where events go. Safe from any thread; never raises for what it is given."""

    def emit(self, kind: str, /, **data: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Event:
    """One event as it was emitted."""

    kind: str
    data: Mapping[str, Any]


class JsonEvents:
    """One JSON object a line: `{"schema": 1, "event": kind, "time": UTC, …data}`.

    Pure ASCII, so that neither an encoding nor a terminal can spoil it. When the reader
    of `stream` has gone, that is logged once and the work goes on.
    """

    def __init__(self, stream: TextIO, clock: Clock) -> None:
        self._stream = stream
        self._clock = clock
        self._lock = threading.Lock()
        self._broken = False

    def emit(self, kind: str, /, **data: Any) -> None:
        now = datetime.fromtimestamp(self._clock.now(), UTC)
        time = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = json.dumps({"schema": SCHEMA, "event": kind, "time": time, **_clean(data)})
        with self._lock:
            if self._broken:
                return
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._broken = True
                log.warning("events are no longer written: %s", error)


_LEVELS = {
    "claimed": logging.DEBUG,
    "failed": logging.WARNING,
    "fenced": logging.WARNING,
    "notice": logging.WARNING,
}


class LogEvents:
    """A line for people through `logging`: `committed 100 items under lease 3f2a91c0`."""

    def emit(self, kind: str, /, **data: Any) -> None:
        level = _LEVELS.get(kind, logging.INFO)
        if log.isEnabledFor(level):
            log.log(level, "%s", printable(_sentence(kind, data)))


class RecordedEvents:
    """Keeps every event, for those who want to look at them afterwards."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._lock = threading.Lock()

    def emit(self, kind: str, /, **data: Any) -> None:
        with self._lock:
            self._events.append(Event(kind, data))

    def of(self, kind: str) -> list[Event]:
        """The events of one kind, in order."""
        return [event for event in self.all() if event.kind == kind]

    def all(self) -> list[Event]:
        with self._lock:
            return list(self._events)


def _sentence(kind: str, data: Mapping[str, Any]) -> str:
    items = data.get("items")
    if isinstance(items, list | tuple) and "lease" in data:
        what = str(items[0]) if len(items) == 1 else f"{len(items)} items"
        rest = {name: data[name] for name in data if name not in ("items", "lease")}
        return " ".join([f"{kind} {what} under lease {str(data['lease'])[:8]}", *_pairs(rest)])
    return " ".join([kind, *_pairs(data)])


def _pairs(data: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in data.items() if value is not None]


def _clean(value: Any) -> Any:
    """`value` as JSON that holds no secret; what JSON cannot say becomes text or null."""
    if isinstance(value, str):
        return redact(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _clean(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean(inner) for inner in value]
    return redact(str(value))
