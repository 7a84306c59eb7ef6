"""The ledger on DynamoDB below its verbs: addresses, the table, the server's clock, errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any

import botocore.exceptions as sdk
import pytest

from batchq.clock import ManualClock, SystemClock, random_hex
from batchq.errors import (
    AccessDenied,
    BatchqError,
    LedgerNotInitialised,
    LedgerUnreachable,
    UsageError,
)
from batchq.item import NewItem
from batchq.lease import Failure, Held
from batchq.ledger.base import Role
from batchq.ledger.dynamodb import DynamoLedger
from batchq.ledger.dynamodb.bundles import BUNDLE, offer
from batchq.ledger.dynamodb.calls import PATIENCE, Calls, connect
from batchq.ledger.dynamodb.fleet import entry
from batchq.ledger.dynamodb.keys import (
    Keys,
    RandomRanks,
    document_of,
    item_id,
    ordinal_of,
)
from batchq.ledger.dynamodb.refusals import ConditionFailed
from batchq.ledger.dynamodb.server_time import ServerTime
from batchq.ledger.dynamodb.table import Address
from batchq.ledger.dynamodb.wire import write
from batchq.result import Result, Stored
from tests.dynamodb import client, moto_endpoint
from tests.faults.iam import allows
from tests.s3 import point_sdk_at

URL = "dynamodb://table?region=us-east-1"


class Answers:
    """An SDK that answers each request with the next of these; the last one for ever."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        def ask(**request: Any) -> Any:
            self.asked.append((operation, request))
            answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
            if isinstance(answer, Exception):
                raise answer
            return answer

        return ask


def refusal(code: str, status: int = 400, *reasons: str) -> sdk.ClientError:
    response: Any = {
        "Error": {"Code": code, "Message": f"{code} said so"},
        "ResponseMetadata": {"HTTPStatusCode": status},
        "CancellationReasons": [{"Code": reason} for reason in reasons],
    }
    return sdk.ClientError(response, "Operation")


def calls(*answers: Any, patience: float = 0.05) -> tuple[Calls, Answers]:
    answering = Answers(*answers)
    return Calls(lambda: answering, "table", URL, SystemClock(), patience), answering


# -- errors by their names -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind", "hint"),
    [
        (refusal("AccessDeniedException"), AccessDenied, "grant"),
        (refusal("ExpiredTokenException"), AccessDenied, "new credentials"),
        (refusal("UnrecognizedClientException"), AccessDenied, "AWS_ACCESS_KEY_ID"),
        (refusal("InvalidSignatureException"), AccessDenied, "clock"),
        (sdk.NoCredentialsError(), AccessDenied, "credentials"),
        (refusal("ResourceNotFoundException"), LedgerNotInitialised, "batchq init"),
        (refusal("ThrottlingException"), LedgerUnreachable, "throttled"),
        (refusal("ProvisionedThroughputExceededException"), LedgerUnreachable, "throttled"),
        (refusal("InternalServerError", 500), LedgerUnreachable, "reachable"),
        (sdk.EndpointConnectionError(endpoint_url="http://e"), LedgerUnreachable, "reachable"),
        (sdk.ReadTimeoutError(endpoint_url="http://e"), LedgerUnreachable, "reachable"),
    ],
    ids=str,
)
def test_each_refusal_is_an_error_of_its_own(
    error: Exception, kind: type[BatchqError], hint: str
) -> None:
    """What happened, where, and how to mend it."""
    ledger, _ = calls(error)
    with pytest.raises(kind) as raised:
        ledger.get(("a", "b"))
    assert URL in raised.value.message
    assert hint in (raised.value.hint or "")


@pytest.mark.parametrize(
    "passing",
    [
        refusal("ThrottlingException"),
        refusal("InternalServerError", 500),
        refusal("TransactionConflictException"),
        refusal("TransactionInProgressException"),
        refusal("TransactionCanceledException", 400, "None", "TransactionConflict"),
        refusal("TransactionCanceledException", 400, "ThrottlingError", "None"),
        sdk.ConnectionClosedError(endpoint_url="http://e"),
    ],
    ids=str,
)
def test_what_passes_is_sent_again_with_the_same_token(passing: Exception) -> None:
    """So that a transaction whose answer was lost is taken once."""
    ledger, answering = calls(passing, passing, {}, patience=60)
    ledger.transact([write("table", ("a", "b"), put={})])
    tokens = {request["ClientRequestToken"] for _, request in answering.asked}
    assert (len(answering.asked), len(tokens)) == (3, 1)


