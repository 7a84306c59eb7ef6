"""Leases: a worker's hold on items, fenced by a token that is used once."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from batchq.clock import random_hex
from batchq.item import Item

__all__ = ["Failure", "Held", "Lease", "ReleaseReason", "new_token"]


def new_token() -> str:
    """A lease token: 128 random bits as 32 hex digits, chosen by the caller."""
    return random_hex(128)


@dataclass(frozen=True, slots=True)
class Lease:
    """The items that one claim brought, held under one token."""

    token: str
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """One item under the token that holds it: what fail, release and commit name."""

    token: str
    item_id: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A charged return: `cause` is a stable word, `error` a sentence for people.

    `final` sends the item to the dead letters at once.
    """

    held: Held
    cause: str
    error: str
    final: bool = False


class ReleaseReason(StrEnum):
    """Why an item goes back uncharged."""

    DRAIN = "drain"
    """The worker is stopping; the item is due again at once."""
    CANCELLED = "cancelled"
    """The worker gave the item up for a reason that is not the document's; backs off."""
    STORE = "store_unavailable"
    """The result could not be stored; backs off."""
    BROKEN_OBJECT = "broken_object"
    """What lies under the result key is no valid result: a new generation, a new key."""
