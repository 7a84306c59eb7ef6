"""The command line. Every command's own imports wait until it is called.

`batchq --help` and shell completion must answer at once, so the modules of the commands
import typer, the nouns and nothing else until then; a benchmark and a test hold that.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from typing import Annotated

import typer

from batchq.cli import (
    config,
    doctor,
    enqueue,
    failures,
    init,
    results,
    status,
    streams,
    verify,
    worker,
)
from batchq.errors import BatchqError, ExitCode, UsageError

__all__ = ["app", "main", "process"]

LINGER_S = 5.0
"""How long threads may go on when a command is over."""

# Rich's own help costs 40 ms more and says the same.
app = typer.Typer(
    name="batchq",
    epilog="Start with: batchq enqueue FOLDER && batchq worker && batchq status",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        from batchq import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def _batchq(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Batch GPU inference over a pile of documents, one committed result for each."""


for module in (init, enqueue, worker, status, results, failures, verify, doctor, config):
    module.add_to(app)


def process() -> int:
    """Run the command of this process, which is batchq's own and ends with it."""
    streams.take()
    code = main()
    _end_for_certain(code)
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    argv = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    options = argv[: argv.index("--")] if "--" in argv else argv
    try:
        code = _run(argv, as_json="--json" in options)
    except OSError:
        # Whoever reads stdout has seen enough.
        code = ExitCode.ERROR
    if not streams.flush():
        code = code or ExitCode.ERROR
    return code


def _end_for_certain(code: int) -> None:
    """Python waits for every thread at its end, and a processor may have started any.

    A worker that has finished must not occupy its machine for ever.
    """
    if threading.active_count() == 1:
        return

    def end() -> None:
        from batchq.cli.console import note

        note("warning: threads that a processor started do not end; leaving without them")
        os._exit(code)

    watch = threading.Timer(LINGER_S, end)
    watch.daemon = True
    watch.start()


def _run(argv: list[str], *, as_json: bool) -> int:
    from batchq.cli.console import report

    try:
        code = app(argv, prog_name="batchq", standalone_mode=False) or ExitCode.OK
        streams.data().flush()
        return code
    except BrokenPipeError:
        raise
    except BatchqError as error:
        failure = error
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "batchq"
        failure = UsageError(
            error.format_message(), hint=_setting_without_option(error) or f"see {command} --help"
        )
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED_TWICE
    except OSError as error:
        failure = BatchqError(
            f"the operating system says: {error}",
            hint="look at the disk and the permissions; BATCHQ_DEBUG=1 shows where it happened",
        )
        _show_traceback()
    except Exception as error:
        failure = _unexpected(error)
        _show_traceback()
    report(failure, as_json=as_json)
    return failure.exit_code


def _setting_without_option(error: Exception) -> str | None:
    """Where to set what somebody took for an option of this command."""
    from batchq.config import SETTINGS

    wanted = getattr(error, "option_name", None)
    for setting in SETTINGS.values():
        if setting.option == wanted:
            return f"set {setting.variable}, or {setting.name} in batchq.toml"
    return None


def _unexpected(error: Exception) -> BatchqError:
    if isinstance(error, MemoryError) or str(error) == "can't start new thread":
        return BatchqError(
            f"this process gets no more memory or threads: {str(error) or type(error).__name__}",
            hint="see `ulimit -a` and the limits of its container; BATCHQ_DEBUG=1 shows where it "
            "happened",
        )
    return BatchqError(
        f"unexpected {type(error).__name__}: {error}",
        hint="this is a defect in batchq or in your processor; "
        "BATCHQ_DEBUG=1 shows where it happened",
    )


def _show_traceback() -> None:
    if os.environ.get("BATCHQ_DEBUG"):
        from traceback import format_exc

        from batchq.cli.console import note

        note(format_exc())
