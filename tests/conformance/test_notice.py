"""What every notice source promises, asked of each."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator

import pytest

from batchq.clock import ManualClock, random_hex
from batchq.notice.base import Notice
from batchq.worker.drain import Drain
from tests.aws import SQS_ENVIRONMENT, sqs_client, sqs_server
from tests.conformance.notice_rigs import (
    AzureRig,
    Ec2Rig,
    GcpRig,
    Heard,
    Rig,
    SignalRig,
    SqsRig,
    SteppedClock,
)
from tests.faults.metadata_server import MetadataServer

KINDS = ("ec2", "sqs", "gcp", "azure", "signals")


@pytest.fixture(scope="module")
def sqs_url() -> Iterator[str]:
    """The address of the module's SQS."""
    with sqs_server() as url:
        yield url


def build(
    kind: str, server: MetadataServer, clock: SteppedClock, request: pytest.FixtureRequest
) -> Rig:
    if kind == "sqs":
        url = request.getfixturevalue("sqs_url")
        monkeypatch = request.getfixturevalue("monkeypatch")
        for name, value in SQS_ENVIRONMENT.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", url)
        return SqsRig(server, clock, sqs_client(url), f"notices-{random_hex(32)}")
    if kind == "signals":
        return SignalRig(clock)
    return {"ec2": Ec2Rig, "gcp": GcpRig, "azure": AzureRig}[kind](server, clock)
