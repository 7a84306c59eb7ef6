"""Where an export goes: a file that appears whole or not at all, here or in a bucket."""

from __future__ import annotations

import hashlib
import mmap
import os
from pathlib import Path
from typing import Protocol, cast

from batchq.errors import BatchqError, UsageError
from batchq.store.base import Store, StoreError

__all__ = ["Destination", "LocalFile", "StoreObject"]

CHUNK = 8 * 1024 * 1024
"""Bytes read at once, of a file or of an object."""


class Destination(Protocol):
    """`url` is for people. `workspace` is the file's name while it is being made."""

    url: str
    suffix: str
    workspace: Path

    def require_free(self, *, force: bool) -> None:
        """Raise UsageError if something is there that must not be replaced."""
        ...

    def publish(self, file: Path, *, force: bool) -> None:
        """Let `file` appear there, whole; it is gone from where it was."""
        ...


class LocalFile:
    """A file of this machine, renamed into its place from beside it."""

    def __init__(self, path: Path) -> None:
        self.url = str(path)
        self.suffix = path.suffix
        self.workspace = path.with_name(f".{path.name}")
        self._path = path

    def require_free(self, *, force: bool) -> None:
        if self._path.exists() and not force:
            raise UsageError(f"{self._path} exists already", hint="replace it with --force")

    def publish(self, file: Path, *, force: bool) -> None:
        self.require_free(force=force)
        os.replace(file, self._path)


class StoreObject:
    """An object of a store, made in the current folder and then created at once.

    `url` names it to people, `key` to the store. Nothing there is ever replaced.
    """

    def __init__(self, store: Store, key: str) -> None:
        name = key.rpartition("/")[2]
        self.url = f"{store.url}/{key}"
        self.suffix = Path(name).suffix
        self.workspace = Path(f".{name}")
        self._store = store
        self._key = key

    def require_free(self, *, force: bool) -> None:
        try:
            found = self._store.head(self._key)
        except StoreError as error:
            raise self._unanswered(error) from None
        if found is not None:
            raise UsageError(
                f"{self.url} exists already",
                hint="batchq replaces no object: choose another name, or delete it first",
            )

    def publish(self, file: Path, *, force: bool) -> None:
        digest = _sha256(file)
        size = file.stat().st_size
        try:
            with file.open("rb") as opened:
                if size:
                    # Only the parts that are being sent come into memory.
                    with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
                        created = self._store.put_if_absent(self._key, cast(bytes, data), digest)
                else:
                    created = self._store.put_if_absent(self._key, b"", digest)
            holds_it = self._holds(size, digest, created=created)
        except StoreError as error:
            raise self._unanswered(error) from None
        if not holds_it:
            raise UsageError(
                f"{self.url} was written by somebody else meanwhile"
                if not created
                else f"{self.url} does not hold what was sent",
                hint="choose another name and repeat the command: it goes on from its end",
            )
        file.unlink()

    def _holds(self, size: int, digest: str, *, created: bool) -> bool:
        found = self._store.head(self._key)
        if found is None or found.size != size:
            return False
        if found.sha256 is not None:
            return found.sha256 == digest
        # Each part was proven as it came, if it was this one that created the object.
        return created or self._digest(size) == digest

    def _digest(self, size: int) -> str:
        """Of what lies there, by reading it."""
        digest = hashlib.sha256()
        for start in range(0, size, CHUNK):
            digest.update(self._store.read(self._key, start, CHUNK))
        return digest.hexdigest()

    def _unanswered(self, error: StoreError) -> BatchqError:
        return BatchqError(
            f"{self.url} cannot be written: {error}",
            hint="repeat the command: it goes on where it stopped",
        )


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while chunk := opened.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
