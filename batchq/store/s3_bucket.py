"""The requests that a store makes of one bucket, among them the create-only write.

They are put to the SDK's client by whoever is given as `ask`, so that repeating them,
credentials and lost connections are no matter of this module.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from batchq.errors import BatchqError
from batchq.result import sha256_hex
from batchq.store.base import StoreError
from batchq.store.s3_refusals import Refused

__all__ = ["Ask", "Bucket", "S3Limits"]

log = logging.getLogger("batchq.store")

T = TypeVar("T")

_MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class S3Limits:
    """How much is asked of the server at once, and how often.

    `connections`: threads that may ask without waiting for each other. `timeout`:
    seconds of silence after which a connection counts as broken. `attempts`: how often
    a request is sent, with `backoff * 2**n` seconds between, half of it jitter. An
    object above `multipart_above` bytes is sent in parts of `part` bytes (S3 takes none
    below 5 MiB but the last), where the probe has seen that they replace nothing; the
    server then computes no digest of the whole.
    """

    connections: int = 32
    timeout: float = 20.0
    attempts: int = 4
    backoff: float = 0.2
    multipart_above: int = 64 * _MEBIBYTE
    part: int = 16 * _MEBIBYTE


class Ask(Protocol):
    """Puts a request to the SDK's client, repeatedly if need be.

    Raises Refused for an answer that is final, StoreError for none, and AccessDenied or
    UsageError where the environment does not suffice to ask at all.
    """

    def __call__(self, request: Callable[[Any], T]) -> T: ...


class Bucket:
    """One bucket, by whole paths. Each request raises what `ask` does.

    `in_parts`: whether an upload in parts is proven to replace nothing either.
    """

    def __init__(self, name: str, ask: Ask, limits: S3Limits) -> None:
        self.name = name
        self.in_parts = False
        self._ask = ask
        self._limits = limits

    def create(self, path: str, data: bytes, sha256: str) -> bool:
        """Whether the object was created; false if there is one already."""
        if self.in_parts and len(data) > self._limits.multipart_above:
            # Only the last request can be told not to replace, so the first one looks.
            return not self._exists(path) and self.create_in_parts(path, data, sha256)
        return self._created(
            "put_object",
            Key=path,
            Body=data,
            # Some servers drop a checksum that comes without its algorithm.
            ChecksumAlgorithm="SHA256",
            ChecksumSHA256=_base64(sha256),
        )

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        end = "" if length is None else offset + length - 1
        part = {} if (offset, length) == (0, None) else {"Range": f"bytes={offset}-{end}"}

        def read(s3: Any) -> bytes:
            body = s3.get_object(Bucket=self.name, Key=path, **part)["Body"]
            try:
                return bytes(body.read())
            finally:
                # What was not read to its end must not go back to the pool of connections.
                body.close()

        return self._ask(read)

    def head(self, path: str) -> Mapping[str, Any]:
        return self._call("head_object", Key=path, ChecksumMode="ENABLED")

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
        part, created = self._limits.part, False
        try:
            parts = [
                self._send_part(path, upload, number, data[start : start + part])
                for number, start in enumerate(range(0, len(data), part), 1)
            ]
            created = self._created(
                "complete_multipart_upload",
                Key=path,
                UploadId=upload,
                MultipartUpload={"Parts": parts},
            )
        except Refused as refused:
            # It was completed before, and that answer was lost.
            if refused.refusal.code == "NoSuchUpload" and self._exists(path):
                return False
            raise
        finally:
            if not created:
                self._abort(path, upload)
        return created

    def _created(self, verb: str, **parameters: Any) -> bool:
        try:
            self._call(verb, IfNoneMatch="*", **parameters)
        except Refused as refused:
            if refused.refusal.status == 412:
                return False
            raise
        return True

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
        return self._ask(lambda s3: getattr(s3, verb)(Bucket=self.name, **parameters))


def _base64(sha256: str) -> str:
    return base64.b64encode(bytes.fromhex(sha256)).decode()
