"""The strict server itself: that it checks what it claims to check, as S3 would."""

from __future__ import annotations

import base64
import hashlib
import http.client
import zlib
from collections.abc import Iterator, Mapping

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials

from tests.faults.strict_s3 import StrictS3

SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=test/20250615/us-east-1/s3/aws4_request"}


def encoded(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


@pytest.fixture
def server() -> Iterator[StrictS3]:
    """A server with a bucket called b."""
    with StrictS3() as running:
        running.state.create_bucket("b")
        yield running


def send(
    server: StrictS3, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    try:
        connection.request(method, path, body, {**SIGNED, **headers})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("header", "right", "wrong"),
    [
        ("x-amz-checksum-sha256", *(encoded(hashlib.sha256(x).digest()) for x in (b"a", b"b"))),
        ("x-amz-checksum-sha1", *(encoded(hashlib.sha1(x).digest()) for x in (b"a", b"b"))),
        (
            "x-amz-checksum-crc32",
            *(encoded(zlib.crc32(x).to_bytes(4, "big")) for x in (b"a", b"b")),
        ),
        ("Content-MD5", *(encoded(hashlib.md5(x).digest()) for x in (b"a", b"b"))),
        ("x-amz-content-sha256", *(hashlib.sha256(x).hexdigest() for x in (b"a", b"b"))),
    ],
)
def test_each_checksum_is_checked(server: StrictS3, header: str, right: str, wrong: str) -> None:
    """A wrong one leaves nothing behind; the error is XML with a code."""
    status, body = send(server, "PUT", "/b/a", {header: wrong}, b"a")
    assert status == 400
    assert b"<Code>" in body
    assert server.state.keys("b") == []
    assert send(server, "PUT", "/b/a", {header: right}, b"a")[0] == 200
    assert server.state.get("b", "a").data == b"a"


@pytest.mark.parametrize("right", [True, False])
def test_a_checksum_behind_chunks_is_checked(server: StrictS3, right: bool) -> None:
    """As the SDK sends it by default over TLS: in a trailer."""
    checksum = encoded(hashlib.sha256(b"one two" if right else b"other").digest())
    body = (
        f"4;chunk-signature=0\r\none \r\n3\r\ntwo\r\n0\r\nx-amz-checksum-sha256:{checksum}\r\n\r\n"
    )
    headers = {
        "Content-Encoding": "aws-chunked",
        "x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        "x-amz-decoded-content-length": "7",
        "x-amz-trailer": "x-amz-checksum-sha256",
    }
    status, _ = send(server, "PUT", "/b/a", headers, body.encode())
    assert status == (200 if right else 400)
    assert server.state.keys("b") == (["a"] if right else [])


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("PUT", "/b/a", {"If-None-Match": '"etag"'}, 501),
        ("PUT", "/b/a", {"x-amz-checksum-crc64nvme": "AAAAAAAAAAA="}, 501),
        ("GET", "/b/absent", {}, 404),
        ("GET", "/absent/a", {}, 404),
        ("GET", "/b?list-type=2&encoding-type=url&delimiter=/", {}, 501),
        ("GET", "/b?list-type=2", {}, 501),
        ("GET", "/b?acl", {}, 501),
        ("PUT", "/b/" + "x" * 1025, {}, 400),
        ("GET", "/b/a", {"Authorization": ""}, 403),
    ],
)
def test_what_it_does_not_know_is_refused_and_not_passed_over(
    server: StrictS3, method: str, path: str, headers: Mapping[str, str], status: int
) -> None:
    """A test that passes has asked for nothing that was ignored."""
    assert status == send(server, method, path, headers)[0]


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/b/a?versionId=1", {}, 404),
        ("HEAD", "/b/a?versionId=1", {}, 403),
        ("GET", "/b/b?versionId=1", {}, 403),
        ("GET", "/b/a?versionId=2", {}, 403),
        ("GET", "/b/a?versionId=1", {"Range": "bytes=1-2"}, 403),
        ("GET", "/b/a?versionId=1", {"x-amz-checksum-mode": "ENABLED"}, 403),
        ("GET", "/b/a?versionId=1", {"x-amz-date": "20250615T150641Z"}, 403),
    ],
)
def test_a_signature_holds_for_what_was_signed_and_nothing_else(
    server: StrictS3, method: str, path: str, headers: Mapping[str, str], status: int
) -> None:
    """Whoever alters a request on its way is found out; the first is as it was signed."""
    server.secrets["test"] = "a-secret"
    request = AWSRequest("GET", f"{server.url}/b/a?versionId=1", {"Range": "bytes=0-1"})
    S3SigV4Auth(ReadOnlyCredentials("test", "a-secret", None), "s3", "us-east-1").add_auth(request)
    assert status == send(server, method, path, {**request.headers, **headers})[0]


def test_preconditions_hold_and_a_head_has_no_body(server: StrictS3) -> None:
    """412, with nothing changed; and 404 to a HEAD says no more than that."""
    only_new = {"If-None-Match": "*"}
    assert send(server, "PUT", "/b/a", only_new, b"first")[0] == 200
    status, body = send(server, "PUT", "/b/a", only_new, b"second")
    assert (status, b"PreconditionFailed" in body) == (412, True)
    assert send(server, "GET", "/b/a", {"Range": "bytes=1-2"}) == (206, b"ir")
    assert send(server, "GET", "/b/a", {"Range": "bytes=9-"})[0] == 416
    assert send(server, "GET", "/b/a", {"If-Match": '"other"'})[0] == 412
    assert send(server, "HEAD", "/b/absent", {}) == (404, b"")
