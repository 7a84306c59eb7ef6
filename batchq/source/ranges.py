"""Parts of a large file, wherever it lies, and a file object over them."""

from __future__ import annotations

import io
import os
import threading
import weakref
from collections import OrderedDict
from typing import Any, Protocol

from batchq.source.local import document_error, open_regular

__all__ = ["BlockCache", "LocalRanges", "RangeFile", "Ranges"]

_BLOCK = 1 << 20
_BLOCKS = 32


class Ranges(Protocol):
    """A file of `size` bytes that can be read anywhere. Safe for threads."""

    size: int

    def read(self, offset: int, length: int) -> bytes:
        """The bytes there, fewer at the end. Raises DocumentError, SourceUnavailable."""
        ...


class LocalRanges:
    """A file of this machine, as it was when it was opened. Raises as `Ranges.read` does."""

    def __init__(self, locator: str) -> None:
        self._locator = locator
        try:
            self._file, self.size = open_regular(locator)
        except OSError as error:
            raise document_error(locator, error) from None
        # Whoever reads in another thread keeps it open, whatever a cache decides.
        weakref.finalize(self, os.close, self._file)

    def read(self, offset: int, length: int) -> bytes:
        try:
            return os.pread(self._file, length, offset)
        except OSError as error:
            raise document_error(self._locator, error) from None


class BlockCache:
    """Keeps the last 32 MiB of a file that is far away, since rows are read one by one."""

    def __init__(self, inner: Ranges) -> None:
        self.size = inner.size
        self._inner = inner
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, offset: int, length: int) -> bytes:
        if length > _BLOCK:
            return self._inner.read(offset, length)
        end = min(offset + length, self.size)
        numbers = range(offset // _BLOCK, -(-end // _BLOCK))
        data = b"".join(map(self._block, numbers))
        start = offset - numbers.start * _BLOCK
        return data[start : start + max(0, end - offset)]

    def _block(self, number: int) -> bytes:
        # Under the lock also while it is fetched: whoever wants the next row waits for the
        # same block.
        with self._lock:
            if number not in self._blocks:
                self._blocks[number] = self._inner.read(number * _BLOCK, _BLOCK)
                if len(self._blocks) > _BLOCKS:
                    self._blocks.popitem(last=False)
            self._blocks.move_to_end(number)
            return self._blocks[number]


class RangeFile(io.RawIOBase):
    """A seekable file object for readers that want one."""

    def __init__(self, ranges: Ranges) -> None:
        super().__init__()
        self._ranges = ranges
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._ranges.size}[whence]
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self._ranges.read(self._at, len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
