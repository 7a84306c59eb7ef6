"""An SQS that speaks HTTP, for tests of what is sent through queues."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import boto3
from moto.server import ThreadedMotoServer

__all__ = ["sqs_client", "sqs_environment", "sqs_server"]


@contextmanager
def sqs_server() -> Iterator[str]:
    """Its address, for as long as the context lasts."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def sqs_environment(url: str) -> Mapping[str, str]:
    """Variables that send a process's SDK there."""
    return {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_SQS": url,
    }


def sqs_client(url: str) -> Any:
    """A client of the test's own."""
    return boto3.client(
        "sqs",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
