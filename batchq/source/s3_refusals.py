"""What a server of the S3 protocol means by its refusals, for a listing and for a document.

Nothing here knows the SDK: a refusal is its HTTP status, its code and its sentence.
"""

from __future__ import annotations

from batchq.errors import AccessDenied, BatchqError, DocumentError, UsageError
from batchq.redact import redact
from batchq.source.base import SourceUnavailable

__all__ = ["Refused", "changed"]

# A HEAD has no room for a code, and hardly another reason for a 400.
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "400"})

_CREDENTIALS = _EXPIRED | {
    "InvalidAccessKeyId",
    "InvalidToken",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
}


class Refused(Exception):
    """The server's last word on a request."""

    def __init__(self, operation: str, status: int, code: str, message: str) -> None:
        said = f"{code} {message}".strip()
        super().__init__(redact(f"{operation} was answered {status} {said}"))
        self.status = status
        self.code = code

    @property
    def expired(self) -> bool:
        """Whether the credentials were good once and are no more."""
        return self.code in _EXPIRED

    @property
    def for_every_document(self) -> bool:
        """Whether it is about who asks, and so about no document."""
        return self.code in _CREDENTIALS

    def of_credentials(self) -> AccessDenied:
        return AccessDenied(
            f"documents in S3: {self}",
            hint="renew the credentials that the environment gives the SDK (AWS_PROFILE, "
            "AWS_ACCESS_KEY_ID, the instance's role), and set this machine's clock",
        )

    def of_listing(self, root: str, right: str) -> BatchqError:
        """The error of a SOURCE whose listing was refused; `right` is what it takes."""
        said = f"SOURCE {root}: {self}"
        if self.code == "NoSuchBucket":
            return UsageError(said, hint="correct the bucket's name, or AWS_ENDPOINT_URL_S3")
        if self.status == 403:
            return AccessDenied(
                said, hint=f"grant {right} on the bucket, as configs/iam/enqueuer.json does"
            )
        return SourceUnavailable(said, hint="try again; what was taken up stays")

    def of_document(self, locator: str) -> DocumentError | SourceUnavailable:
        """The error of a document; none of it, where the refusal says nothing about it."""
        said = f"{locator}: {self}"
        # 405: this version is the mark that the object was deleted.
        if self.code in ("NoSuchKey", "NoSuchVersion", "404") or self.status == 405:
            return DocumentError("source_missing", said, final=True)
        if self.status == 412:
            return DocumentError("source_changed", said, final=True, hint="enqueue it again")
        if self.status == 403:
            return DocumentError(
                "source_unreadable",
                said,
                hint="grant s3:GetObject there, and s3:ListBucket, without which a missing "
                "object reads as a forbidden one (configs/iam/worker.json)",
            )
        return SourceUnavailable(said)


def changed(locator: str, expected: str, found: str) -> DocumentError:
    """The error of a document that is not what was enqueued."""
    return DocumentError(
        "source_changed",
        f"{locator} no longer holds the bytes that were enqueued ({expected}, now {found})",
        final=True,
        hint="enqueue it again",
    )
