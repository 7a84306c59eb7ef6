"""Extraction processes: whatever a document does to one, it happens to that document alone."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from batchq.clock import SystemClock
from batchq.errors import BatchqError, DocumentError
from batchq.source.extract import ExtractLimits, Extractor
from tests.unit.descriptors import open_files
from tests.unit.patience import PATIENCE_S, comes_true
from tests.unit.pdfs import pdf, text_page

PAGE = b"<p>hello"

SLOW = b"<div>" * 200_000
"""The parser walks up all open elements at each new one: minutes of CPU, few bytes."""

SWELLING = pdf(b"BT /F 12 Tf 50 700 Td " + b"(A) Tj " * 3_000_000 + b" ET", compress=True)
"""Sixty kilobytes that take gigabytes to lay out."""

ENDLESS = pdf(*[b"0 0 1 1 re f " * 50_000] * 2_000, compress=True)
"""Minutes of work in little memory, page by page."""


@contextmanager
def extracting(limits: ExtractLimits, clock: SystemClock | None = None) -> Iterator[Extractor]:
    """An extractor that leaves no process behind, whatever the test does."""
    extractor = Extractor(limits, clock=clock)
    try:
        yield extractor
    finally:
        extractor.close()


def processes(parent: int | None = None) -> list[psutil.Process]:
    """The extraction processes of this process, or of another."""
    found = []
    for child in psutil.Process(parent).children():
        # It may end between two questions.
        with suppress(psutil.NoSuchProcess):
            if (
                child.status() != psutil.STATUS_ZOMBIE
                and "batchq.source.extract_child" in child.cmdline()
            ):
                found.append(child)
    return found


def failure(extractor: Extractor, data: bytes, name: str) -> DocumentError:
    with pytest.raises(DocumentError) as error:
        extractor.extract(data, name)
    return error.value


def in_background(work: Callable[[], object]) -> list[BaseException | object]:
    """Start `work` in a thread; what it returned or raised will be in the list."""
    outcome: list[BaseException | object] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            outcome.append(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome


def busy(extractor: Extractor) -> tuple[psutil.Process, list[BaseException | object]]:
    """A process in the middle of a slow document, and what will become of that."""
    outcome = in_background(lambda: extractor.extract(SLOW, "docs/slow.html"))
    assert comes_true(lambda: any(child.cpu_times().user > 0.3 for child in processes()))
    [child] = processes()
    return child, outcome


def test_a_process_serves_many_documents() -> None:
    """Starting one for each would cost more than most documents."""
    with extracting(ExtractLimits(processes=1)) as extractor:
        extractor.extract(PAGE, "docs/a.html")
        first = processes()
        for _ in range(20):
            assert extractor.extract(PAGE, "docs/a.html") == ("text/html", "hello")
        extractor.extract(pdf(text_page("x")), "docs/a.pdf")
        assert first == processes()


def test_plain_text_needs_no_process() -> None:
    """Nor does an extractor that has nothing to do."""
    with extracting(ExtractLimits()) as extractor:
        extractor.extract(b"text", "docs/a.txt")
        assert processes() == []


def test_no_more_processes_than_allowed() -> None:
    """Threads wait for a free one, and each gets the text of its own document."""
    with (
        extracting(ExtractLimits(processes=2)) as extractor,
        ThreadPoolExecutor(6) as threads,
    ):
        pages = [b"<p>%d" % number for number in range(60)]
        texts = threads.map(lambda page: extractor.extract(page, "docs/a.html")[1], pages)
        assert [str(number) for number in range(60)] == list(texts)
        assert 1 <= len(processes()) <= 2


def test_a_process_that_is_killed_is_the_documents_crash_and_is_replaced() -> None:
    """The kernel kills where memory is short, and it may have been another's fault."""
    with extracting(ExtractLimits(processes=1)) as extractor:
        child, outcome = busy(extractor)
        child.kill()
        assert comes_true(lambda: bool(outcome))
        [error] = outcome
        assert isinstance(error, DocumentError)
        assert (error.cause, error.final) == ("extract_crashed", False)
        assert "SIGKILL" in error.message
        assert extractor.extract(PAGE, "docs/a.html")[1] == "hello"
        assert child not in processes()


def test_a_process_that_died_idle_costs_no_document() -> None:
    """What happened to it before is not the next document's doing."""
    with extracting(ExtractLimits(processes=1)) as extractor:
        extractor.extract(PAGE, "docs/a.html")
        [child] = processes()
        child.kill()
        assert comes_true(lambda: child not in processes())
        assert extractor.extract(PAGE, "docs/a.html")[1] == "hello"


