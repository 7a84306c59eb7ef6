"""A file that grows over several attempts: what was flushed of it is never written twice.

    .<name>.part      the bytes so far
    .<name>.journal   how many of them count, and what they were made from

The journal is replaced only after the bytes it speaks of are on the disk. An attempt that
finds a journal of the same making cuts the part to what counts and goes on behind it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

from batchq.errors import UsageError

__all__ = ["Buffer", "Growing"]

SCHEMA = 1

Buffer = bytes | memoryview

_TOGETHER = os.sysconf("SC_IOV_MAX")
"""Pieces that the system takes at once."""


class Growing:
    """The part file, held against a second export; use it as a context.

    `after` and `written` are those of the last `checkpoint`, or 0. Leaving the context
    keeps what was counted.
    """

    def __init__(self, workspace: Path) -> None:
        self.part = workspace.with_name(f"{workspace.name}.part")
        self._journal = workspace.with_name(f"{workspace.name}.journal")
        self._new_journal = workspace.with_name(f"{workspace.name}.journal.new")
        self._making: Mapping[str, Any] = {}
        self.after = 0
        self.written = 0
        self._size = 0
        self._file = _held(self.part)
        # What another attempt left is its progress until this one has judged it.
        self._judged = os.fstat(self._file.fileno()).st_size == 0

    def __enter__(self) -> Growing:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._judged and self.written == 0:
            self.discard()
        self._file.close()

    def resume(self, making: Mapping[str, Any]) -> None:
        """Go on where an attempt of the same making stopped, or begin anew.

        `making` is JSON that says all that shapes the bytes.
        """
        self._making = making
        self._judged = True
        self.after, self.written, self._size = self._counted(making) or (0, 0, 0)
        if self._size == 0:
            # Else it would vouch for the bytes that come next, should this attempt be killed.
            with suppress(FileNotFoundError):
                self._journal.unlink()
                _flush_folder(self._journal.parent)
        self._file.truncate(self._size)

    def holds(self, making: Mapping[str, Any]) -> bool:
        """Whether `resume` would go on with what an attempt of this making left."""
        return self._counted(making) is not None

    def _counted(self, making: Mapping[str, Any]) -> tuple[int, int, int] | None:
        """Last item id, results and bytes of an attempt of this making."""
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            found = json.loads(self._journal.read_bytes())
            size = os.fstat(self._file.fileno()).st_size
            known = (found["schema"], found["making"]) == (SCHEMA, making)
            if known and found["bytes"] <= size:
                return int(found["after"]), int(found["written"]), int(found["bytes"])
        return None

    def write(self, pieces: Sequence[Buffer]) -> int:
        """Append them, as they are: joined first, they took five times as long. Their size."""
        size = sum(map(len, pieces))
        for start in range(0, len(pieces), _TOGETHER):
            _write_all(self._file.fileno(), pieces[start : start + _TOGETHER])
        # Not the file's size: a write that failed may have left half of its bytes.
        self._size += size
        return size

    def checkpoint(self, after: int, written: int) -> None:
        """Flush what was written, and count it: `written` results up to item id `after`."""
        os.fsync(self._file.fileno())
        counted = {
            "schema": SCHEMA,
            "making": self._making,
            "bytes": self._size,
            "after": after,
            "written": written,
        }
        self._new_journal.write_text(json.dumps(counted))
        os.replace(self._new_journal, self._journal)
        self.after, self.written = after, written

    def discard(self) -> None:
        """The export is over: leave nothing behind."""
        for file in (self._journal, self._new_journal, self.part):
            file.unlink(missing_ok=True)


def _held(part: Path) -> FileIO:
    """The part file, locked."""
    while True:
        file = part.open("ab", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), os.stat(part)):
                    return file
        except OSError:
            file.close()
            raise UsageError(
                f"another export is at work on {part}",
                hint="let it end, or choose another name",
            ) from None
        # Between the two lines its export came to the end: it is a finished file by now.
        file.close()


def _write_all(file: int, pieces: Sequence[Buffer]) -> None:
    written = os.writev(file, pieces)
    if written < sum(map(len, pieces)):
        # A full disk takes a part and refuses the rest, which then says why.
        rest = memoryview(b"".join(pieces))[written:]
        while rest:
            rest = rest[os.write(file, rest) :]


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
