"""Extraction processes: started when needed, used again, killed when they overstep.

A parser of hostile bytes may hang, crash or eat all memory. So each document goes to a
process with limits of its own (`extract_child`), and what becomes of that process is told
as the document's failure.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import batchq
from batchq.clock import Clock
from batchq.errors import BatchqError, DocumentError
from batchq.source import frames
from batchq.source.limits import ExtractLimits
from batchq.source.peak_memory import own_peak, peak_so_far

__all__ = ["Children"]

# All that a parser of hostile bytes gets to see; no credential is among them.
_ENVIRONMENT = (
    "DYLD_FALLBACK_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LD_LIBRARY_PATH",
    "PATH",
    "TMPDIR",
)

_LOOK_S = 0.02
"""How often the memory of a process at work is looked at."""

_START_S = 60.0
"""A process that has not come up by then never will."""


class Children:
    """Up to `limits.processes` extraction processes, shared by any number of threads."""

    def __init__(self, limits: ExtractLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._free = threading.Semaphore(limits.processes)
        self._lock = threading.Lock()
        self._idle: list[_Child] = []
        self._busy: set[_Child] = set()
        self._closed = False

    def extract(self, kind: str, media_type: str, data: bytes) -> str:
        """The text of one document, once a process is free.

        Raises DocumentError for whatever the document did to its process, BatchqError if
        no process can be started.
        """
        request = {
            "kind": kind,
            "media_type": media_type,
            "pages": self._limits.pages,
            "characters": self._limits.characters,
            "cpu_s": self._limits.cpu_s,
        }
        with self._free:
            child = self._take(fresh=False)
            # What an earlier document left behind must not fail this one.
            may_be_stale = child.documents > 0
            try:
                return self._ask(child, request, data)
            except DocumentError as error:
                if not may_be_stale or error.cause not in ("extract_crashed", "extract_memory"):
                    raise
            return self._ask(self._take(fresh=True), request, data)

    def close(self) -> None:
        """End every process, those at work too. Repeating it changes nothing."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = list(self._busy)
        for child in busy:
            child.kill()
        for child in idle:
            child.end()

    def _ask(self, child: _Child, request: dict[str, Any], data: bytes) -> str:
        reusable = False
        try:
            answer, text = child.ask(request, data)
            reusable = not answer["spent"]
        except _Ended as ended:
            raise ended.document_error(child.end(), self._limits) from None
        finally:
            self._return(child, reusable)
        if "cause" in answer:
            raise DocumentError(answer["cause"], answer["message"], final=answer["final"])
        return text.decode("utf-8", "surrogatepass")

    def _take(self, *, fresh: bool) -> _Child:
        with self._lock:
            child = self._idle.pop() if self._idle and not fresh else None
        if child is None:
            child = _Child(self._limits, self._clock)
        with self._lock:
            self._busy.add(child)
            closed = self._closed
        if closed:
            self._return(child, False)
            raise BatchqError("the extractor is closed")
        return child

    def _return(self, child: _Child, reusable: bool) -> None:
        with self._lock:
            self._busy.discard(child)
            reusable = reusable and not self._closed
            if reusable:
                self._idle.append(child)
        if not reusable:
            child.end()


class _Ended(Exception):
    """The process gave no answer: it ended, or it took too long."""

    def __init__(self, timed_out: bool) -> None:
        self.timed_out = timed_out

    def document_error(self, end: tuple[int, int], limits: ExtractLimits) -> DocumentError:
        """What to charge the document with, given wait status and peak memory in bytes."""
        status, peak = end
        if self.timed_out:
            return DocumentError("extract_timeout", f"no text within {limits.wall_s:g} s")
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        if number == signal.SIGXCPU:
            return DocumentError("extract_timeout", f"no text within {limits.cpu_s:g} s of CPU")
        how = (
            f"signal {signal.Signals(number).name}"
            if number
            else f"exit code {os.waitstatus_to_exitcode(status)}"
        )
        # A parser that is refused memory mostly aborts, having asked for twice what it held.
        if peak > limits.memory_bytes // (4 if number == signal.SIGABRT else 2):
            return DocumentError(
                "extract_memory",
                f"the parser needed more than {limits.memory_bytes >> 20:,} MiB and ended ({how})",
                final=True,
            )
        return DocumentError("extract_crashed", f"the parser ended ({how})")


