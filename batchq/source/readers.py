"""Every kind of locator through one reader: files of this machine, S3, rows of tables."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from batchq.errors import UsageError
from batchq.source.base import Reader
from batchq.source.local import LocalReader
from batchq.source.ranges import BlockCache, LocalRanges, Ranges
from batchq.source.rows import is_row
from batchq.source.table import TableReader
from batchq.words import pip_install

if TYPE_CHECKING:
    from batchq.source.s3 import S3Reader

__all__ = ["AnyReader"]


class AnyReader:
    """A `Reader` of whatever a source lists. Imports the SDK when it first meets S3.

    `others` read the locators that begin with what they are named by.
    """

    def __init__(self, others: Mapping[str, Reader] | None = None) -> None:
        self._others = dict(others or {})
        self._local = LocalReader()
        self._rows = TableReader(self.open_ranges)
        self._s3: S3Reader | None = None
        self._making = threading.Lock()

    def fingerprint(self, locator: str) -> tuple[str, int]:
        return self._reader(locator).fingerprint(locator)

    def read(self, locator: str, source_version: str, limit: int) -> bytes:
        return self._reader(locator).read(locator, source_version, limit)

    def open_ranges(self, locator: str) -> Ranges:
        """The file at a locator, to be read in parts. Raises as `read` does."""
        if locator.startswith("s3:"):
            return BlockCache(self._of_s3().open(locator))
        return LocalRanges(locator)

    def _reader(self, locator: str) -> Reader:
        for beginning, reader in self._others.items():
            if locator.startswith(beginning):
                return reader
        if is_row(locator):
            return self._rows
        return self._of_s3() if locator.startswith("s3:") else self._local

    def _of_s3(self) -> S3Reader:
        with self._making:
            if self._s3 is None:
                try:
                    from batchq.source.s3 import S3Reader
                except ImportError:
                    raise UsageError(
                        "documents in S3 need the library boto3",
                        hint=pip_install("aws"),
                    ) from None
                self._s3 = S3Reader()
            return self._s3
