"""The most memory that a process has used, in bytes: what tells want of it from a crash."""

from __future__ import annotations

import sys
from resource import struct_rusage

__all__ = ["own_peak", "peak_of_usage", "peak_so_far"]

_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


def peak_so_far(process: int | str) -> int:
    """That of a living process; 0 where nothing tells (Linux does).

    Unlike its resource usage this holds nothing of the process that started it.
    """
    try:
        with open(f"/proc/{process}/status", "rb") as lines:
            for line in lines:
                if line.startswith(b"VmHWM:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return 0


def peak_of_usage(usage: struct_rusage) -> int:
    """As the kernel reports it, which begins with that of whoever started the process."""
    return usage.ru_maxrss * _MAXRSS_UNIT


def own_peak(usage: struct_rusage, inherited: int) -> int:
    """The same, or 0 while it is still the one that was `inherited`."""
    peak = peak_of_usage(usage)
    return peak if peak > inherited else 0
