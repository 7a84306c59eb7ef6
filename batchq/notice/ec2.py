"""EC2: what the instance metadata service, version 2, says of this instance's end.

Source: "Spot Instance interruption notices" and "Instance metadata" in the EC2 User Guide,
"Retrieve the target lifecycle state" in the EC2 Auto Scaling User Guide.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from batchq.clock import Clock
from batchq.notice.deadline import is_false_alarm, parse_time, uptime, was_before_boot
from batchq.notice.metadata import MetadataService, NoAnswer, Refused, json_body, refusal
from batchq.notice.polling import PollingSource, Trouble

__all__ = [
    "DEFAULT_ENDPOINT",
    "HIBERNATION_S",
    "IPV6_ENDPOINT",
    "WARNING_S",
    "Ec2Source",
    "InstanceMetadata",
]

log = logging.getLogger("batchq.notice")

DEFAULT_ENDPOINT = "http://169.254.169.254"
IPV6_ENDPOINT = "http://[fd00:ec2::254]"
INTERVAL_S = 5.0

WARNING_S = 120.0
"""How far ahead EC2 announces an interruption."""

HIBERNATION_S = 5.0
"""Hibernation begins with its notice; what is left is what the agent needs to react."""

TOKEN_TTL_S = 21_600

SPOT = "/latest/meta-data/spot/instance-action"
LEGACY = "/latest/meta-data/spot/termination-time"
LIFECYCLE = "/latest/meta-data/autoscaling/target-lifecycle-state"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
MAINTENANCE = "/latest/meta-data/events/maintenance/scheduled"
INSTANCE_ID = "/latest/meta-data/instance-id"

LEAVING = {
    "Terminated": "terminate",
    "Warmed:Terminated": "terminate",
    "Warmed:Stopped": "stop",
    "Warmed:Hibernated": "hibernate",
}
"""Target lifecycle states of an auto-scaling group that end the instance."""


class InstanceMetadata:
    """The service behind its session token, which is renewed when it ages or is refused."""

    def __init__(self, service: MetadataService, clock: Clock) -> None:
        self._service = service
        self._clock = clock
        self._token: str | None = None
        self._renew_at = 0.0

    def get(self, path: str) -> str | None:
        """The document at `path`, None if there is none. Raises Trouble."""
        for _ in range(2):
            answer = self._service.ask("GET", path, {"X-aws-ec2-metadata-token": self._session()})
            if answer.status == 200:
                return answer.body
            if answer.status == 404:
                return None
            if answer.status != 401:
                raise refusal(answer, path)
            self._token = None
        raise Trouble("HTTP 401", f"{path}: HTTP 401, although the token is new")

    def instance_id(self) -> str:
        """Raises Trouble."""
        said = self.get(INSTANCE_ID)
        if not said:
            raise Trouble("no instance id", f"{INSTANCE_ID}: nothing there")
        return said.strip()

    def _session(self) -> str:
        now = self._clock.monotonic()
        if self._token is None or now >= self._renew_at:
            self._token = self._new_token()
            self._renew_at = now + TOKEN_TTL_S / 2
        return self._token

    def _new_token(self) -> str:
        path = "/latest/api/token"
        ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL_S)}
        try:
            answer = self._service.ask("PUT", path, ttl)
        except NoAnswer as silence:
            raise Trouble(
                "hop limit",
                f"{silence}. In a container that is the hop limit: the answer may not travel "
                "further than the instance. Raise it with `aws ec2 "
                "modify-instance-metadata-options --http-put-response-hop-limit 2`, or use the "
                "host's network",
            ) from None
        if answer.status == 403:
            raise Trouble("disabled", f"PUT {path}: HTTP 403, the metadata service is switched off")
        if answer.status != 200:
            raise refusal(answer, f"PUT {path}")
        token = answer.body.strip()
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise Trouble("no token", f"PUT {path}: what came back is no token")
        return token


class Ec2Source(PollingSource):
    """Interruption, auto scaling's target state, rebalance recommendation, maintenance.

    The last two are recorded only, a recommendation drains with `rebalance`.
    A notice from before this boot, `uptime` seconds ago, is left from an earlier life, and
    one that passed long before we looked first was a false alarm.
    """

    name = "ec2"
    window = WARNING_S

    def __init__(
        self,
        service: MetadataService,
        *,
        clock: Clock,
        interval: float | None = None,
        window: float | None = None,
        rebalance: bool = False,
        uptime: Callable[[], float | None] = uptime,
    ) -> None:
        super().__init__(clock=clock, interval=interval or INTERVAL_S, window=window)
        self._metadata = InstanceMetadata(service, clock)
        self._rebalance = rebalance
        self._uptime = uptime
        self._left_over: set[tuple[str, str]] = set()
        self._seen_none = False

    def describe(self) -> str:
        return f"ec2: instance metadata every {self._interval:g} s, up to {WARNING_S:g} s ahead"

    def _look(self) -> float:
        self._look_for_interruption()
        self._look_for_lifecycle()
        self._look_for_recommendation()
        self._look_for_maintenance()
        return self._interval

    def _look_for_interruption(self) -> None:
        body = self._metadata.get(SPOT)
        if body is None:
            self._look_for_legacy()
            self._seen_none = True
            return
        said = json_body(body, SPOT)
        action = said.get("action") if isinstance(said, Mapping) else None
        if not isinstance(action, str) or not action:
            raise Trouble("no action", f"{SPOT}: names no action: {body[:60]!r}")
        self._interruption(action, str(said.get("time")))

    def _look_for_legacy(self) -> None:
        """The older path counts only with a time ahead: it may hold no time or a past one."""
        said = self._optional(LEGACY)
        stated = parse_time(said)
        if said is not None and stated is not None and stated > self._clock.now():
            self._interruption("terminate", said)

    def _interruption(self, action: str, said: str) -> None:
        stated = parse_time(said)
        if (action, said) in self._left_over:
            return
        # One that appeared while we watched is new, whatever the clocks say.
        if not self._seen_none and self._is_over(stated):
            log.info(
                "ec2: ignoring %s at %s: before this boot, or a false alarm long ago", action, said
            )
            self._left_over.add((action, said))
            return
        self._announce(
            ("spot", action),
            "spot",
            action,
            lambda: (
                self._in(HIBERNATION_S)
                if action == "hibernate"
                else self._at(stated, WARNING_S, said)
            ),
        )

    def _look_for_lifecycle(self) -> None:
        state = (self._optional(LIFECYCLE) or "").strip()
        if action := LEAVING.get(state):
            self._announce(
                ("autoscaling", action),
                "autoscaling",
                action,
                lambda: self._in(HIBERNATION_S if action == "hibernate" else None),
                detail=f"target state {state}",
            )

    def _look_for_recommendation(self) -> None:
        said = self._optional_json(REBALANCE)
        if not isinstance(said, Mapping):
            return
        since = said.get("noticeTime")
        if not self._is_before_boot(parse_time(since)):
            self._announce(
                "rebalance",
                "rebalance",
                "rebalance",
                lambda: self._in(None),
                detail=f"since {since}",
                drains=self._rebalance,
            )

    def _look_for_maintenance(self) -> None:
        events = self._optional_json(MAINTENANCE)
        for event in events if isinstance(events, list) else ():
            if isinstance(event, Mapping) and _is_ahead(event):
                code, begin = str(event.get("Code")), str(event.get("NotBefore"))
                self._announce(
                    ("maintenance", str(event.get("EventId") or (code, begin))),
                    "maintenance",
                    code,
                    lambda: None,
                    detail=f"not before {begin}",
                    drains=False,
                )

    def _is_before_boot(self, stated: float | None) -> bool:
        return was_before_boot(stated, self._clock.now(), self._uptime())

    def _is_over(self, stated: float | None) -> bool:
        """Whoever drained on one of these again, at each start, would never work again."""
        return self._is_before_boot(stated) or is_false_alarm(stated, self._clock.now())

    def _optional_json(self, path: str) -> Any:
        body = self._optional(path)
        if not body:
            return None
        try:
            return json_body(body, path)
        except Trouble as trouble:
            self._note(trouble)
            return None

    def _optional(self, path: str) -> str | None:
        """A document that some proxies and mocks refuse, which must not slow down the rest."""
        try:
            return self._metadata.get(path)
        except Refused as refused:
            self._note(refused)
            return None


def _is_ahead(event: Mapping[str, Any]) -> bool:
    return str(event.get("State")).lower() not in ("completed", "canceled")
