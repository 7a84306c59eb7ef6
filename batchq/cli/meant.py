"""Which document somebody meant who wrote a path for its source id."""

from __future__ import annotations

import os

from batchq.ledger.base import Ledger, Run
from batchq.source.names import to_names

__all__ = ["meant"]

MAX_DEPTH = 12
"""Of folders in a source id that is looked for: each is a question to the ledger."""


def meant(ledger: Ledger, run: Run, typed: str) -> str | None:
    """The run's source id that `typed` ends with as a path of this machine, or none.

    `./docs/a.md` and `/home/me/docs/a.md` both lead to `docs/a.md`, and `a.md` does in that
    folder. Of several the longest.
    """
    names = to_names(os.fsencode(os.path.abspath(typed)).split(b"/"))[1:][-MAX_DEPTH:]
    for start in range(len(names)):
        source_id = "/".join(names[start:])
        if source_id != typed and ledger.lookup(run, source_id) is not None:
            return source_id
    return None
