"""The table: its address, its definition, and how `init` creates and checks it.

    dynamodb://TABLE?region=eu-west-1&pitr=on&protect=on&tag.team=search

`region` may come from the SDK's environment. `pitr`, `protect` and `tag.NAME` matter to `init`
alone: point-in-time recovery, protection from deletion, and a tag each. What is switched on
is never switched off here. `transaction` is the number of rows that one transaction may
write: 100, but 25 or 10 on emulators older than 2022.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from batchq.clock import Clock
from batchq.errors import LedgerNotInitialised, LedgerUnreachable, UsageError
from batchq.ledger.dynamodb.calls import Calls
from batchq.ledger.dynamodb.keys import INDEX, SCHEMA_KEY
from batchq.ledger.dynamodb.refusals import ConditionFailed, Refused, not_initialised
from batchq.ledger.dynamodb.wire import absent
from batchq.redact import redact

__all__ = ["SCHEMA", "SHARDS", "Address", "initialise", "read_shards"]

T = TypeVar("T")

SCHEMA = 2
SHARDS = 16
"""Partitions over which a run's items and processes spread: each takes about 1,000 writes a
second from the first moment, and DynamoDB splits those that get more."""

_HINT = (
    "write dynamodb://TABLE?region=REGION, with &pitr=on, &protect=on or &tag.NAME=VALUE for init"
)

TRANSACTION, LEAST = 100, 6
"""Rows that one transaction may write, and the fewest that batchq can do with."""

READY_S, POLL_S = 120.0, 0.5


@dataclass(frozen=True, slots=True)
class Address:
    """A ledger's address, taken apart."""

    table: str
    region: str | None = None
    pitr: bool = False
    protect: bool = False
    transaction: int = TRANSACTION
    tags: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, url: str) -> Address:
        """Raises UsageError for what is no such address."""
        parts = urlsplit(url)
        table = unquote(parts.netloc)
        if parts.scheme != "dynamodb" or not re.fullmatch(r"[A-Za-z0-9_.-]{3,255}", table):
            raise UsageError(f"no table of DynamoDB is addressed as {redact(url)}", hint=_HINT)
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        tags = {name[4:]: given.pop(name) for name in list(given) if name.startswith("tag.")}
        region = given.pop("region", None) or None
        switches = {name: given.pop(name, "off") for name in ("pitr", "protect")}
        transaction = given.pop("transaction", str(TRANSACTION))
        if not transaction.isdecimal() or not LEAST <= int(transaction) <= TRANSACTION:
            given["transaction"] = transaction
        wrong = [*given, *(n for n, value in switches.items() if value not in ("on", "off"))]
        if wrong or parts.path.strip("/") or "" in tags:
            raise UsageError(
                f"{redact(url)}: not understood: {', '.join(wrong) or 'path or tag'}", hint=_HINT
            )
        pitr, protect = (switches[name] == "on" for name in ("pitr", "protect"))
        return cls(table, region, pitr, protect, int(transaction), tags)

    def __str__(self) -> str:
        return f"dynamodb://{self.table}" + (f"?region={self.region}" if self.region else "")


def initialise(calls: Calls, address: Address, clock: Clock, shards: int) -> None:
    """Create the table if it is not there, and say in it what schema it has."""
    try:
        found = calls.ask("describe_table", TableName=address.table)["Table"]
    except LedgerNotInitialised:
        _create(calls, address)
        found = {}
    arn = _active(calls, address.table, clock)
    if found:
        _switch_on(calls, address, found, arn)
    try:
        calls.write(SCHEMA_KEY, put={"version": SCHEMA, "shards": shards}, only_if=[absent()])
    except ConditionFailed:
        read_shards(calls)
    if address.pitr:
        _make_recoverable(calls, address.table, clock)


