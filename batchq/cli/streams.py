"""The process's three streams: there, writable, and stdout for data alone where it is JSON."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from typing import TextIO

__all__ = ["data", "flush", "is_unicode", "keep_stdout_for_data", "leave_terminal", "take"]

_kept: TextIO | None = None


def take() -> None:
    """Make the streams fit for what is written to them. For a process that is batchq's own.

    One that was closed when the process began leads nowhere: its number would be given to
    the next file opened, a result for instance, and written into. What the encoding of a
    stream cannot say is escaped.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if not is_unicode(stream):
            # Both are text wrappers here, which alone know this; the type says less.
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def data() -> TextIO:
    """Where data goes."""
    return _kept or sys.stdout


def keep_stdout_for_data() -> None:
    """Let only what is written to `data` reach stdout, and all else that is printed stderr.

    A user's processor may print, and so may a library that is written in C.
    """
    global _kept
    printed: TextIO = sys.stdout
    # In a program that has put something else there it is not ours to move.
    if _kept is not None or sys.__stdout__ is not printed:
        return
    printed.flush()
    _kept = os.fdopen(os.dup(1), "w", encoding=printed.encoding, errors=printed.errors)
    os.dup2(2, 1)
    sys.stdout = sys.stderr


def leave_terminal() -> None:
    """Point nowhere what led to a terminal that has gone.

    Else whatever is printed fails: a processor that prints would be at fault.
    """
    for number in {0, 1, 2, data().fileno()}:
        if stat.S_ISCHR(os.fstat(number).st_mode) and not os.isatty(number):
            _point_nowhere(number)


def is_unicode(stream: TextIO) -> bool:
    """Whether its encoding can say everything."""
    return (stream.encoding or "").lower().replace("_", "-").startswith("utf")


def flush() -> bool:
    """Write out what is still held back; whether that was possible for data.

    A stream that cannot be written is pointed nowhere: Python would try again at its exit,
    and change the exit code.
    """
    written = _flushed(data())
    _flushed(sys.stderr)
    return written


def _flushed(stream: TextIO) -> bool:
    try:
        stream.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            _point_nowhere(stream.fileno())
        return False
    return True


def _point_nowhere(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, number)
    os.close(nowhere)
