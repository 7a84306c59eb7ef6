"""Requests to DynamoDB: sent again where that can help, and each error by its name.

The SDK signs and connects; what happens after a failure is decided here. A write whose
answer was lost may have taken effect: transactions carry a token under which the server
takes them once, and single writes are conditional, so that whoever sends one again reads
the row to see whose it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import Any, TypeVar

import boto3
import botocore.exceptions as sdk
from botocore.config import Config
from botocore.parsers import ResponseParserError
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from batchq.clock import Clock, random_hex
from batchq.errors import (
    AccessDenied,
    BatchqError,
    LedgerNotInitialised,
    LedgerUnreachable,
    UsageError,
)
from batchq.ledger.dynamodb.wire import Key, Wire, from_wire, to_wire, write
from batchq.redact import redact

__all__ = ["Calls", "ConditionFailed", "Refused", "connect"]

A = TypeVar("A")
B = TypeVar("B")

PATIENCE, ANSWER_S = 10.0, 3
"""Seconds for which what may pass is sent again; and for a connection, and for an answer. The
first allows for several of the others."""

PARALLEL = 16
"""Single writes in flight at a time, and connections."""

BATCH_GET = 100

PASSING = frozenset(
    {
        "InternalServerError",
        "InternalFailure",
        "ServiceUnavailable",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "LimitExceededException",
        # Another transaction is at work on the row, or on this very request.
        "TransactionConflictException",
        "TransactionInProgressException",
        "TransactionConflict",
        "ThrottlingError",
        "ProvisionedThroughputExceeded",
    }
)
"""Answers, and reasons of cancelled transactions, that a moment later may be another."""

_CREDENTIALS = "set the AWS credentials of this machine, by a role, a profile or AWS_ACCESS_KEY_ID"

DENIED = {
    "AccessDeniedException": "grant what docs/ledgers.md lists for this table",
    "ExpiredTokenException": "get new credentials from whatever issued these and start again",
    "ExpiredToken": "get new credentials from whatever issued these and start again",
    "IncompleteSignature": _CREDENTIALS,
    "InvalidSignatureException": "set the right AWS_SECRET_ACCESS_KEY, and this machine's clock: "
    "signatures more than 15 minutes off are refused",
    "MissingAuthenticationToken": _CREDENTIALS,
    "MissingAuthenticationTokenException": _CREDENTIALS,
    "NotAuthorized": _CREDENTIALS,
    "OptInRequired": "this account may not use DynamoDB in this region",
    "UnrecognizedClientException": "set the right AWS_ACCESS_KEY_ID or AWS_PROFILE, and its "
    "AWS_SESSION_TOKEN where it has one",
}

NO_ANSWER = (
    sdk.ConnectionError,
    sdk.HTTPClientError,
    sdk.ConnectTimeoutError,
    sdk.ReadTimeoutError,
    sdk.EndpointConnectionError,
    ResponseParserError,
)


class ConditionFailed(Exception):
    """The row is not as the write demanded, or one of a transaction's rows.

    `repeated`: the request had been sent before, without an answer, and may have taken
    effect then.
    """

    repeated = False


class Refused(Exception):
    """The server's last word on a request that no other rule explains, by its code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class _Passing(Exception):
    """No answer, or one that asks to come again."""


def connect(region: str | None) -> Any:
    """A client of the SDK, which finds endpoint and credentials in its own environment."""
    config = Config(
        connect_timeout=ANSWER_S,
        read_timeout=ANSWER_S,
        max_pool_connections=PARALLEL + 2,
        # Sending again is decided here, where it is known what may be repeated.
        retries={"mode": "standard", "total_max_attempts": 1},
        tcp_keepalive=True,
    )
    try:
        return boto3.session.Session().client("dynamodb", region_name=region, config=config)
    except (sdk.NoRegionError, sdk.InvalidRegionError) as error:
        raise UsageError(
            f"no region for DynamoDB: {error}",
            hint="write it into the address: dynamodb://TABLE?region=eu-west-1",
        ) from None
    except (sdk.ProfileNotFound, sdk.ConfigParseError) as error:
        raise UsageError(f"the SDK's configuration: {error}", hint=_CREDENTIALS) from None


