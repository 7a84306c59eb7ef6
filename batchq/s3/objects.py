"""Putting, getting and heading single objects: what is asked for each item, and so often.

These requests are made of the SDK's parts and go past its client, which spends a millisecond
of CPU on each, on the cores that feed the device: half of it on the general machinery of
models, rules, validators and hooks. Credentials, signatures and connections are the SDK's. Where
a bucket is (endpoint, style of address, region) its client says too: it asks for the bucket
itself first, with HeadBucket, follows wherever that leads, and what it sent at last is the
pattern for the rest.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import socket
import threading
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from mmap import mmap
from typing import Any, Protocol
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest, AWSResponse
from botocore.exceptions import ClientError
from botocore.httpsession import URLLib3Session
from botocore.utils import get_environ_proxies
from urllib3.connection import HTTPConnection

from batchq.errors import UsageError
from batchq.s3.refusals import Refusal, Refused

__all__ = ["Answer", "Credentials", "Damaged", "Objects", "refusal_of", "whole_sha256"]

_METHODS = {"PutObject": "PUT", "HeadObject": "HEAD", "GetObject": "GET"}
_SCOPE = re.compile(r"Credential=[^,]*/\d{8}/([^/,]+)/([^/,]+)/aws4_request")

_SUMS: Mapping[str, Callable[[bytes], bytes]] = {
    "sha256": lambda data: hashlib.sha256(data).digest(),
    "sha1": lambda data: hashlib.sha1(data, usedforsecurity=False).digest(),
    "crc32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
}


class Damaged(OSError):
    """An answer that is not what was sent: cut off, altered, or not the server's at all."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request that succeeded. Names of `headers` in whatever case."""

    headers: Mapping[str, str]
    body: bytes