class Racing(SystemClock):
    """On which, while it is `racing`, ten minutes pass from each look to the next."""

    racing = False
    ahead = 0.0

    def monotonic(self) -> float:
        self.ahead += 600.0 * self.racing
        return super().monotonic() + self.ahead


def test_a_process_that_hangs_is_killed_after_the_wall_limit() -> None:
    """Also one that takes no CPU: stopped, or waiting for something that never comes."""
    clock = Racing()
    with extracting(ExtractLimits(processes=1, wall_s=3600.0), clock) as extractor:
        # The second is larger than a pipe holds, so that sending it hangs.
        for data in (PAGE, PAGE * 100_000):
            assert extractor.extract(PAGE, "docs/a.html")[1] == "hello"
            [child] = processes()
            child.suspend()
            clock.racing = True
            error = failure(extractor, data, "docs/b.html")
            clock.racing = False
            assert (error.cause, error.final) == ("extract_timeout", False)
            assert child not in processes()
        assert extractor.extract(PAGE, "docs/a.html")[1] == "hello"


class Stopped(SystemClock):
    """Of a process that is stopped for an hour while it waits for the answer to a request."""

    def __init__(self) -> None:
        self.readings = 0
        self.ahead = 0.0
        self.child: Any = None

    def monotonic(self) -> float:
        self.readings += 1
        # The deadline, the head of the request, its document, and then.
        if self.child is not None and self.readings == 4:
            assert select.select([self.child._answers], [], [], PATIENCE_S)[0]
            # It has begun to answer, and sleeps once it waits for the next request.
            process = psutil.Process(self.child._process.pid)
            while process.status() != psutil.STATUS_SLEEPING:
                time.sleep(0.01)
            self.ahead = 3600.0
        return super().monotonic() + self.ahead


def test_an_answer_that_came_while_this_process_was_stopped_counts() -> None:
    """A laptop that sleeps, or a debugger: no document is charged for that."""
    clock = Stopped()
    extractor = Extractor(ExtractLimits(processes=1), clock=clock)
    try:
        extractor.extract(PAGE, "docs/a.html")
        clock.readings, [clock.child] = 0, extractor._children._idle
        assert extractor.extract(PAGE, "docs/a.html")[1] == "hello"
        assert clock.ahead
    finally:
        extractor.close()


def test_a_document_that_takes_too_much_cpu_is_ended_by_the_kernel() -> None:
    """Even where the parent could not look."""
    with extracting(ExtractLimits(processes=1, cpu_s=1.0)) as extractor:
        error = failure(extractor, SLOW, "docs/slow.html")
        assert (error.cause, error.final) == ("extract_timeout", False)
        assert "CPU" in error.message


def test_the_cpu_limit_is_for_each_document() -> None:
    """A process does not grow old by working."""
    with extracting(ExtractLimits(processes=1, cpu_s=1.0)) as extractor:
        extractor.extract(PAGE, "docs/a.html")
        [child] = processes()
        page = b"<p>x" * 100_000
        while sum(child.cpu_times()[:2]) < 2.5:
            extractor.extract(page, "docs/a.html")
        assert [child] == processes()


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS does not enforce RLIMIT_AS")
@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("swelling.pdf", SWELLING),
        ("nodes.html", b"<p>x" * 4_000_000),
        ("latin.txt", "Stra\xdfe ".encode("latin-1") * 6_000_000),
    ],
)
def test_a_document_that_eats_memory_is_stopped(name: str, data: bytes) -> None:
    """By a limit of the process, before the machine notices; trying again cannot help."""
    with extracting(ExtractLimits(processes=1, memory_bytes=200 << 20)) as extractor:
        error = failure(extractor, data, f"docs/{name}")
        assert (error.cause, error.final) == ("extract_memory", True)
        assert extractor.extract(PAGE, "docs/a.html")[1] == "hello"


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS does not enforce RLIMIT_AS")
def test_what_a_document_left_behind_fails_no_other() -> None:
    """A process that has grown large is retired before the next document pays for it."""
    page = b"<p>x" * 300_000
    with extracting(ExtractLimits(processes=1, memory_bytes=200 << 20)) as extractor:
        extractor.extract(page, "docs/a.html")
        assert processes() == []
        for _ in range(3):
            extractor.extract(page, "docs/a.html")


