"""Names in S3: of a SOURCE, of a document and of its versions, and which are wanted."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from itertools import accumulate
from urllib.parse import quote, unquote

from batchq.errors import DocumentError, UsageError
from batchq.redact import redact
from batchq.source.globs import matcher

__all__ = [
    "Filter",
    "etag_of",
    "from_s3_locator",
    "split_url",
    "to_s3_locator",
]

_SCHEME = "s3://"


def split_url(url: str) -> tuple[str, str, bool]:
    """Bucket, path without slashes at its ends, and whether a slash says "folder"."""
    bucket, _, path = url.removeprefix(_SCHEME).partition("/")
    if not url.startswith(_SCHEME) or not bucket or any(mark in bucket for mark in "@:?#"):
        raise UsageError(
            f"SOURCE {redact(url)} is no address in S3",
            hint="write s3://BUCKET or s3://BUCKET/FOLDER; endpoint, region and credentials come "
            "from the environment (AWS_ENDPOINT_URL_S3, AWS_REGION, AWS_PROFILE)",
        )
    return bucket, path.strip("/"), path.endswith("/")


def to_s3_locator(bucket: str, key: str, version: str | None) -> str:
    """`s3://bucket/key`, percent-encoded, with the version where there is one."""
    pinned = "" if version is None else f"?versionId={quote(version, safe='')}"
    return f"{_SCHEME}{bucket}/{quote(key)}{pinned}"


def from_s3_locator(locator: str) -> tuple[str, str, str | None]:
    """Bucket, key and version. Raises DocumentError for any other locator."""
    address, _, query = locator.removeprefix(_SCHEME).partition("?")
    bucket, _, key = address.partition("/")
    if not locator.startswith(_SCHEME) or not bucket or not key:
        raise DocumentError("source_unreadable", f"not in S3: {locator}", final=True)
    version = query.removeprefix("versionId=") if query else None
    return bucket, unquote(key), None if version is None else unquote(version)


def etag_of(quoted: str) -> str:
    """An ETag without the quotes that belong to it in answers and listings."""
    return quoted.strip('"')


class Filter:
    """Which paths below a SOURCE are wanted, as in folders of this machine.

    A folder that is included or excluded speaks for all below it. Names that begin with
    a dot are wanted only where a pattern of `include` says so.
    """

    def __init__(self, include: Iterable[str], exclude: Iterable[str]) -> None:
        include = tuple(include)
        self._all_wanted = not include
        self._included = matcher(include, hidden=False)
        self._excluded = matcher(exclude, hidden=True)

    def __call__(self, path: str) -> bool:
        wanted = self._all_wanted
        # Between two slashes there may be nothing, which is no folder.
        names = filter(None, unicodedata.normalize("NFC", path).split("/"))
        for above in accumulate(names, "{}/{}".format):
            if self._excluded(above):
                return False
            hidden = above.rpartition("/")[2].startswith(".")
            wanted = (wanted and not hidden) or self._included(above)
        return wanted
