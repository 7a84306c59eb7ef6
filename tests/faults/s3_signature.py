"""Who signed a request, and whether they did: version 4, as its specification tells a server.

Written apart from the SDK, whose requests it checks.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from tests.faults.http_connection import Headers

__all__ = ["Claim", "read_claim"]

_CLAIM = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<identity>[^/]+)/(?P<day>\d{8})/(?P<region>[^/]+)"
    r"/s3/aws4_request"
    r"(?:, SignedHeaders=(?P<names>[^,]+), Signature=(?P<signature>[0-9a-f]{64}))?"
)


@dataclass(frozen=True)
class Claim:
    """What an Authorization header says."""

    identity: str
    day: str
    region: str
    names: str | None
    signature: str | None

    def proven(self, secret: str, method: str, target: str, headers: Headers) -> bool:
        """Whether who signed this request knows the secret."""
        if self.names is None or self.signature is None:
            return False
        moment, payload = headers.get("x-amz-date", ""), headers.get("x-amz-content-sha256", "")
        names = self.names.split(";")
        must = {name for name in headers if name.startswith("x-amz-")} | {"host"}
        if not must <= set(names) or names != sorted(names) or not moment.startswith(self.day):
            return False
        address = urlsplit(target)
        query = sorted(part if "=" in part else f"{part}=" for part in address.query.split("&"))
        canonical = "\n".join(
            [
                method,
                address.path,
                "&".join(query) if address.query else "",
                *(f"{name}:{' '.join(headers.get(name, '').split())}" for name in names),
                "",
                self.names,
                payload,
            ]
        )
        scope = f"{self.day}/{self.region}/s3/aws4_request"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{digest}"
        expected = hmac.new(_key(secret, scope), text.encode(), hashlib.sha256).hexdigest()
        return hmac.compare_digest(expected, self.signature)


def read_claim(headers: Headers) -> Claim | None:
    """Who says to have signed a request, if anybody does."""
    found = _CLAIM.fullmatch(headers.get("authorization", ""))
    return None if found is None else Claim(**found.groupdict())


@functools.lru_cache(maxsize=64)
def _key(secret: str, scope: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key
