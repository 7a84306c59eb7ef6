"""Documents in S3: listing them, and reading them again as they were listed.

A document's version is the strongest that the store gives:

    sha256:<hex>     the store keeps a SHA-256 of the whole object
    version:<id>     the bucket keeps versions; the locator names this one
    etag:<etag>      otherwise; the store refuses to send any other

A listing tells the last two, and whether there is a SHA-256, but not its value. So only
those documents cost a request each when they are enqueued, and that is left to
`S3Reader.fingerprint`, which runs in several threads. A bucket that keeps versions is
listed with all of them, since no other listing names an id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from batchq.clock import Clock, SystemClock
from batchq.errors import UsageError
from batchq.s3.client import Client, Connection, Limits
from batchq.s3.objects import Answer, whole_sha256
from batchq.s3.refusals import Refused, Unanswered
from batchq.source.base import Found, Skipped, SourceUnavailable
from batchq.source.document_errors import changed, too_large
from batchq.source.names import checked_prefix
from batchq.source.s3_names import (
    Filter,
    etag_of,
    from_s3_locator,
    split_url,
    to_s3_locator,
)
from batchq.source.s3_refusals import (
    for_every_document,
    of_credentials,
    of_document,
    of_listing,
)

__all__ = ["S3Ranges", "S3Reader", "S3Source"]

T = TypeVar("T")

_ARCHIVED = frozenset({"GLACIER", "DEEP_ARCHIVE"})
_CHECKED = {"x-amz-checksum-mode": "ENABLED"}
_NO_VERSIONS = frozenset({"NotImplemented", "MethodNotAllowed", "NoSuchVersioningConfiguration"})


class S3Source:
    """What lies below `url`, `s3://bucket/folder`, or the one object of that name.

    A source id is `s3://bucket/key`, or `prefix` and the path below the folder. `include`
    and `exclude` are patterns (see `globs`) for paths below the folder; names that begin
    with a dot are passed over, as in folders of this machine. `avoid` names addresses below
    `url` from which nothing is taken: batchq's own results; UsageError if one is `url` itself.
    `list` raises UsageError if there is nothing at all, AccessDenied, and SourceUnavailable.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str | None = None,
        include: Iterable[str] = (),
        exclude: Iterable[str] = (),
        avoid: Iterable[str] = (),
        clock: Clock | None = None,
    ) -> None:
        self._bucket, self._path, self._only_below = split_url(url)
        own = [split_url(each)[:2] for each in avoid if each.startswith("s3://")]
        if (self._bucket, self._path) in own:
            raise UsageError(
                f"SOURCE {url} is where the results lie",
                hint="give results a folder of their own with --results: each enqueue would take "
                "those of the last one for documents",
            )
        folder = self._path and f"{self._path}/"
        # Results that lie above lie beside it, each run's in a folder of its own.
        self._avoid = tuple(
            f"{path}/" for bucket, path in own if bucket == self._bucket and path.startswith(folder)
        )
        self._prefix = None if prefix is None else checked_prefix(prefix)
        self._wants = Filter(include, exclude)
        self._ask = _Asking(clock)
        self.root = f"s3://{self._bucket}/{self._path}".rstrip("/")

    def list(self, *, sized: bool = True) -> Iterator[Found | Skipped]:
        """In the order of keys, a page at a time. The store tells every size."""
        listing = self._versions if self._keeps_versions() else self._objects
        found_any = False
        if self._path and not self._only_below:
            # Of what begins with the path, the path itself comes first.
            for row in listing(self._path, at_most=1):
                if row["Key"] == self._path:
                    found_any = True
                    yield from self._found(row, self._path.rpartition("/")[0])
        for row in listing(self._path and f"{self._path}/"):
            found_any = True
            key = row["Key"]
            below = key[len(self._path) + 1 :] if self._path else key
            # An object of no bytes there is how consoles show an empty folder.
            is_folder = key.endswith("/") and not int(row["Size"])
            if is_folder or key.startswith(self._avoid):
                continue
            if self._wants(below):
                yield from self._found(row, self._path)
        if not found_any:
            raise UsageError(
                f"SOURCE {self.root}: there is no such object, and none below it",
                hint="a SOURCE names an object or a folder, s3://bucket/folder; take some of a "
                "folder with --include",
            )

    def _found(self, row: Mapping[str, Any], folder: str) -> Iterator[Found | Skipped]:
        key, version = row["Key"], row.get("VersionId")
        source_id = f"s3://{self._bucket}/{key}"
        if self._prefix is not None:
            source_id = f"{self._prefix}/{key[len(folder) :].removeprefix('/')}"
        if "\0" in key:
            yield Skipped(source_id, "its key holds a NUL, which no ledger keeps: rename it")
            return
        if row.get("StorageClass") in _ARCHIVED:
            yield Skipped(source_id, f"archived ({row['StorageClass']}): restore and copy it first")
            return
        # What was there before a bucket kept versions is called "null", and may be replaced.
        pinned = None if version in (None, "null") else version
        known = f"version:{pinned}" if pinned else f"etag:{etag_of(row['ETag'])}"
        has_digest = "SHA256" in row.get("ChecksumAlgorithm", ()) and (
            row.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT"
        )
        yield Found(
            source_id,
            to_s3_locator(self._bucket, key, pinned),
            int(row["Size"]),
            None if has_digest else known,
        )

    # -- pages -------------------------------------------------------------------

    def _keeps_versions(self) -> bool:
        try:
            answer = self._ask(lambda c: c.s3.get_bucket_versioning(Bucket=self._bucket))
        except Refused as refused:
            if refused.refusal.code in _NO_VERSIONS:
                return False
            raise of_listing(refused.refusal, self.root, "s3:GetBucketVersioning") from refused
        return "Status" in answer

    def _objects(self, prefix: str, at_most: int = 1000) -> Iterator[Mapping[str, Any]]:
        after: dict[str, str] = {}
        while True:
            page = self._page("list_objects_v2", "s3:ListBucket", prefix, at_most, after)
            rows = page.get("Contents", ())
            yield from rows
            if at_most == 1 or not (page.get("IsTruncated") and rows):
                return
            # Not a token, which may expire while a large bucket is taken up.
            after = {"StartAfter": rows[-1]["Key"]}

    def _versions(self, prefix: str, at_most: int = 1000) -> Iterator[Mapping[str, Any]]:
        """The latest version of each key, where that is not the mark of its deletion."""
        after: dict[str, str] = {}
        while True:
            page = self._page(
                "list_object_versions", "s3:ListBucketVersions", prefix, at_most, after
            )
            yield from (row for row in page.get("Versions", ()) if row["IsLatest"])
            if at_most == 1 or not page.get("IsTruncated"):
                return
            after = {
                "KeyMarker": page["NextKeyMarker"],
                "VersionIdMarker": page["NextVersionIdMarker"],
            }

    def _page(
        self, verb: str, right: str, prefix: str, at_most: int, after: Mapping[str, str]
    ) -> Mapping[str, Any]:
        try:
            page: Mapping[str, Any] = self._ask(
                lambda c: getattr(c.s3, verb)(
                    Bucket=self._bucket, Prefix=prefix, MaxKeys=at_most, **after
                )
            )
        except Refused as refused:
            raise of_listing(refused.refusal, self.root, right) from refused
        return page


