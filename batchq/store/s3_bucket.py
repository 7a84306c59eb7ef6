"""The requests that a store makes of one bucket, among them the create-only write."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from batchq.errors import BatchqError
from batchq.result import sha256_hex
from batchq.s3.client import Client, Connection, Limits
from batchq.s3.objects import Answer
from batchq.s3.refusals import Refused, Unanswered
from batchq.store.base import StoreError

__all__ = ["PURPOSE", "Bucket", "S3Limits"]

log = logging.getLogger("batchq.store")

T = TypeVar("T")

PURPOSE = "result store"

_MEBIBYTE = 1024 * 1024

MOST_PARTS = 10_000
"""S3 takes no more in one upload."""


@dataclass(frozen=True, slots=True)
class S3Limits(Limits):
    """Those of a client, and what is sent in one piece.

    An object above `multipart_above` bytes is sent in parts of `part` bytes (S3 takes none
    below 5 MiB but the last), or larger ones where these would be too many, where the probe
    has seen that they replace nothing; the server then computes no digest of the whole.
    """

    multipart_above: int = 64 * _MEBIBYTE
    part: int = 16 * _MEBIBYTE


class Bucket:
    """One bucket, by whole paths. Each request raises what `Client.ask` does, but StoreError
    where there is no answer.

    `in_parts`: whether an upload in parts is proven to replace nothing either.
    """

    def __init__(self, name: str, client: Client, limits: S3Limits) -> None:
        self.name = name
        self.in_parts = False
        self._client = client
        self._limits = limits

    def create(self, path: str, data: bytes, sha256: str) -> bool:
        """Whether the object was created; false if there is one already."""
        if not self.in_one_piece(len(data)):
            # Only the last request can be told not to replace, so the first one looks.
            return not self._exists(path) and self.create_in_parts(path, data, sha256)
        headers = {
            "if-none-match": "*",
            "x-amz-checksum-sha256": _base64(sha256),
            # Some servers drop a checksum that comes without its algorithm.
            "x-amz-sdk-checksum-algorithm": "SHA256",
        }
        try:
            self._send("PutObject", path, headers, body=data)
        except Refused as refused:
            if refused.refusal.status == 412:
                return False
            raise
        return True

    def in_one_piece(self, size: int) -> bool:
        """Whether that many bytes are sent so: then the server computes the digest of all."""
        return not self.in_parts or size <= self._limits.multipart_above

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        end = "" if length is None else offset + length - 1
        part = {} if (offset, length) == (0, None) else {"range": f"bytes={offset}-{end}"}
        return self._send("GetObject", path, part).body

    def head(self, path: str) -> Mapping[str, str]:
        """The object's headers, with the server's own checksums."""
        return self._send("HeadObject", path, {"x-amz-checksum-mode": "ENABLED"}).headers

    def list(self, prefix: str, after: str = "") -> Mapping[str, Any]:
        """One page. It names no token: a last key never expires."""
        start = {"StartAfter": after} if after else {}
        return self._call("list_objects_v2", Prefix=prefix, **start)

    def delete(self, path: str) -> None:
        self._call("delete_object", Key=path)

    def create_in_parts(self, path: str, data: bytes, sha256: str) -> bool:
        """As `create`, for objects that one lost connection should not cost whole."""
        upload = self._call(
            "create_multipart_upload",
            Key=path,
            ChecksumAlgorithm="SHA256",
            # Of the whole, for people: what the server computes is a digest of digests.
            Metadata={"sha256": sha256},
        )["UploadId"]
        part, created = max(self._limits.part, -(-len(data) // MOST_PARTS)), False
        try:
            parts = [
                self._send_part(path, upload, number, data[start : start + part])
                for number, start in enumerate(range(0, len(data), part), 1)
            ]
            self._call(
                "complete_multipart_upload",
                Key=path,
                UploadId=upload,
                MultipartUpload={"Parts": parts},
                IfNoneMatch="*",
            )
            created = True
        except Refused as refused:
            if refused.refusal.status == 412:
                return False
            # It was completed before, and that answer was lost.
            if refused.refusal.code == "NoSuchUpload" and self._exists(path):
                return False
            raise
        finally:
            if not created:
                self._abort(path, upload)
        return created

    def _send_part(self, path: str, upload: str, number: int, data: bytes) -> Mapping[str, Any]:
        checksum = _base64(sha256_hex(data))
        answer = self._call(
            "upload_part",
            Key=path,
            UploadId=upload,
            PartNumber=number,
            Body=data,
            ChecksumAlgorithm="SHA256",
            ChecksumSHA256=checksum,
        )
        return {"PartNumber": number, "ETag": answer["ETag"], "ChecksumSHA256": checksum}

    def _abort(self, path: str, upload: str) -> None:
        """Free the space of the parts. Those of a killed process are the bucket's lifecycle's:
        aborting what is found could hit an upload of a worker that lives."""
        try:
            self._call("abort_multipart_upload", Key=path, UploadId=upload)
        except (Refused, StoreError, BatchqError) as error:
            log.debug("%s: upload %s is left behind: %s", path, upload, error)

    def _exists(self, path: str) -> bool:
        try:
            self.head(path)
        except Refused as refused:
            if refused.refusal.absent:
                return False
            raise
        return True

    def _call(self, verb: str, **parameters: Any) -> dict[str, Any]:
        """A request of the SDK's: those that are rare."""
        return self._ask(lambda c: getattr(c.s3, verb)(Bucket=self.name, **parameters))

    def _send(
        self, operation: str, path: str, headers: Mapping[str, str], **content: Any
    ) -> Answer:
        return self._ask(
            lambda c: c.objects.send(operation, self.name, path, headers=headers, **content)
        )

    def _ask(self, request: Callable[[Connection], T]) -> T:
        try:
            return self._client.ask(request)
        except Unanswered as error:
            raise StoreError(f"{PURPOSE}: {error}") from error


def _base64(sha256: str) -> str:
    return base64.b64encode(bytes.fromhex(sha256)).decode()
