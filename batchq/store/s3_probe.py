"""Proof, before anything relies on it, that a server of the S3 protocol keeps its word.

Servers differ: some ignore `If-None-Match` on a put, some let two concurrent creators
win, some never look at a checksum. A worker may not delete, so the proof writes to the
same few places again and again. The race is real where it comes upon a place that no
earlier probe has used, and a test of the refusal to replace everywhere.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from batchq.clock import random_hex
from batchq.errors import AccessDenied, StoreUnusable
from batchq.result import sha256_hex
from batchq.s3.refusals import Refused
from batchq.store.base import StoreError
from batchq.store.s3_refusals import explain

__all__ = ["Proof", "prove"]

_PLACE_BITS = 8


@dataclass(frozen=True, slots=True)
class Proof:
    """What a server does beyond what is indispensable.

    `checks_digests`: it refuses bytes that do not have the digest sent with them.
    `in_parts`: an upload in parts, too, replaces nothing.
    """

    checks_digests: bool
    in_parts: bool


class Provable(Protocol):
    """The requests that are put to the proof; each may raise Refused or StoreError."""

    name: str

    def create(self, path: str, data: bytes, sha256: str) -> bool: ...

    def create_in_parts(self, path: str, data: bytes, sha256: str) -> bool: ...

    def read(self, path: str) -> bytes: ...

    def head(self, path: str) -> Mapping[str, str]: ...

    def list(self, prefix: str) -> Mapping[str, Any]: ...


def prove(bucket: Provable, folder: str, url: str) -> Proof:
    """Prove that absence is told and nothing replaced below `folder`, which ends in a slash.

    Raises AccessDenied and StoreUnusable, naming what is missing; `url` is for people.
    """
    try:
        _absence_is_told(bucket, folder, url)
        path = folder + random_hex(_PLACE_BITS)
        _nothing_is_replaced(bucket, path, url)
        return Proof(_digests_are_checked(bucket, folder), _parts_replace_nothing(bucket, path))
    except Refused as refused:
        explained = explain(refused.refusal, url)
        if not isinstance(explained, StoreError):
            raise explained from refused
        raise _no_use(url, explained) from refused
    except StoreError as error:
        raise _no_use(url, error) from error


def _no_use(url: str, why: StoreError) -> StoreUnusable:
    return StoreUnusable(
        f"result store {url} cannot be used: {why}",
        hint="check the network, AWS_ENDPOINT_URL_S3 and the server's own log, and try again",
    )


def _absence_is_told(bucket: Provable, folder: str, url: str) -> None:
    try:
        bucket.list(folder)
        bucket.head(f"{folder}absent")
    except Refused as refused:
        if refused.refusal.absent:
            return
        if refused.refusal.status != 403 or refused.refusal.code not in ("403", "AccessDenied"):
            raise
        raise AccessDenied(
            f"result store {url}: {refused}, and without the right to list, a server does not "
            "tell a missing object from a forbidden one",
            hint=f"grant s3:ListBucket on arn:aws:s3:::{bucket.name} and s3:GetObject below it, "
            "as configs/iam/worker.json does",
        ) from refused


def _nothing_is_replaced(bucket: Provable, path: str, url: str) -> None:
    """Two writers race for one object and a third comes late: at most one may win."""
    contents = [f"batchq probe {random_hex()}\n".encode() for _ in range(3)]
    start = threading.Barrier(2)

    def create(content: bytes) -> bool:
        return bucket.create(path, content, sha256_hex(content))

    def race(content: bytes) -> bool:
        start.wait(timeout=60)
        return create(content)

    with ThreadPoolExecutor(max_workers=2) as pool:
        won = list(pool.map(race, contents[:2]))
    won.append(create(contents[2]))
    found = bucket.read(path)
    winners = [content for content, created in zip(contents, won, strict=True) if created]
    # None wins where an earlier probe was, or where the winner's answer was lost.
    if won[2] or found == contents[2] or winners not in ([], [found]):
        raise StoreUnusable(
            f"result store {url}: the server replaces an object although it is told not to "
            "(If-None-Match: *), so one worker could destroy what another has committed",
            hint="update the server to a release with conditional writes, or use another one; "
            "a gateway or cache in front of it must pass this header on",
        )


def _digests_are_checked(bucket: Provable, folder: str) -> bool:
    """Where this has once been created, the server takes bytes with a wrong digest."""
    try:
        bucket.create(f"{folder}refused", b"altered on the way\n", sha256_hex(b"as sent\n"))
    except Refused as refused:
        if refused.refusal.status == 400:
            return True
        raise
    return False


def _parts_replace_nothing(bucket: Provable, path: str) -> bool:
    """`path` exists: an upload in parts must not take its place."""
    content = b"batchq probe in parts\n"
    try:
        return not bucket.create_in_parts(path, content, sha256_hex(content))
    except Refused as refused:
        if refused.refusal.status in (400, 404, 405, 501):
            return False
        raise