@pytest.mark.parametrize(
    "failed",
    [
        refusal("ConditionalCheckFailedException"),
        refusal("TransactionCanceledException", 400, "None", "ConditionalCheckFailed"),
        # Where both happened, to try again would change nothing.
        refusal(
            "TransactionCanceledException", 400, "TransactionConflict", "ConditionalCheckFailed"
        ),
    ],
    ids=str,
)
def test_a_failed_condition_is_an_answer_and_not_asked_again(failed: Exception) -> None:
    """The caller reads the rows and decides."""
    ledger, answering = calls(failed, patience=5)
    with pytest.raises(ConditionFailed):
        ledger.transact([write("table", ("a", "b"), put={})])
    assert len(answering.asked) == 1


def test_rows_that_a_throttled_table_left_out_are_asked_for_again() -> None:
    """UnprocessedKeys are neither there nor absent."""
    key = {"pk": {"S": "a"}, "sk": {"S": "2"}}
    ledger, answering = calls(
        {
            "Responses": {"table": [{"pk": {"S": "a"}, "sk": {"S": "1"}}]},
            "UnprocessedKeys": {"table": {"Keys": [key]}},
        },
        {"Responses": {"table": [key]}, "UnprocessedKeys": {}},
    )
    assert ledger.get_all([("a", "1"), ("a", "2")]).keys() == {("a", "1"), ("a", "2")}
    assert answering.asked[1][1]["RequestItems"]["table"]["Keys"] == [key]


def test_a_ledger_that_gave_no_answer_has_lost_contact() -> None:
    """Whoever was cut off may not judge others by what it saw before."""
    ledger = DynamoLedger(URL, patience=0.05, client=Answers(refusal("InternalServerError", 500)))
    ledger._contact.seen(0.0, 0.0)
    ledger._contact.seen(1.0, 1.0)
    with pytest.raises(LedgerUnreachable):
        ledger.find_run("run")
    assert not ledger._contact.lasted(0.0)


def test_a_request_without_an_answer_is_sent_again_while_there_is_patience() -> None:
    """One wait for a connection and an answer leaves time for another."""
    config = connect("us-east-1").meta.config
    assert 2 * max(config.connect_timeout, config.read_timeout) < PATIENCE


