"""What a server of the S3 protocol says when it does not do what it was asked.

Nothing here knows the SDK: a refusal is its HTTP status, its code and its sentence.
"""

from __future__ import annotations

from dataclasses import dataclass

from batchq.redact import redact

__all__ = ["Refusal", "Refused", "Unanswered"]

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
        # What the service of keys said is passed on under its name.
        code = self.code.removeprefix("KMS.")
        return self.status >= 500 or self.status in _PASSING_STATUSES or code in _PASSING_CODES

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


class Refused(Exception):
    """The server's last word on a request."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


class Unanswered(Exception):
    """No last word, however often it was asked for. Whether it took effect is unknown."""
