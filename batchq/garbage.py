"""Python's search for unreachable cycles, put off where records pass in millions."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["seldom_collected"]

ENOUGH = 200_000
"""Objects more than were freed, before Python looks for cycles: several times those in flight."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """For the whole process, while the context lasts.

    Rows and results make no cycles: they are freed when the last name of them is gone. Looking
    for some every 700 objects took a seventh of the time of an export.
    """
    before = gc.get_threshold()
    gc.set_threshold(ENOUGH, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
