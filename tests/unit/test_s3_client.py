"""The client of the S3 protocol where it goes past that of the SDK."""

from __future__ import annotations

import base64
import hashlib
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from batchq.clock import ManualClock
from batchq.errors import AccessDenied
from batchq.s3.client import Client, Limits
from batchq.s3.objects import Answer
from batchq.s3.refusals import Refused, Unanswered
from tests.faults.certificates import Authority
from tests.faults.s3_state import Stored
from tests.faults.strict_s3 import Fault, StrictS3
from tests.s3 import BUCKET, SECRET, point_sdk_at, strict_server

KEYS = ["a", "a b/c+d", "ä/日本/🎈", "a?versionId=x", "a%20b&c=d", "a//b/~.-_", "(a)!*'"]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[StrictS3]:
    """One that checks signatures."""
    with strict_server(monkeypatch) as running:
        yield running


def client() -> Client:
    return Client("test", Limits(timeout=60.0, attempts=2), ManualClock())


def get(asking: Client, key: str, bucket: str = BUCKET, **headers: str) -> Answer:
    return asking.ask(lambda c: c.objects.send("GetObject", bucket, key, headers=headers))


def put(asking: Client, key: str, data: bytes) -> Answer:
    return asking.ask(lambda c: c.objects.send("PutObject", BUCKET, key, headers={}, body=data))


# -- signatures ------------------------------------------------------------------


@pytest.mark.parametrize("key", KEYS)
def test_a_server_that_checks_signatures_serves_each_key(server: StrictS3, key: str) -> None:
    """What is signed is what is sent."""
    asking = client()
    put(asking, key, key.encode())
    assert server.state.get(BUCKET, key).data == key.encode()
    assert get(asking, key).body == key.encode()
    assert get(asking, key, range="bytes=0-0").body == key.encode()[:1]


def test_a_wrong_secret_is_refused_and_named(
    server: StrictS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the server: it compares signatures."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET + "x")
    with pytest.raises(Refused, match="SignatureDoesNotMatch"):
        get(client(), "a")


# -- where a bucket is -----------------------------------------------------------


def test_a_bucket_in_another_region_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents need not be where the results are: the SDK follows the server's word."""
    with strict_server(monkeypatch, region="ap-southeast-2") as server:
        asking = client()
        put(asking, "a", b"content")
        put(asking, "b", b"content")
        assert get(asking, "a").body == b"content"
        assert server.count("PutObject") == 2
        assert server.count("HeadBucket") == 2


def test_a_bucket_is_looked_for_once_and_needs_no_right_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A role that may get and not list is refused the look, and gets what it may get."""
    with strict_server(monkeypatch, may_list=False) as server:
        server.state.put(BUCKET, "a", Stored(b"content", '"etag"'), create_only=False)
        asking = client()
        for _ in range(3):
            assert get(asking, "a").body == b"content"
        assert server.count("HeadBucket") == 1


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.CUT_BEFORE])
def test_a_look_without_an_answer_is_repeated(server: StrictS3, fault: Fault) -> None:
    """As any request."""
    server.inject("HeadBucket", fault)
    put(client(), "a", b"content")
    assert server.count("HeadBucket") == 2
    server.inject("HeadBucket", fault, fault)
    with pytest.raises(Unanswered):
        get(client(), "a")


def test_threads_do_not_wait_in_turn_for_a_server_that_is_silent(server: StrictS3) -> None:
    """Each learns of it after its own timeout, not the last after everybody's."""
    threads, timeout = 8, 1.0
    server.inject("HeadBucket", *[Fault.SILENCE] * threads)
    asking = Client("test", Limits(timeout=timeout, attempts=1), ManualClock())
    began = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        errors = [pool.submit(get, asking, "a").exception for _ in range(threads)]
        assert all(isinstance(error(), Unanswered) for error in errors)
    assert time.monotonic() - began < timeout * threads / 2


# -- ways to a server ------------------------------------------------------------


def test_a_proxy_is_asked_for_the_address_of_the_server(
    server: StrictS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment's, unless NO_PROXY says otherwise; the signature is for the server."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://storage.test:9000")
    monkeypatch.setenv("HTTP_PROXY", server.url)
    monkeypatch.setenv("http_proxy", server.url)
    put(client(), "a b", b"content")
    assert server.state.get(BUCKET, "a b").data == b"content"
    assert server.headers["PutObject"]["host"] == "storage.test:9000"
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "storage.test")
    with pytest.raises(Unanswered, match=r"storage\.test"):
        put(client(), "b", b"content")


def test_over_tls_the_server_is_one_that_the_environment_vouches_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """AWS_CA_BUNDLE holds for what goes past the SDK too, and without it nobody is believed."""
    authority = Authority(tmp_path / "authority")
    with StrictS3(tls=authority.server("localhost")) as server:
        server.state.create_bucket(BUCKET)
        point_sdk_at(server.url, monkeypatch)
        with pytest.raises(Unanswered, match=r"(?i)certificate"):
            put(client(), "a", b"content")
        monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.certificate))
        put(client(), "a", b"content")
        assert get(client(), "a").body == b"content"


# -- answers ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sha256", "sha1", "crc32"])
def test_a_body_is_checked_against_the_checksum_that_came_with_it(
    server: StrictS3, name: str
) -> None:
    """One that was altered on its way is asked for again."""
    data = b"content"
    sums = {
        "sha256": hashlib.sha256(data).digest(),
        "sha1": hashlib.sha1(data).digest(),
        "crc32": zlib.crc32(data).to_bytes(4, "big"),
    }
    checksum = base64.b64encode(sums[name]).decode()
    metadata = {f"x-amz-checksum-{name}": checksum}
    server.state.put(BUCKET, "a", Stored(data, '"etag"', None, metadata), create_only=False)
    asking, asked = client(), {"x-amz-checksum-mode": "ENABLED"}
    assert get(asking, "a", **asked).body == data
    server.inject("GetObject", Fault.FLIPPED)
    assert get(asking, "a", **asked).body == data
    server.inject("GetObject", Fault.FLIPPED, Fault.FLIPPED)
    with pytest.raises(Unanswered, match=name):
        get(asking, "a", **asked)


def test_an_answer_that_is_not_the_servers_is_none(server: StrictS3) -> None:
    """The page of a gateway that says 404 does not say that the object is missing."""
    server.inject("GetObject", Fault.GATEWAY, Fault.GATEWAY)
    with pytest.raises(Unanswered, match="not in XML"):
        get(client(), "a")


def test_no_credentials_are_access_denied_before_anything_is_sent(
    server: StrictS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the way to set them."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(AccessDenied, match="test: ") as caught:
        get(client(), "a")
    assert "AWS_PROFILE" in str(caught.value.hint)
    assert server.log == []