def _create(calls: Calls, address: Address) -> None:
    request: dict[str, Any] = {
        "TableName": address.table,
        "AttributeDefinitions": [
            {"AttributeName": name, "AttributeType": "S"} for name in ("pk", "sk", "q", "r")
        ],
        "KeySchema": _key("pk", "sk"),
        "BillingMode": "PAY_PER_REQUEST",
        "GlobalSecondaryIndexes": [
            {
                "IndexName": INDEX,
                "KeySchema": _key("q", "r"),
                # What a claim must know before it reads the row.
                "Projection": {
                    "ProjectionType": "INCLUDE",
                    "NonKeyAttributes": ["n", "v", "ls", "cause"],
                },
            }
        ],
    }
    if address.tags:
        request["Tags"] = [{"Key": name, "Value": value} for name, value in address.tags.items()]
    if address.protect:
        request["DeletionProtectionEnabled"] = True
    try:
        calls.ask("create_table", **request)
    except Refused as error:
        # Somebody else was faster.
        if error.code != "ResourceInUseException":
            raise UsageError(str(error), hint=_HINT) from None


def _key(partition: str, sort: str) -> list[dict[str, str]]:
    return [
        {"AttributeName": partition, "KeyType": "HASH"},
        {"AttributeName": sort, "KeyType": "RANGE"},
    ]


def _active(calls: Calls, table: str, clock: Clock) -> str:
    """Wait for the table and its indexes; the table's name for the services of AWS."""

    def arn() -> str | None:
        try:
            found = calls.ask("describe_table", TableName=table)["Table"]
        except LedgerNotInitialised:
            # A table that has just been created may not be known everywhere yet.
            return None
        indexes = [index["IndexStatus"] for index in found.get("GlobalSecondaryIndexes", ())]
        active = {found["TableStatus"], *indexes} == {"ACTIVE"}
        return str(found.get("TableArn", "")) if active else None

    return _in_time(arn, clock, f"table {table} is not active")


def _make_recoverable(calls: Calls, table: str, clock: Clock) -> None:
    """Switch point-in-time recovery on: a new table cannot have it at once."""

    def switched_on() -> bool | None:
        try:
            calls.ask(
                "update_continuous_backups",
                TableName=table,
                PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": True},
            )
        except Refused as error:
            if error.code == "UnknownOperationException":
                raise UsageError(
                    f"{calls.url}: this endpoint has no point-in-time recovery",
                    hint="leave pitr=on out of the address; the table is ready without it",
                ) from None
            if error.code != "ContinuousBackupsUnavailableException":
                raise
            return None
        return True

    _in_time(switched_on, clock, f"table {table} is ready, but without point-in-time recovery")


def _in_time(look: Callable[[], T | None], clock: Clock, otherwise: str) -> T:
    """What `look` answers, once it does."""
    never = threading.Event()
    for _ in range(int(READY_S / POLL_S)):
        if (answer := look()) is not None:
            return answer
        clock.wait(never, POLL_S)
    raise LedgerUnreachable(
        f"{otherwise} after {READY_S:.0f} s",
        hint="see its state in the console, and run init again",
    )


def _switch_on(calls: Calls, address: Address, found: Mapping[str, object], arn: str) -> None:
    """What the address asks for and an existing table does not have."""
    if address.protect and not found.get("DeletionProtectionEnabled"):
        calls.ask("update_table", TableName=address.table, DeletionProtectionEnabled=True)
    if address.tags:
        tags = [{"Key": name, "Value": value} for name, value in address.tags.items()]
        calls.ask("tag_resource", ResourceArn=arn, Tags=tags)


def read_shards(calls: Calls) -> int:
    """The shards of this table. Raises LedgerNotInitialised for another schema or none."""
    row = calls.get(SCHEMA_KEY)
    if row is None:
        raise not_initialised(calls.url, calls.table)
    if row["version"] != SCHEMA:
        raise LedgerNotInitialised(
            f"{calls.url} has schema {row['version']}, and this batchq speaks {SCHEMA}",
            hint="use the batchq that made it, or another table",
            found=str(row["version"]),
        )
    return int(row["shards"])
