"""What the refusals of a server of the S3 protocol mean for results, and how to mend each."""

from __future__ import annotations

from batchq.errors import AccessDenied, BatchqError, StoreUnusable
from batchq.s3.refusals import Refusal
from batchq.store.base import StoreError

__all__ = ["explain"]

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


def explain(refusal: Refusal, place: str) -> BatchqError | StoreError:
    """The error to raise for it; `place` is the object or the store's address."""
    said = f"result store: {place}: {refusal}"
    code = "AccessDenied" if refusal.status == 403 and refusal.code == "403" else refusal.code
    code = "ExpiredToken" if refusal.expired else code
    if code in _DENIED:
        return AccessDenied(said, hint=_DENIED[code])
    if code in _UNUSABLE:
        return StoreUnusable(said, hint=_UNUSABLE[code])
    if code.startswith("KMS."):
        return AccessDenied(said, hint="enable the bucket's KMS key and grant its use")
    if refusal.status in (501, 507):
        return StoreUnusable(said, hint="update this server or use another one")
    # Unknown is not failed: this says nothing of what lies there.
    return StoreError(said)
