"""Putting, getting and heading single objects: what is asked for each item, and so often.

These requests go past the SDK, which spends a millisecond of CPU on each, on the cores that
feed the device: two thirds of it on the general machinery of models, rules, validators and
hooks. Who asks (credentials, renewed by the SDK) and where a bucket
is (endpoint, style of address, region) is still for the SDK to say: it asks for the bucket
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
from typing import Any
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

from botocore.exceptions import ClientError
from botocore.httpsession import ProxyConfiguration, get_cert_path
from botocore.utils import get_environ_proxies
from urllib3 import BaseHTTPResponse, HTTPConnectionPool, PoolManager, ProxyManager, Timeout
from urllib3.connection import HTTPConnection

from batchq.clock import Clock
from batchq.errors import UsageError
from batchq.s3.refusals import Refusal, Refused
from batchq.s3.signing import Credentials, Signer

__all__ = ["Answer", "Damaged", "Objects", "refusal_of", "whole_sha256"]

_METHODS = {"PutObject": "PUT", "HeadObject": "HEAD", "GetObject": "GET"}
_NO_BYTES = hashlib.sha256(b"").hexdigest()
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


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a bucket's objects are: `above` stands before each key, `base` before that."""

    pool: HTTPConnectionPool
    host: str
    base: str
    above: str
    signer: Signer


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
        clock: Clock,
        *,
        connections: int,
        timeout: float,
        certificates: str | None,
    ) -> None:
        self._s3 = s3
        self._credentials = credentials
        self._clock = clock
        self._connections = connections
        self._timeout = timeout
        self._certificates = certificates
        self._places: dict[str, _Place] = {}
        self._looking = threading.Lock()
        self._sent: Any = None
        s3.meta.events.register("before-send.s3.HeadBucket", self._note)

    def send(
        self,
        operation: str,
        bucket: str,
        key: str,
        *,
        headers: Mapping[str, str],
        version: str | None = None,
        body: bytes = b"",
        sha256: str = _NO_BYTES,
        look: Callable[[Mapping[str, str]], None] | None = None,
    ) -> Answer:
        """PutObject, HeadObject or GetObject; `sha256` is that of the body, in hex.

        `look` sees the answer's headers before its body is read, which it may refuse by
        raising. A whole body is checked against the checksums that came with it. Raises
        Refused, and what the SDK and urllib3 raise where there is no answer.
        """
        method, place = _METHODS[operation], self._place(bucket)
        path = place.above + quote(key)
        query = "" if version is None else f"versionId={quote(version, safe='')}"
        signed = place.signer.sign(
            method,
            path,
            query,
            {**headers, "host": place.host},
            sha256=sha256,
            credentials=self._credentials(),
            now=self._clock.now(),
        )
        # Not signed: proxies may add to it.
        signed["user-agent"] = "batchq"
        if method == "PUT":
            signed["content-length"] = str(len(body))
        answer = place.pool.urlopen(
            method,
            place.base + path + (query and f"?{query}"),
            body=body or None,
            headers=signed,
            retries=False,
            redirect=False,
            assert_same_host=False,
            preload_content=look is None,
            decode_content=False,
        )
        try:
            if answer.status >= 300:
                raise Refused(_refusal(operation, answer))
            if look is not None:
                look(answer.headers)
            data = answer.data
        finally:
            if look is not None:
                # What was not read to its end must not go back to the pool of connections.
                answer.close()
        if method == "GET" and answer.status == 200:
            _check(answer.headers, data)
        return Answer(answer.headers, data)

    # -- where a bucket is -------------------------------------------------------

    def _place(self, bucket: str) -> _Place:
        place = self._places.get(bucket)
        if place is None:
            with self._looking:
                place = self._places.get(bucket) or self._find(bucket)
        return place

    def _find(self, bucket: str) -> _Place:
        final = True
        try:
            self._s3.head_bucket(Bucket=bucket)
        except ClientError as error:
            refusal = refusal_of(error)
            if refusal.passing:
                raise
            # Missing, forbidden, expired: the request for the object will say so better.
            final = not refusal.expired
        url = urlsplit(self._sent.url)
        authorization = self._sent.headers["Authorization"]
        if isinstance(authorization, bytes):
            authorization = authorization.decode()
        scope = _SCOPE.search(authorization)
        if scope is None:
            raise UsageError(
                f"{bucket}: the SDK signs its requests in another way than by version 4",
                hint="remove what asks for that from the SDK's configuration",
            )
        pool, base = self._pool(f"{url.scheme}://{url.netloc}")
        above = f"{url.path.rstrip('/')}/"
        place = _Place(pool, url.netloc, base, above, Signer(*scope.groups()))
        if final:
            self._places[bucket] = place
        return place

    def _note(self, request: Any, **_: Any) -> None:
        self._sent = request

    def _pool(self, url: str) -> tuple[HTTPConnectionPool, str]:
        """Connections to a server, and what stands before a path in a request to it."""
        secure = url.startswith("https:")
        options: dict[str, Any] = {
            "maxsize": self._connections,
            "timeout": Timeout(connect=self._timeout, read=self._timeout),
            "socket_options": [
                *HTTPConnection.default_socket_options,
                (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            ],
        }
        if secure:
            trusted = self._certificates or os.environ.get("REQUESTS_CA_BUNDLE") or True
            options |= {"cert_reqs": "CERT_REQUIRED", "ca_certs": get_cert_path(trusted)}
        proxies = ProxyConfiguration(get_environ_proxies(url))
        proxy = proxies.proxy_url_for(url)
        if proxy is None:
            return PoolManager(**options).connection_from_url(url), ""
        manager = ProxyManager(proxy, proxy_headers=proxies.proxy_headers_for(proxy), **options)
        return manager.connection_from_url(url), "" if secure else url


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


def _refusal(operation: str, answer: BaseHTTPResponse) -> Refusal:
    """A HEAD has no body: then the status is all there is, also in place of a code."""
    status = answer.status
    code, message = str(status), answer.reason or ""
    if answer.data:
        try:
            error = ElementTree.fromstring(answer.data)
        except ElementTree.ParseError:
            raise Damaged(f"{operation} was answered {status}, and not in XML") from None
        code = error.findtext("Code") or code
        message = error.findtext("Message") or ""
    return Refusal(operation, status, code, message)


def _check(headers: Mapping[str, str], data: bytes) -> None:
    for name, computed in _SUMS.items():
        value = headers.get(f"x-amz-checksum-{name}", "-")
        # One of parts is followed by their number.
        if "-" not in value and value != base64.b64encode(computed(data)).decode():
            raise Damaged(f"the bytes received do not have the {name} sent with them")
