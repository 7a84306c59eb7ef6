"""What a command prints: data on stdout, everything else on stderr, no secret anywhere."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from batchq.cli import streams
from batchq.clock import Clock, SystemClock
from batchq.errors import BatchqError
from batchq.redact import RedactingFilter, printable, redact

__all__ = ["lines", "log_to_stderr", "note", "print_json", "progress", "report", "say"]

SCHEMA = 1
"""Of the JSON documents that commands print."""

LINE_EVERY_S = 30.0
"""Between two lines of progress where stderr is no terminal."""

# Inside a JSON string these are legal as they are, and would move a terminal's cursor or
# turn its text around.
_UNPRINTED = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def say(text: str) -> None:
    """A line of data for people."""
    print(printable(text), file=streams.data())


def note(text: str) -> None:
    """A line beside the data; further lines of the text are set below it, indented.

    Where nobody can read stderr any more, the work goes on.
    """
    lines = [printable(line) for line in redact(text).split("\n")]
    with suppress(OSError, ValueError):
        print("\n  ".join(lines), file=sys.stderr, flush=True)


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON document on one line of stdout, with escapes if its encoding needs them.

    It says under `schema` how it is to be read; an envelope has a schema of its own.
    """
    stream = streams.data()
    document = {"schema": SCHEMA, **document}
    text = json.dumps(document, ensure_ascii=not streams.is_unicode(stream), allow_nan=False)
    text = _UNPRINTED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    print(text, file=stream, flush=True)


def report(error: BatchqError, *, as_json: bool) -> None:
    """Say what went wrong and how to fix it, on stderr, and with `as_json` on stdout too."""
    message = redact(error.message)
    hint = None if error.hint is None else redact(error.hint)
    note(f"error: {message}")
    if hint is not None:
        note(f"hint: {hint}")
    if as_json:
        kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).lower()
        problem = {
            "kind": kind,
            "message": message,
            "hint": hint,
            "exit_code": int(error.exit_code),
        }
        print_json({"error": problem})


def log_to_stderr() -> None:
    """Send what the parts of batchq log to stderr, below `info: ` or `warning: `."""
    handler = _Notes()
    handler.addFilter(RedactingFilter())
    logger = logging.getLogger("batchq")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


class _Notes(logging.Handler):
    """Prints records as notes, on whatever stderr is then: a bar puts itself before it."""

    def emit(self, record: logging.LogRecord) -> None:
        note(f"{record.levelname.lower()}: {self.format(record)}")


@contextmanager
def progress(
    what: str, unit: str, total: int | None = None
) -> Iterator[Callable[[int, int | None], None]]:
    """Show how far a command is: a bar on a terminal, elsewhere a line every 30 s.

    Yields a function of (done, total or none), to be called from one thread as often
    as one likes.
    """
    if sys.stderr.isatty():
        with _bar(what, unit, total) as update:
            yield update
    else:
        yield lines(what, unit, SystemClock())


@contextmanager
def _bar(what: str, unit: str, total: int | None) -> Iterator[Callable[[int, int | None], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(complete_style="cyan", finished_style="green"),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=total, count="")

    def update(done: int, total: int | None) -> None:
        bar.update(task, completed=done, total=total, count=_count(done, total, unit))

    bar.start()
    try:
        yield update
    finally:
        # The terminal may have gone meanwhile, which is no failure of what was done.
        with suppress(OSError):
            bar.stop()


def lines(what: str, unit: str, clock: Clock) -> Callable[[int, int | None], None]:
    """Progress without a terminal: a line at most every LINE_EVERY_S seconds."""
    last = clock.monotonic()

    def update(done: int, total: int | None) -> None:
        nonlocal last
        if clock.monotonic() - last >= LINE_EVERY_S:
            last = clock.monotonic()
            note(f"{what}: {_count(done, total, unit)}")

    return update


def _count(done: int, total: int | None, unit: str) -> str:
    of = "" if total is None else f" of {total:,}"
    return f"{done:,}{of} {unit}"
