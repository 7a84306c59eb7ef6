"""A server of the S3 protocol that is stricter than S3 where it may be, and fails on schedule.

It checks every checksum it is sent, answers as S3 does down to the XML of its errors, and
refuses what it does not know rather than pass over it. What is injected happens to the
next request of an operation, named as in S3's own reference (`PutObject`).
"""

from __future__ import annotations

import base64
import hashlib
import re
import socketserver
import ssl
import threading
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from types import TracebackType
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tests.faults.http_connection import Headers, HttpConnection
from tests.faults.iam import allows
from tests.faults.s3_signature import read_claim
from tests.faults.s3_state import S3Error, State, Stored

__all__ = ["Fault", "Honesty", "StrictS3"]

_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_WHEN = "2025-06-15T15:06:40.000Z"


class Fault(StrEnum):
    """What happens to a request instead of, or beside, its being served."""

    ERROR = "500, nothing done"
    ERROR_AFTER = "500, though done"
    SLOW_DOWN = "503 SlowDown"
    CONFLICT = "409"
    SILENCE = "no answer, nothing done"
    SILENCE_AFTER = "no answer, though done"
    LATE = "no answer, done when the client has hung up"
    CUT_BEFORE = "connection cut, nothing done"
    CUT_AFTER = "connection cut, though done"
    CUT_BODY = "connection cut in the middle of the answer"
    GATEWAY = "404 of a gateway in between, in HTML"
    FLIPPED = "one bit of the answer flipped"
    STORED_TRUNCATED = "half of it stored, and 200"


_ERRORS = {
    Fault.ERROR: S3Error(500, "InternalError", "We encountered an internal error."),
    Fault.ERROR_AFTER: S3Error(500, "InternalError", "We encountered an internal error."),
    Fault.SLOW_DOWN: S3Error(503, "SlowDown", "Please reduce your request rate."),
    Fault.CONFLICT: S3Error(409, "ConditionalRequestConflict", "A conflicting operation."),
}
_UNDONE = (
    Fault.ERROR,
    Fault.SLOW_DOWN,
    Fault.CONFLICT,
    Fault.SILENCE,
    Fault.CUT_BEFORE,
    Fault.GATEWAY,
)


class Honesty(StrEnum):
    """Servers that do not do what they were told."""

    HONEST = "honest"
    REPLACES = "ignores If-None-Match"
    REPLACES_BY_PARTS = "ignores If-None-Match at the end of an upload in parts"
    TWO_WINNERS = "lets two concurrent creators win"
    UNCHECKED = "takes any checksum and repeats it"
    LISTS_ANEW = "ignores start-after"


