"""One document's committed result."""

from __future__ import annotations

from typing import Any

from batchq.errors import BatchqError, UsageError
from batchq.ledger.base import Ledger, Run, State
from batchq.results.checked import Checked, read_checked
from batchq.store.base import Store
from batchq.words import command

__all__ = ["fetch"]


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
            hint=f"see why: {command('failures', run.name)}"
            if state.state is State.DEAD_LETTERED
            else f"a worker brings it: {command('worker', run.name)}",
        )
    return Checked(state.result, read_checked(run, store, state.result)).document()
