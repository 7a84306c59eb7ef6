"""A store that fails on schedule, in the ways real ones do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum

from batchq.result import sha256_hex
from batchq.store.base import ObjectInfo, Store, StoreError

__all__ = ["FaultyStore", "PutFault", "ReadFault"]


class PutFault(StrEnum):
    NONE = "none"
    ERROR_BEFORE = "error before write"
    """Refused; nothing was written."""
    LOST_ANSWER = "error after write"
    """Written, but the caller sees a timeout."""
    LATE = "written later"
    """A timeout, and the write lands only when the store is called again."""
    TRUNCATED = "half of it stored"
    """Half the bytes are stored, and the store says that all went well."""
    GARBAGE_FIRST = "garbage was first"
    """Something that is no envelope lies there already."""
    LIES_EXISTS = "says exists"
    """Says that the object exists where it does not."""


class ReadFault(StrEnum):
    NONE = "none"
    ERROR = "no answer"
    FLIPPED = "one bit flipped"
    SHORT = "cut short"


class FaultyStore:
    """`inner`, with the next fault of its schedule at each call; then none.

    With `hides_digest`, `head` tells none, as a store that computes none.
    """

    remote = True

    def __init__(
        self,
        inner: Store,
        puts: Iterable[PutFault] = (),
        reads: Iterable[ReadFault] = (),
        *,
        hides_digest: bool = False,
    ) -> None:
        self.inner = inner
        self.url = inner.url
        self.put_calls = 0
        self.read_calls = 0
        self._puts = iter(puts)
        self._reads = iter(reads)
        self._hides_digest = hides_digest
        self._late: list[tuple[str, bytes, str]] = []

    def probe(self) -> None:
        self.inner.probe()

    def put_if_absent(self, key: str, data: bytes, sha256: str) -> bool:
        self._land()
        self.put_calls += 1
        match next(self._puts, PutFault.NONE):
            case PutFault.ERROR_BEFORE:
                raise StoreError("503 slow down")
            case PutFault.LOST_ANSWER:
                self.inner.put_if_absent(key, data, sha256)
                raise StoreError("the connection was reset")
            case PutFault.LATE:
                self._late.append((key, data, sha256))
                raise StoreError("timed out")
            case PutFault.TRUNCATED:
                half = data[: len(data) // 2]
                return self.inner.put_if_absent(key, half, sha256_hex(half))
            case PutFault.GARBAGE_FIRST:
                garbage = b'{"schema":"batchq/1","output":'
                self.inner.put_if_absent(key, garbage, sha256_hex(garbage))
            case PutFault.LIES_EXISTS:
                return False
        return self.inner.put_if_absent(key, data, sha256)

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        self.read_calls += 1
        data = self.inner.read(key, offset, length)
        match next(self._reads, ReadFault.NONE):
            case ReadFault.ERROR:
                raise StoreError("timed out")
            case ReadFault.FLIPPED:
                # Another bit each time: damage on the wire does not repeat itself.
                at = 7919 * self.read_calls % len(data)
                return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
            case ReadFault.SHORT:
                return data[:-1]
        return data

    def head(self, key: str) -> ObjectInfo | None:
        info = self.inner.head(key)
        if info is not None and self._hides_digest:
            return ObjectInfo(info.key, info.size)
        return info

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        return self.inner.list(prefix, after)

    def delete(self, key: str) -> None:
        self.inner.delete(key)

    def _land(self) -> None:
        for key, data, sha256 in self._late:
            self.inner.put_if_absent(key, data, sha256)
        self._late.clear()