class Calls:
    """The requests of one ledger object. Safe for threads.

    For `patience` seconds what may pass is sent again. `parallel` writes are in flight at a
    time, and `transaction` rows at most are written in one.
    """

    def __init__(
        self,
        client: Callable[[], Any],
        table: str,
        url: str,
        clock: Clock,
        patience: float,
        *,
        parallel: int = PARALLEL,
        transaction: int = 100,
    ) -> None:
        self.table = table
        self.transaction = transaction
        self._parallel = parallel
        self._threads = ThreadPoolExecutor(parallel, thread_name_prefix="dynamodb")
        self.url = url
        self._connect = client
        self._clock = clock
        self._patience = patience
        self.server_time = ServerTime()

    @cached_property
    def client(self) -> Any:
        return self._connect()

    def close(self) -> None:
        self._threads.shutdown()

    def each(self, function: Callable[[A], B], things: Sequence[A]) -> list[B]:
        """`function` of each thing, several at a time, in order. All are tried; then the
        first error is raised."""
        if len(things) < 2 or self._parallel == 1:
            return [function(thing) for thing in things]
        futures = [self._threads.submit(function, thing) for thing in things]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
        return [future.result() for future in futures]

    # -- requests ----------------------------------------------------------------------

    def ask(self, operation: str, **request: Any) -> Any:
        """One request and its answer. Raises ConditionFailed, Refused or a BatchqError."""
        attempts = Retrying(
            retry=retry_if_exception_type(_Passing),
            stop=stop_after_delay(self._patience),
            wait=wait_random_exponential(multiplier=0.02, max=1.0),
            reraise=True,
        )
        try:
            return attempts(self._once, operation, request)
        except ConditionFailed as error:
            error.repeated = attempts.statistics.get("attempt_number", 1) > 1
            raise
        except _Passing as error:
            raise LedgerUnreachable(
                f"{self.url}: {operation} was not answered for {self._patience:g} s: {error}",
                hint="see whether the endpoint is reachable and the table is throttled",
            ) from None

    def _once(self, operation: str, request: dict[str, Any]) -> Any:
        sent = self._clock.monotonic()
        try:
            answer = getattr(self.client, operation)(**request)
        except sdk.ClientError as error:
            raise self._explain(operation, error.response) from None
        except (sdk.NoCredentialsError, sdk.PartialCredentialsError) as error:
            raise AccessDenied(f"{self.url}: {error}", hint=_CREDENTIALS) from None
        except (sdk.CredentialRetrievalError, sdk.TokenRetrievalError, sdk.SSOError) as error:
            raise AccessDenied(redact(f"{self.url}: {error}"), hint=_CREDENTIALS) from None
        except NO_ANSWER as error:
            raise _Passing(redact(str(error))) from None
        headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        self.server_time.seen(headers.get("date", ""), sent, self._clock.monotonic())
        return answer

    def _explain(self, operation: str, response: Any) -> Exception:
        code = str(response.get("Error", {}).get("Code", ""))
        message = redact(str(response.get("Error", {}).get("Message", "")))
        status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        said = f"{self.url}: {operation} was answered {code}: {message}"
        if code == "ConditionalCheckFailedException":
            return ConditionFailed(message)
        if code == "TransactionCanceledException":
            reasons = {
                str(reason.get("Code")) for reason in response.get("CancellationReasons", ())
            }
            if reasons & {"ConditionalCheckFailed", "DuplicateItem"}:
                return ConditionFailed(message)
            if reasons & PASSING:
                return _Passing(f"{code}: {', '.join(sorted(reasons - {'None'}))}")
            return BatchqError(said)
        if code in ("ResourceNotFoundException", "TableNotFoundException"):
            return not_initialised(self.url, self.table)
        if code in DENIED:
            return AccessDenied(said, hint=DENIED[code])
        if code in PASSING or status >= 500:
            return _Passing(f"{code}: {message}")
        return Refused(code, said)

    # -- rows ----------------------------------------------------------------------------

    def get(self, key: Key) -> dict[str, Any] | None:
        """One row as it is now."""
        answer = self.ask("get_item", TableName=self.table, Key=_place(key), ConsistentRead=True)
        item = answer.get("Item")
        return from_wire(item) if item else None

    def get_all(self, keys: Iterable[Key]) -> dict[Key, dict[str, Any]]:
        """Those rows of `keys` that are there, as they are now."""
        wanted = list(dict.fromkeys(keys))
        found: dict[Key, dict[str, Any]] = {}
        pages = [wanted[at : at + BATCH_GET] for at in range(0, len(wanted), BATCH_GET)]
        for rows in self.each(self._get_page, pages):
            found.update(rows)
        return found

    def _get_page(self, keys: Sequence[Key]) -> dict[Key, dict[str, Any]]:
        found: dict[Key, dict[str, Any]] = {}
        left: list[Wire] = [_place(key) for key in keys]
        while left:
            asked = {self.table: {"Keys": left, "ConsistentRead": True}}
            answer = self.ask("batch_get_item", RequestItems=asked)
            for item in answer["Responses"].get(self.table, ()):
                row = from_wire(item)
                found[row["pk"], row["sk"]] = row
            # What a throttled table left out is asked for again.
            left = answer.get("UnprocessedKeys", {}).get(self.table, {}).get("Keys", [])
        return found

    def query(
        self,
        partition: str,
        condition: str = "",
        *bounds: str,
        index: str | None = None,
        limit: int | None = None,
        state: str | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Rows of a partition in the order of their sort keys, as far as they are asked for.

        `condition` says of the sort key `#s` what it must be, with `:a`, `:b` for `bounds`:
        `#s > :a`. `limit` rows come with a request. `state`: only items in that state.
        """
        names = {"#p": "q" if index else "pk"}
        values = {":p": to_wire(partition)}
        expression = "#p = :p"
        if condition:
            names["#s"] = "r" if index else "sk"
            values |= {f":{'ab'[n]}": to_wire(bound) for n, bound in enumerate(bounds)}
            expression += f" AND {condition}"
        request: dict[str, Any] = {
            "TableName": self.table,
            "KeyConditionExpression": expression,
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": values,
        }
        if index:
            request["IndexName"] = index
        else:
            request["ConsistentRead"] = True
        if limit is not None:
            request["Limit"] = limit
        if state is not None:
            names["#st"], values[":st"] = "st", to_wire(state)
            request["FilterExpression"] = "#st = :st"
        while True:
            answer = self.ask("query", **request)
            yield from map(from_wire, answer["Items"])
            if "LastEvaluatedKey" not in answer:
                return
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    def write(self, key: Key, **what: Any) -> dict[str, Any]:
        """One write (see `wire.write`); an update's whole row afterwards."""
        [(kind, request)] = write(self.table, key, **what).items()
        if kind == "Update":
            request["ReturnValues"] = "ALL_NEW"
        answer = self.ask(f"{kind.lower()}_item", **request)
        return from_wire(answer.get("Attributes") or {})

    def transact(
        self, actions: Sequence[dict[str, Wire]], *, receipt: tuple[Key, str] | None = None
    ) -> None:
        """All of it or nothing. Raises ConditionFailed if a row is not as demanded.

        DynamoDB takes a request that is sent again once, for ten minutes. Where a server
        does not, `receipt` tells: the row into which the transaction writes this `call`.
        """
        try:
            self.ask(
                "transact_write_items",
                TransactItems=list(actions),
                ClientRequestToken=random_hex(128),
            )
        except ConditionFailed as error:
            if receipt is None or not error.repeated:
                raise
            key, call = receipt
            if (self.get(key) or {}).get("call") != call:
                raise


def not_initialised(url: str, table: str) -> LedgerNotInitialised:
    return LedgerNotInitialised(
        f"there is no table {table} for {url}",
        hint=f"create it: batchq init --ledger '{url}'; or correct the name, the region or "
        "AWS_ENDPOINT_URL_DYNAMODB",
    )


def _place(key: Key) -> Wire:
    return {"pk": to_wire(key[0]), "sk": to_wire(key[1])}


class ServerTime:
    """The server's clock as its answers show it, against the monotonic clock here.

    Each answer bounds the distance between the two: its `Date`, in whole seconds, was read
    after the request was sent and before the answer came.
    """

    def __init__(self) -> None:
        self._low, self._high = float("-inf"), float("inf")

    def seen(self, date: str, sent: float, received: float) -> None:
        try:
            second = parsedate_to_datetime(date).timestamp()
        except (ValueError, TypeError):
            return
        low, high = second - received, second + 1 - sent
        if low > self._high or high < self._low:
            # The server's clock was set, or another server answers.
            self._low, self._high = low, high
        else:
            self._low, self._high = max(low, self._low), min(high, self._high)

    def at(self, monotonic: float) -> float | None:
        """Unix seconds at this moment, or none before the first answer."""
        if self._high == float("inf"):
            return None
        return monotonic + (self._low + self._high) / 2
