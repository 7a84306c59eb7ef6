"""The client: one request at a time, asked again where that can help.

An answer is final or it is not. A conflict (409), an error of the server (5xx), throttling
and a connection that broke are asked again a few times; everything else is the server's last
word. Credentials that expire in the middle are read anew from where they came from.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from botocore import exceptions as sdk
from botocore.config import Config
from botocore.credentials import RefreshableCredentials
from botocore.parsers import ResponseParserError
from botocore.session import get_session
from urllib3.exceptions import HTTPError

from batchq.clock import Clock, random_fraction
from batchq.errors import AccessDenied, BatchqError, UsageError
from batchq.redact import redact
from batchq.s3.objects import Credentials, Objects, refusal_of
from batchq.s3.refusals import Refusal, Refused, Unanswered

__all__ = ["Client", "Connection", "Limits"]

T = TypeVar("T")

_BROKEN = (
    sdk.ConnectionError,
    sdk.HTTPClientError,
    sdk.IncompleteReadError,
    sdk.CredentialRetrievalError,
    sdk.MetadataRetrievalError,
    ResponseParserError,
    HTTPError,
    OSError,
)
"""No answer, or half of one, from the server or from what gives out credentials."""

_NO_CREDENTIALS = (
    sdk.NoCredentialsError,
    sdk.PartialCredentialsError,
    sdk.ProfileNotFound,
    sdk.SSOError,
    sdk.TokenRetrievalError,
)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is asked of the server at once, and how often.

    `connections`: threads that may ask without waiting for each other. `timeout`:
    seconds of silence after which a connection counts as broken. `attempts`: how often
    a request is sent, with `backoff * 2**n` seconds between, half of it jitter.
    """

    connections: int = 32
    timeout: float = 20.0
    attempts: int = 4
    backoff: float = 0.2


class Connection:
    """What asks, with the credentials that the environment gave when it was made.

    `s3`: the SDK's client. `objects`: the same for single objects, at less expense.
    `refreshes`: the SDK gets new credentials by itself, so that these expire by accident only.
    """

    def __init__(self, limits: Limits) -> None:
        session = get_session()
        config = Config(
            connect_timeout=limits.timeout,
            read_timeout=limits.timeout,
            max_pool_connections=limits.connections,
            tcp_keepalive=True,
            signature_version="s3v4",
            # The SDK's own repetition pauses by another clock and knows no conflicts.
            retries={"total_max_attempts": 1, "mode": "standard"},
            # What the SDK would add by itself, servers other than S3 refuse.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        self.s3: Any = session.create_client("s3", config=config)
        self._credentials = session.get_credentials()
        self.refreshes = isinstance(self._credentials, RefreshableCredentials)
        self.objects = Objects(
            self.s3,
            self._current_credentials,
            connections=limits.connections,
            timeout=limits.timeout,
            certificates=session.get_config_variable("ca_bundle"),
        )

    def _current_credentials(self) -> Credentials:
        if self._credentials is None:
            raise sdk.NoCredentialsError
        current: Credentials = self._credentials.get_frozen_credentials()
        return current


class Client:
    """Asks a server, once it must; made anew when credentials expire. Safe for threads.

    `purpose` begins what is said of an environment in which nothing can be asked.
    """

    def __init__(self, purpose: str, limits: Limits, clock: Clock) -> None:
        self._purpose = purpose
        self._limits = limits
        self._clock = clock
        self._connection: Connection | None = None
        self._connecting = threading.Lock()

    def ask(self, request: Callable[[Connection], T]) -> T:
        """What `request` returns, however often it must be made.

        Raises Refused for an answer that is final, Unanswered for none, and AccessDenied or
        UsageError where the environment does not suffice to ask at all.
        """
        attempt, renewed = 1, False
        while True:
            connection = None
            try:
                connection = self._connected()
                return request(connection)
            except (sdk.ClientError, Refused) as error:
                refusal = _refusal(error)
                if refusal.expired and not renewed:
                    self._drop(connection)
                    renewed = True
                    continue
                why = str(refusal)
                refreshes = connection is not None and connection.refreshes
                if not refusal.passing and not (refusal.expired and refreshes):
                    raise Refused(refusal) from error
            except _BROKEN as error:
                why = redact(str(error))
            except sdk.BotoCoreError as error:
                raise self._unsendable(error) from error
            if attempt == self._limits.attempts:
                raise Unanswered(why)
            pause = self._limits.backoff * 2 ** (attempt - 1)
            self._clock.wait(threading.Event(), pause * (0.5 + random_fraction() / 2))
            attempt += 1

    def _connected(self) -> Connection:
        with self._connecting:
            if self._connection is None:
                try:
                    self._connection = Connection(self._limits)
                except ValueError as error:
                    raise self._unsendable(error) from error
            return self._connection

    def _drop(self, expired: Connection | None) -> None:
        """Let the next request read the credentials anew: they may have been replaced."""
        with self._connecting:
            if self._connection is expired:
                self._connection = None

    def _unsendable(self, error: Exception) -> BatchqError:
        """Nothing could be asked: it is the environment that does not suffice."""
        said = f"{self._purpose}: {redact(str(error))}"
        if isinstance(error, _NO_CREDENTIALS):
            return AccessDenied(
                said,
                hint="set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give "
                "this instance a role",
            )
        return UsageError(
            said,
            hint="check the name of the bucket, and the AWS_* variables and files of this machine",
        )


def _refusal(error: sdk.ClientError | Refused) -> Refusal:
    return error.refusal if isinstance(error, Refused) else refusal_of(error)