def test_a_table_without_a_region_is_a_mistake_of_the_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the hint says where to write it."""
    point_sdk_at("http://127.0.0.1:9", monkeypatch)
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(UsageError) as refused:
        connect(None)
    assert "?region=" in (refused.value.hint or "")


# -- addresses -----------------------------------------------------------------------------------


def test_an_address_names_the_table_and_what_init_switches_on() -> None:
    """Everything but table and region is left out of what is shown."""
    address = Address.parse(
        "dynamodb://my.table?region=eu-west-1&pitr=on&protect=on&tag.team=search&tag.cost=a%20b"
    )
    assert (address.table, address.region) == ("my.table", "eu-west-1")
    assert (address.pitr, address.protect) == (True, True)
    assert address.tags == {"team": "search", "cost": "a b"}
    assert str(address) == "dynamodb://my.table?region=eu-west-1"
    assert str(Address.parse("dynamodb://table")) == "dynamodb://table"


@pytest.mark.parametrize(
    "url",
    [
        "dynamodb://",
        "dynamodb://no/path",
        "dynamodb://user:secret@table",
        "dynamodb://table?rejoin=eu",
        "dynamodb://table?pitr=maybe",
        "dynamodb://table?tag.=x",
        "dynamodb://table?transaction=3",
        "dynamodb://table?transaction=many",
    ],
)
def test_an_address_that_is_not_understood_is_refused(url: str) -> None:
    """Before anything is asked; a secret that does not belong there is not repeated."""
    with pytest.raises(UsageError) as refused:
        DynamoLedger(url)
    assert "secret" not in str(refused.value)
    assert "dynamodb://TABLE?region=" in (refused.value.hint or "")


# -- the table -----------------------------------------------------------------------------------


def test_init_creates_the_table_with_what_the_address_asks_for() -> None:
    """On-demand billing, one sparse index; tags, recovery and protection by wish."""
    table, amazon = f"made-{random_hex(32)}", client(moto_endpoint())
    wishes = "&pitr=on&protect=on&tag.team=search"
    ledger = DynamoLedger(f"dynamodb://{table}?region=us-east-1{wishes}", client=amazon)
    with pytest.raises(LedgerNotInitialised) as absent:
        ledger.check()
    assert absent.value.found is None
    ledger.initialise()
    ledger.initialise()
    ledger.check()
    made = amazon.describe_table(TableName=table)["Table"]
    assert made["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    assert [index["IndexName"] for index in made["GlobalSecondaryIndexes"]] == ["queue"]
    assert made["DeletionProtectionEnabled"] is True
    tags = amazon.list_tags_of_resource(ResourceArn=made["TableArn"])["Tags"]
    assert {"Key": "team", "Value": "search"} in tags
    backups = amazon.describe_continuous_backups(TableName=table)["ContinuousBackupsDescription"]
    recovery = backups["PointInTimeRecoveryDescription"]["PointInTimeRecoveryStatus"]
    assert recovery == "ENABLED"


class Amazon:
    """A DynamoDB where a new table, and what can be switched on in it, take a while to appear."""

    def __init__(self, slow: str, refusal: Exception) -> None:
        self._sdk = client(moto_endpoint())
        self._slow = slow
        self._left = [refusal] * 3
        self._made = False

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        def ask(**request: Any) -> Any:
            if operation == self._slow and self._made and self._left:
                raise self._left.pop()
            self._made = self._made or operation == "create_table"
            return getattr(self._sdk, operation)(**request)

        return ask


@pytest.mark.parametrize(
    ("slow", "code"),
    [
        ("describe_table", "ResourceNotFoundException"),
        ("update_continuous_backups", "ContinuousBackupsUnavailableException"),
    ],
)
def test_init_waits_for_what_a_new_table_cannot_do_at_once(slow: str, code: str) -> None:
    """AWS answers both for some seconds after it has created a table."""
    table, clock = f"slow-{random_hex(32)}", ManualClock()
    amazon = Amazon(slow, refusal(code))
    url = f"dynamodb://{table}?region=us-east-1&pitr=on"
    ledger = DynamoLedger(url, client=amazon, clock=clock)
    began = clock.monotonic()
    ledger.initialise()
    ledger.check()
    assert clock.monotonic() > began
    backups = client(moto_endpoint()).describe_continuous_backups(TableName=table)
    assert "'PointInTimeRecoveryStatus': 'ENABLED'" in str(backups)


def test_what_init_is_refused_is_an_error_with_a_hint_and_leaves_a_ledger() -> None:
    """Whoever may not have recovery has a table that works, and is told."""
    url = f"dynamodb://refused-{random_hex(32)}?region=us-east-1&pitr=on"
    amazon = Amazon("update_continuous_backups", refusal("ValidationException"))
    ledger = DynamoLedger(url, client=amazon)
    with pytest.raises(BatchqError, match="ValidationException") as refused:
        ledger.initialise()
    assert refused.value.hint
    ledger.check()


def test_init_says_that_an_emulator_has_no_recovery() -> None:
    """DynamoDB Local does not know the operation: that is no fault to report."""
    url = f"dynamodb://emulated-{random_hex(32)}?region=us-east-1&pitr=on"
    amazon = Amazon("update_continuous_backups", refusal("UnknownOperationException"))
    ledger = DynamoLedger(url, client=amazon)
    with pytest.raises(UsageError, match="point-in-time") as refused:
        ledger.initialise()
    assert "pitr=on" in (refused.value.hint or "")
    ledger.check()


def test_a_full_bundle_takes_one_unit_to_write() -> None:
    """A KB, with names, keys and the entries of 48 items."""
    keys, ids = Keys(2**48 - 1, 16), range(2**96 - BUNDLE, 2**96)
    [action] = offer("table", keys, RandomRanks(), (entry(i, 2**32 - 1) for i in ids))
    row = action["Put"]["Item"]
    # By DynamoDB's rule: texts, digits at most, and the bytes of a set.
    texts = sum(len(name) + len(of.get("S", "")) + len(of.get("N", "")) for name, of in row.items())
    size = texts + sum(len(one) for one in row["rd"]["BS"])
    assert len(row["rd"]["BS"]) == BUNDLE
    assert 800 < size <= 1024


def test_a_table_of_another_schema_is_refused_by_name() -> None:
    """Neither read nor written: its rows may mean something else."""
    table, amazon = f"old-{random_hex(32)}", client(moto_endpoint())
    ledger = DynamoLedger(f"dynamodb://{table}?region=us-east-1", client=amazon)
    ledger.initialise()
    ledger._calls.write(("batchq", "schema"), put={"version": 9, "shards": 1})
    for refused in (ledger.check, ledger.initialise):
        with pytest.raises(LedgerNotInitialised, match="schema 9"):
            refused()


POLICIES = Path(__file__).parents[2] / "configs" / "iam"

ARN = "arn:aws:dynamodb:REGION:ACCOUNT:table/TABLE"

NEEDED = {"Put": "PutItem", "Update": "UpdateItem", "Delete": "DeleteItem"}


class Watched:
    """An SDK that remembers what it was asked for, as IAM would judge it."""

    def __init__(self) -> None:
        self._sdk = client(moto_endpoint())
        self.asked: set[tuple[str, str]] = set()

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        def ask(**request: Any) -> Any:
            index = f"/index/{request['IndexName']}" if "IndexName" in request else ""
            action = "".join(word.capitalize() for word in operation.split("_"))
            actions = {NEEDED[kind] for one in request.get("TransactItems", ()) for kind in one}
            self.asked |= {(f"dynamodb:{name}", ARN + index) for name in actions or {action}}
            return getattr(self._sdk, operation)(**request)

        return ask


def test_the_policies_allow_what_is_asked_and_no_more() -> None:
    """One for `init`, one for everybody else."""
    init, worker = (
        json.loads((POLICIES / f"dynamodb-{role}.json").read_text()) for role in ("init", "worker")
    )
    watched = Watched()
    ledger = DynamoLedger(
        f"dynamodb://watched-{random_hex(32)}?region=us-east-1&pitr=on&protect=on&tag.a=b",
        client=watched,
    )
    ledger.initialise()
    # Where the table is there already, other calls are needed.
    protected = f"{ledger.url}&protect=on&tag.a=b"
    ledger._calls.ask(
        "update_table", TableName=ledger._calls.table, DeletionProtectionEnabled=False
    )
    DynamoLedger(protected, client=watched).initialise()
    assert {asked for asked in watched.asked if not allows(init, *asked)} == set()
    granted = {f for statement in init["Statement"] for f in statement["Action"]}
    assert granted == {action for action, _ in watched.asked}

    watched.asked.clear()
    run = ledger.create_run("run", "p-1", {}, "item")
    ledger.register(run, "w", 60.0, Role.WORKER, {})
    new = [NewItem(name, f"sha256:{name}", 1, f"file:///{name}", "file:///") for name in "abc"]
    ledger.enqueue("w", 1, new)
    one = ledger.claim("w", "one", 2, alone=True)
    assert one is not None
    result = Result(one.items[0].id, "one", Stored("key", 0, 1, "0" * 64))
    ledger.commit("w", [result])
    ledger.fail("w", [Failure(Held("one", one.items[1].id), "cause", "error", final=True)])
    ledger.retry("w", run)
    ledger.reopen("w", run, ledger.results(run, 0, 1))
    ledger.stop("w", "end")
    ledger.counts(run)
    assert {asked for asked in watched.asked if not allows(worker, *asked)} == set()
    assert watched.asked == {
        (action, statement["Resource"])
        for statement in worker["Statement"]
        for action in (
            [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]
        )
    }


# -- clocks and keys -----------------------------------------------------------------------------


def test_the_servers_clock_is_known_better_with_each_answer() -> None:
    """A date in whole seconds bounds it; several bounds leave less than a second."""
    server = ServerTime()
    assert server.at(0.0) is None
    # The server is 1,000,000,000 s ahead of the monotonic clock here.
    for sent in (10.1, 20.4, 30.7, 40.95):
        second = int(1e9 + sent + 0.02)
        server.seen(_http_date(second), sent, sent + 0.04)
    at = server.at(50.0)
    assert at is not None
    assert abs(at - (1e9 + 50.0)) < 0.3


def test_a_server_whose_clock_is_set_is_believed() -> None:
    """What was known before is forgotten."""
    server = ServerTime()
    server.seen(_http_date(1_000_000_000), 10.0, 10.1)
    server.seen(_http_date(1_000_086_400), 11.0, 11.1)
    at = server.at(11.0)
    assert at is not None
    assert abs(at - 1_000_086_400) < 1.1


def test_a_wrong_wall_clock_here_dates_nothing() -> None:
    """Invariant 16: the server's date is in its answers."""
    table = f"dated-{random_hex(32)}"
    clock = ManualClock(now=1.0, monotonic=SystemClock().monotonic())
    url = f"dynamodb://{table}?region=us-east-1"
    ledger = DynamoLedger(url, client=client(moto_endpoint()), clock=clock)
    ledger.initialise()
    run = ledger.create_run("run", "p-1", {}, "item")
    ledger.register(run, "w", 60.0, Role.WORKER, {})
    [status] = ledger.workers(run)
    assert abs(status.registered_at - SystemClock().now()) < 60