def test_too_many_pages_and_characters_are_refused_in_the_process() -> None:
    """The limits travel with the document."""
    limits = ExtractLimits(processes=1, pages=2, characters=10)
    with extracting(limits) as extractor:
        for data, name in (
            (pdf(*[text_page("x")] * 3), "a.pdf"),
            (pdf(text_page("x" * 11)), "b.pdf"),
            (b"<p>" + b"x" * 11, "c.html"),
        ):
            error = failure(extractor, data, f"docs/{name}")
            assert (error.cause, error.final) == ("too_large", True)


def test_closing_ends_every_process() -> None:
    """Idle ones and those at work; and nothing is extracted afterwards."""
    extractor = Extractor(ExtractLimits(processes=1))
    _, outcome = busy(extractor)
    extractor.close()
    assert comes_true(lambda: bool(outcome))
    assert isinstance(outcome[0], DocumentError | BatchqError)
    assert comes_true(lambda: processes() == [])
    with pytest.raises(BatchqError, match="closed"):
        extractor.extract(PAGE, "docs/a.html")
    extractor.close()


def test_processes_die_with_their_parent(tmp_path: Path) -> None:
    """Also when it is killed, and also in the middle of a document."""
    program = (
        "import sys, threading\n"
        "from batchq.source.extract import Extractor, ExtractLimits\n"
        "extractor = Extractor(ExtractLimits(processes=2))\n"
        "extractor.extract(b'<p>x', 'a.html')\n"
        "slow = open(sys.argv[1], 'rb').read()\n"
        "threading.Thread(target=extractor.extract, args=(slow, 'a.pdf')).start()\n"
        "extractor.extract(b'<p>x', 'a.html')\n"
        "print('ready', flush=True)\n"
        "threading.Event().wait()\n"
    )
    # The parser of PDF lets go of Python's lock, so that the process sees its parent die.
    (tmp_path / "slow.pdf").write_bytes(ENDLESS)
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "slow.pdf")], stdout=subprocess.PIPE
    )
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        assert comes_true(lambda: len(processes(parent.pid)) == 2)
        children = processes(parent.pid)
        assert comes_true(lambda: any(child.cpu_times().user > 0.5 for child in children))
    finally:
        parent.kill()
        parent.communicate()
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
    for child in alive:
        child.kill()
    assert alive == []


def test_a_ctrl_c_does_not_reach_the_processes() -> None:
    """A drain that it starts still finishes the documents under way."""
    with extracting(ExtractLimits(processes=1)) as extractor:
        extractor.extract(PAGE, "docs/a.html")
        [child] = processes()
        assert os.getpgid(child.pid) != os.getpgid(0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            child.send_signal(number)
        assert extractor.extract(PAGE, "docs/a.html")[1] == "hello"
        assert [child] == processes()


def test_a_process_sees_no_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a hostile document could make a parser do, it does without them."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-for-parsers")
    monkeypatch.setenv("BATCHQ_LEDGER", "postgresql://u:not-for-parsers@h/d")
    with extracting(ExtractLimits(processes=1)) as extractor:
        extractor.extract(PAGE, "docs/a.html")
        [child] = processes()
        assert "not-for-parsers" not in "".join(child.environ().values())


def test_a_process_imports_nothing_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder may hold the documents, and one of them may be called selectolax.py."""
    (tmp_path / "selectolax.py").write_text("raise SystemExit('imported')")
    (tmp_path / "json.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    with extracting(ExtractLimits(processes=1)) as extractor:
        assert extractor.extract(PAGE, "docs/a.html")[1] == "hello"


def test_processes_that_cannot_start_are_no_documents_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broken installation must not turn a pile of documents into dead letters."""
    for program in ("/nonexistent/python", "/bin/false"):
        monkeypatch.setattr(sys, "executable", program)
        with (
            extracting(ExtractLimits(processes=1)) as extractor,
            pytest.raises(BatchqError, match="could be started") as error,
        ):
            extractor.extract(PAGE, "docs/a.html")
        assert not isinstance(error.value, DocumentError)


def test_nothing_stays_open() -> None:
    """A worker that replaces a thousand processes does not run out of descriptors."""
    before = open_files()
    with extracting(ExtractLimits(processes=1)) as extractor:
        extractor.extract(PAGE, "docs/a.html")
        of_one = len(open_files() - before)
        for _ in range(3):
            [child] = processes()
            child.kill()
            extractor.extract(PAGE, "docs/a.html")
        assert of_one == len(open_files() - before)
    assert open_files() <= before