class Credentials(Protocol):
    """Who asks. `token`: that of a session, where there is one."""

    @property
    def access_key(self) -> str: ...

    @property
    def secret_key(self) -> str: ...

    @property
    def token(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a bucket's objects are: their addresses begin with `above`."""

    http: URLLib3Session
    above: str
    region: str
    service: str


class Objects:
    """Objects of whatever bucket, over connections that are kept. Safe for threads.

    `s3` is the SDK's client, `credentials` gives those of the moment. `connections` are kept
    for each bucket; `timeout`: seconds of silence after which one counts as broken.
    `certificates`: a file of authorities, if not those of the SDK.
    """

    def __init__(
        self,
        s3: Any,
        credentials: Callable[[], Credentials],
        *,
        connections: int,
        timeout: float,
        certificates: str | None,
    ) -> None:
        self._s3 = s3
        self._credentials = credentials
        self._connections = connections
        self._timeout = timeout
        self._certificates = certificates
        self._places: dict[str, _Place] = {}
        # Of each thread: behind a lock all would wait in turn for a server that is silent.
        self._sent = threading.local()
        s3.meta.events.register("before-send.s3.HeadBucket", self._note)

    def send(
        self,
        operation: str,
        bucket: str,
        key: str,
        *,
        headers: Mapping[str, str],
        version: str | None = None,
        body: bytes | mmap = b"",
        look: Callable[[Mapping[str, str]], None] | None = None,
    ) -> Answer:
        """PutObject, HeadObject or GetObject.

        `look` sees the answer's headers before its body is read, which it may refuse by
        raising. A body is checked against its length, and a whole one against the checksums
        that came with it. Raises Refused, and what the SDK raises where there is no answer.
        """
        place = self._places.get(bucket) or self._find(bucket)
        if isinstance(body, mmap):
            # It is sent as a file is, from where the last attempt came to.
            body.seek(0)
        query = "" if version is None else f"?versionId={quote(version, safe='')}"
        request = AWSRequest(
            method=_METHODS[operation],
            url=place.above + quote(key) + query,
            headers={**headers, "user-agent": "batchq"},
            data=body,
        )
        S3SigV4Auth(self._credentials(), place.service, place.region).add_auth(request)
        prepared = request.prepare()
        prepared.stream_output = look is not None
        answer = place.http.send(prepared)
        try:
            if answer.status_code >= 300:
                raise Refused(_refusal(operation, answer))
            if look is not None:
                look(answer.headers)
            data: bytes = answer.content
        finally:
            if look is not None:
                # What was not read to its end must not go back to the pool of connections.
                answer.raw.close()
        if operation == "GetObject":
            _check(answer.headers, data, whole=answer.status_code == 200)
        return Answer(answer.headers, data)

    # -- where a bucket is -------------------------------------------------------

    def _find(self, bucket: str) -> _Place:
        """Several threads may at once, each for itself."""
        final = True
        try:
            self._s3.head_bucket(Bucket=bucket)
        except ClientError as error:
            refusal = refusal_of(error)
            if refusal.passing:
                raise
            # Missing, forbidden, expired: the request for the object will say so better.
            final = not refusal.expired
        sent = self._sent.last
        url, authorization = urlsplit(sent.url), sent.headers["Authorization"]
        if isinstance(authorization, bytes):
            authorization = authorization.decode()
        scope = _SCOPE.search(authorization)
        if scope is None:
            raise UsageError(
                f"{bucket}: the SDK signs its requests in another way than by version 4",
                hint="remove what asks for that from the SDK's configuration",
            )
        server = f"{url.scheme}://{url.netloc}"
        above = f"{server}{url.path.rstrip('/')}/"
        place = _Place(self._connected(server), above, *scope.groups())
        if final:
            self._places[bucket] = place
        return place

    def _note(self, request: Any, **_: Any) -> None:
        self._sent.last = request

    def _connected(self, server: str) -> URLLib3Session:
        return URLLib3Session(
            verify=self._certificates or os.environ.get("REQUESTS_CA_BUNDLE") or True,
            proxies=get_environ_proxies(server),
            timeout=(self._timeout, self._timeout),
            max_pool_connections=self._connections,
            socket_options=[
                *HTTPConnection.default_socket_options,
                (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            ],
        )


def whole_sha256(headers: Mapping[str, str]) -> str | None:
    """The server's SHA-256 of all the bytes, in hex; none for a digest of digests of parts."""
    checksum = headers.get("x-amz-checksum-sha256")
    if checksum is None or headers.get("x-amz-checksum-type", "FULL_OBJECT") != "FULL_OBJECT":
        return None
    try:
        digest = base64.b64decode(checksum, validate=True)
    except binascii.Error:
        return None
    return digest.hex() if len(digest) == hashlib.sha256().digest_size else None


def refusal_of(error: ClientError) -> Refusal:
    """What the SDK was answered."""
    said = error.response.get("Error", {})
    return Refusal(
        operation=error.operation_name,
        status=int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)),
        code=str(said.get("Code", "")),
        message=str(said.get("Message", "")),
    )


def _refusal(operation: str, answer: AWSResponse) -> Refusal:
    """A HEAD has no body: then the status is all there is, also in place of a code."""
    status = answer.status_code
    code, message = str(status), answer.raw.reason or ""
    if answer.content:
        try:
            error = ElementTree.fromstring(answer.content)
        except ElementTree.ParseError:
            raise Damaged(f"{operation} was answered {status}, and not in XML") from None
        code = error.findtext("Code") or code
        message = error.findtext("Message") or ""
    return Refusal(operation, status, code, message)


def _check(headers: Mapping[str, str], data: bytes, *, whole: bool) -> None:
    if len(data) != int(headers.get("content-length", len(data))):
        raise Damaged(f"{len(data):,} bytes of {int(headers['content-length']):,} were received")
    for name, computed in _SUMS.items() if whole else ():
        value = headers.get(f"x-amz-checksum-{name}", "-")
        # One of parts is followed by their number.
        if "-" not in value and value != base64.b64encode(computed(data)).decode():
            raise Damaged(f"the bytes received do not have the {name} sent with them")