def _http_date(second: int) -> str:
    return formatdate(second, usegmt=True)


def test_an_id_leads_to_its_row_and_shards_are_in_the_order_of_ids() -> None:
    """So pages of results need no index."""
    ranks, keys = RandomRanks(), Keys(1, 16)
    digests = sorted(ranks.digest(f"docs/{n}.txt") for n in range(200))
    ids = [item_id(digest, 1) for digest in digests]
    assert [document_of(i) for i in ids] == digests
    assert {ordinal_of(i) for i in ids} == {1}
    places = [keys.document(document_of(i)) for i in ids]
    assert places == sorted(places)
    assert len({partition for partition, _ in places}) == 16


def test_an_error_of_any_length_and_bytes_fits_its_row() -> None:
    """A traceback of megabytes, with bytes that are no text, ends its document all the same."""
    ledger = DynamoLedger(
        f"dynamodb://long-{random_hex(32)}?region=us-east-1", client=client(moto_endpoint())
    )
    ledger.initialise()
    run = ledger.create_run("run", "p-1", {}, "item")
    ledger.register(run, "w", 60.0, Role.WORKER, {})
    ledger.enqueue("w", 1, [NewItem("a", "sha256:a", 1, "file:///a", "file:///")])
    lease = ledger.claim("w", "t", 1, alone=True)
    assert lease is not None
    error = "\udcff" + "x" * 2_000_000
    failed = ledger.fail("w", [Failure(Held("t", lease.items[0].id), "c", error, final=True)])
    assert failed.dead_lettered == (lease.items[0].id,)
    [letter] = ledger.dead_letters(run, 0, 10)
    assert letter.error.startswith("?x")


