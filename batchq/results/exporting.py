"""All committed results of a run to one file, which appears whole or not at all.

What is made grows in a hidden file beside it. An export that was interrupted goes on where
it stopped when it is repeated, unless the run has changed or other options are given.
Memory stays flat, whatever the number of results.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from batchq.clock import random_hex
from batchq.errors import BatchqError, UsageError
from batchq.garbage import seldom_collected
from batchq.ledger.base import Ledger, Run
from batchq.results.checked import Checked
from batchq.results.destination import Destination
from batchq.results.formats import Format, Jsonl, UnfitOutput
from batchq.results.journal import Buffer, Growing
from batchq.results.reading import committed_portions
from batchq.store.base import Store

__all__ = ["Exported", "export"]

log = logging.getLogger("batchq.results")

CHECKPOINT_BYTES = 128 * 1024 * 1024
"""Between two checkpoints, each of which flushes a file to disk."""


@dataclass(frozen=True, slots=True)
class Exported:
    """`written` results in all, `resumed` of them by an attempt before this one."""

    written: int
    resumed: int


def export(
    ledger: Ledger,
    run: Run,
    store: Store,
    destination: Destination,
    *,
    force: bool = False,
    current_only: bool = False,
    progress: Callable[[int], None] = lambda written: None,
) -> Exported:
    """Write every committed result of the run to `destination`, by item id.

    Its suffix names the format, `.jsonl` or `.parquet`. It replaces another file only
    with `force`; `current_only` leaves out versions of documents that were replaced.
    `progress` hears the number written so far. Raises BatchqError naming the first
    document whose object is missing or altered.
    """
    if destination.suffix not in (".jsonl", ".parquet"):
        raise UsageError(
            f"cannot write results as {destination.suffix or 'a file without a suffix'}: "
            f"{destination.url}",
            hint="name the file something.jsonl or something.parquet",
        )
    destination.require_free(force=force)
    try:
        with seldom_collected(), Growing(destination.workspace) as growing:
            counts = ledger.counts(run)
            tallies = counts.tallies
            making = {
                "run": run.prefix,
                "output": destination.url,
                "current_only": current_only,
                # Of a run that has gone on, results before the last checkpoint may be new.
                "state": [tallies.completed, tallies.total, tallies.superseded, tallies.attempts],
                # Where a commit is seen before it is counted, no attempt is like another.
                "uncounted": None if counts.exact else random_hex(),
                # A known version that is enqueued again becomes current without any of these.
                "enqueued_again": tallies.known if current_only else None,
            }
            forms = _forms(ledger, run, store, destination.suffix)
            # First the one that an interrupted attempt had come to.
            forms.sort(key=lambda form: not growing.holds({**making, "format": form.name}))
            for form in forms:
                growing.resume({**making, "format": form.name})
                resumed = growing.written
                try:
                    with closing(
                        committed_portions(
                            ledger, run, store, after=growing.after, current_only=current_only
                        )
                    ) as portions:
                        _grow(growing, form, portions, progress)
                except UnfitOutput as unfit:
                    log.warning("%s; the export begins anew with outputs as JSON text", unfit)
                    continue
                destination.publish(form.finish(growing.part), force=force)
                growing.discard()
                return Exported(growing.written, resumed)
    except OSError as error:
        raise BatchqError(
            f"cannot write {destination.url}: {error.strerror or error}",
            hint="check that the folder exists, can be written and has room",
        ) from error
    raise AssertionError("JSON text fits every output")


def _forms(ledger: Ledger, run: Run, store: Store, suffix: str) -> list[Format]:
    """What to try in turn; the last one takes every output."""
    if suffix == ".jsonl":
        return [Jsonl()]
    from batchq.results.parquet import parquet_forms

    return parquet_forms(ledger, run, store)


def _grow(
    growing: Growing,
    form: Format,
    portions: Iterator[list[Checked]],
    progress: Callable[[int], None],
) -> None:
    """Append what is missing. However this ends, what was appended is counted."""
    after, written, uncounted = growing.after, growing.written, 0
    try:
        for portion, pieces in _encoded(form, portions):
            uncounted += growing.write(pieces)
            after, written = portion[-1].row.item_id, written + len(portion)
            if uncounted >= CHECKPOINT_BYTES:
                growing.checkpoint(after, written)
                uncounted = 0
            progress(written)
    finally:
        growing.checkpoint(after, written)


def _encoded(
    form: Format, portions: Iterator[list[Checked]]
) -> Iterator[tuple[list[Checked], Sequence[Buffer]]]:
    """Each portion with its pieces, in order."""
    if not form.ahead:
        for portion in portions:
            yield portion, form.encode(portion)
        return
    ahead: deque[tuple[list[Checked], Future[Sequence[Buffer]]]] = deque()
    with ThreadPoolExecutor(form.ahead, thread_name_prefix="encode") as pool:
        for portion in portions:
            ahead.append((portion, pool.submit(form.encode, portion)))
            if len(ahead) > form.ahead:
                portion, pieces = ahead.popleft()
                yield portion, pieces.result()
        for portion, pieces in ahead:
            yield portion, pieces.result()
