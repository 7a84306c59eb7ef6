"""Azure: scheduled events of this machine. They are read, never acknowledged.

An acknowledgement would bring the end forward. Source: "Scheduled Events for Linux VMs".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchq.clock import Clock
from batchq.notice.deadline import parse_time
from batchq.notice.metadata import MetadataService, json_body, refusal
from batchq.notice.polling import PollingSource, Trouble

__all__ = ["DEFAULT_ENDPOINT", "AzureSource"]

DEFAULT_ENDPOINT = "http://169.254.169.254"
INTERVAL_S = 1.0

WARNING_S = 900.0
"""The longest that any event which drains is announced ahead; a preemption may be the least."""

LEAST_WARNING_S = 30.0

FIRST_ANSWER_S = 130.0
"""The first request switches the service on, which may take two minutes."""

ANSWER_S = 5.0

EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
HEADERS = {"Metadata": "true"}

ENDING = {"Preempt": ("spot", "terminate"), "Terminate": ("scheduled", "terminate")}


class AzureSource(PollingSource):
    """Preempt and Terminate drain; Freeze, Reboot and Redeploy are recorded only.

    Events are told to every machine of a scale set or availability set, so only those
    that list this one, by the name it has in `NAME`, are taken.
    """

    name = "azure"
    window = LEAST_WARNING_S

    def __init__(
        self,
        service: MetadataService,
        *,
        clock: Clock,
        interval: float | None = None,
        window: float | None = None,
    ) -> None:
        super().__init__(clock=clock, interval=interval or INTERVAL_S, window=window)
        self._service = service
        self._machine: str | None = None
        self._answer_s = FIRST_ANSWER_S

    def describe(self) -> str:
        often = f"every {self._interval:g} s"
        return f"azure: scheduled events {often}, {LEAST_WARNING_S:g} s ahead or more"

    def _look(self) -> float:
        if self._machine is None:
            self._machine = self._ask(NAME, ANSWER_S).strip()
        document = json_body(self._ask(EVENTS, self._answer_s), EVENTS)
        self._answer_s = ANSWER_S
        events = document.get("Events") if isinstance(document, Mapping) else None
        if not isinstance(events, list):
            raise Trouble("no events", f"{EVENTS}: holds no list of events")
        for event in events:
            if isinstance(event, Mapping) and self._is_ours(event):
                self._take(event)
        return self._interval

    def _is_ours(self, event: Mapping[str, Any]) -> bool:
        resources = event.get("Resources")
        return isinstance(resources, list) and self._machine in resources

    def _take(self, event: Mapping[str, Any]) -> None:
        what, begin = str(event.get("EventType")), event.get("NotBefore")
        key = str(event.get("EventId") or (what, begin))
        detail = str(event.get("Description") or "")
        if what not in ENDING:
            self._announce(
                key,
                "maintenance",
                what.lower(),
                lambda: None,
                detail=f"not before {begin}",
                drains=False,
            )
            return
        kind, action = ENDING[what]
        # Once it has started there is no time to state: it is happening.
        started = event.get("EventStatus") == "Started" or not begin
        self._announce(
            key,
            kind,
            action,
            lambda: self._in(None) if started else self._at(parse_time(begin), WARNING_S, begin),
            detail=detail,
        )

    def _ask(self, path: str, timeout: float) -> str:
        answer = self._service.ask("GET", path, HEADERS, timeout=timeout)
        if answer.status != 200:
            raise refusal(answer, path)
        return answer.body
