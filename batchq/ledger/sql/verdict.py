"""What an error of a database means."""

from __future__ import annotations

from dataclasses import dataclass

from batchq.errors import BatchqError

__all__ = ["Verdict"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`error` ends the call, unless the transaction succeeds when it is tried again.

    `pause`: after how many seconds to try again; none if that cannot help.
    """

    error: BatchqError
    pause: float | None = None
