"""The time of a server that has no clock to ask for, told by the dates of its answers."""

from __future__ import annotations

from email.utils import parsedate_to_datetime

__all__ = ["ServerTime"]


class ServerTime:
    """The server's clock as its answers show it, against the monotonic clock here.

    Each answer bounds the distance between the two: its `Date`, in whole seconds, was read
    after the request was sent and before the answer came.
    """

    def __init__(self) -> None:
        self._low, self._high = float("-inf"), float("inf")

    def seen(self, date: str, sent: float, received: float) -> None:
        try:
            second = parsedate_to_datetime(date).timestamp()
        except (ValueError, TypeError):
            return
        low, high = second - received, second + 1 - sent
        if low > self._high or high < self._low:
            # The server's clock was set, or another server answers.
            self._low, self._high = low, high
        else:
            self._low, self._high = max(low, self._low), min(high, self._high)

    def at(self, monotonic: float) -> float | None:
        """Unix seconds at this moment, or none before the first answer."""
        if self._high == float("inf"):
            return None
        return monotonic + (self._low + self._high) / 2
