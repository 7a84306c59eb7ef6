"""`batchq failures` and `batchq retry`: the dead letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from batchq.cli.options import ConfigFile, Json, LedgerUrl, Results, RunName, given, unicode

if TYPE_CHECKING:
    from batchq.ledger.base import DeadLetter, Ledger, Run

__all__ = ["add_to"]

PAGE = 1_000


def add_to(app: typer.Typer) -> None:
    app.command()(failures)
    app.command()(retry)


def failures(
    run: RunName = None,
    ledger: LedgerUrl = None,
    results: Results = None,
    config: ConfigFile = None,
    json: Json = False,
) -> None:
    """List the dead letters: what ended without a result, and why.

    \b
    Examples:
      batchq failures
      batchq failures --json | jq -r '.failures[].source_id'
    """
    from batchq.cli.console import note, print_json, say
    from batchq.cli.session import opened
    from batchq.redact import redact
    from batchq.words import command, counted

    with opened(given(run=run, ledger=ledger, results=results, config=config)) as session:
        letters = _dead_letters(session.ledger, session.run)
        if json:
            listed = [
                {
                    "source_id": letter.source_id,
                    "source_version": letter.source_version,
                    "cause": letter.cause,
                    "error": redact(letter.error),
                    "attempts": letter.attempt,
                }
                for letter in letters
            ]
            print_json({"run": session.run.name, "failures": listed})
            return
        causes: Counter[str] = Counter()
        for letter in letters:
            causes[letter.cause] += 1
            attempts = counted(letter.attempt, "attempt")
            say(f"{letter.source_id}  {letter.cause}  {attempts}  {redact(letter.error)}")
        if not causes:
            note("no dead letter")
            return
        letters_in_all = counted(causes.total(), "dead letter")
        back = f"{command('retry', session.run.name)} sends them back"
        note(f"{letters_in_all}; {_by_number(causes)}; {back}")
        note("hint: docs/operations.md says of each cause what helps")


def retry(
    source_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SOURCE_ID]...", help="Only these documents. Default: all."),
    ] = None,
    cause: Annotated[
        str | None,
        typer.Option("--cause", metavar="CAUSE", help="Only those that ended for this reason."),
    ] = None,
    run: RunName = None,
    ledger: LedgerUrl = None,
    results: Results = None,
    config: ConfigFile = None,
    json: Json = False,
) -> None:
    """Send dead letters back, each as a new generation.

    Their failures and losses are counted anew.

    \b
    Examples:
      batchq retry
      batchq retry --cause source_unreadable
      batchq retry docs/a.pdf docs/b.pdf
    """
    from batchq.cli.console import print_json, say
    from batchq.cli.session import opened
    from batchq.words import command, counted

    named = [unicode(source_id) for source_id in source_ids or ()]
    unicode(cause or "")
    with opened(given(run=run, ledger=ledger, results=results, config=config)) as session:
        _refuse_unknown(session.ledger, session.run, named)
        with session.operator("retry") as operator:
            number = session.ledger.retry(operator, session.run, source_ids=named, cause=cause)
        if json:
            print_json({"run": session.run.name, "retried": number})
        elif number:
            worker = command("worker", session.run.name)
            say(f"ready again: {counted(number, 'item')}; {worker} takes them")
        else:
            say(_why_nothing(session.ledger, session.run, named, cause))


def _refuse_unknown(ledger: Ledger, run: Run, source_ids: Sequence[str]) -> None:
    """Before anything is sent back, so that a slip of the pen changes nothing."""
    from batchq.cli.meant import meant
    from batchq.errors import UsageError
    from batchq.words import command

    unknown = [source_id for source_id in source_ids if ledger.lookup(run, source_id) is None]
    if unknown:
        near = meant(ledger, run, unknown[0])
        raise UsageError(
            f"run {run.name!r} knows no document {', '.join(map(repr, unknown))}",
            hint=("" if near is None else f"did you mean {near}? ")
            + f"{command('failures', run.name)} lists the dead letters by their source ids; "
            "nothing was changed",
        )


def _why_nothing(ledger: Ledger, run: Run, source_ids: Sequence[str], cause: str | None) -> str:
    from batchq.words import command

    causes = Counter(letter.cause for letter in _dead_letters(ledger, run))
    if not causes:
        return "there is no dead letter"
    if cause is not None and cause not in causes:
        return f"no dead letter has the cause {cause!r}; there are: {_by_number(causes)}"
    which = "this document is" if len(source_ids) == 1 else "these documents are"
    because = "" if cause is None else f" with the cause {cause!r}"
    return f"{which} no dead letter{because}; see {command('failures', run.name)}"


def _by_number(causes: Counter[str]) -> str:
    """`unsupported (12), extract_failed (3)`: the most frequent first."""
    ordered = sorted(causes.items(), key=lambda each: (-each[1], each[0]))
    return ", ".join(f"{cause} ({number:,})" for cause, number in ordered)


def _dead_letters(ledger: Ledger, run: Run) -> Iterator[DeadLetter]:
    after = 0
    while page := ledger.dead_letters(run, after, PAGE):
        yield from page
        after = page[-1].item_id