class _Child:
    """One process. Used by one thread at a time; only `kill` may come from another."""

    def __init__(self, limits: ExtractLimits, clock: Clock) -> None:
        self.documents = 0
        self._limits = limits
        self._clock = clock
        self._deadline = 0.0
        self._inherited = 0
        self._seen_peak = 0
        self._end: tuple[int, int] | None = None
        self._lock = threading.Lock()
        theirs, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "batchq.source.extract_child"),
                    *(str(limits.memory_bytes), str(theirs)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env=_environment(),
                pass_fds=(theirs,),
                process_group=0,
            )
        except OSError as error:
            os.close(self._lifeline)
            raise _not_started(str(error)) from None
        finally:
            os.close(theirs)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests = self._process.stdin.fileno()
        self._answers = self._process.stdout.fileno()
        os.set_blocking(self._requests, False)
        os.set_blocking(self._answers, False)
        try:
            self._deadline = clock.monotonic() + _START_S
            ready, _ = frames.receive(self._read, 0)
            self._inherited = int(ready["inherited"])
        except (_Ended, ValueError, KeyError):
            status, _ = self.end()
            raise _not_started(f"it ended with wait status {status}") from None

    def ask(self, request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        """The answer and its text. Raises _Ended."""
        self.documents += 1
        self._deadline = self._clock.monotonic() + self._limits.wall_s
        for part in frames.pack(request, data):
            self._write(part)
        try:
            # No character takes more than four bytes.
            return frames.receive(self._read, 4 * self._limits.characters)
        except ValueError:
            # It no longer speaks sense: a parser has written over its memory.
            raise _Ended(timed_out=False) from None

    def kill(self) -> None:
        """Send it the signal; whoever uses it sees it end."""
        with self._lock:
            if self._end is None:
                os.kill(self._process.pid, signal.SIGKILL)

    def end(self) -> tuple[int, int]:
        """Kill it if it lives, and give its wait status and peak memory in bytes."""
        self.kill()
        with self._lock:
            if self._end is None:
                status, peak = int(signal.SIGKILL), self._seen_peak
                with contextlib.suppress(ChildProcessError):
                    _, status, usage = os.wait4(self._process.pid, 0)
                    peak = max(peak, own_peak(usage, self._inherited))
                self._process.returncode = os.waitstatus_to_exitcode(status)
                self._end = status, peak
                os.close(self._lifeline)
                for pipe in (self._process.stdin, self._process.stdout):
                    if pipe is not None:
                        pipe.close()
            return self._end

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            self._wait_for(self._requests, select.POLLOUT)
            try:
                view = view[os.write(self._requests, view) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise _Ended(timed_out=False) from None

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            self._wait_for(self._answers, select.POLLIN)
            chunk = os.read(self._answers, min(count - len(data), 1 << 20))
            if not chunk:
                raise _Ended(timed_out=False)
            data += chunk
        return bytes(data)

    def _wait_for(self, fd: int, event: int) -> None:
        poller = select.poll()
        poller.register(fd, event)
        while True:
            left = self._deadline - self._clock.monotonic()
            # Also when time is over: this process may have been stopped itself meanwhile.
            if poller.poll(max(0.0, min(left, _LOOK_S)) * 1000):
                return
            if left <= 0:
                raise _Ended(timed_out=True)
            # Only a living process tells: see what it grows to before it ends.
            self._seen_peak = max(self._seen_peak, peak_so_far(self._process.pid))


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    # Where this package was imported from: the process must run the same code.
    places = [str(Path(batchq.__file__).resolve().parent.parent)]
    places += [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    # Every arena of the allocator reserves 64 MiB of the address space that is limited.
    return kept | {"PYTHONPATH": os.pathsep.join(places), "MALLOC_ARENA_MAX": "1"}


def _not_started(reason: str) -> BatchqError:
    return BatchqError(
        f"no process for text extraction could be started: {reason}",
        hint=f"try it by hand: {sys.executable} -m batchq.source.extract_child 1073741824 0",
    )
