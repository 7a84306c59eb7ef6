"""The result store: keys to bytes, create-only.

Nothing is ever replaced or deleted by a worker. `store.verified` builds the one
write the pipeline uses from these four verbs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

__all__ = ["ObjectInfo", "ObjectMissing", "Store", "StoreError"]


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object's size in bytes and, where the store itself computed it, its SHA-256."""

    key: str
    size: int
    sha256: str | None = None


class StoreError(Exception):
    """A call failed or gave no answer. It says nothing about whether it took effect."""


class ObjectMissing(StoreError):
    """The store answered: there is no such object."""

    def __init__(self, key: str) -> None:
        super().__init__(f"no object {key}")
        self.key = key


class Store(Protocol):
    """Four verbs. All raise StoreError when the outcome is unknown."""

    url: str
    """The address without any credential."""
    remote: bool
    """Whether other machines reach it."""

    def probe(self) -> None:
        """Prove that creating, refusing to replace and reading back work here.

        Raises StoreUnusable, saying what does not and how to mend it.
        """
        ...

    def put_if_absent(self, key: str, data: bytes, sha256: str) -> bool:
        """Create `key` durably. False: it exists already, with whatever bytes."""
        ...

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """The object's bytes, or a part of them. Raises ObjectMissing."""
        ...

    def head(self, key: str) -> ObjectInfo | None:
        """What is known of `key` without reading it, or none if the store says absent."""
        ...

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix` and sorts above `after`, in key order."""
        ...
