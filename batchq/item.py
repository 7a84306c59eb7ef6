"""Items: one document to be processed in one processing version, and its identity."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Document", "Item", "NewItem", "item_key"]


class NewItem(NamedTuple):
    """What an enqueue asks the ledger to take up.

    `source_id` names the document (POSIX path below its root's name, NFC),
    `source_version` its bytes (`sha256:<hex>`), `size` their number. `locator` says
    where to read them (`file:///...`, percent-encoded) and `root` where the
    enqueue started; neither is part of the identity. A tuple, as `source.base.Found` is.
    """

    source_id: str
    source_version: str
    size: int
    locator: str
    root: str


@dataclass(frozen=True, slots=True)
class Item:
    """An item as a lease hands it out.

    `id` is the ledger's own number. `attempt` counts claims, `generation` counted
    new beginnings, `failures` charged returns and `losses` leases lost with their
    worker; attempt and generation begin at 1.
    """

    id: int
    source_id: str
    source_version: str
    size: int
    locator: str
    attempt: int
    generation: int
    failures: int
    losses: int


@dataclass(frozen=True, slots=True)
class Document:
    """Extracted text with its identity; `row` holds a table row's other columns."""

    source_id: str
    source_version: str
    media_type: str
    text: str
    row: Mapping[str, object] | None = None


def item_key(source_id: str, source_version: str, processing_version: str) -> str:
    """SHA-256 (64 hex digits) over the three parts, each behind its length in bytes.

    The lengths keep ("ab", "c") and ("a", "bc") apart.
    """
    digest = hashlib.sha256()
    for part in (source_id, source_version, processing_version):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()
