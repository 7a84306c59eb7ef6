"""Each platform as a test needs it: it announces the end of this machine, or breaks down."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from batchq.clock import ManualClock
from batchq.notice.azure import AzureSource
from batchq.notice.base import NoticeSource
from batchq.notice.ec2 import Ec2Source
from batchq.notice.gcp import GcpSource
from batchq.notice.metadata import Answer, MetadataService
from batchq.notice.signals import SignalSource
from batchq.notice.sqs import SqsSource
from tests.faults.metadata_server import MetadataServer
from tests.stepped import SteppedClock

__all__ = ["AzureRig", "Ec2Rig", "GcpRig", "Rig", "SignalRig", "SqsRig"]


class Rig(Protocol):
    """One platform. `longest`: seconds, no deadline lies further ahead."""

    name: str
    longest: float
    clock: SteppedClock

    def source(self, window: float | None = None) -> NoticeSource: ...

    def polls(self, times: int = 1) -> None:
        """Let a watching source look so often."""
        ...

    def announce(self) -> None:
        """The platform says that this machine ends; twice, it says so again."""
        ...

    def break_down(self) -> None:
        """From now on the platform answers with errors."""
        ...

    def mend(self) -> None: ...


class PatientService(MetadataService):
    """One whose server may be kept from its core for a while: what is late is no failure."""

    def ask(
        self, method: str, path: str, headers: Mapping[str, str], *, timeout: float = 120.0
    ) -> Answer:
        return super().ask(method, path, headers, timeout=max(timeout, 120.0))


class Polled:
    """What the platforms behind the metadata server have in common."""

    name: str

    def __init__(self, server: MetadataServer[ManualClock], clock: SteppedClock) -> None:
        self.server = server
        self.clock = clock

    def polls(self, times: int = 1) -> None:
        self.clock.polls(times)

    def break_down(self) -> None:
        self.server.fail(503)

    def mend(self) -> None:
        self.server.mend()

    def _service(self) -> MetadataService:
        return PatientService(self.server.url, "the test")


class Ec2Rig(Polled):
    name = "ec2"
    longest = 120.0

    def source(self, window: float | None = None) -> NoticeSource:
        return Ec2Source(self._service(), clock=self.clock, window=window, uptime=lambda: None)

    def announce(self) -> None:
        self.server.ec2.interrupt("terminate", ahead=100)


class GcpRig(Polled):
    name = "gcp"
    longest = 30.0

    def source(self, window: float | None = None) -> NoticeSource:
        return GcpSource(self._service(), clock=self.clock, window=window)

    def announce(self) -> None:
        self.server.gcp.preempt()


class AzureRig(Polled):
    name = "azure"
    longest = 900.0

    def source(self, window: float | None = None) -> NoticeSource:
        return AzureSource(self._service(), clock=self.clock, window=window)

    def announce(self) -> None:
        self.server.azure.events.clear()
        self.server.azure.schedule("Preempt", ahead=40)
        self.server.azure.events[0]["EventId"] = "the-one-event"


class SqsRig(Polled):
    """A queue at an SQS that speaks HTTP; the instance's id comes from the metadata server."""

    name = "sqs"
    longest = 120.0

    def __init__(
        self, server: MetadataServer[ManualClock], clock: SteppedClock, sqs: Any, queue: str
    ) -> None:
        super().__init__(server, clock)
        self._sqs = sqs
        self._queue = queue
        self.url = self._create()

    def source(self, window: float | None = None) -> NoticeSource:
        return SqsSource(
            self.url,
            lambda: self.server.ec2.instance_id,
            clock=self.clock,
            window=window,
            uptime=lambda: None,
            long_poll=0,
        )

    def announce(self) -> None:
        self.send(self.server.ec2.instance_id, ago=5)

    def send(
        self,
        instance_id: str,
        *,
        action: str = "terminate",
        about: str = "EC2 Spot Instance Interruption Warning",
        ago: float = 0.0,
    ) -> None:
        """What EventBridge puts into the queue, emitted `ago` seconds ago."""
        moment = datetime.fromtimestamp(self.clock.now() - ago, UTC)
        detail = {"instance-id": instance_id}
        if "Interruption" in about:
            detail["instance-action"] = action
        event = {
            "version": "0",
            "id": "12345678-1234-1234-1234-123456789012",
            "detail-type": about,
            "source": "aws.ec2",
            "account": "123456789012",
            "time": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "region": "us-east-1",
            "resources": [f"arn:aws:ec2:us-east-1a:instance/{instance_id}"],
            "detail": detail,
        }
        self.send_text(json.dumps(event))

    def send_text(self, body: str) -> None:
        self._sqs.send_message(QueueUrl=self.url, MessageBody=body)

    def visible(self) -> list[Any]:
        """The details of the messages that anybody could receive now; they stay visible."""
        answer = self._sqs.receive_message(
            QueueUrl=self.url, MaxNumberOfMessages=10, VisibilityTimeout=0
        )
        return [message["Body"] for message in answer.get("Messages", ())]

    def total(self) -> int:
        """Messages in the queue, hidden ones included."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        answer = self._sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)
        return sum(int(answer["Attributes"][name]) for name in names)

    def break_down(self) -> None:
        self._sqs.delete_queue(QueueUrl=self.url)

    def mend(self) -> None:
        self._create()

    def _create(self) -> str:
        url: str = self._sqs.create_queue(QueueName=self._queue)["QueueUrl"]
        return url


class SignalRig:
    """Signals to this process; there is nothing to poll, and nothing that breaks down."""

    name = "signals"
    longest = 0.0

    def __init__(self, clock: SteppedClock) -> None:
        self.clock = clock

    def source(self, window: float | None = None) -> NoticeSource:
        return SignalSource(clock=self.clock, window=window)

    def polls(self, times: int = 1) -> None:
        pass

    def announce(self) -> None:
        signal.raise_signal(signal.SIGTERM)

    def break_down(self) -> None:
        pass

    def mend(self) -> None:
        pass
