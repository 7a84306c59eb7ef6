"""AWS Signature Version 4, for requests to S3.

Source: "Create a signed AWS API request", docs.aws.amazon.com/IAM/latest/UserGuide/
reference_sigv-create-signed-request.html. S3 signs a path as it is sent, encoded once.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Protocol

__all__ = ["Credentials", "Signer"]


class Credentials(Protocol):
    """Who asks. `token`: that of a session, where there is one."""

    @property
    def access_key(self) -> str: ...

    @property
    def secret_key(self) -> str: ...

    @property
    def token(self) -> str | None: ...


class Signer:
    """Signs requests to one service in one region. Safe for threads.

    The key that follows from secret and day is computed once a day.
    """

    def __init__(self, region: str, service: str = "s3") -> None:
        self._region = region
        self._service = service
        self._key: tuple[str, str, bytes] = ("", "", b"")

    def sign(
        self,
        method: str,
        path: str,
        query: str,
        headers: Mapping[str, str],
        *,
        sha256: str,
        credentials: Credentials,
        now: float,
    ) -> dict[str, str]:
        """`headers` with those that make the request the credentials' own.

        Names of `headers` are in lower case, and `host` is among them; values have no blanks
        at their ends. `path` and `query` are encoded, the query sorted. `sha256`: of the
        body, in hex. `now`: Unix seconds.
        """
        moment = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
        day = moment[:8]
        signed = {**headers, "x-amz-content-sha256": sha256, "x-amz-date": moment}
        if credentials.token:
            signed["x-amz-security-token"] = credentials.token
        names = sorted(signed)
        lines = "".join([f"{name}:{signed[name]}\n" for name in names])
        listed = ";".join(names)
        request = f"{method}\n{path}\n{query}\n{lines}\n{listed}\n{sha256}"
        scope = f"{day}/{self._region}/{self._service}/aws4_request"
        digest = hashlib.sha256(request.encode()).hexdigest()
        to_sign = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{digest}"
        key = self._key_of(credentials.secret_key, day)
        signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
        signed["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, "
            f"SignedHeaders={listed}, Signature={signature}"
        )
        return signed

    def _key_of(self, secret: str, day: str) -> bytes:
        known_secret, known_day, key = self._key
        if (known_secret, known_day) != (secret, day):
            key = f"AWS4{secret}".encode()
            for part in (day, self._region, self._service, "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._key = (secret, day, key)
        return key
