"""How long a client has been in unbroken contact with the ledger: who may reap, and when.

After an outage, or on a machine that was suspended, every beat looks expired to
whoever looks first. So a reaper trusts an expiry only when it has itself been in
contact for one TTL: long enough for everybody alive to have beaten again.
"""

from __future__ import annotations

import math
import threading

__all__ = ["Contact"]

AGREEMENT_S = 1.0
"""How far the two clocks may drift apart before contact counts as broken, in seconds."""


class Contact:
    """The answered calls of one ledger object. Safe for threads.

    Calls further apart than half a TTL prove nothing about what lay between them:
    an outage of that length would have silenced workers that beat every TTL/3.
    """

    def __init__(self) -> None:
        # Gaps between calls as (end, length), only those longer than every later one:
        # the newest gap longer than x is then the last entry longer than x.
        self._gaps: list[tuple[float, float]] = []
        self._last = -math.inf
        self._offset = 0.0
        self._lock = threading.Lock()

    def seen(self, monotonic: float, ledger_now: float) -> None:
        """An answer came: what both clocks showed then, in seconds."""
        with self._lock:
            if not self._gaps or abs(ledger_now - monotonic - self._offset) > AGREEMENT_S:
                self._gaps = [(monotonic, math.inf)]
                self._offset = ledger_now - monotonic
            elif monotonic > self._last:
                gap = monotonic - self._last
                while self._gaps[-1][1] <= gap:
                    self._gaps.pop()
                self._gaps.append((monotonic, gap))
            self._last = max(self._last, monotonic)

    def lost(self) -> None:
        """A call got no answer: contact begins anew with the next one that does."""
        with self._lock:
            self._gaps.clear()

    def lasted(self, ttl: float) -> bool:
        """Whether contact has been unbroken for `ttl` seconds up to the latest answer."""
        with self._lock:
            for end, gap in reversed(self._gaps):
                if gap > ttl / 2:
                    return self._last - end >= ttl
            return False
