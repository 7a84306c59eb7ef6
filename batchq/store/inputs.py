"""Inputs: documents kept in the result store, for workers that cannot reach where they lay.

A laptop enqueues its folder; a worker on another machine reads the same bytes under
`inputs/<sha256>`. Equal bytes lie there once, whatever their names and runs.
"""

from __future__ import annotations

from batchq.errors import DocumentError, StoreUnusable
from batchq.result import sha256_hex
from batchq.store.base import ObjectMissing, Store, StoreError

__all__ = ["SCHEME", "Inputs"]

SCHEME = "batchq-input:"
"""What the locator of a staged document begins with; its SHA-256 follows."""

_VERSION = "sha256:"
_ATTEMPTS = 3


class Inputs:
    """Puts documents there, and reads them by their locators."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def stage(self, data: bytes, source_version: str) -> str:
        """Keep the bytes; their locator. Raises StoreUnusable if they cannot be kept."""
        digest = source_version.removeprefix(_VERSION)
        key = f"inputs/{digest}"
        problem = "what was read back is not what was put"
        for _ in range(_ATTEMPTS):
            try:
                self._store.put_if_absent(key, data, digest)
                if sha256_hex(self._store.read(key)) == digest:
                    return f"{SCHEME}{digest}"
            except StoreError as error:
                problem = str(error)
        raise StoreUnusable(
            f"{self._store.url}: a document could not be staged as {key}: {problem}",
            hint="mend the store and enqueue again, or use --no-stage where the workers "
            "can read the documents themselves",
        )

    def fingerprint(self, locator: str) -> tuple[str, int]:
        """The version is in the name. Raises DocumentError (`source_missing`)."""
        digest = _digest(locator)
        return f"{_VERSION}{digest}", len(self._read(digest))

    def read(self, locator: str, source_version: str, limit: int) -> bytes:
        """The bytes, proven to be those of `source_version`.

        Raises DocumentError: `source_missing`, `source_changed`, `too_large`, all final.
        Raises StoreError where the store gave no answer, and StoreUnusable where it cannot be
        the one of `stage`: neither is the document's fault.
        """
        data = self._read(_digest(locator))
        if f"{_VERSION}{sha256_hex(data)}" != source_version:
            # One read may be damaged on its way.
            data = self._read(_digest(locator))
        if len(data) > limit:
            message = f"{len(data):,} bytes are more than the {limit:,} allowed"
            raise DocumentError("too_large", message, final=True)
        if f"{_VERSION}{sha256_hex(data)}" != source_version:
            message = f"the staged copy in {self._store.url} holds other bytes"
            raise DocumentError("source_changed", message, final=True)
        return data

    def _read(self, digest: str) -> bytes:
        try:
            return self._store.read(f"inputs/{digest}")
        except ObjectMissing:
            if not self._store.remote:
                raise StoreUnusable(
                    f"{self._store.url} has no copies of documents: none are kept but where other "
                    "machines reach the store, so these were enqueued with another one",
                    hint="give the store that they were enqueued with: --results",
                ) from None
            message = f"no staged copy in {self._store.url}; enqueue it again"
            raise DocumentError("source_missing", message, final=True) from None


def _digest(locator: str) -> str:
    """What follows a `#` says what the document is, not where it lies."""
    return locator.removeprefix(SCHEME).partition("#")[0]
