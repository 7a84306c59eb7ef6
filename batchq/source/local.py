"""Reading documents from the file systems of this machine."""

from __future__ import annotations

import errno
import hashlib
import os
import stat

from batchq.errors import DocumentError
from batchq.source.base import SourceAbsent, SourceUnavailable
from batchq.source.document_errors import changed, too_large
from batchq.source.names import from_locator, root_of, without_mark

__all__ = ["LocalReader", "document_error", "open_regular"]

CHUNK = 1 << 20

# Never through a link put in the document's place since it was listed, and never waiting
# for the other end of a pipe.
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_NO_FILE = {
    errno.ELOOP: "a link now, and links put in a document's place are not followed",
    errno.ENXIO: "a socket or a device now",
    errno.ENODEV: "a device now",
}
"""What opening something else than a regular file fails with. Asking again cannot help."""

_NO_ANSWER = frozenset(
    (
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN),
        *(errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH),
        *(errno.ENETDOWN, errno.ENETUNREACH, errno.ECONNRESET, errno.ECONNABORTED),
    )
)
"""This machine is out of something, or does not reach the server that it has mounted."""


class LocalReader:
    """Reads `file:///` locators. Safe for threads; holds nothing open between calls."""

    def fingerprint(self, locator: str) -> tuple[str, int]:
        """The source version (`sha256:<hex>`) and size in bytes, in one pass.

        Raises DocumentError: `source_missing`, `source_unreadable`; and as `Reader` does.
        """
        try:
            fd, size = open_regular(locator)
            try:
                # One read more than the size shows the end of a small file at once.
                data = os.read(fd, size + 1 if size < CHUNK else CHUNK)
                if len(data) == size:
                    return f"sha256:{hashlib.sha256(data).hexdigest()}", size
                digest, size = hashlib.sha256(), 0
                while data:
                    digest.update(data)
                    size += len(data)
                    data = os.read(fd, CHUNK)
                return f"sha256:{digest.hexdigest()}", size
            finally:
                os.close(fd)
        except OSError as error:
            raise document_error(locator, error) from None

    def read(self, locator: str, source_version: str, limit: int) -> bytes:
        """The bytes, proven to be those of `source_version`.

        Raises DocumentError: `source_missing`, `source_changed`, `too_large` (above
        `limit` bytes), each final; `source_unreadable`, which is not. SourceUnavailable
        and SourceAbsent where the error is none of the document's.
        """
        try:
            fd, size = open_regular(locator)
            try:
                chunks, left = [], limit + 1
                while left > 0 and (chunk := os.read(fd, min(left, max(size + 1, CHUNK)))):
                    chunks.append(chunk)
                    left -= len(chunk)
            finally:
                os.close(fd)
        except OSError as error:
            raise document_error(locator, error) from None
        if left <= 0:
            raise too_large(
                f"{without_mark(locator)} has {max(size, limit + 1):,} bytes", f"{limit:,}"
            )
        data = b"".join(chunks)
        found = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if found != source_version:
            raise changed(without_mark(locator), source_version, found)
        return data


def open_regular(locator: str) -> tuple[int, int]:
    """A descriptor of a regular file and its size in bytes."""
    path = from_locator(locator)
    try:
        fd = os.open(path, _FLAGS)
    except ValueError:
        # It holds a NUL.
        raise DocumentError(
            "source_missing", f"{without_mark(locator)} names no file", final=True
        ) from None
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise DocumentError(
            "source_changed", f"{without_mark(locator)} is no regular file", final=True
        )
    return fd, status.st_size


def document_error(
    locator: str, error: OSError
) -> DocumentError | SourceUnavailable | SourceAbsent:
    """What an error of the file system says: of the document, or of nothing but the machine."""
    file = without_mark(locator)
    if error.errno in _NO_ANSWER:
        return SourceUnavailable(
            f"{file}: {(error.strerror or str(error)).lower()}",
            hint="see `ulimit -n`, the memory and the mounts of this machine",
        )
    if error.errno in _NO_FILE:
        reason = _NO_FILE[error.errno]
        return DocumentError("source_changed", f"{file} is {reason}", final=True)
    reason = (error.strerror or str(error)).lower()
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        root = root_of(locator)
        if root is not None and not _holds_something(root):
            return SourceAbsent(
                f"the folder {os.fsdecode(root)} that documents were enqueued from is not here, "
                "or is empty",
                hint="mount it on this machine as it was there; with results in S3 enqueue keeps "
                "copies for every worker. If the documents are gone for good, put any file "
                "there, and they end as source_missing",
            )
        return DocumentError("source_missing", f"{file}: {reason}", final=True)
    return DocumentError("source_unreadable", f"{file}: {reason}")


def _holds_something(folder: bytes) -> bool:
    """Where nothing is mounted an empty folder shows, or none."""
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is not None
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        # It may not be listed, and may be read all the same.
        return True
