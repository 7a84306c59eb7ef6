"""SQS: events about this instance that EventBridge sends to a queue.

A queue may serve a fleet: messages about other instances are returned at once. Source:
"Spot Instance interruption notices" in the EC2 User Guide.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from batchq.clock import Clock, random_fraction
from batchq.notice.deadline import parse_time, uptime, was_before_boot
from batchq.notice.ec2 import HIBERNATION_S, WARNING_S
from batchq.notice.polling import PollingSource, Trouble

__all__ = ["SqsSource"]

log = logging.getLogger("batchq.notice")

INTERRUPTION = "EC2 Spot Instance Interruption Warning"
REBALANCE = "EC2 Instance Rebalance Recommendation"

LATE_S = 39.0
"""How far ahead an event was seen to come at the worst."""

LONG_POLL_S = 20
PAGE = 10
"""Messages a request, the most that SQS allows."""

HOLD_S = 10
"""How long a message is hidden from others before it is known whose it is."""

KEEP_S = 300
"""How long one about this instance stays hidden: longer than any drain."""

PAUSE_S = 1.0
"""To twice as long between requests: messages that were returned reach those they are about."""

QUICK_S = 3

RIGHTS = "sqs:ReceiveMessage, sqs:ChangeMessageVisibility and sqs:DeleteMessage"


class SqsSource(PollingSource):
    """Interruption warnings drain; rebalance recommendations only with `rebalance`.

    Messages about this instance are deleted when they have had their effect: a warning
    after the drain, in `close`. `instance_id` may raise Trouble and is then asked again;
    `long_poll`: seconds that a request waits for messages.
    """

    name = "sqs"
    medium = "queue"
    window = LATE_S

    def __init__(
        self,
        queue_url: str,
        instance_id: Callable[[], str],
        *,
        clock: Clock,
        window: float | None = None,
        rebalance: bool = False,
        uptime: Callable[[], float | None] = uptime,
        long_poll: int = LONG_POLL_S,
    ) -> None:
        super().__init__(clock=clock, interval=PAUSE_S, window=window)
        self._queue_url = queue_url
        self._find_instance_id = instance_id
        self._instance_id: str | None = None
        self._rebalance = rebalance
        self._uptime = uptime
        self._long_poll = long_poll
        self._clients: tuple[Any, Any] | None = None
        self._lock = threading.Lock()
        self._kept: dict[str, str] = {}

    def describe(self) -> str:
        queue = self._queue_url.rsplit("/", 1)[-1]
        return f"sqs: EventBridge events in the queue {queue}, up to {WARNING_S:g} s ahead"

    def close(self, *, drained: bool = False) -> None:
        """After a drain, delete the warnings that were about this instance."""
        super().close()
        if not drained:
            return
        with self._lock:
            kept, self._kept = list(self._kept.values()), {}
        try:
            self._delete(kept)
        except Exception as error:
            log.warning("sqs: messages about this instance were not deleted: %s", error)

    def _look(self) -> float:
        if self._instance_id is None:
            self._instance_id = self._find_instance_id()
        ours, others = [], []
        for message in self._receive():
            event = _event(message)
            if self._is_ours(event):
                ours.append((message, event))
            else:
                others.append(message)
        try:
            for message, event in ours:
                self._take(message, event)
        finally:
            self._hide(others, 0)
        return PAUSE_S * (1 + random_fraction())

    def _is_ours(self, event: Mapping[str, Any]) -> bool:
        detail = event.get("detail")
        return (
            event.get("detail-type") in (INTERRUPTION, REBALANCE)
            and isinstance(detail, Mapping)
            and detail.get("instance-id") == self._instance_id
            # After the end of the watch nobody would act on it here.
            and not self._closed.is_set()
        )

    def _take(self, message: Mapping[str, Any], event: Mapping[str, Any]) -> None:
        sent = parse_time(event.get("time"))
        end = None if sent is None else sent + WARNING_S
        if was_before_boot(end, self._clock.now(), self._uptime()):
            log.info("sqs: ignoring an event of %s, before this boot", event.get("time"))
            self._delete([message["ReceiptHandle"]])
        elif event["detail-type"] == INTERRUPTION:
            self._interruption(event, end)
            self._keep(message)
        else:
            self._announce(
                "rebalance",
                "rebalance",
                "rebalance",
                lambda: self._in(None),
                detail=f"since {event.get('time')}",
                drains=self._rebalance,
            )
            if self._rebalance:
                self._keep(message)
            else:
                self._delete([message["ReceiptHandle"]])

    def _interruption(self, event: Mapping[str, Any], end: float | None) -> None:
        action = str(event["detail"].get("instance-action") or "terminate")
        self._announce(
            ("spot", action),
            "spot",
            action,
            lambda: (
                self._in(HIBERNATION_S)
                if action == "hibernate"
                else self._at(end, WARNING_S, event.get("time"))
            ),
        )

    def _keep(self, message: Mapping[str, Any]) -> None:
        with self._lock:
            self._kept[message["MessageId"]] = message["ReceiptHandle"]
        self._hide([message], KEEP_S)

    def _receive(self) -> Sequence[Mapping[str, Any]]:
        answer = self._call(
            "receive_message",
            patient=True,
            MaxNumberOfMessages=PAGE,
            WaitTimeSeconds=self._long_poll,
            VisibilityTimeout=HOLD_S,
        )
        messages: Sequence[Mapping[str, Any]] = answer.get("Messages", ())
        return messages

    def _hide(self, messages: Sequence[Mapping[str, Any]], seconds: int) -> None:
        """Hide messages from everybody for so long; 0 returns them."""
        entries = [
            {"Id": str(number), "ReceiptHandle": receipt, "VisibilityTimeout": seconds}
            for number, receipt in enumerate(message["ReceiptHandle"] for message in messages)
        ]
        if entries:
            self._call("change_message_visibility_batch", Entries=entries)

    def _delete(self, receipts: Sequence[str]) -> None:
        for begin in range(0, len(receipts), PAGE):
            page = receipts[begin : begin + PAGE]
            entries = [{"Id": str(n), "ReceiptHandle": receipt} for n, receipt in enumerate(page)]
            answer = self._call("delete_message_batch", Entries=entries)
            for failure in answer.get("Failed", ()):
                raise Trouble("not deleted", str(failure.get("Code")))

    def _call(self, verb: str, *, patient: bool = False, **arguments: Any) -> Any:
        """One request about the queue. Raises Trouble."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            if self._clients is None:
                self._clients = self._connect()
            client = self._clients[0 if patient else 1]
            return getattr(client, verb)(QueueUrl=self._queue_url, **arguments)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", "error"))
            advice = (
                f". The instance needs {RIGHTS} on {self._queue_url}" if "Denied" in code else ""
            )
            raise Trouble(code, f"{error}{advice}") from None
        except BotoCoreError as error:
            raise Trouble(type(error).__name__, str(error)) from None

    def _connect(self) -> tuple[Any, Any]:
        """A client that waits for messages, and one that must not keep a drain waiting."""
        import boto3
        from botocore.config import Config

        region = re.search(r"//sqs\.([a-z0-9-]+)\.amazonaws\.com", self._queue_url)
        session = boto3.session.Session(region_name=region[1] if region else None)
        once = {"connect_timeout": QUICK_S, "retries": {"total_max_attempts": 1}}
        patience = Config(read_timeout=self._long_poll + 10, **once)
        haste = Config(read_timeout=QUICK_S, **once)
        return session.client("sqs", config=patience), session.client("sqs", config=haste)


def _event(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The event in a message; an empty one for what is no event."""
    try:
        event = json.loads(message.get("Body", ""))
    except ValueError:
        return {}
    return event if isinstance(event, Mapping) else {}
