"""What a server of the S3 protocol means by its refusals, and how to mend each.

Nothing here knows the SDK: a refusal is its HTTP status, its code and its sentence.
"""

from __future__ import annotations

from dataclasses import dataclass

from batchq.errors import AccessDenied, BatchqError, StoreUnusable
from batchq.redact import redact
from batchq.store.base import StoreError

__all__ = ["Refusal", "Refused"]

_PASSING_CODES = frozenset(
    {
        "RequestTimeout",  # 400: the body came too slowly
        "IncompleteBody",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "RequestLimitExceeded",
    }
)

# 409 is another writer on the same key at this moment: who won is seen by asking again.
_PASSING_STATUSES = frozenset({408, 409, 429})

# A HEAD has no room for a code, and hardly another reason for a 400.
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "400"})

_DENIED = {
    "AccessDenied": (
        "grant what configs/iam/worker.json lists; without s3:ListBucket a server answers so "
        "for a missing object too, and without the KMS key for every one"
    ),
    "AccountProblem": "look at the account's state in the console",
    "ExpiredToken": "get new credentials from whatever issued these (`aws sso login`, say) and "
    "start again",
    "InvalidAccessKeyId": "set the right AWS_ACCESS_KEY_ID or AWS_PROFILE, and the endpoint "
    "(AWS_ENDPOINT_URL_S3) of the server that knows it",
    "InvalidToken": "set AWS_SESSION_TOKEN to the one that belongs to the access key",
    "RequestTimeTooSkewed": "set this machine's clock: the server refuses signatures that are "
    "more than 15 minutes off",
    "SignatureDoesNotMatch": "set the right AWS_SECRET_ACCESS_KEY, without blanks around it",
}
"""Who we are, or what we may do. 403 to a HEAD has no code and counts as AccessDenied."""

_REGION = "set AWS_REGION to the region of the bucket"

_UNUSABLE = {
    "AuthorizationHeaderMalformed": _REGION,
    "EntityTooLarge": "this server takes no object of that size",
    "IllegalLocationConstraintException": _REGION,
    "InvalidBucketName": "correct the bucket in --results",
    "InvalidObjectState": "the object was moved to an archive: exempt the results from that rule",
    "KeyTooLongError": "shorten the prefix in --results: a whole key has at most 1,024 bytes",
    "MethodNotAllowed": "this server lacks what batchq needs: use another one",
    "NoSuchBucket": "create the bucket, or correct --results or AWS_ENDPOINT_URL_S3",
    "NotImplemented": "this server lacks what batchq needs: update it or use another one",
    "PermanentRedirect": _REGION,
    "QuotaExceeded": "ask for a larger quota, or free room in the bucket",
    "XMinioAdminBucketQuotaExceeded": "raise the bucket's quota, or free room in it",
    "XMinioStorageFull": "give the server more space",
}
"""What asking again does not mend."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A server's answer that is not a success."""

    operation: str
    status: int
    code: str
    message: str

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed a moment later."""
        if self.status in (501, 507):
            return False
        return self.status >= 500 or self.status in _PASSING_STATUSES or self.code in _PASSING_CODES

    @property
    def expired(self) -> bool:
        """Whether the credentials were good once and are no more."""
        return self.code in _EXPIRED

    @property
    def absent(self) -> bool:
        """Whether it says that there is no such object."""
        return self.status == 404 and self.code in ("NoSuchKey", "NotFound", "404")

    def __str__(self) -> str:
        said = f"{self.code} {self.message}".strip()
        return redact(f"{self.operation} was answered {self.status} {said}")

    def explain(self, place: str) -> BatchqError | StoreError:
        """The error to raise for it; `place` is the object or the store's address."""
        said = f"result store: {place}: {self}"
        code = "AccessDenied" if self.status == 403 and self.code == "403" else self.code
        code = "ExpiredToken" if self.expired else code
        if code in _DENIED:
            return AccessDenied(said, hint=_DENIED[code])
        if code in _UNUSABLE:
            return StoreUnusable(said, hint=_UNUSABLE[code])
        if code.startswith("KMS."):
            return AccessDenied(said, hint="enable the bucket's KMS key and grant its use")
        if self.status in (501, 507):
            return StoreUnusable(said, hint="update this server or use another one")
        # Unknown is not failed: this says nothing of what lies there.
        return StoreError(said)


class Refused(Exception):
    """The server's last word on a request."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal
