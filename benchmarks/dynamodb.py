"""What an item costs in DynamoDB: write and read units from enqueue to commit.

    python -m benchmarks.dynamodb                     on DynamoDB Local, which it fetches
    python -m benchmarks.dynamodb --emulator moto

The units are those that the emulator says each answer consumed, but for transactions, which
are counted by DynamoDB's rule. Prices are arguments,
since they differ between regions.
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from batchq.clock import SystemClock, random_hex
from batchq.item import NewItem
from batchq.lease import new_token
from batchq.ledger.base import Ledger, Role
from batchq.ledger.dynamodb import DynamoLedger
from batchq.result import Result, Stored, result_key
from tests.dynamodb import TRANSACTION, client, local_endpoint, moto_endpoint

READS = {"get_item", "batch_get_item", "query"}
WRITES = {"put_item", "update_item", "delete_item"}
KB = 1024


class Metered:
    """The SDK's client, with the units that its requests consume.

    Single writes and reads: as the emulator says. Transactions are counted by DynamoDB's own
    rule, two units for each row and begun KB and one for each entry of the index, since the
    emulators are wrong about them.
    """

    def __init__(self, sdk: Any) -> None:
        self._sdk = sdk
        self._sizes: dict[str, int] = {}
        self.units: Counter[str] = Counter()

    def __getattr__(self, operation: str) -> Any:
        def ask(**request: Any) -> Any:
            if operation in READS | WRITES:
                request["ReturnConsumedCapacity"] = "TOTAL"
            answer = getattr(self._sdk, operation)(**request)
            used = answer.get("ConsumedCapacity") or []
            kind = "read" if operation in READS else "write"
            for table in used if isinstance(used, list) else [used]:
                self.units[kind] += table["CapacityUnits"]
            for action in request.get("TransactItems", ()):
                self.units["write"] += self._of_action(action)
            return answer

        return ask

    def _of_action(self, action: dict[str, Any]) -> int:
        [(kind, what)] = action.items()
        row = what.get("Item") or what["Key"]
        key = f"{row['pk']}{row['sk']}"
        if kind == "Put":
            self._sizes[key] = size_of(row)
        # A process's row, which is updated, is far from a KB.
        kilobytes = -(-self._sizes.get(key, KB) // KB)
        return 2 * kilobytes + (1 if "q" in row else 0)

    def read(self) -> tuple[float, float]:
        """Write and read units since the last time."""
        used = self.units["write"], self.units["read"]
        self.units.clear()
        return used


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
    parser.add_argument("--emulator", choices=("local", "moto"), default="local")
    parser.add_argument("--items", type=int, default=2_000)
    parser.add_argument("--claim", type=int, default=100, help="items of a lease")
    parser.add_argument("--flush", type=int, default=50, help="results of a commit")
    parser.add_argument("--write-price", type=float, default=0.625, help="$ a million write units")
    parser.add_argument("--read-price", type=float, default=0.125, help="$ a million read units")
    given = parser.parse_args()
    name = "dynamodb-local" if given.emulator == "local" else "dynamodb"
    endpoint = local_endpoint() if given.emulator == "local" else moto_endpoint()
    meter = Metered(client(endpoint))
    ledger = DynamoLedger(
        f"dynamodb://bench-{random_hex(32)}?region=us-east-1&transaction={TRANSACTION[name]}",
        client=meter,
    )
    ledger.initialise()
    rows = measure(ledger, meter, given.items, given.claim, given.flush)
    ledger.close()
    print(f"{name}: {given.items} items, leases of {given.claim}, commits of {given.flush}")
    print(f"{'':24}{'write units':>14}{'read units':>14}{'items/s':>10}")
    total = Counter[str]()
    for phase, (written, read, seconds) in rows.items():
        total.update({"write": written, "read": read})
        rate = given.items / seconds
        print(f"{phase:24}{written / given.items:14.3f}{read / given.items:14.3f}{rate:10.0f}")
    write, read = (total[kind] / given.items for kind in ("write", "read"))
    cost = write * given.write_price + read * given.read_price
    print(f"{'an item':24}{write:14.3f}{read:14.3f}")
    print(f"${cost:.2f} a million items, ${100 * cost:.0f} a hundred million")


def measure(
    ledger: Ledger, meter: Metered, items: int, claim: int, flush: int
) -> dict[str, tuple[float, float, float]]:
    """Write units, read units and seconds of each phase."""
    clock = SystemClock()
    run = ledger.create_run("default", "embed-0123456789ab", {"kind": "embed"}, "item")
    ledger.register(run, "enqueue-0123456789abcdef", 60, Role.ENQUEUER, {"host": "h"})
    worker = "ip-10-0-12-34-4711-0123abcd"
    ledger.register(run, worker, 60, Role.WORKER, {"host": "h"})
    meter.read()
    phases = {}

    def note(phase: str, began: float) -> None:
        phases[phase] = (*meter.read(), clock.monotonic() - began)

    began = clock.monotonic()
    for batch, first in enumerate(range(0, items, 1_000), start=1):
        numbers = range(first, min(items, first + 1_000))
        ledger.enqueue("enqueue-0123456789abcdef", batch, [document(n) for n in numbers])
    note("enqueue", began)
    began = clock.monotonic()
    leases = []
    while (lease := ledger.claim(worker, new_token(), claim, alone=True)) is not None:
        leases.append(lease)
    note("claim", began)
    began = clock.monotonic()
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
    note("commit", began)
    assert ledger.counts(run).tallies.completed == items
    return phases


if __name__ == "__main__":
    main()
