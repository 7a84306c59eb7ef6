"""What programs call: committed results, from wherever the settings say that they lie."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from batchq import wiring
from batchq.clock import SystemClock
from batchq.config import load
from batchq.enqueue import check_store
from batchq.results import documents

__all__ = ["read_results"]


def read_results(
    run: str = "default",
    *,
    ledger: str | None = None,
    results: str | None = None,
    config: str | os.PathLike[str] | None = None,
    current: bool = False,
) -> Iterator[dict[str, Any]]:
    """The committed results of a run, one dict each, in the order of enqueueing.

    A ledger in DynamoDB has no such order: there it is that of the ids, which are digests.

    Each is the envelope as `batchq results` prints it: `source_id`, `source_version`,
    `output`, `tokens_total`, `tokens_used`, `provenance`, `stored` and the rest, read back
    and checked against the ledger. They are read ahead, a bounded number at a time.

    `ledger`, `results` and `config` are named as on the command line, and like there they
    come from the environment, `batchq.toml` or the defaults where they are not given.
    With `current`, versions of documents that were replaced are left out.

    Raises BatchqError, not before the first is asked for: UsageError for a run that does not
    exist, StoreUnusable for another store than the run's, or naming the first document whose
    object is missing or altered.
    """
    options = {"run": run, "ledger": ledger, "results": results, "config": config}
    settings = load(options, os.environ, Path.cwd()).config
    opened = wiring.open_ledger(settings, SystemClock())
    try:
        found = wiring.existing_run(settings, opened)
        store = wiring.open_store(settings)
        check_store(store, found)
        yield from documents(opened, found, store, current_only=current)
    finally:
        opened.close()
