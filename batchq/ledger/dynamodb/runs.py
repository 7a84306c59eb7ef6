"""Runs: one row each, written once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

from batchq.clock import random_hex
from batchq.ledger.dynamodb.calls import Calls
from batchq.ledger.dynamodb.keys import RUNS, run_key
from batchq.ledger.dynamodb.refusals import ConditionFailed
from batchq.ledger.dynamodb.wire import absent
from batchq.ledger.records import Run
from batchq.result import canonical_json, slug

__all__ = ["create", "find", "names"]


def create(
    calls: Calls, name: str, processing_version: str, manifest: Mapping[str, Any], layout: str
) -> Run:
    """The run called `name`, as it was created first."""
    row: dict[str, object] = {
        "id": int(random_hex(48), 16),
        "prefix": f"{slug(name)}-{random_hex(64)}",
        "version": processing_version,
        "manifest": canonical_json(dict(manifest)).decode(),
        "layout": layout,
    }
    with suppress(ConditionFailed):
        calls.write(run_key(name), put=row, only_if=[absent()])
    found = find(calls, name)
    assert found is not None, f"run {name} has been deleted"
    return found


def find(calls: Calls, name: str) -> Run | None:
    row = calls.get(run_key(name))
    if row is None:
        return None
    manifest = json.loads(row["manifest"])
    return Run(row["id"], name, row["prefix"], row["version"], manifest, row["layout"])


def names(calls: Calls, limit: int) -> list[str]:
    rows = islice(calls.query(RUNS, limit=limit), limit)
    return sorted(str(row["sk"]) for row in rows)
