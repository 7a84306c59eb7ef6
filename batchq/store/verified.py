"""The verified write: what has to be true of a result before it may be committed.

A result counts as written when two things are known. The store has answered a
`put_if_absent` for its key, either way: only that says that what lies there survives a
power failure (a local file can be visible before its folder is on disk). And what lies
there has been read back. Hence one loop, in which a failed put means nothing but "ask
again": if it did take effect, the next answer is "exists" and the bytes are our own.

    put_if_absent ─ no answer ──────────────────→ pause, again
        │ created or exists
    read back ───── our bytes ──────────────────→ written
        │ other bytes, and a second look agrees
        ├─ valid, of this item ─────────────────→ adopted (divergent: another output)
        ├─ valid, of another item ──────────────→ ForeignObject
        └─ anything else ───────────────────────→ BrokenObject

An object of many results lies under a random key, where nobody else's can be: other bytes
there are our own, spoilt, and it is written again under another key.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from batchq.clock import Clock, random_fraction
from batchq.errors import StoreUnusable
from batchq.result import Envelope, InvalidEnvelope, Stored, sha256_hex
from batchq.store.base import ObjectMissing, Store, StoreError

__all__ = [
    "BrokenObject",
    "ForeignObject",
    "Written",
    "find_result",
    "write_result",
    "write_whole",
]

T = TypeVar("T")

Identity = tuple[str, str, str]
"""Source id, source version, processing version."""


@dataclass(frozen=True, slots=True)
class Written:
    """A result that lies in the store, durable and read back.

    `adopted`: it was there already and is committed in place of this attempt's own.
    `divergent`: this attempt computed another output. `empty`: the output is null.
    """

    stored: Stored
    adopted: bool
    divergent: bool
    empty: bool


class BrokenObject(Exception):
    """What lies under `key` is no valid result, and a second look agreed.

    It stays where it is, since replacing it could destroy what another worker has just
    adopted. Release the item with ReleaseReason.BROKEN_OBJECT: it gets another key.
    """

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key} holds no valid result: {why}")
        self.key = key
        self.why = why


class ForeignObject(StoreUnusable):
    """What lies under an item's key is the valid result of another item."""


def write_result(
    store: Store,
    key: str,
    envelope: Envelope,
    *,
    data: bytes | None = None,
    clock: Clock,
    attempts: int = 4,
    backoff: float = 0.25,
) -> Written:
    """Put `envelope` under `key`, or adopt the result of the same item that is there.

    `data` are its bytes, where they have been made already. Between its `attempts` it
    pauses `backoff * 2**n` seconds, half of it jitter. Raises BrokenObject, ForeignObject,
    StoreUnusable; StoreError if after all attempts it is still unknown what lies there;
    ValueError if the output is not JSON (NaN, infinity).
    """
    line = envelope.to_bytes() if data is None else data
    ours = Stored(key, 0, len(line), sha256_hex(line))

    def attempt() -> Written:
        found = _put_and_read_back(store, ours, line)
        if found is None:
            return _written(ours, envelope)
        return _adopt(key, found, _identity(envelope), envelope.output_sha256())

    return _persistently(attempt, clock, attempts, backoff)


def write_whole(
    store: Store,
    new_key: Callable[[], str],
    data: bytes,
    *,
    clock: Clock,
    attempts: int = 4,
    backoff: float = 0.25,
) -> str:
    """Put `data` under a key that `new_key` makes, never used before; that key.

    Takes a new one where what lies there is not what was put. Attempts and errors are
    those of `write_result`; nothing is adopted, and a broken object stays where it is.
    """
    key, sha256 = new_key(), sha256_hex(data)

    def attempt() -> str:
        nonlocal key
        if _put_and_read_back(store, Stored(key, 0, len(data), sha256), data) is None:
            return key
        broken, key = key, new_key()
        raise StoreError(f"{broken} does not hold what was put there")

    return _persistently(attempt, clock, attempts, backoff)