class S3Reader:
    """Reads `s3://` locators. Safe for threads."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._ask = _Asking(clock)

    def fingerprint(self, locator: str) -> tuple[str, int]:
        """The strongest version that the store gives, and the size in bytes; nothing is read.

        Raises DocumentError, AccessDenied, SourceUnavailable.
        """
        found = self._head(locator).headers
        version = from_s3_locator(locator)[2]
        if (digest := whole_sha256(found)) is not None:
            known = f"sha256:{digest}"
        elif version is not None:
            known = f"version:{version}"
        else:
            known = f"etag:{etag_of(found['etag'])}"
        return known, int(found["content-length"])

    def read(self, locator: str, source_version: str, limit: int) -> bytes:
        """The bytes, of the version that the store was asked for or of that digest.

        Raises DocumentError: `source_missing`, `source_changed`, `too_large` (above
        `limit` bytes), each final; `source_unreadable`, which is not. AccessDenied,
        SourceUnavailable.
        """
        kind, _, expected = source_version.partition(":")
        if kind != "sha256":
            return self._read(locator, kind, expected, limit)
        # What the wire did to one read must not condemn a document.
        digests = []
        for _ in range(2):
            data = self._read(locator, kind, expected, limit)
            digests.append(hashlib.sha256(data).hexdigest())
            if digests[-1] == expected:
                return data
        if digests[0] != digests[1]:
            raise SourceUnavailable(f"{locator} was read twice, and the bytes differ")
        raise changed(locator, source_version, f"sha256:{digests[0]}")

    def open(self, locator: str) -> S3Ranges:
        """The object as it is now, to be read in parts. Raises as `fingerprint` does."""
        found = self._head(locator).headers
        return S3Ranges(self, locator, int(found["content-length"]), found["etag"])

    def read_range(self, locator: str, etag: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`, of the object with this ETag. Raises as `read` does."""
        part = f"bytes={offset}-{offset + length - 1}"
        return self._get(locator, {"if-match": etag, "range": part})

    def _read(self, locator: str, kind: str, expected: str, limit: int) -> bytes:
        # The store refuses to send another one than this.
        match kind:
            case "etag":
                return self._get(locator, {"if-match": f'"{expected}"', **_CHECKED}, limit)
            case "version":
                return self._get(locator, _CHECKED, limit, version=expected)
        return self._get(locator, {}, limit)

    def _head(self, locator: str) -> Answer:
        return self._send("HeadObject", locator, _CHECKED)

    def _get(
        self,
        locator: str,
        headers: Mapping[str, str],
        limit: int | None = None,
        version: str | None = None,
    ) -> bytes:
        def look(found: Mapping[str, str]) -> None:
            # Some servers pass over a condition that they do not know.
            if headers.get("if-match", found["etag"]) != found["etag"]:
                raise changed(locator, headers["if-match"], found["etag"])
            size = int(found["content-length"])
            if limit is not None and size > limit:
                raise too_large(f"{locator} has {size:,} bytes", f"{limit:,}")

        return self._send("GetObject", locator, headers, version, look).body

    def _send(
        self,
        operation: str,
        locator: str,
        headers: Mapping[str, str],
        version: str | None = None,
        look: Callable[[Mapping[str, str]], None] | None = None,
    ) -> Answer:
        bucket, key, pinned = from_s3_locator(locator)

        def send(c: Connection, operation: str, headers: Mapping[str, str]) -> Answer:
            return c.objects.send(
                operation, bucket, key, headers=headers, version=version or pinned, look=look
            )

        def request(connection: Connection) -> Answer:
            try:
                return send(connection, operation, headers)
            except Refused as refused:
                if operation != "HeadObject" or refused.refusal.passing:
                    raise
                # It has no room to say whether it is about this object, or about who asks or where.
                send(connection, "GetObject", {"range": "bytes=0-0"})
                raise

        try:
            return self._ask(request)
        except Refused as refused:
            raise of_document(refused.refusal, locator) from refused


class S3Ranges:
    """Parts of one object, all of them of the same ETag."""

    def __init__(self, reader: S3Reader, locator: str, size: int, etag: str) -> None:
        self.size = size
        self._reader = reader
        self._locator = locator
        self._etag = etag

    def read(self, offset: int, length: int) -> bytes:
        """The bytes there, fewer at the end. Raises as `S3Reader.read` does."""
        length = min(length, self.size - offset)
        if length <= 0:
            return b""
        return self._reader.read_range(self._locator, self._etag, offset, length)


class _Asking:
    """A client whose failures to answer are said of documents, and of none in particular."""

    def __init__(self, clock: Clock | None) -> None:
        self._client = Client("documents in S3", Limits(), clock or SystemClock())

    def __call__(self, request: Callable[[Connection], T]) -> T:
        """Raises Refused, SourceUnavailable, AccessDenied and UsageError."""
        try:
            return self._client.ask(request)
        except Unanswered as error:
            raise SourceUnavailable(
                f"documents in S3: {error}",
                hint="check the network and AWS_ENDPOINT_URL_S3",
            ) from error
        except Refused as refused:
            if for_every_document(refused.refusal):
                raise of_credentials(refused.refusal) from refused
            raise
