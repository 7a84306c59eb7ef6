"""Plain HTTP to a metadata service on this machine: bounded in time, through no proxy."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from batchq.errors import UsageError
from batchq.notice.polling import Trouble
from batchq.redact import redact

__all__ = ["Answer", "MetadataService", "NoAnswer", "Refused", "json_body", "refusal"]

CONNECT_S = 1.0
ANSWER_S = 1.0
MAX_BODY = 256 * 1024


class NoAnswer(Trouble):
    """The service took the connection, but said nothing in time."""


class Refused(Trouble):
    """The service answers, but not to this."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response; `headers` by name in small letters."""

    status: int
    body: str
    headers: Mapping[str, str]


class MetadataService:
    """The service at `endpoint`, `http://HOST[:PORT]`.

    `origin` names where the endpoint was given, for the UsageError about one that is none.
    """

    def __init__(self, endpoint: str, origin: str) -> None:
        try:
            parts = urlsplit(endpoint)
            host, port = parts.hostname, parts.port
        except ValueError:
            parts, host, port = urlsplit(""), None, None
        if parts.scheme != "http" or host is None or parts.username is not None:
            raise UsageError(
                f"{origin}: {redact(endpoint)!r} is no metadata endpoint",
                hint="write it as http://HOST or http://HOST:PORT",
            )
        self.endpoint = endpoint.rstrip("/")
        self.host = host
        self.port = port or 80
        self._base = parts.path.rstrip("/")

    def ask(
        self, method: str, path: str, headers: Mapping[str, str], *, timeout: float = ANSWER_S
    ) -> Answer:
        """One request; `timeout` in seconds once connected.

        Raises NoAnswer, or Trouble of another kind if there is nobody to answer.
        """
        # Not urllib.request, which would ask a proxy from the environment.
        connection = http.client.HTTPConnection(self.host, self.port, timeout=CONNECT_S)
        try:
            try:
                connection.connect()
            except OSError as error:
                raise Trouble("unreachable", f"no connection to {self.endpoint}: {error}") from None
            connection.sock.settimeout(timeout)
            connection.request(method, self._base + path, headers=dict(headers))
            response = connection.getresponse()
            body = response.read(MAX_BODY).decode("utf-8", "replace")
            named = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, body, named)
        except TimeoutError:
            raise NoAnswer(
                "no answer", f"{method} {self.endpoint}{path}: no answer within {timeout:g} s"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            reason = f"{type(error).__name__}: {error}"
            raise Trouble("broken", f"{method} {self.endpoint}{path}: {reason}") from None
        finally:
            connection.close()


def refusal(answer: Answer, path: str) -> Trouble:
    """What to say of an answer that is neither a document nor a plain "there is none"."""
    if answer.status == 429 or answer.status >= 500:
        return Trouble("throttled", f"{path}: HTTP {answer.status}, asking less often")
    return Refused(f"{answer.status} {path}", f"{path}: HTTP {answer.status}")


def json_body(body: str, path: str) -> Any:
    """`body` as JSON. Raises Trouble for anything else, such as a page in HTML."""
    try:
        return json.loads(body)
    except ValueError:
        raise Trouble(f"no JSON at {path}", f"{path}: no JSON: {body[:60]!r}") from None
