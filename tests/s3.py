"""S3 over HTTP for tests: our own strict server, and moto for breadth."""

from __future__ import annotations

import functools
import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.faults.strict_s3 import StrictS3

__all__ = ["BUCKET", "SECRET", "moto_bucket", "point_sdk_at", "policy", "strict_server"]

BUCKET = "bucket"
SECRET = "test-secret"


def point_sdk_at(url: str, patch: pytest.MonkeyPatch, *, key: str = "test") -> None:
    """Give the SDK an endpoint and credentials, and nothing else of this machine's."""
    for name, value in {
        "AWS_ENDPOINT_URL_S3": url,
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        patch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION"):
        patch.delenv(name, raising=False)


def policy(role: str) -> dict[str, Any]:
    """As docs/s3.md says to fill it in; documents and results share the tests' bucket."""
    folder = Path(__file__).parents[1] / "configs" / "iam"
    text = (folder / f"{role}.json").read_text()
    for placeholder, value in {
        "DOCUMENTS-BUCKET": BUCKET,
        "DOCUMENTS-PREFIX": "docs",
        "RESULTS-BUCKET": BUCKET,
        "RESULTS-PREFIX": "results",
    }.items():
        text = text.replace(placeholder, value)
    loaded: dict[str, Any] = json.loads(text)
    return loaded


@contextmanager
def strict_server(patch: pytest.MonkeyPatch, **options: Any) -> Iterator[StrictS3]:
    """A strict server with an empty bucket, for the SDK to find; `options` are StrictS3's."""
    with StrictS3(**{"secrets": {"test": SECRET}, **options}) as server:
        server.state.create_bucket(BUCKET)
        point_sdk_at(server.url, patch)
        yield server


def moto_bucket(patch: pytest.MonkeyPatch) -> None:
    """An empty bucket in moto, for the SDK to find. There is one moto a process."""
    url = _moto()
    point_sdk_at(url, patch)
    for request in (
        Request(f"{url}/moto-api/reset", method="POST"),
        Request(f"{url}/{BUCKET}", method="PUT"),
    ):
        urlopen(request, timeout=120).close()


@functools.cache
def _moto() -> str:
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server(
        "127.0.0.1",
        0,
        DomainDispatcherApplication(create_backend_app),
        # It looks and then writes: only one request at a time makes a precondition hold.
        threaded=False,
        request_handler=MotoRequestHandler,
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"
