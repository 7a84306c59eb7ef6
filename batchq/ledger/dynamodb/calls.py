"""Requests to DynamoDB, sent again where that can help.

The SDK signs and connects; what happens after a failure is decided here. A write whose
answer was lost may have taken effect: transactions carry a token under which the server
takes them once, and single writes are conditional, so that whoever sends one again reads
the row to see whose it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, TypeVar

import boto3
import botocore.exceptions as sdk
from botocore.config import Config
from botocore.parsers import ResponseParserError
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from batchq.clock import Clock, random_hex
from batchq.errors import AccessDenied, LedgerUnreachable, UsageError
from batchq.ledger.dynamodb.refusals import CREDENTIALS, ConditionFailed, Passing, explain
from batchq.ledger.dynamodb.server_time import ServerTime
from batchq.ledger.dynamodb.wire import Key, Wire, from_wire, to_wire, write
from batchq.redact import redact

__all__ = ["PARALLEL", "PATIENCE", "Calls", "connect"]

A = TypeVar("A")
B = TypeVar("B")

PATIENCE, ANSWER_S = 10.0, 3
"""Seconds for which what may pass is sent again; and for a connection, and for an answer. The
first allows for several of the others."""

PARALLEL = 16
"""Single writes in flight at a time, and connections."""

BATCH_GET = 100

NO_ANSWER = (sdk.ConnectionError, sdk.HTTPClientError, ResponseParserError)


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
        raise UsageError(f"the SDK's configuration: {error}", hint=CREDENTIALS) from None


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
            retry=retry_if_exception_type(Passing),
            stop=stop_after_delay(self._patience),
            wait=wait_random_exponential(multiplier=0.02, max=1.0),
            reraise=True,
        )
        try:
            return attempts(self._once, operation, request)
        except ConditionFailed as error:
            error.repeated = attempts.statistics.get("attempt_number", 1) > 1
            raise
        except Passing as error:
            raise LedgerUnreachable(
                f"{self.url}: {operation} was not answered for {self._patience:g} s: {error}",
                hint="see whether the endpoint is reachable and the table is throttled",
            ) from None

    def _once(self, operation: str, request: dict[str, Any]) -> Any:
        sent = self._clock.monotonic()
        try:
            answer = getattr(self.client, operation)(**request)
        except sdk.ClientError as error:
            raise explain(self.url, self.table, operation, error.response) from None
        except (sdk.NoCredentialsError, sdk.PartialCredentialsError) as error:
            raise AccessDenied(f"{self.url}: {error}", hint=CREDENTIALS) from None
        except (sdk.CredentialRetrievalError, sdk.TokenRetrievalError, sdk.SSOError) as error:
            raise AccessDenied(redact(f"{self.url}: {error}"), hint=CREDENTIALS) from None
        except NO_ANSWER as error:
            raise Passing(redact(str(error))) from None
        headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        self.server_time.seen(headers.get("date", ""), sent, self._clock.monotonic())
        return answer

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


def _place(key: Key) -> Wire:
    return {"pk": to_wire(key[0]), "sk": to_wire(key[1])}
