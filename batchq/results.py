"""Committed results read back: one, or all of a run to a file. Every byte is checked."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from batchq.clock import random_hex
from batchq.errors import BatchqError, UsageError
from batchq.ledger.base import CommittedResult, Ledger, Run, State
from batchq.result import canonical_json
from batchq.store.base import Store, StoreError
from batchq.store.committed import DamagedResult, read_committed

__all__ = ["export", "fetch"]

PAGE = 512
"""Results asked of the ledger at once."""
READERS = 8
"""Objects read at once: a remote store answers each in tens of milliseconds."""


def fetch(ledger: Ledger, run: Run, store: Store, source_id: str) -> dict[str, Any]:
    """The envelope of a document's committed result, with where it is "stored".

    Raises BatchqError if the document has no result, or if what the store holds is
    not what was committed.
    """
    state = ledger.lookup(run, source_id)
    if state is None:
        raise UsageError(
            f"no document {source_id!r} in run {run.name!r}",
            hint="a source id is the folder's name and the path below it: docs/guide/a.md",
        )
    if state.result is None:
        raise BatchqError(
            f"{source_id!r} has no result: it is {state.state.value.replace('_', ' ')}",
            hint="see why: batchq failures"
            if state.state is State.DEAD_LETTERED
            else "a worker brings it: batchq worker",
        )
    return _read(run, store, state.result)


def export(
    ledger: Ledger,
    run: Run,
    store: Store,
    path: Path,
    *,
    force: bool = False,
    progress: Callable[[int], None] = lambda written: None,
) -> int:
    """Write every committed result of the run to `path`, one JSON document a line.

    The file appears whole or not at all, and replaces another only with `force`.
    `progress` hears the number written so far. Returns the number of results.
    Raises BatchqError naming the first item whose object is missing or altered.
    """
    if path.suffix != ".jsonl":
        raise UsageError(
            f"cannot write results as {path.suffix or 'a file without a suffix'}: {path}",
            hint="name the file something.jsonl",
        )
    _refuse_existing(path, force)
    temporary = path.with_name(f".{path.name}.{random_hex(64)}")
    try:
        written = 0
        with temporary.open("xb") as file:
            for document in _documents(ledger, run, store):
                file.write(canonical_json(document) + b"\n")
                written += 1
                if written % PAGE == 0:
                    progress(written)
            file.flush()
            os.fsync(file.fileno())
        _refuse_existing(path, force)
        temporary.replace(path)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
    progress(written)
    return written


def _documents(ledger: Ledger, run: Run, store: Store) -> Iterator[dict[str, Any]]:
    after = 0
    with ThreadPoolExecutor(READERS, thread_name_prefix="results") as readers:
        while page := ledger.results(run, after, PAGE):
            yield from readers.map(lambda row: _read(run, store, row), page)
            after = page[-1].item_id


def _read(run: Run, store: Store, row: CommittedResult) -> dict[str, Any]:
    stored = row.stored
    try:
        line = read_committed(
            store,
            run.layout,
            stored,
            source_id=row.source_id,
            source_version=row.source_version,
            processing_version=run.processing_version,
        )
    except DamagedResult as damage:
        raise BatchqError(
            f"the result of {row.source_id!r} {damage.what}: {stored.key}",
            hint="the store changed behind the ledger; restore the object from a copy of the store",
        ) from None
    except StoreError as error:
        raise BatchqError(
            f"the result of {row.source_id!r} cannot be read: {error}",
            hint=f"nothing was lost by this; check {store.url} and repeat the command",
        ) from error
    document: dict[str, Any] = json.loads(line)
    document["stored"] = {
        "key": stored.key,
        "offset": stored.offset,
        "length": stored.length,
        "sha256": stored.sha256,
    }
    return document


def _refuse_existing(path: Path, force: bool) -> None:
    if path.exists() and not force:
        raise UsageError(f"{path} exists already", hint="replace it with --force")


def _cannot_write(path: Path, error: OSError) -> BatchqError:
    return BatchqError(
        f"cannot write {path}: {error.strerror or error}",
        hint="check that the folder exists, can be written and has room",
    )
