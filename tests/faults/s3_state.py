"""What a server of the S3 protocol remembers: objects, their versions, uploads in parts."""

from __future__ import annotations

import base64
import hashlib
import itertools
import threading
from dataclasses import dataclass, field

__all__ = ["S3Error", "State", "Stored", "Upload"]


class S3Error(Exception):
    """An answer that is not a success."""

    def __init__(self, status: int, code: str, message: str = "") -> None:
        super().__init__(code)
        self.status = status
        self.code = code
        self.message = message or code


@dataclass(frozen=True)
class Stored:
    """A version of an object, or the mark that it was deleted."""

    data: bytes
    etag: str = ""
    sha256: str | None = None
    """The checksum header: base64, with `-<parts>` where it is a digest of digests."""
    metadata: dict[str, str] = field(default_factory=dict)
    version: str = "null"
    deleted: bool = False


@dataclass
class Upload:
    bucket: str
    key: str
    metadata: dict[str, str]
    checksum: bool
    parts: dict[int, Stored] = field(default_factory=dict)


class State:
    """Buckets of objects. Every method is atomic."""

    def __init__(self, *, versioned: bool, min_part: int) -> None:
        self.versioned = versioned
        self.min_part = min_part
        self.uploads: dict[str, Upload] = {}
        self._buckets: dict[str, dict[str, list[Stored]]] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()

    def create_bucket(self, bucket: str) -> None:
        with self._lock:
            self._buckets.setdefault(bucket, {})

    def get(self, bucket: str, key: str, version: str | None = None) -> Stored:
        with self._lock:
            versions = self._bucket(bucket).get(key, [])
            if version is None:
                if not versions or versions[-1].deleted:
                    raise S3Error(404, "NoSuchKey", "The specified key does not exist.")
                return versions[-1]
            for stored in versions:
                if stored.version == version:
                    if stored.deleted:
                        raise S3Error(405, "MethodNotAllowed")
                    return stored
            raise S3Error(404, "NoSuchVersion", "The specified version does not exist.")

    def exists(self, bucket: str, key: str) -> bool:
        try:
            self.get(bucket, key)
        except S3Error as error:
            if error.code == "NoSuchKey":
                return False
            raise
        return True

    def put(self, bucket: str, key: str, stored: Stored, *, create_only: bool) -> Stored:
        with self._lock:
            if create_only and self.exists(bucket, key):
                raise S3Error(412, "PreconditionFailed", "At least one precondition failed.")
            version = f"v{next(self._numbers):06d}" if self.versioned else "null"
            made = Stored(
                stored.data, stored.etag, stored.sha256, stored.metadata, version, stored.deleted
            )
            versions = self._bucket(bucket).setdefault(key, [])
            if not self.versioned:
                versions.clear()
            versions.append(made)
            return made

    def delete(self, bucket: str, key: str) -> None:
        with self._lock:
            if self.versioned:
                self.put(bucket, key, Stored(b"", deleted=True), create_only=False)
            else:
                self._bucket(bucket).pop(key, None)

    def keys(self, bucket: str, prefix: str = "", after: str = "") -> list[str]:
        """Keys of whatever has a version, in the order of their UTF-8."""
        with self._lock:
            found = (k for k in self._bucket(bucket) if k.startswith(prefix) and k > after)
            return sorted(found, key=str.encode)

    def versions(self, bucket: str, key: str) -> list[Stored]:
        """The latest first."""
        with self._lock:
            return list(reversed(self._bucket(bucket).get(key, [])))

    def _bucket(self, bucket: str) -> dict[str, list[Stored]]:
        if bucket not in self._buckets:
            raise S3Error(404, "NoSuchBucket", "The specified bucket does not exist")
        return self._buckets[bucket]

    # -- in parts ----------------------------------------------------------------

    def create_upload(self, bucket: str, key: str, metadata: dict[str, str], checksum: bool) -> str:
        with self._lock:
            self._bucket(bucket)
            name = f"upload-{next(self._numbers)}"
            self.uploads[name] = Upload(bucket, key, metadata, checksum)
            return name

    def put_part(self, name: str, number: int, stored: Stored) -> None:
        with self._lock:
            if not 1 <= number <= 10_000:
                raise S3Error(400, "InvalidArgument")
            self._upload(name).parts[number] = stored

    def complete(
        self, name: str, parts: list[tuple[int, str, str | None]], *, create_only: bool
    ) -> Stored:
        """`parts`: number, ETag and checksum of each, as the client remembers them."""
        with self._lock:
            upload = self._upload(name)
            if [number for number, _, _ in parts] != sorted({number for number, _, _ in parts}):
                raise S3Error(400, "InvalidPartOrder")
            chosen = []
            for number, etag, checksum in parts:
                stored = upload.parts.get(number)
                if stored is None or stored.etag != etag:
                    raise S3Error(400, "InvalidPart")
                if upload.checksum and stored.sha256 != checksum:
                    raise S3Error(400, "InvalidPart", "the checksum of a part differs")
                chosen.append(stored)
            if any(len(stored.data) < self.min_part for stored in chosen[:-1]):
                raise S3Error(400, "EntityTooSmall")
            data = b"".join(stored.data for stored in chosen)
            etags = b"".join(bytes.fromhex(stored.etag.strip('"')) for stored in chosen)
            whole = Stored(
                data,
                f'"{hashlib.md5(etags).hexdigest()}-{len(chosen)}"',
                _composite(chosen) if upload.checksum else None,
                upload.metadata,
            )
            made = self.put(upload.bucket, upload.key, whole, create_only=create_only)
            del self.uploads[name]
            return made

    def abort(self, name: str) -> None:
        with self._lock:
            self._upload(name)
            del self.uploads[name]

    def _upload(self, name: str) -> Upload:
        if name not in self.uploads:
            raise S3Error(404, "NoSuchUpload", "The specified upload does not exist.")
        return self.uploads[name]


def _composite(parts: list[Stored]) -> str:
    digests = b"".join(base64.b64decode(part.sha256 or "") for part in parts)
    return f"{base64.b64encode(hashlib.sha256(digests).digest()).decode()}-{len(parts)}"
