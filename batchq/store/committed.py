"""A committed result read back from where the ledger says that it lies, and judged.

Both layouts come down to one line, the envelope. It counts if its file bytes have the
ledger's length and digest, and if what is inside is the result of the item in whose row
they were committed.
"""

from __future__ import annotations

from batchq.result import Envelope, InvalidEnvelope, Line, Stored, sha256_hex
from batchq.store.base import ObjectMissing, Store
from batchq.store.frames import unpacked

__all__ = [
    "AlteredResult",
    "DamagedResult",
    "ForeignResult",
    "MissingResult",
    "judge_committed",
    "read_committed",
]


class DamagedResult(Exception):
    """What lies under `key` is not what was committed; `what` completes "the result …"."""

    def __init__(self, key: str, what: str) -> None:
        super().__init__(f"{key}: the result {what}")
        self.key = key
        self.what = what


class MissingResult(DamagedResult):
    """The store answered that there is no such object."""


class AlteredResult(DamagedResult):
    """The bytes are not those that were committed, or are no result."""


class ForeignResult(DamagedResult):
    """It is a valid result, and another item's."""


def read_committed(
    store: Store,
    layout: str,
    stored: Stored,
    *,
    source_id: str,
    source_version: str,
    processing_version: str,
) -> Line:
    """The envelope of a committed result.

    Raises MissingResult, AlteredResult or ForeignResult; StoreError where the store gave
    no answer, which says nothing about the result.
    """
    try:
        if layout == "item":
            # The object is the result: what was appended to it counts too.
            data = store.read(stored.key)
        else:
            data = store.read(stored.key, stored.offset, stored.length)
    except ObjectMissing:
        raise MissingResult(stored.key, "is missing from the store") from None
    return judge_committed(
        data,
        layout,
        stored,
        source_id=source_id,
        source_version=source_version,
        processing_version=processing_version,
    )


def judge_committed(
    data: bytes,
    layout: str,
    stored: Stored,
    *,
    source_id: str,
    source_version: str,
    processing_version: str,
    content: bytes | None = None,
) -> Line:
    """As `read_committed`, for the bytes that were read from where `stored` says.

    `content`: what is in them, where they have been unpacked already.
    """
    if (len(data), sha256_hex(data)) != (stored.length, stored.sha256):
        raise AlteredResult(stored.key, "differs from what was committed")
    try:
        if content is None:
            content = data if layout == "item" else unpacked(data)
        line = Line.of(
            content,
            source_id=source_id,
            source_version=source_version,
            processing_version=processing_version,
        )
        if line is None:
            Envelope.from_bytes(content)
            raise ForeignResult(stored.key, "is another item's")
        return line
    except InvalidEnvelope as error:
        raise AlteredResult(stored.key, f"is no result ({error})") from None
