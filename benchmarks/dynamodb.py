"""What an item costs in DynamoDB: write and read units from enqueue to commit.

    python -m benchmarks.dynamodb     on DynamoDB Local, which it fetches

Prices are arguments, since they differ between regions.
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from batchq.clock import random_hex
from batchq.item import NewItem
from batchq.lease import Lease, new_token
from batchq.ledger.base import Ledger, Role
from batchq.ledger.dynamodb import DynamoLedger
from batchq.result import Result, Stored, result_key
from tests.dynamodb import TRANSACTION, client, local_endpoint

READS = {"get_item", "batch_get_item", "query"}
WRITES = {"put_item", "update_item", "delete_item"}
KB = 1024
SMALL = TRANSACTION["dynamodb-local"]
INDEXED = ("q", "r", "n", "v", "ls", "cause")


class Metered:
    """The SDK's client, with the units that its requests consume.

    Single writes and reads: as the emulator says. Three things it gets wrong, and are counted by
    DynamoDB's own rules: a transaction takes two units for each row and begun KB, of the larger
    of the row before and after, and one for each entry of the index that comes or goes; a row
    that is not there costs as much to read as a small one; so does a query that finds nothing.

    Transactions are as large as on AWS. The emulator, which takes small ones, gets each in
    several: nobody else is there to see it half done.
    """

    def __init__(self, sdk: Any) -> None:
        self._sdk = sdk
        self.units: Counter[str] = Counter()

    def __getattr__(self, operation: str) -> Any:
        def ask(**request: Any) -> Any:
            if operation == "transact_write_items":
                return self._transact(request)
            if operation in READS | WRITES:
                request["ReturnConsumedCapacity"] = "TOTAL"
            answer = getattr(self._sdk, operation)(**request)
            used = answer.get("ConsumedCapacity") or []
            units = sum(
                one["CapacityUnits"] for one in (used if isinstance(used, list) else [used])
            )
            if operation in READS:
                self.units["read"] += max(units, least(operation, request)) + absent(
                    operation, request, answer
                )
            else:
                self.units["write"] += units
            return answer

        return ask

    def _transact(self, request: dict[str, Any]) -> Any:
        named = [next(iter(action.values())) for action in request["TransactItems"]]
        [table] = {what["TableName"] for what in named}
        keys = [{n: what.get("Key", what.get("Item"))[n] for n in ("pk", "sk")} for what in named]
        before = self._rows(table, keys)
        for at in range(0, len(named), SMALL):
            part = request["TransactItems"][at : at + SMALL]
            answer = self._sdk.transact_write_items(TransactItems=part)
        after = self._rows(table, keys)
        for key in keys:
            name = key["pk"]["S"], key["sk"]["S"]
            self.units["write"] += of_write(before.get(name, {}), after.get(name, {}))
        return answer

    def _rows(
        self, table: str, keys: list[dict[str, Any]]
    ) -> dict[tuple[str, str], dict[str, Any]]:
        asked = {table: {"Keys": keys, "ConsistentRead": True}}
        answer = self._sdk.batch_get_item(RequestItems=asked)
        assert not answer.get("UnprocessedKeys"), "an emulator that throttles cannot be measured"
        return {(row["pk"]["S"], row["sk"]["S"]): row for row in answer["Responses"][table]}

    def read(self) -> tuple[float, float]:
        """Write and read units since the last time."""
        used = self.units["write"], self.units["read"]
        self.units.clear()
        return used


def of_write(before: dict[str, Any], after: dict[str, Any]) -> int:
    """The units that a transaction takes for this row."""
    kilobytes = max(1, -(-max(size_of(before), size_of(after)) // KB))
    was, is_ = ({n: row[n] for n in INDEXED if n in row} for row in (before, after))
    if was == is_ or ("q" not in was and "q" not in is_):
        return 2 * kilobytes
    if "q" not in was or "q" not in is_:
        return 2 * kilobytes + 1
    same_key = (was["q"], was["r"]) == (is_["q"], is_["r"])
    return 2 * kilobytes + (1 if same_key else 2)


def least(operation: str, request: dict[str, Any]) -> float:
    """The units of the smallest answer."""
    if operation == "query":
        return 1 if request.get("ConsistentRead") else 0.5
    return 0


def absent(operation: str, request: dict[str, Any], answer: dict[str, Any]) -> int:
    """The rows that were asked for, and are not there."""
    if operation == "get_item":
        return "Item" not in answer
    if operation == "batch_get_item":
        [(table, asked)] = request["RequestItems"].items()
        return len(asked["Keys"]) - len(answer["Responses"].get(table, ()))
    return 0


def size_of(row: dict[str, dict[str, Any]]) -> int:
    """Bytes of a row by DynamoDB's rule: names, texts, and half a byte a digit."""
    return sum(len(n) + _bytes(kind, v) for n, wire in row.items() for kind, v in wire.items())