def _put_and_read_back(store: Store, ours: Stored, data: bytes) -> bytes | None:
    """None if our bytes are there, durable; else what is, confirmed by a second look."""
    store.put_if_absent(ours.key, data, ours.sha256)
    if _reads_back(store, ours):
        return None
    found = _read_settled(store, ours.key)
    return None if found == data else found


def _persistently(write: Callable[[], T], clock: Clock, attempts: int, backoff: float) -> T:
    attempt = 0
    while True:
        try:
            return write()
        except StoreError:
            attempt += 1
            if attempt == attempts:
                raise
        pause = backoff * 2 ** (attempt - 1)
        clock.wait(threading.Event(), pause * (0.5 + random_fraction() / 2))


def find_result(
    store: Store, key: str, *, source_id: str, source_version: str, processing_version: str
) -> Written | None:
    """The item's result if an earlier attempt left one under `key`, or none.

    Asked before inference, for an attempt above 1. Raises BrokenObject, ForeignObject,
    StoreUnusable; StoreError if it stays unknown what lies there.
    """
    identity = (source_id, source_version, processing_version)
    try:
        return _look_up(store, key, identity)
    except StoreError:
        # Two looks that differ, or an object that came or went meanwhile.
        return _look_up(store, key, identity)


def _look_up(store: Store, key: str, identity: Identity) -> Written | None:
    try:
        found = _read_settled(store, key)
    except ObjectMissing:
        return None
    written = _adopt(key, found, identity, None)
    # Whoever wrote it may have died before it was durable.
    if store.put_if_absent(key, found, written.stored.sha256):
        raise StoreError(f"{key} vanished while it was read")
    return written


def _reads_back(store: Store, ours: Stored) -> bool:
    """Whether the store holds our bytes: by the digest it computed itself, or by reading."""
    # Nothing is saved by asking for the digest where the bytes are as near.
    info = store.head(ours.key) if store.remote else None
    if info is not None and info.sha256 is not None:
        return (info.sha256, info.size) == (ours.sha256, ours.length)
    return sha256_hex(store.read(ours.key)) == ours.sha256


def _read_settled(store: Store, key: str) -> bytes:
    """The bytes, confirmed by the store's own digest or else by a second read.

    A read that was damaged on its way must neither condemn an object nor be adopted.
    """
    data = store.read(key)
    info = store.head(key)
    if info is None:
        raise ObjectMissing(key)
    confirmed = info.sha256 or sha256_hex(store.read(key))
    if (len(data), sha256_hex(data)) != (info.size, confirmed):
        raise StoreError(f"{key} was read twice, and the bytes differ")
    return data


def _adopt(key: str, found: bytes, identity: Identity, output_sha256: str | None) -> Written:
    """Judge what was found; `output_sha256` is this attempt's own output, if it has one."""
    try:
        envelope = Envelope.from_bytes(found)
    except InvalidEnvelope as error:
        raise BrokenObject(key, str(error)) from None
    if _identity(envelope) != identity:
        raise ForeignObject(
            f"{key} is the key of {_named(identity)}, and holds the result of "
            f"{_named(_identity(envelope))}",
            hint="something else writes into this run's folder of the result store: give "
            "it another store, move the object away and start again",
        )
    return _written(
        Stored(key, 0, len(found), sha256_hex(found)),
        envelope,
        adopted=True,
        divergent=output_sha256 not in (None, envelope.output_sha256()),
    )


def _identity(envelope: Envelope) -> Identity:
    return envelope.source_id, envelope.source_version, envelope.processing_version


def _named(identity: Identity) -> str:
    source_id, source_version, processing_version = identity
    return f"{source_id!r} at {source_version} by {processing_version}"


def _written(
    stored: Stored, envelope: Envelope, *, adopted: bool = False, divergent: bool = False
) -> Written:
    return Written(stored, adopted, divergent, empty=envelope.output is None)
