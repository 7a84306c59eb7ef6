"""What DynamoDB says when it refuses, in the ledger's own words.

Nothing here knows the SDK: a refusal is the answer that the server gave.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchq.errors import AccessDenied, LedgerNotInitialised
from batchq.redact import redact

__all__ = ["CREDENTIALS", "ConditionFailed", "Passing", "Refused", "explain", "not_initialised"]

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

CREDENTIALS = "set the AWS credentials of this machine, by a role, a profile or AWS_ACCESS_KEY_ID"

DENIED = {
    "AccessDeniedException": "grant what docs/ledgers.md lists for this table",
    "ExpiredTokenException": "get new credentials from whatever issued these and start again",
    "ExpiredToken": "get new credentials from whatever issued these and start again",
    "IncompleteSignature": CREDENTIALS,
    "InvalidSignatureException": "set the right AWS_SECRET_ACCESS_KEY, and this machine's clock: "
    "signatures more than 15 minutes off are refused",
    "MissingAuthenticationToken": CREDENTIALS,
    "MissingAuthenticationTokenException": CREDENTIALS,
    "NotAuthorized": CREDENTIALS,
    "OptInRequired": "this account may not use DynamoDB in this region",
    "UnrecognizedClientException": "set the right AWS_ACCESS_KEY_ID or AWS_PROFILE, and its "
    "AWS_SESSION_TOKEN where it has one",
}


class ConditionFailed(Exception):
    """The row is not as the write demanded, or one of a transaction's rows.

    `repeated`: the request had been sent before, without an answer, and may have taken
    effect then.
    """

    repeated = False


class Refused(Exception):
    """The server's last word on a request that no other rule explains, by its code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Passing(Exception):
    """No answer, or one that asks to come again."""


def explain(url: str, table: str, operation: str, response: Mapping[str, Any]) -> Exception:
    """The error to raise for an answer that is no success."""
    code = str(response.get("Error", {}).get("Code", ""))
    message = redact(str(response.get("Error", {}).get("Message", "")))
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    said = f"{url}: {operation} was answered {code}: {message}"
    if code == "ConditionalCheckFailedException":
        return ConditionFailed(message)
    if code == "TransactionCanceledException":
        reasons = {str(reason.get("Code")) for reason in response.get("CancellationReasons", ())}
        if reasons & {"ConditionalCheckFailed", "DuplicateItem"}:
            return ConditionFailed(message)
        if reasons & PASSING:
            return Passing(f"{code}: {', '.join(sorted(reasons - {'None'}))}")
    if code in ("ResourceNotFoundException", "TableNotFoundException"):
        return not_initialised(url, table)
    if code in DENIED:
        return AccessDenied(said, hint=DENIED[code])
    if code in PASSING or status >= 500:
        return Passing(f"{code}: {message}")
    return Refused(code, said)


def not_initialised(url: str, table: str) -> LedgerNotInitialised:
    return LedgerNotInitialised(
        f"there is no table {table} for {url}",
        hint=f"create it: batchq init --ledger '{url}'; or correct the name, the region or "
        "AWS_ENDPOINT_URL_DYNAMODB",
    )