class StrictS3:
    """The server, on a free port of the loopback interface, until the `with` block ends.

    `may_list`: whether the anonymous owner has s3:ListBucket; without it an absent object
    reads 403. `policies`: what each access key may do; empty, every key may do all.
    `secrets`: those of access keys whose signatures are checked. `region`: where the buckets
    are, if requests signed for another are refused. `tls`: makes it localhost, over TLS.
    `expired`: access keys whose time is over. `archived`: keys of objects in GLACIER, `sealed`:
    of objects whose own encryption key is disabled.
    `log`: each request's operation and key. `headers`: those of the last request of each
    operation.
    """

    def __init__(
        self,
        *,
        versioned: bool = False,
        may_list: bool = True,
        page: int = 1000,
        min_part: int = 5 * 1024 * 1024,
        honesty: Honesty = Honesty.HONEST,
        policies: Mapping[str, Mapping[str, Any]] | None = None,
        secrets: Mapping[str, str] | None = None,
        region: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.state = State(versioned=versioned, min_part=min_part)
        self.may_list = may_list
        self.page = page
        self.honesty = honesty
        self.policies = dict(policies or {})
        self.secrets = dict(secrets or {})
        self.region = region
        self.expired: set[str] = set()
        self.archived: set[str] = set()
        self.sealed: set[str] = set()
        self.log: list[tuple[str, str]] = []
        self.headers: dict[str, Headers] = {}
        self.race = threading.Barrier(2)
        self._faults: dict[tuple[str, str | None], deque[Fault]] = defaultdict(deque)
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        host = "http://127.0.0.1"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
            host = "https://localhost"
        self.url = f"{host}:{self._server.server_address[1]}"

    def __enter__(self) -> StrictS3:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def inject(self, operation: str, *faults: Fault, key: str | None = None) -> None:
        """Let the next requests of `operation` (on `key`, or on any) meet these faults."""
        with self._lock:
            self._faults[operation, key].extend(faults)

    def next_fault(self, operation: str, key: str) -> Fault | None:
        with self._lock:
            self.log.append((operation, key))
            for waiting in (self._faults[operation, key], self._faults[operation, None]):
                if waiting:
                    return waiting.popleft()
        return None

    def count(self, operation: str) -> int:
        """How many requests of `operation` have come in."""
        with self._lock:
            return sum(name == operation for name, _ in self.log)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128


@dataclass
class _Answer:
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass
class _Request:
    operation: str
    bucket: str
    key: str
    query: dict[str, str]
    headers: Headers
    body: bytes
    method: str
    target: str

    @cached_property
    def sha256(self) -> bytes:
        """Of the body."""
        return hashlib.sha256(self.body).digest()


def _operation(method: str, key: str, query: Mapping[str, str]) -> str:
    match method, bool(key):
        case "PUT", True:
            return "UploadPart" if "uploadId" in query else "PutObject"
        case "PUT", False if not query:
            return "CreateBucket"
        case "POST", True if "uploads" in query:
            return "CreateMultipartUpload"
        case "POST", True if "uploadId" in query:
            return "CompleteMultipartUpload"
        case "DELETE", True:
            return "AbortMultipartUpload" if "uploadId" in query else "DeleteObject"
        case "GET", True:
            return "GetObject"
        case "HEAD", True:
            return "HeadObject"
        case "HEAD", False:
            return "HeadBucket"
        case "GET", False if query.get("list-type") == "2":
            return "ListObjectsV2"
        case "GET", False if "versions" in query:
            return "ListObjectVersions"
        case "GET", False if "versioning" in query:
            return "GetBucketVersioning"
    raise S3Error(501, "NotImplemented", f"{method} {query}")


_ACTIONS = {
    "GetObject": "GetObject",
    "HeadObject": "GetObject",
    "PutObject": "PutObject",
    "CreateMultipartUpload": "PutObject",
    "UploadPart": "PutObject",
    "CompleteMultipartUpload": "PutObject",
    "ListObjectsV2": "ListBucket",
    "HeadBucket": "ListBucket",
    "ListObjectVersions": "ListBucketVersions",
}


def _handler(server: StrictS3) -> type[HttpConnection]:
    class Handler(HttpConnection):
        def answer(self, method: str, target: str, headers: Headers) -> bool:
            address = urlsplit(target)
            bucket, _, key = unquote(address.path.lstrip("/")).partition("/")
            query = dict(parse_qsl(address.query, keep_blank_values=True))
            fault = None
            try:
                body = _received(headers, self.body(headers))
                operation = _operation(method, key, query)
                fault = server.next_fault(operation, key)
                server.headers[operation] = headers
                if fault in _UNDONE:
                    answer = self._fail(fault, target)
                else:
                    request = _Request(operation, bucket, key, query, headers, body, method, target)
                    if fault is Fault.LATE:
                        self.await_hangup()
                    answer = _Service(server, request).answer(fault is Fault.STORED_TRUNCATED)
                    if fault in (Fault.ERROR_AFTER, Fault.SILENCE_AFTER, Fault.CUT_AFTER):
                        answer = self._fail(fault, target)
            except S3Error as error:
                answer = _error(error, target)
            return answer is not None and self._send(answer, fault, method)

        def _fail(self, fault: Fault, target: str) -> _Answer | None:
            if fault in _ERRORS:
                return _error(_ERRORS[fault], target)
            if fault is Fault.GATEWAY:
                return _Answer(404, {"Content-Type": "text/html"}, b"<html>Not found<br></html>")
            if fault in (Fault.SILENCE, Fault.SILENCE_AFTER):
                self.await_hangup()
            return None

        def _send(self, answer: _Answer, fault: Fault | None, method: str) -> bool:
            """Whether the connection is kept."""
            headers = {"x-amz-request-id": "4442587FB7D0A2F9", **answer.headers}
            if server.region is not None:
                headers["x-amz-bucket-region"] = server.region
            if answer.status != 204:
                headers.setdefault("Content-Length", str(len(answer.body)))
            body = b"" if method == "HEAD" else answer.body
            if fault is Fault.FLIPPED and body:
                at = len(server.log) * 7919 % len(body)
                body = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
            if fault is Fault.CUT_BODY:
                body = body[: len(body) // 2]
            self.send(answer.status, headers, body)
            return fault is not Fault.CUT_BODY

    return Handler


class _Service:
    """Serves one request, checksums checked and rights proven."""

    def __init__(self, server: StrictS3, request: _Request) -> None:
        self.server = server
        self.state = server.state
        self.request = request
        self.create_only = self._create_only()

    def answer(self, truncated: bool) -> _Answer:
        request = self.request
        self._authorise()
        if len(request.key.encode()) > 1024:
            raise S3Error(400, "KeyTooLongError", "Your key is too long")
        if self.server.honesty is not Honesty.UNCHECKED:
            _check_sums(request)
        if truncated:
            request = replace(request, body=request.body[: len(request.body) // 2])
            self.request = request
        serve: Callable[[], _Answer] = getattr(self, request.operation)
        return serve()

    # -- rights ------------------------------------------------------------------

    def _authorise(self) -> None:
        claim = read_claim(self.request.headers)
        if claim is None:
            raise S3Error(403, "AccessDenied", "Anonymous access is forbidden")
        self.identity = claim.identity
        if self.server.region not in (None, claim.region):
            raise S3Error(400, "AuthorizationHeaderMalformed", f"expecting {self.server.region}")
        secret = self.server.secrets.get(self.identity)
        if secret is not None and not claim.proven(
            secret, self.request.method, self.request.target, self.request.headers
        ):
            raise S3Error(403, "SignatureDoesNotMatch", "Check your key and signing method.")
        if self.identity in self.server.expired:
            raise S3Error(400, "ExpiredToken", "The provided token has expired.")
        if self.server.policies and self.identity not in self.server.policies:
            raise S3Error(403, "InvalidAccessKeyId", "The access key id does not exist.")
        request, operation = self.request, self.request.operation
        action = _ACTIONS.get(operation, operation)
        context = {}
        if operation.startswith("List") and "prefix" in request.query:
            context["s3_prefix"] = request.query["prefix"]
        if action == "PutObject":
            creates = operation in ("PutObject", "CompleteMultipartUpload")
            context["s3_ObjectCreationOperation"] = str(creates).lower()
            if (header := request.headers.get("if-none-match")) is not None:
                context["s3_if_none_match"] = header
        if action == "GetObject" and "versionId" in request.query:
            action = "GetObjectVersion"
        if not self._may(action, request.key, context):
            raise S3Error(403, "AccessDenied", f"not authorized to perform: s3:{action}")

    def _may(self, action: str, key: str, context: Mapping[str, str]) -> bool:
        if not self.server.policies:
            return self.server.may_list or action != "ListBucket"
        resource = f"arn:aws:s3:::{self.request.bucket}" + (f"/{key}" if key else "")
        policy = self.server.policies[self.identity]
        return allows(policy, f"s3:{action}", resource, **context)

    def _get(self) -> Stored:
        if self.request.key in self.server.sealed:
            raise S3Error(400, "KMS.DisabledException", "The key is disabled.")
        try:
            return self.state.get(
                self.request.bucket, self.request.key, self.request.query.get("versionId")
            )
        except S3Error as error:
            # To say that something is absent is to list, whatever its name begins with.
            if error.code == "NoSuchKey" and not self._may("ListBucket", "", {}):
                raise S3Error(403, "AccessDenied", "Access Denied") from None
            raise

    # -- objects -----------------------------------------------------------------

    def CreateBucket(self) -> _Answer:
        self.state.create_bucket(self.request.bucket)
        return _Answer()

    def HeadBucket(self) -> _Answer:
        self.state.keys(self.request.bucket)
        return _Answer()

    def GetBucketVersioning(self) -> _Answer:
        status = "<Status>Enabled</Status>" if self.state.versioned else ""
        return _xml("VersioningConfiguration", status)

    def PutObject(self) -> _Answer:
        request = self.request
        if self.server.honesty is Honesty.TWO_WINNERS and self.create_only:
            return self._put_after_a_race()
        made = self.state.put(
            request.bucket, request.key, self._stored(), create_only=self.create_only
        )
        return _Answer(headers=_described(made))

    def _put_after_a_race(self) -> _Answer:
        bucket, key = self.request.bucket, self.request.key
        if self.state.exists(bucket, key):
            raise S3Error(412, "PreconditionFailed", "At least one precondition failed.")
        # Both have looked before either writes.
        self.server.race.wait(timeout=120)
        made = self.state.put(bucket, key, self._stored(), create_only=False)
        return _Answer(headers=_described(made))

    def GetObject(self) -> _Answer:
        stored = self._get()
        headers = _described(stored) | {"Accept-Ranges": "bytes"}
        if not self._wants_checksum():
            headers.pop("x-amz-checksum-sha256", None)
        wanted = self.request.headers.get("if-match")
        if wanted is not None and wanted != stored.etag:
            raise S3Error(412, "PreconditionFailed", "At least one precondition failed.")
        asked = self.request.headers.get("range")
        if asked is None:
            return _Answer(200, headers, stored.data)
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", asked)
        if found is None:
            raise S3Error(501, "NotImplemented", asked)
        start, end = int(found[1]), int(found[2] or len(stored.data))
        if start >= len(stored.data) or end < start:
            raise S3Error(416, "InvalidRange", "The requested range is not satisfiable")
        body = stored.data[start : end + 1]
        whole = len(stored.data)
        headers["Content-Range"] = f"bytes {start}-{start + len(body) - 1}/{whole}"
        return _Answer(206, headers, body)

    def HeadObject(self) -> _Answer:
        stored = self._get()
        headers = _described(stored) | {"Content-Length": str(len(stored.data))}
        if not self._wants_checksum():
            headers.pop("x-amz-checksum-sha256", None)
        return _Answer(200, headers)

    def DeleteObject(self) -> _Answer:
        self.state.delete(self.request.bucket, self.request.key)
        return _Answer(204)

    # -- in parts ----------------------------------------------------------------

    def CreateMultipartUpload(self) -> _Answer:
        request = self.request
        algorithm = request.headers.get("x-amz-checksum-algorithm")
        if algorithm not in (None, "SHA256"):
            raise S3Error(501, "NotImplemented", str(algorithm))
        name = self.state.create_upload(
            request.bucket, request.key, _metadata(request.headers), algorithm is not None
        )
        return _xml("InitiateMultipartUploadResult", f"<UploadId>{name}</UploadId>")

    def UploadPart(self) -> _Answer:
        stored = self._stored()
        query = self.request.query
        self.state.put_part(query["uploadId"], int(query["partNumber"]), stored)
        return _Answer(headers=_described(stored))

    def CompleteMultipartUpload(self) -> _Answer:
        named = {"s3": _NAMESPACE}
        parts = [
            (
                int(part.findtext("s3:PartNumber", "", named)),
                part.findtext("s3:ETag", "", named),
                part.findtext("s3:ChecksumSHA256", None, named),
            )
            for part in ElementTree.fromstring(self.request.body).findall("s3:Part", named)
        ]
        made = self.state.complete(
            self.request.query["uploadId"], parts, create_only=self.create_only
        )
        return _xml("CompleteMultipartUploadResult", f"<ETag>{escape(made.etag)}</ETag>")

    def AbortMultipartUpload(self) -> _Answer:
        self.state.abort(self.request.query["uploadId"])
        return _Answer(204)

    # -- listings ----------------------------------------------------------------

    def ListObjectsV2(self) -> _Answer:
        query = self._listing_query({"list-type", "start-after", "continuation-token"})
        after = max(query.get("start-after", ""), query.get("continuation-token", ""))
        if self.server.honesty is Honesty.LISTS_ANEW:
            after = ""
        bucket = self.request.bucket
        found = [
            (key, self.state.versions(bucket, key)[0])
            for key in self.state.keys(bucket, query.get("prefix", ""), after)
        ]
        found = [(key, stored) for key, stored in found if not stored.deleted]
        limit = min(self.server.page, int(query.get("max-keys", 1000)))
        rows = "".join(
            f"<Contents>{self._row(key, stored)}</Contents>" for key, stored in found[:limit]
        )
        more = len(found) > limit
        token = _token(found[limit - 1][0], "NextContinuationToken") if more else ""
        return _xml("ListBucketResult", _truncated(more) + token + rows)

    def ListObjectVersions(self) -> _Answer:
        query = self._listing_query({"versions", "key-marker", "version-id-marker"})
        bucket, marker = self.request.bucket, query.get("key-marker", "")
        rows = [
            (key, stored, position == 0)
            for key in self.state.keys(bucket, query.get("prefix", ""), "")
            for position, stored in enumerate(self.state.versions(bucket, key))
            if key > marker or (key == marker and stored.version < query["version-id-marker"])
        ]
        limit = min(self.server.page, int(query.get("max-keys", 1000)))
        body = ""
        for key, stored, latest in rows[:limit]:
            kind = "DeleteMarker" if stored.deleted else "Version"
            body += (
                f"<{kind}>{self._row(key, stored)}<VersionId>{stored.version}</VersionId>"
                f"<IsLatest>{str(latest).lower()}</IsLatest></{kind}>"
            )
        more = len(rows) > limit
        if more:
            key, stored, _ = rows[limit - 1]
            body += _token(key, "NextKeyMarker")
            body += f"<NextVersionIdMarker>{stored.version}</NextVersionIdMarker>"
        return _xml("ListVersionsResult", _truncated(more) + body)

    def _row(self, key: str, stored: Stored) -> str:
        kind = "GLACIER" if key in self.server.archived else "STANDARD"
        return f"{_row(key, stored)}<StorageClass>{kind}</StorageClass>"

    def _listing_query(self, known: set[str]) -> dict[str, str]:
        query = self.request.query
        unknown = query.keys() - known - {"prefix", "max-keys", "encoding-type"}
        if unknown or query.get("encoding-type") != "url":
            raise S3Error(501, "NotImplemented", f"{sorted(unknown)}, or no encoding-type=url")
        return query

    # -- what a request asks -----------------------------------------------------

    def _create_only(self) -> bool:
        header = self.request.headers.get("if-none-match")
        if header not in (None, "*"):
            raise S3Error(501, "NotImplemented", "A header you provided implies functionality.")
        if self.server.honesty is Honesty.REPLACES_BY_PARTS:
            return header is not None and self.request.operation == "PutObject"
        return header is not None and self.server.honesty is not Honesty.REPLACES

    def _stored(self) -> Stored:
        """As a server that computes its own digests keeps the body."""
        body, sent = self.request.body, self.request.headers.get("x-amz-checksum-sha256")
        digest = base64.b64encode(self.request.sha256).decode()
        if self.server.honesty is Honesty.UNCHECKED and sent is not None:
            digest = sent
        # No MD5, as with a KMS key: that would cost more than all the rest.
        etag = f'"{self.request.sha256.hex()[:32]}"'
        return Stored(
            body, etag, digest if sent is not None else None, _metadata(self.request.headers)
        )

    def _wants_checksum(self) -> bool:
        return self.request.headers.get("x-amz-checksum-mode") == "ENABLED"


# -- reading a request -----------------------------------------------------------


def _received(headers: Headers, raw: bytes) -> bytes:
    if "aws-chunked" not in headers.get("content-encoding", ""):
        return raw
    body, trailers = b"", {}
    rest = raw
    while True:
        line, _, rest = rest.partition(b"\r\n")
        size = int(line.partition(b";")[0], 16)
        if size == 0:
            break
        body, rest = body + rest[:size], rest[size + 2 :]
    for line in rest.split(b"\r\n"):
        name, _, value = line.decode().partition(":")
        trailers[name.strip().lower()] = value.strip()
    if len(body) != int(headers["x-amz-decoded-content-length"]):
        raise S3Error(400, "IncompleteBody", "The decoded length differs")
    _compare_sums(
        {name: trailers.get(name, "") for name in _named_trailers(headers)},
        body,
        hashlib.sha256(body).digest(),
    )
    return body


def _named_trailers(headers: Headers) -> list[str]:
    return [name for name in headers.get("x-amz-trailer", "").lower().split(",") if name]


def _check_sums(request: _Request) -> None:
    headers = request.headers
    sums = {
        name: value
        for name, value in headers.items()
        if name.startswith("x-amz-checksum-")
        and name not in ("x-amz-checksum-mode", "x-amz-checksum-algorithm")
    }
    if (md5 := headers.get("content-md5")) is not None:
        sums["content-md5"] = md5
    _compare_sums(sums, request.body, request.sha256)
    whole = headers.get("x-amz-content-sha256", "UNSIGNED-PAYLOAD")
    streamed = whole.startswith(("UNSIGNED-PAYLOAD", "STREAMING-"))
    if not streamed and whole != request.sha256.hex():
        raise S3Error(400, "XAmzContentSHA256Mismatch", "The payload is not the one signed.")


def _compare_sums(sums: Mapping[str, str], body: bytes, sha256: bytes) -> None:
    computed: dict[str, Callable[[], bytes]] = {
        "content-md5": lambda: hashlib.md5(body).digest(),
        "x-amz-checksum-sha256": lambda: sha256,
        "x-amz-checksum-sha1": lambda: hashlib.sha1(body).digest(),
        "x-amz-checksum-crc32": lambda: zlib.crc32(body).to_bytes(4, "big"),
    }
    for name, value in sums.items():
        if name not in computed:
            raise S3Error(501, "NotImplemented", name)
        if value != base64.b64encode(computed[name]()).decode():
            raise S3Error(400, "BadDigest", f"The {name} you specified did not match.")


def _metadata(headers: Headers) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.startswith("x-amz-meta-")}


# -- writing an answer -----------------------------------------------------------


def _described(stored: Stored) -> dict[str, str]:
    headers = {"ETag": stored.etag, "Last-Modified": "Sun, 15 Jun 2025 15:06:40 GMT"}
    headers |= stored.metadata
    if stored.version != "null":
        headers["x-amz-version-id"] = stored.version
    if stored.sha256 is not None:
        composite = "-" in stored.sha256
        headers["x-amz-checksum-sha256"] = stored.sha256
        headers["x-amz-checksum-type"] = "COMPOSITE" if composite else "FULL_OBJECT"
    return headers


def _row(key: str, stored: Stored) -> str:
    row = f"<Key>{quote(key)}</Key><LastModified>{_WHEN}</LastModified>"
    if stored.deleted:
        return row
    row += f"<ETag>{escape(stored.etag)}</ETag><Size>{len(stored.data)}</Size>"
    if stored.sha256 is not None:
        kind = "COMPOSITE" if "-" in stored.sha256 else "FULL_OBJECT"
        row += f"<ChecksumAlgorithm>SHA256</ChecksumAlgorithm><ChecksumType>{kind}</ChecksumType>"
    return row


def _token(key: str, element: str) -> str:
    # A marker that is a key is encoded like one; a token is opaque, and comes back as it is.
    value = quote(key) if element == "NextKeyMarker" else escape(key)
    return f"<{element}>{value}</{element}>"


def _truncated(more: bool) -> str:
    encoding = "<EncodingType>url</EncodingType>"
    return f"{encoding}<IsTruncated>{str(more).lower()}</IsTruncated>"


def _xml(
    root: str, inside: str, status: int = 200, xmlns: str = f' xmlns="{_NAMESPACE}"'
) -> _Answer:
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{root}{xmlns}>{inside}</{root}>'
    return _Answer(status, {"Content-Type": "application/xml"}, text.encode())


def _error(error: S3Error, path: str) -> _Answer:
    inside = (
        f"<Code>{error.code}</Code><Message>{escape(error.message)}</Message>"
        f"<Resource>{escape(path)}</Resource><RequestId>4442587FB7D0A2F9</RequestId>"
    )
    return _xml("Error", inside, error.status, xmlns="")