def test_a_batch_of_which_all_is_rejected_is_answered_to_its_end_and_again() -> None:
    """Their names would not fit a row: their places in the batch do."""
    ledger = DynamoLedger(
        f"dynamodb://rejected-{random_hex(32)}?region=us-east-1", client=client(moto_endpoint())
    )
    ledger.initialise()
    run = ledger.create_run("run", "p-1", {}, "item")
    names = [f"{n:04}" + "я" * 2_000 for n in range(130)]
    for enqueuer, root in (("first", "file:///one/"), ("second", "file:///two/")):
        ledger.register(run, enqueuer, 60.0, Role.ENQUEUER, {})
        batch = [NewItem(name, f"sha256:{root}", 1, "file:///l", root) for name in names]
        answers = [ledger.enqueue(enqueuer, 1, batch) for _ in range(2)]
        assert answers[0] == answers[1]
    assert answers[0].new == 0
    assert [rejection.source for rejection in answers[0].rejected] == names
    assert {"file:///two/ has another" in one.reason for one in answers[0].rejected} == {True}


def test_a_request_that_is_not_understood_is_an_error_with_a_message() -> None:
    """And no traceback: whoever reads it can report it."""
    ledger = DynamoLedger(URL, client=Answers(refusal("ValidationException")))
    with pytest.raises(BatchqError, match="ValidationException"):
        ledger.find_run("run")
