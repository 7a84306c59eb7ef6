"""The result store in memory: the reference that the others are held against."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from batchq.result import sha256_hex
from batchq.store.base import ObjectInfo, ObjectMissing, StoreError, key_parts

__all__ = ["MemoryStore"]


class MemoryStore:
    """Objects in a dictionary; gone with the process."""

    url = "memory:"
    remote = False

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def probe(self) -> None:
        """Nothing to prove: a dictionary under a lock refuses to replace."""

    def put_if_absent(self, key: str, data: bytes, sha256: str) -> bool:
        key_parts(key)
        if sha256_hex(data) != sha256:
            raise StoreError(f"{key}: the bytes do not have the digest they were sent with")
        with self._lock:
            if key in self._objects:
                return False
            self._objects[key] = bytes(data)
            return True

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        data = self._get(key)
        if data is None:
            raise ObjectMissing(key)
        return data[offset:] if length is None else data[offset : offset + length]

    def head(self, key: str) -> ObjectInfo | None:
        data = self._get(key)
        return None if data is None else ObjectInfo(key, len(data), sha256_hex(data))

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        with self._lock:
            keys = sorted(key for key in self._objects if key.startswith(prefix) and key > after)
        for key in keys:
            if (data := self._get(key)) is not None:
                yield ObjectInfo(key, len(data), sha256_hex(data))

    def delete(self, key: str) -> None:
        key_parts(key)
        with self._lock:
            self._objects.pop(key, None)

    def _get(self, key: str) -> bytes | None:
        key_parts(key)
        with self._lock:
            return self._objects.get(key)
