"""The rows of a ledger in DynamoDB as the tables of the SQL ones, for auditors.

It shares no code with batchq: it scans the table with the SDK, takes the rows apart by
their keys, and complains (AssertionError) where they do not fit together.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import boto3

__all__ = ["Tables", "read_tables", "scan", "tables"]

Tables = dict[str, list[dict[str, Any]]]

STATES = {
    "ready": "ready",
    "delayed": "delayed",
    "leased": "leased",
    "completed": "results",
    "dead_lettered": "dead_letters",
    "superseded": "superseded",
}
TALLIES = [
    "total",
    "ready",
    "delayed",
    "leased",
    "completed",
    "empty",
    "dead_lettered",
    "superseded",
    "known",
    "adopted",
    "divergent",
    "fenced",
    "attempts",
    "lost_leases",
    "interrupted",
    "failures",
]


def read_tables(ledger: str) -> Tables:
    """The tables of `dynamodb://TABLE?region=REGION`, found as the SDK finds it."""
    named = re.fullmatch(r"dynamodb://([^?]+)(?:\?region=([\w-]+))?.*", ledger)
    assert named, ledger
    sdk = boto3.session.Session().client("dynamodb", region_name=named[2])
    return tables(scan(sdk, named[1]))


def scan(sdk: Any, table: str) -> list[dict[str, Any]]:
    """Every row, with plain values."""
    rows: list[dict[str, Any]] = []
    more: dict[str, Any] = {}
    while True:
        answer = sdk.scan(TableName=table, ConsistentRead=True, **more)
        rows += [{n: _plain(v) for n, v in item.items()} for item in answer["Items"]]
        if "LastEvaluatedKey" not in answer:
            return rows
        more = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}


def _plain(value: dict[str, Any]) -> Any:
    [(kind, inner)] = value.items()
    return int(inner) if kind == "N" else [bytes(b) for b in inner] if kind == "BS" else inner


def tables(rows: list[dict[str, Any]]) -> Tables:
    """Rows by the tables that a SQL ledger would have them in."""
    found: Tables = {name: [] for name in ("runs", "workers", "items", "fenced", *STATES.values())}
    entries: Counter[str] = Counter()
    offered: Counter[str] = Counter()
    for row in rows:
        kind, _, rest = row["pk"].partition("#")
        if kind == "runs":
            none = dict.fromkeys(TALLIES, 0)
            described = {"name": row["sk"], "processing_version": row["version"]}
            found["runs"].append({"id": row["id"], "layout": row["layout"], **described, **none})
            continue
        run = int(rest.partition("#")[0], 16) if kind in ("i", "w", "f") else 0
        if kind == "i":
            _sort_in(row, run, found)
        elif kind == "b":
            offered.update(e.hex() for e in row["rd"])
        elif kind == "f":
            found["fenced"].append({"run_id": run})
        elif kind == "w" and row["sk"].startswith("2process#"):
            tallies = {name: row.get(name, 0) for name in TALLIES}
            found["workers"].append({"run_id": run, "name": row["sk"][9:], **tallies})
        elif kind == "w" and row["sk"] == "2sum":
            found["workers"].append(
                {"run_id": run, "name": "", **{n: row.get(n, 0) for n in TALLIES}}
            )
        elif kind == "w" and row["sk"].startswith("4ended#"):
            assert not any(n in row for n in TALLIES), f"{row['sk']} is in the sum"
        elif kind == "w" and row["sk"].startswith("3lease#"):
            entries.update(e[:12].hex() for e in (*row.get("rd", []), *row.get("dl", [])))
    leased = Counter(f"{row['id']:024x}" for row in found["leased"])
    assert leased == entries, "a lease and the items that it holds differ"
    for row in found["ready"]:
        times = offered[f"{row['id']:024x}{row['revision']:08x}"]
        assert times == 1, f"{row['id']:024x} is ready, and offered {times} times"
    return found


def _sort_in(row: dict[str, Any], run: int, found: Tables) -> None:
    digest, apart, ordinal = row["sk"].partition("#")
    assert len(digest) == 20, row["sk"]
    assert not apart or int(ordinal, 16) == row["n"], f"{row['sk']} holds another version"
    item = {"run_id": run, "id": int(f"{digest}{row['n']:04x}", 16), "current": not apart}
    state = row.get("st", "ready")
    waits = state in ("delayed", "dead_lettered")
    assert ("q" in row) is waits, f"{row['sid']} is {state}, and in the index: {'q' in row}"
    found["items"].append({**item, "source_id": row["sid"], "source_version": row["ver"]})
    found[STATES[state]].append(
        {
            **item,
            "revision": row.get("v", 0),
            "attempt": row.get("att", 0),
            "object_key": row.get("key"),
            "byte_offset": row.get("off", 0),
            "byte_length": row.get("len", 0),
            "sha256": row.get("sha"),
            "empty": row.get("emp", False),
            "adopted": row.get("ado", False),
        }
    )
