"""The result store in a bucket of S3, or of a server that speaks its protocol.

    s3://bucket/prefix/<run>-<id>/<2 hex>/<name>.json     a result
    s3://bucket/prefix/.probe/<name>                       left by `probe`; no verb shows it

Endpoint, region and credentials come from the SDK's own environment. Objects are created
with `If-None-Match: *` and their SHA-256, and never replaced, nor deleted by a worker, whose
role needs no right to do either.

412 is an answer: the object exists. Where there is none, however often it was asked for,
StoreError says nothing about what lies there. A put that took effect and lost its answer is
answered 412 when it is asked again, and that is true.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from batchq.clock import Clock, SystemClock
from batchq.errors import BatchqError, StoreUnusable, UsageError
from batchq.redact import redact
from batchq.result import sha256_hex
from batchq.s3.client import Client
from batchq.s3.objects import whole_sha256
from batchq.s3.refusals import Refused
from batchq.store.base import ObjectInfo, ObjectMissing, StoreError, is_key_part, key_parts
from batchq.store.s3_bucket import PURPOSE, Bucket, S3Limits
from batchq.store.s3_probe import prove
from batchq.store.s3_refusals import explain

__all__ = ["S3Limits", "S3Store"]

log = logging.getLogger("batchq.store")


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
        client = Client(PURPOSE, limits, clock or SystemClock())
        self._bucket = Bucket(bucket, client, limits)

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
        # Who is proven to check this does so for what comes in one piece.
        checked_there = self.checks_digests and self._bucket.in_one_piece(len(data))
        if not checked_there and sha256_hex(data) != sha256:
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
        digest = whole_sha256(found) if self.checks_digests else None
        return ObjectInfo(key, int(found["content-length"]), digest)

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
        return explain(refused.refusal, f"{self.url}/{key}")


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
