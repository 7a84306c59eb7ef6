"""What reaches the two streams: safe for terminals, free of secrets, and not too much."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import sys

import pytest

from batchq.cli import app, console, main
from batchq.clock import ManualClock
from batchq.errors import LedgerNotInitialised, ProcessingVersionMismatch

SECRET = "hunter2"


def test_json_is_one_line_that_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """It stays the same document for whoever parses it."""
    document = {"text": "a\n\x1b[2J\x7f\u202eb\u2028 é 漢"}

    console.print_json(document)

    (line, rest) = capsys.readouterr().out.split("\n")
    assert rest == ""
    assert json.loads(line) == {"schema": 1, **document}
    assert line.isprintable()
    assert "é 漢" in line


def test_an_error_is_two_lines_without_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    """What and where, then how to fix it."""
    error = LedgerNotInitialised(
        f"postgresql://me:{SECRET}@db/x holds \x1b[2J nothing", hint=f"password={SECRET} is wrong"
    )

    console.report(error, as_json=False)

    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "error: postgresql://me:***@db/x holds \\x1b[2J nothing\nhint: password=*** is wrong\n"
    )


def test_further_lines_of_an_error_are_set_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    """So that none can pass for an error or a hint of its own."""
    console.report(ProcessingVersionMismatch("differs:\nhint: do evil"), as_json=False)

    assert capsys.readouterr().err == "error: differs:\n  hint: do evil\n"


def test_an_error_as_json_names_its_kind(capsys: pytest.CaptureFixture[str]) -> None:
    """Beside the two lines, which stay."""
    console.report(ProcessingVersionMismatch(f"token=x password={SECRET}"), as_json=True)

    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "schema": 1,
        "error": {
            "kind": "processing_version_mismatch",
            "message": "token=x password=***",
            "hint": None,
            "exit_code": 13,
        },
    }
    assert err.startswith("error: ")


def test_logs_go_to_stderr_without_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of every part, and a traceback too."""
    console.log_to_stderr()
    try:
        raise ValueError(f"password={SECRET}")
    except ValueError:
        logging.getLogger("batchq.worker").exception("\x1b[2Jlost %s", f"secret={SECRET}")

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: \\x1b[2Jlost secret=***\n")
    assert "ValueError: password=***" in err
    assert SECRET not in err


def test_progress_without_a_terminal_is_a_line_every_half_minute(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """However often it is called."""
    clock = ManualClock()
    update = console.lines("enqueue", "documents", clock)

    for done in range(1, 91):
        clock.advance(1.0)
        update(done * 1_000, None if done < 60 else 100_000)

    assert capsys.readouterr().err.splitlines() == [
        "enqueue: 30,000 documents",
        "enqueue: 60,000 of 100,000 documents",
        "enqueue: 90,000 of 100,000 documents",
    ]


def test_progress_that_nobody_reads_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever watched has gone; what is watched goes on."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    with open(write_end, "wb", buffering=0) as pipe:
        monkeypatch.setattr("sys.stderr", io.TextIOWrapper(pipe, write_through=True))
        clock = ManualClock()
        update = console.lines("worker", "items", clock)
        clock.advance(console.LINE_EVERY_S)
        with pytest.raises(BrokenPipeError):
            pipe.write(b"so that the pipe is known to be broken")

        update(1, 2)
        console.note("said to nobody")


def test_nothing_typed_means_help(capsys: pytest.CaptureFixture[str]) -> None:
    """The list of commands is what one wants to see then."""
    assert main([]) == 0

    assert "Commands:" in capsys.readouterr().out


def test_help_is_asked_for_in_either_way(capsys: pytest.CaptureFixture[str]) -> None:
    """`-h` is what fingers know, also behind a command."""
    for command in ([], ["config", "show"]):
        pages = []
        for option in ("-h", "--help"):
            assert main([*command, option]) == 0
            pages.append(capsys.readouterr().out)
        assert pages[0].startswith("Usage: batchq")
        assert pages[0] == pages[1]


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """It comes first in every report of a defect."""
    assert main(["--version"]) == 0

    assert capsys.readouterr().out[:1].isdigit()


def test_the_shell_completes_commands_and_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As bash asks for it, once --install-completion was run."""
    monkeypatch.setenv("_BATCHQ_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "batchq status --wa")
    monkeypatch.setenv("COMP_CWORD", "2")

    with pytest.raises(SystemExit):
        app([], prog_name="batchq")

    assert capsys.readouterr().out.split() == ["--watch", "--wait"]


def test_an_interrupt_ends_a_command_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quietly: whoever pressed the keys knows why."""
    from batchq.cli import session

    def interrupted(options: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "opened", interrupted)

    assert main(["failures"]) == 130


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_a_machine_that_is_full_is_no_defect(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who reads that looks at the limits, and not for a mistake in the processor."""

    def refused(options: object) -> None:
        raise error

    monkeypatch.setattr("batchq.cli.session.opened", refused)
    assert main(["status"]) == 1
    said = capsys.readouterr().err
    assert "gets no more memory or threads" in said
    assert "ulimit" in said
    assert "defect" not in said


class Terminal(io.StringIO):
    """It may go while it is written to, as with a connection that is lost."""

    gone = False

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.gone:
            raise OSError(errno.EIO, "Input/output error")
        return super().write(text)


def test_a_bar_on_a_terminal_that_goes_fails_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nobody sends SIGHUP: what was done is done."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with console.progress("worker", "items") as update:
        update(1, 2)
        terminal.gone = True
