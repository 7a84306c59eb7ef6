"""The result store: keys to bytes, create-only.

Nothing is ever replaced, and nothing deleted but by an auditor who was asked to: workers
need no right to. `store.verified` builds the one write the pipeline uses from the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from batchq.errors import StoreUnusable

__all__ = ["ObjectInfo", "ObjectMissing", "Store", "StoreError", "is_key_part", "key_parts"]


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


def is_key_part(name: str) -> bool:
    """Whether `name` may stand between two slashes of a key.

    1 to 255 bytes of UTF-8 without control characters. None begins with a dot, so that
    none leads upwards or is hidden.
    """
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    return 0 < size <= 255 and name[0] != "." and _CONTROL.search(name) is None


_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def key_parts(key: str) -> list[str]:
    """The parts of `key`, at most 1,024 bytes long in all.

    Raises StoreUnusable for a key that no store holds. Keys are made by `result_key`, so
    another one comes from damage.
    """
    parts = key.split("/")
    if not all(map(is_key_part, parts)) or len(key.encode()) > 1024:
        raise StoreUnusable(
            f"{key[:200]!r} cannot be a key of the result store",
            hint="batchq never makes such a key, so the ledger that names it is damaged: "
            "`batchq verify` lists what else is wrong",
        )
    return parts


class Store(Protocol):
    """The verbs. All raise StoreError when the outcome is unknown.

    They raise StoreUnusable where asking again cannot help: no space, no permission, a
    key that `key_parts` refuses. No key may continue another one behind a slash.
    """

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
        """Create `key` durably. False: it exists already, with whatever bytes.

        Either answer says that what lies there now survives a power failure. Bytes
        that do not have the digest `sha256` (hex) are refused with a StoreError.
        """
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

    def delete(self, key: str) -> None:
        """Remove the object, durably; nothing happens where there is none.

        For orphans alone, of which it is known that nobody can ever commit them.
        """
        ...
