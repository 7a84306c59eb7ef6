"""A committed result that was read and checked, and the forms it is handed on in."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from json.encoder import encode_basestring_ascii
from typing import Any

from batchq.errors import BatchqError
from batchq.ledger.base import CommittedResult, Run
from batchq.result import Line
from batchq.store.base import Store, StoreError
from batchq.store.committed import (
    AlteredResult,
    DamagedResult,
    ForeignResult,
    judge_committed,
    read_committed,
)
from batchq.words import command

__all__ = ["Checked", "judge", "read_checked"]


@dataclass(frozen=True, slots=True)
class Checked:
    """A row of the ledger and the line that was committed under it."""

    row: CommittedResult
    line: Line

    def document(self) -> dict[str, Any]:
        """The envelope, with where it is "stored"."""
        document: dict[str, Any] = json.loads(self.line.whole)
        document["stored"] = self.stored()
        return document

    def json_line(self) -> tuple[memoryview, bytes]:
        """`document` as one line, in two pieces: the envelope's bytes as they were committed,
        and what is added to them."""
        stored = self.row.stored
        added = (
            f',"stored":{{"key":{encode_basestring_ascii(stored.key)},"offset":{stored.offset},'
            f'"length":{stored.length},"sha256":"{stored.sha256}"}}}}\n'
        )
        return memoryview(self.line.whole)[:-2], added.encode()

    def stored(self) -> dict[str, Any]:
        stored = self.row.stored
        return {
            "key": stored.key,
            "offset": stored.offset,
            "length": stored.length,
            "sha256": stored.sha256,
        }


def read_checked(run: Run, store: Store, row: CommittedResult) -> Line:
    """The result of `row`, read by itself. A read that was damaged is read once more.

    Raises BatchqError, naming the document, if the object is missing or altered or the
    store gives no answer.
    """
    read = partial(
        read_committed,
        store,
        run.layout,
        row.stored,
        source_id=row.source_id,
        source_version=row.source_version,
        processing_version=run.processing_version,
    )
    try:
        try:
            return read()
        except (AlteredResult, ForeignResult):
            return read()
    except DamagedResult as damage:
        raise _damaged(run, row, damage) from None
    except StoreError as error:
        raise BatchqError(
            f"the result of {row.source_id!r} cannot be read: {error}",
            hint=f"nothing was lost by this; check {store.url} and repeat the command",
        ) from error


def judge(run: Run, row: CommittedResult, data: bytes, content: bytes | None = None) -> Line:
    """The result in the bytes that were read for `row`. Raises DamagedResult.

    `content`: what is in them, where they have been unpacked already.
    """
    return judge_committed(
        data,
        run.layout,
        row.stored,
        source_id=row.source_id,
        source_version=row.source_version,
        processing_version=run.processing_version,
        content=content,
    )


def _damaged(run: Run, row: CommittedResult, damage: DamagedResult) -> BatchqError:
    return BatchqError(
        f"the result of {row.source_id!r} {damage.what}: {damage.key}",
        hint="the store changed behind the ledger: restore the object from a copy of it, or let "
        f"`{command('verify --repair', run.name)}` send the document back to the workers",
    )
