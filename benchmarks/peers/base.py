"""What the benchmark asks of a queue, and the queues that it knows."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Protocol

__all__ = ["PEERS", "Done", "Peer", "batches", "peer"]

Done = Callable[[int], None]
"""The empty function of an item, told its number."""

PEERS = {
    "batchq-sqlite": ("sqlite", "ours:Batchq"),
    "huey": ("sqlite", "files:Huey"),
    "litequeue": ("sqlite", "files:Litequeue"),
    "persist-queue": ("sqlite", "files:PersistQueue"),
    "batchq-postgresql": ("postgresql", "ours:Batchq"),
    "procrastinate": ("postgresql", "servers:Procrastinate"),
    "pgqueuer": ("postgresql", "servers:Pgqueuer"),
}
"""By name: its database, and the class that speaks to it."""


class Peer(Protocol):
    """A queue in the SQLite file or PostgreSQL database at `address`."""

    setting: str
    """How it is used, in a few words."""

    def __init__(self, address: str) -> None: ...

    def create(self) -> None:
        """What is needed before the first item."""
        ...

    def enqueue(self, numbers: range, late: Callable[[], bool]) -> int:
        """Enqueue items with these numbers until it is `late`; how many."""
        ...

    def work(self, done: Done, late: Callable[[], bool], pause: float = 0.0) -> None:
        """Claim, call and complete until nothing is left or it is `late`.

        The function takes `pause` seconds, in the way of this queue's functions.
        """
        ...

    def left(self) -> set[int]:
        """The numbers of the items that are not completed and not gone."""
        ...


def peer(name: str, address: str) -> Peer:
    """The peer of this name. Imported here, so that each process loads only its own."""
    module, _, kind = PEERS[name][1].partition(":")
    made: Peer = getattr(importlib.import_module(f"benchmarks.peers.{module}"), kind)(address)
    return made


def batches(numbers: range, size: int, late: Callable[[], bool]) -> Iterator[range]:
    """Parts of `numbers` until it is late."""
    for first in range(0, len(numbers), size):
        if late():
            return
        yield numbers[first : first + size]
