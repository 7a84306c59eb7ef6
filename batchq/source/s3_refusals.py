"""What the refusals of a server of the S3 protocol mean for a listing and for a document."""

from __future__ import annotations

from batchq.errors import AccessDenied, BatchqError, DocumentError, UsageError
from batchq.s3.refusals import Refusal
from batchq.source.base import SourceUnavailable

__all__ = ["for_every_document", "of_credentials", "of_document", "of_listing"]

_CREDENTIALS = frozenset(
    {"InvalidAccessKeyId", "InvalidToken", "RequestTimeTooSkewed", "SignatureDoesNotMatch"}
)


def for_every_document(refusal: Refusal) -> bool:
    """Whether it is about who asks, and so about no document."""
    return refusal.expired or refusal.code in _CREDENTIALS


def of_credentials(refusal: Refusal) -> AccessDenied:
    return AccessDenied(
        f"documents in S3: {refusal}",
        hint="renew the credentials that the environment gives the SDK (AWS_PROFILE, "
        "AWS_ACCESS_KEY_ID, the instance's role), and set this machine's clock",
    )


def of_listing(refusal: Refusal, root: str, right: str) -> BatchqError:
    """The error of a SOURCE whose listing was refused; `right` is what it takes."""
    said = f"SOURCE {root}: {refusal}"
    if refusal.code == "NoSuchBucket":
        return UsageError(said, hint="correct the bucket's name, or AWS_ENDPOINT_URL_S3")
    if refusal.status == 403:
        return AccessDenied(
            said, hint=f"grant {right} on the bucket, as configs/iam/enqueuer.json does"
        )
    return SourceUnavailable(said, hint="try again; what was taken up stays")


def of_document(refusal: Refusal, locator: str) -> DocumentError | SourceUnavailable:
    """The error of a document; none of it, where the refusal says nothing about it."""
    said = f"{locator}: {refusal}"
    # 405: this version is the mark that the object was deleted.
    if refusal.code in ("NoSuchKey", "NoSuchVersion", "404") or refusal.status == 405:
        return DocumentError("source_missing", said, final=True)
    if refusal.status == 412:
        return DocumentError("source_changed", said, final=True, hint="enqueue it again")
    if _is_of_encryption(refusal):
        return DocumentError(
            "source_unreadable",
            said,
            hint="enable the key that it is encrypted with, grant its use, or copy it without",
        )
    if refusal.status == 403:
        return DocumentError(
            "source_unreadable",
            said,
            hint="grant s3:GetObject there, and s3:ListBucket, without which a missing "
            "object reads as a forbidden one (configs/iam/worker.json)",
        )
    return SourceUnavailable(said)


def _is_of_encryption(refusal: Refusal) -> bool:
    """Whether the object's own key is disabled or gone, or is one that its owner keeps (SSE-C)."""
    if refusal.code == "InvalidRequest":
        return "Server Side Encryption" in refusal.message
    return refusal.status == 400 and refusal.code.startswith("KMS.")