def _bytes(kind: str, value: Any) -> int:
    if kind == "BS":
        return sum(map(len, value))
    return len(value) // 2 + 2 if kind == "N" else len(value.encode()) if kind == "S" else 1


def document(number: int) -> NewItem:
    """A document of a usual name, staged in a bucket."""
    source_id = f"corpus/part-{number // 1000:04}/document-{number:08}.txt"
    digest = f"{number:064x}"
    locator = f"store:inputs/{digest}"
    return NewItem(source_id, f"sha256:{digest}", 4_000, locator, "s3://company-corpus/corpus")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--items", type=int, default=2_000)
    parser.add_argument("--claim", type=int, default=100, help="items of a lease")
    parser.add_argument("--flush", type=int, default=50, help="results of a commit")
    parser.add_argument("--write-price", type=float, default=0.625, help="$ a million write units")
    parser.add_argument("--read-price", type=float, default=0.125, help="$ a million read units")
    given = parser.parse_args()
    meter = Metered(client(local_endpoint()))
    ledger = DynamoLedger(f"dynamodb://bench-{random_hex(32)}?region=us-east-1", client=meter)
    ledger.initialise()
    rows = measure(ledger, meter, given.items, given.claim, given.flush)
    ledger.close()
    print(f"{given.items} items, leases of {given.claim}, commits of {given.flush}")
    print(f"{'':24}{'write units':>14}{'read units':>14}")
    total = Counter[str]()
    for phase, (written, read) in rows.items():
        total.update({"write": written, "read": read})
        print(f"{phase:24}{written / given.items:14.3f}{read / given.items:14.3f}")
    write, read = (total[kind] / given.items for kind in ("write", "read"))
    cost = write * given.write_price + read * given.read_price
    print(f"{'an item':24}{write:14.3f}{read:14.3f}")
    print(f"${cost:.2f} a million items, ${100 * cost:.0f} a hundred million")


def measure(
    ledger: Ledger, meter: Metered, items: int, claim: int, flush: int
) -> dict[str, tuple[float, float]]:
    """Write and read units of each phase."""
    run = ledger.create_run("default", "embed-0123456789ab", {"kind": "embed"}, "item")
    ledger.register(run, "enqueue-0123456789abcdef", 60, Role.ENQUEUER, {"host": "h"})
    worker = "ip-10-0-12-34-4711-0123abcd"
    ledger.register(run, worker, 60, Role.WORKER, {"host": "h"})
    meter.read()
    phases = {}
    for batch, first in enumerate(range(0, items, 1_000), start=1):
        numbers = range(first, min(items, first + 1_000))
        ledger.enqueue("enqueue-0123456789abcdef", batch, [document(n) for n in numbers])
    phases["enqueue"] = meter.read()
    leases: list[Lease] = []
    while sum(len(lease.items) for lease in leases) < items:
        lease = ledger.claim(worker, new_token(), claim, alone=True)
        assert lease is not None
        leases.append(lease)
    phases["claim"] = meter.read()
    for lease in leases:
        results = [
            Result(
                item.id,
                lease.token,
                Stored(
                    result_key(run.prefix, f"{item.id:064x}"[-64:], item.source_id, 1),
                    0,
                    9_000,
                    f"{item.id:064x}"[-64:],
                ),
            )
            for item in lease.items
        ]
        for at in range(0, len(results), flush):
            assert not ledger.commit(worker, results[at : at + flush]).fenced
    phases["commit"] = meter.read()
    assert ledger.counts(run).tallies.completed == items
    return phases


if __name__ == "__main__":
    main()
