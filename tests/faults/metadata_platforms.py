"""What the metadata services of EC2, GCP and Azure answer, request by request.

Written from the platforms' documentation; shares no code with batchq.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any, Protocol

from batchq.clock import random_hex

__all__ = ["Azure", "Ec2", "Gcp", "Reply", "Request", "Times", "html"]

STATED = object()
"""Stands for the time that a platform would state."""

TEXT = "text/plain"
JSON = "application/json; charset=utf-8"
HTML = "text/html"


class Times(Protocol):
    """The platform's wall clock and monotonic clock, in seconds."""

    def now(self) -> float: ...

    def monotonic(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked: header names in small letters."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: str = ""
    type: str = TEXT
    headers: dict[str, str] = field(default_factory=dict)


def html(status: int, says: str) -> Reply:
    """An error as these services send it: a page for people."""
    page = (
        '<?xml version="1.0" encoding="iso-8859-1"?>\n<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML '
        f'1.0 Transitional//EN">\n<html>\n <head>\n  <title>{status} - {says}</title>\n </head>\n'
        f" <body>\n  <h1>{status} - {says}</h1>\n </body>\n</html>\n"
    )
    return Reply(status, page, HTML)


def iso(seconds: float) -> str:
    """Wall clock as EC2 writes it, to the second."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc1123(seconds: float) -> str:
    """Wall clock as Azure writes it."""
    return format_datetime(datetime.fromtimestamp(seconds, UTC), usegmt=True)


class Ec2:
    """IMDSv2. Everything below `/latest/meta-data` needs a token that is still good."""

    MAX_TTL = 21_600

    def __init__(self, clock: Times) -> None:
        self._clock = clock
        self._tokens: dict[str, float] = {}
        self.documents: dict[str, Callable[[], str]] = {}
        self.instance_id = "i-0123456789abcdef0"
        self.show("instance-id", self.instance_id)

    def show(self, path: str, text: str | Callable[[], str]) -> None:
        """Put a document at `/latest/meta-data/<path>`; a function is asked every time."""
        self.documents[path] = text if callable(text) else lambda: text

    def hide(self, path: str) -> None:
        self.documents.pop(path, None)

    def interrupt(
        self, action: str, *, ahead: float = 120.0, sliding: bool = False, time: object = STATED
    ) -> None:
        """Announce terminate, stop or hibernate, `ahead` seconds from now or at `time` as
        it stands. With `sliding` it stays as far ahead whenever it is asked for.
        """
        fixed = self._clock.now() + ahead

        def document() -> str:
            moment = self._clock.now() + ahead if sliding else fixed
            return json.dumps({"action": action, "time": iso(moment) if time is STATED else time})

        self.show("spot/instance-action", document)

    def interrupt_legacy(self, text: str | None = None, *, ahead: float = 120.0) -> None:
        """The older path alone: a time, or `text` as it stands."""
        moment = iso(self._clock.now() + ahead)
        self.show("spot/termination-time", moment if text is None else text)

    def recommend_rebalance(self) -> None:
        notice = json.dumps({"noticeTime": iso(self._clock.now())})
        self.show("events/recommendations/rebalance", notice)

    def set_lifecycle(self, state: str) -> None:
        """The auto-scaling group's target state, `InService` or `Terminated`, say."""
        self.show("autoscaling/target-lifecycle-state", state)

    def schedule_maintenance(
        self, code: str, *, ahead: float = 7 * 86_400.0, state: str = "active", number: int = 1
    ) -> None:
        begin = datetime.fromtimestamp(self._clock.now() + ahead, UTC)
        written = begin.strftime("%d %b %Y %H:%M:%S GMT")
        event = {
            "NotBefore": written,
            "NotAfter": written,
            "Code": code,
            "Description": "scheduled maintenance",
            "EventId": f"instance-event-{number:017x}",
            "State": state,
        }
        self.show("events/maintenance/scheduled", json.dumps([event]))

    def expire_tokens(self) -> None:
        """As after a restart of the service: every token is refused from now on."""
        self._tokens.clear()

    def answer(self, request: Request) -> Reply:
        if "x-forwarded-for" in request.headers:
            return html(403, "Forbidden")
        if request.path == "/latest/api/token":
            return self._new_token(request)
        if request.method != "GET":
            return html(405, "Method Not Allowed")
        good_until = self._tokens.get(request.headers.get("x-aws-ec2-metadata-token", ""))
        if good_until is None or good_until <= self._clock.monotonic():
            return html(401, "Unauthorized")
        document = self.documents.get(request.path.removeprefix("/latest/meta-data/"))
        return html(404, "Not Found") if document is None else Reply(200, document())

    def _new_token(self, request: Request) -> Reply:
        if request.method != "PUT":
            return html(405, "Method Not Allowed")
        ttl = request.headers.get("x-aws-ec2-metadata-token-ttl-seconds", "")
        if not ttl.isdecimal() or not 1 <= int(ttl) <= self.MAX_TTL:
            return html(400, "Bad Request")
        token = random_hex(256)
        self._tokens[token] = self._clock.monotonic() + int(ttl)
        return Reply(200, token, headers={"X-Aws-Ec2-Metadata-Token-Ttl-Seconds": ttl})


class Gcp:
    """The metadata server: every request carries `Metadata-Flavor`, and so does every answer."""

    def __init__(self) -> None:
        self._flavor = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM"}
        self.values = {"instance/preempted": "FALSE", "instance/maintenance-event": "NONE"}

    def preempt(self) -> None:
        self.values["instance/preempted"] = "TRUE"

    def maintain(self, event: str) -> None:
        """`MIGRATE_ON_HOST_MAINTENANCE` or `TERMINATE_ON_HOST_MAINTENANCE`."""
        self.values["instance/maintenance-event"] = event

    def answer(self, request: Request) -> Reply:
        flavored = request.headers.get("metadata-flavor") == "Google"
        if not flavored or "x-forwarded-for" in request.headers:
            return html(403, "Forbidden")
        value = self.values.get(request.path.removeprefix("/computeMetadata/v1/"))
        if value is None:
            return Reply(404, html(404, "Not Found").body, HTML, self._flavor)
        return Reply(200, value, "application/text", self._flavor)


class Azure:
    """Instance metadata and scheduled events of one machine of a scale set."""

    def __init__(self, clock: Times) -> None:
        self._clock = clock
        self.machine = "scaleset_0"
        self.events: list[dict[str, Any]] = []
        self.acknowledged: list[str] = []
        self._incarnation = 1

    def schedule(
        self,
        kind: str = "Preempt",
        *,
        ahead: float = 30.0,
        machine: str | None = None,
        not_before: str | None = None,
    ) -> str:
        """Announce Preempt, Terminate, Freeze, Reboot or Redeploy; its id.

        For this machine unless another is named; `not_before` as it stands.
        """
        event_id = f"{random_hex(32)}-{len(self.events)}"
        begin = rfc1123(self._clock.now() + ahead) if not_before is None else not_before
        self.events.append(
            {
                "EventId": event_id,
                "EventType": kind,
                "ResourceType": "VirtualMachine",
                "Resources": [machine or self.machine],
                "EventStatus": "Scheduled",
                "NotBefore": begin,
                "Description": "",
                "EventSource": "Platform",
                "DurationInSeconds": -1,
            }
        )
        self._incarnation += 1
        return event_id

    def start(self, event_id: str) -> None:
        """The event begins: its time is blank from now on."""
        for event in self.events:
            if event["EventId"] == event_id:
                event.update(EventStatus="Started", NotBefore="")
        self._incarnation += 1

    def answer(self, request: Request) -> Reply:
        if request.headers.get("metadata") != "true" or "x-forwarded-for" in request.headers:
            return self._bad("Bad request. Required metadata header not specified")
        if "api-version" not in request.query:
            return self._bad("Bad request. api-version was not specified in the request")
        if request.path == "/metadata/instance/compute/name":
            if request.query.get("format") != ["text"]:
                return self._bad("Bad request. format=text is required for a leaf")
            return Reply(200, self.machine)
        if request.path != "/metadata/scheduledevents":
            return Reply(404, json.dumps({"error": "Not found"}), JSON)
        if request.method == "POST":
            starts = json.loads(request.body)["StartRequests"]
            self.acknowledged.extend(start["EventId"] for start in starts)
            return Reply(200, "", JSON)
        document = {"DocumentIncarnation": self._incarnation, "Events": self.events}
        return Reply(200, json.dumps(document), JSON)

    def _bad(self, says: str) -> Reply:
        return Reply(400, json.dumps({"error": says}), JSON)
