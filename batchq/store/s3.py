"""The result store in a bucket of S3, or of a server that speaks its protocol.

    s3://bucket/prefix/<run>-<id>/<2 hex>/<name>.json     a result
    s3://bucket/prefix/.probe/<name>                       left by `probe`; no verb shows it

Endpoint, region and credentials come from the SDK's own environment. Objects are created
with `If-None-Match: *` and their SHA-256, and never replaced, nor deleted by a worker, whose
role needs no right to do either.

An answer is final or it is not. 412 is final: the object exists. A conflict (409), an
error of the server (5xx), throttling and a connection that broke are asked again a few
times, and then raise StoreError, which says nothing about what lies there. A put that took
effect and lost its answer is answered 412 when it is asked again, and that is true.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import boto3
from botocore import exceptions as sdk
from botocore.config import Config
from botocore.credentials import RefreshableCredentials
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from batchq.clock import Clock, SystemClock, random_fraction
from batchq.errors import AccessDenied, BatchqError, StoreUnusable, UsageError
from batchq.redact import redact
from batchq.result import sha256_hex
from batchq.store.base import ObjectInfo, ObjectMissing, StoreError, is_key_part, key_parts
from batchq.store.s3_bucket import Bucket, S3Limits
from batchq.store.s3_probe import prove
from batchq.store.s3_refusals import Refusal, Refused

__all__ = ["S3Limits", "S3Store"]

log = logging.getLogger("batchq.store")

T = TypeVar("T")

_BROKEN = (
    sdk.ConnectionError,
    sdk.HTTPClientError,
    sdk.IncompleteReadError,
    sdk.CredentialRetrievalError,
    sdk.MetadataRetrievalError,
    ResponseParserError,
    HTTPError,
    OSError,
)
"""No answer, or half of one, from the server or from what gives out credentials."""

_NO_CREDENTIALS = (
    sdk.NoCredentialsError,
    sdk.PartialCredentialsError,
    sdk.ProfileNotFound,
    sdk.SSOError,
    sdk.TokenRetrievalError,
)


class S3Store:
    """Objects below `url`, `s3://bucket/prefix`. Raises UsageError for another form.

    `checks_digests`: whether this server is proven to refuse bytes that do not have the
    SHA-256 sent with them. Until `probe` has seen that, `head` repeats no digest of the
    server's, so that whoever writes reads back in full.
    """

    remote = True

    def __init__(
        self, url: str, *, limits: S3Limits | None = None, clock: Clock | None = None
    ) -> None:
        bucket, prefix = _bucket_and_prefix(url)
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self.checks_digests = False
        self._above = prefix and f"{prefix}/"
        limits = limits or S3Limits()
        self._bucket = Bucket(bucket, _Client(limits, clock or SystemClock()).ask, limits)

    def probe(self) -> None:
        """Also raises AccessDenied. Leaves small objects, in 257 places at most."""
        proof = prove(self._bucket, f"{self._above}.probe/", self.url)
        self.checks_digests = proof.checks_digests
        self._bucket.in_parts = proof.in_parts
        if not self.checks_digests:
            log.warning(
                "%s: this server takes bytes that do not have the SHA-256 sent with them, so "
                "every result is read back in full",
                self.url,
            )

    def put_if_absent(self, key: str, data: bytes, sha256: str) -> bool:
        path = self._path(key)
        if sha256_hex(data) != sha256:
            raise StoreError(f"{key}: the bytes do not have the digest they were sent with")
        try:
            return self._bucket.create(path, data, sha256)
        except Refused as refused:
            raise self._explained(refused, key) from refused

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        path = self._path(key)
        if length == 0:
            # A range cannot ask for nothing, and it still matters whether the object exists.
            if self.head(key) is None:
                raise ObjectMissing(key)
            return b""
        try:
            return self._bucket.read(path, offset, length)
        except Refused as refused:
            if refused.refusal.status == 416:
                return b""
            if refused.refusal.absent:
                raise ObjectMissing(key) from None
            raise self._explained(refused, key) from refused

    def head(self, key: str) -> ObjectInfo | None:
        try:
            found = self._bucket.head(self._path(key))
        except Refused as refused:
            if refused.refusal.absent:
                return None
            raise self._explained(refused, key) from refused
        digest = _whole_sha256(found) if self.checks_digests else None
        return ObjectInfo(key, int(found["ContentLength"]), digest)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """In key order, a page at a time. What is no key of a store is passed over."""
        last = self._above + after
        more = True
        while more:
            try:
                page = self._bucket.list(self._above + prefix, last)
            except Refused as refused:
                raise self._explained(refused, prefix) from refused
            # An empty page that is not the last one would be asked for again for ever.
            more = bool(page.get("IsTruncated") and page.get("Contents"))
            for found in page.get("Contents", ()):
                path = found["Key"]
                if path <= last:
                    raise StoreUnusable(
                        f"{self.url}: the server lists {path!r} after {last!r}",
                        hint="it must list in the order of keys and heed StartAfter: "
                        "directory buckets (S3 Express) will not do",
                    )
                last = path
                key = path.removeprefix(self._above)
                if all(map(is_key_part, key.split("/"))):
                    yield ObjectInfo(key, int(found["Size"]))

    def delete(self, key: str) -> None:
        try:
            self._bucket.delete(self._path(key))
        except Refused as refused:
            if not refused.refusal.absent:
                raise self._explained(refused, key) from refused

    def _path(self, key: str) -> str:
        key_parts(key)
        return self._above + key

    def _explained(self, refused: Refused, key: str) -> BatchqError | StoreError:
        return refused.refusal.explain(f"{self.url}/{key}")


class _Client:
    """The SDK's client: made when it is first needed, made anew when credentials expire."""

    def __init__(self, limits: S3Limits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._config = Config(
            connect_timeout=limits.timeout,
            read_timeout=limits.timeout,
            max_pool_connections=limits.connections,
            tcp_keepalive=True,
            # The SDK's own repetition pauses by another clock and knows no conflicts.
            retries={"total_max_attempts": 1, "mode": "standard"},
            # What the SDK would add by itself, servers other than S3 refuse.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        self._connection: _Connection | None = None
        self._connecting = threading.Lock()

    def ask(self, request: Callable[[Any], T]) -> T:
        attempt, renewed = 1, False
        while True:
            connection = None
            try:
                connection = self._connected()
                return request(connection.s3)
            except sdk.ClientError as error:
                refusal = _refusal(error)
                if refusal.expired and not renewed:
                    self._drop(connection)
                    renewed = True
                    continue
                why = str(refusal)
                refreshes = connection is not None and connection.refreshes
                if not refusal.passing and not (refusal.expired and refreshes):
                    raise Refused(refusal) from error
            except _BROKEN as error:
                why = redact(str(error))
            except sdk.BotoCoreError as error:
                raise _unsendable(error) from error
            if attempt == self._limits.attempts:
                raise StoreError(f"result store: {why}")
            pause = self._limits.backoff * 2 ** (attempt - 1)
            self._clock.wait(threading.Event(), pause * (0.5 + random_fraction() / 2))
            attempt += 1

    def _connected(self) -> _Connection:
        with self._connecting:
            if self._connection is None:
                try:
                    self._connection = _Connection(self._config)
                except ValueError as error:
                    raise _unsendable(error) from error
            return self._connection

    def _drop(self, expired: _Connection | None) -> None:
        """Let the next request read the credentials anew: they may have been replaced."""
        with self._connecting:
            if self._connection is expired:
                self._connection = None


class _Connection:
    """A client, with the credentials that the environment gave when it was made.

    `refreshes`: the SDK gets new ones by itself, so that these expire by accident only.
    """

    def __init__(self, config: Config) -> None:
        session = boto3.session.Session()
        self.s3 = session.client("s3", config=config)
        self.refreshes = isinstance(session.get_credentials(), RefreshableCredentials)


def _bucket_and_prefix(url: str) -> tuple[str, str]:
    scheme, _, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    prefix = prefix.strip("/")
    if scheme != "s3" or not bucket or any(mark in bucket for mark in "@:?#"):
        raise UsageError(
            f"{redact(url)} is no result store",
            hint="write s3://BUCKET or s3://BUCKET/PREFIX; endpoint, region and credentials "
            "come from the environment (AWS_ENDPOINT_URL_S3, AWS_REGION, AWS_PROFILE)",
        )
    if prefix and not all(map(is_key_part, prefix.split("/"))):
        raise UsageError(
            f"{redact(url)}: {prefix!r} cannot stand before the keys of results",
            hint="no part of the prefix may be empty, begin with a dot or hold control characters",
        )
    return bucket, prefix


def _whole_sha256(found: Mapping[str, Any]) -> str | None:
    """The server's SHA-256 of all the bytes, in hex; none for a digest of digests of parts."""
    checksum = found.get("ChecksumSHA256")
    if checksum is None or found.get("ChecksumType", "FULL_OBJECT") != "FULL_OBJECT":
        return None
    try:
        digest = base64.b64decode(checksum, validate=True)
    except binascii.Error:
        return None
    return digest.hex() if len(digest) == hashlib.sha256().digest_size else None


def _refusal(error: sdk.ClientError) -> Refusal:
    said = error.response.get("Error", {})
    return Refusal(
        operation=error.operation_name,
        status=int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)),
        code=str(said.get("Code", "")),
        message=str(said.get("Message", "")),
    )


def _unsendable(error: Exception) -> BatchqError:
    """Nothing could be asked: it is the environment that does not suffice."""
    said = f"result store: {redact(str(error))}"
    if isinstance(error, _NO_CREDENTIALS):
        return AccessDenied(
            said,
            hint="set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give this "
            "instance a role",
        )
    return UsageError(
        said, hint="check the bucket in --results and the AWS_* variables and files here"
    )
