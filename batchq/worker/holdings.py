"""What this worker holds: every item between its claim and the ledger's answer."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from batchq.inference.base import Prepared
from batchq.item import Item
from batchq.lease import Held, Lease

__all__ = ["Holdings", "Work"]

MEMORY_LIMIT = 512 * 1024 * 1024
"""Bytes of documents loaded at a time; one larger document is loaded alone."""


@dataclass(slots=True, eq=False)
class Work:
    """One item on its way through the pipeline, under the token that holds it.

    `made`: its result is in the form that is stored.
    """

    item: Item
    token: str
    prepared: Prepared | None = None
    loaded_bytes: int = 0
    made: bool = False

    @property
    def held(self) -> Held:
        return Held(self.token, self.item.id)


class Holdings:
    """Thread-safe set of the work in hand, and of the memory its documents take.

    A stage asks `holds` before it spends anything on an item: work that was cancelled,
    because the ledger took it back, is dropped wherever it is.
    """

    def __init__(self, memory_limit: int = MEMORY_LIMIT) -> None:
        self._works: dict[Held, Work] = {}
        self._changed = threading.Condition()
        self._memory_limit = memory_limit
        self._loaded_bytes = 0
        self._lost_before = 0

    def __len__(self) -> int:
        return len(self._works)

    def take(self, lease: Lease) -> list[Work]:
        """Hold what a claim brought."""
        works = [Work(item, lease.token) for item in lease.items]
        with self._changed:
            self._works.update((work.held, work) for work in works)
            self._lost_before += sum(work.item.losses > 0 for work in works)
        return works

    def holds(self, work: Work) -> bool:
        """Whether it is still ours: not settled, and not cancelled."""
        return self._works.get(work.held) is work

    @property
    def some_were_lost_before(self) -> bool:
        """Whether an earlier worker was lost with one of these."""
        return self._lost_before > 0

    def all(self) -> list[Work]:
        with self._changed:
            return list(self._works.values())

    def settle(self, works: Iterable[Work]) -> None:
        """The ledger has answered for these; they are no longer ours."""
        with self._changed:
            for work in works:
                if self._works.pop(work.held, None) is not None:
                    self._lost_before -= work.item.losses > 0
                self._forget_bytes(work)
            self._changed.notify_all()

    def cancel_all(self) -> list[Work]:
        """Forget everything, as the ledger already has."""
        with self._changed:
            works = list(self._works.values())
            self._works.clear()
            self._lost_before = 0
            for work in works:
                self._forget_bytes(work)
            self._changed.notify_all()
        return works

    def reserve(self, work: Work) -> bool:
        """Wait for memory to load the document; false if the work was cancelled meanwhile."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    not self.holds(work)
                    or self._loaded_bytes == 0
                    or self._loaded_bytes + work.item.size <= self._memory_limit
                )
            )
            if not self.holds(work):
                return False
            work.loaded_bytes = work.item.size
            self._loaded_bytes += work.loaded_bytes
            return True

    def unload(self, work: Work) -> None:
        """The document is not needed in memory any more."""
        with self._changed:
            work.prepared = None
            self._forget_bytes(work)
            self._changed.notify_all()

    def wait_below(self, count: int, seconds: float) -> bool:
        """Wait until fewer than `count` are held, for at most `seconds`."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._works) < count, seconds)

    def _forget_bytes(self, work: Work) -> None:
        self._loaded_bytes -= work.loaded_bytes
        work.loaded_bytes = 0
