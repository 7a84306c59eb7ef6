"""An extraction process: reads documents from its standard input and answers with text.

Started by `children` as `python -m batchq.source.extract_child MEMORY LIFELINE`. It runs
parsers written in C over bytes from anywhere, so it expects to be killed and holds nothing
that would be missed. Its limits: MEMORY bytes of address space for good, CPU seconds for
each document. It ends when its standard input or LIFELINE, a pipe from its parent, does.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
import sys
import threading
from typing import Any

from batchq.errors import DocumentError
from batchq.source import frames
from batchq.source.document_errors import too_large
from batchq.source.media import Kind
from batchq.source.peak_memory import own_peak, peak_of_usage, peak_so_far

__all__ = ["main"]

MAX_MESSAGE = 500

_MAX_REQUEST = 1 << 40
"""Only a guard against a broken pipe: the parent bounds what it sends."""


def main(memory: int, lifeline: int) -> None:
    # A Ctrl-C, a scheduler's SIGTERM or the end of the terminal reaches the whole group; the
    # parent decides when to end.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, memory)
    answers = os.dup(1)
    # A library that prints must not write into the answers.
    os.dup2(2, 1)
    threading.Thread(target=_die_with_parent, args=(lifeline,), daemon=True).start()
    requests = sys.stdin.buffer

    def read(count: int) -> bytes:
        data = requests.read(count)
        if len(data) < count:
            raise EOFError
        return data

    inherited = peak_of_usage(resource.getrusage(resource.RUSAGE_SELF))
    for part in frames.pack({"inherited": inherited}, b""):
        _write(answers, part)
    while True:
        try:
            header, data = frames.receive(read, _MAX_REQUEST)
        except EOFError:
            return
        _allow_cpu(header["cpu_s"])
        answer, text = _answer(header, data)
        used = peak_so_far("self") or own_peak(resource.getrusage(resource.RUSAGE_SELF), inherited)
        # The next document must not fail for what this one left behind.
        answer["spent"] = answer.get("cause") == "extract_memory" or used > memory // 2
        for part in frames.pack(answer, text):
            _write(answers, part)


def _answer(header: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    try:
        text = _extract(header, data)
        if len(text) > header["characters"]:
            raise too_large(f"{len(text):,} characters", f"{header['characters']:,}")
        return {}, text.encode("utf-8", "surrogatepass")
    except DocumentError as error:
        cause, message, final = error.cause, error.message, error.final
    except MemoryError:
        cause, message, final = "extract_memory", "out of memory", True
    except Exception as error:
        cause, message, final = "extract_failed", f"{type(error).__name__}: {error}", True
    return {"cause": cause, "message": message[:MAX_MESSAGE], "final": final}, b""


def _extract(header: dict[str, Any], data: bytes) -> str:
    # Each parser is loaded by the first document that needs it.
    match Kind(header["kind"]):
        case Kind.PDF:
            from batchq.source.pdf import pdf_text

            return pdf_text(data, max_pages=header["pages"], max_characters=header["characters"])
        case Kind.HTML:
            from batchq.source.hypertext import html_text

            return html_text(data)
        case Kind.OFFICE:
            from batchq.source.office import office_text

            return office_text(data, header["media_type"])
        case _:
            from batchq.source.text import decode_detected

            text = decode_detected(data)
            if text is None:
                raise DocumentError("unsupported", "no text in any known encoding", final=True)
            return text


def _allow_cpu(seconds: float) -> None:
    """Let the next document take so much more; beyond it the kernel ends this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, math.ceil(usage.ru_utime + usage.ru_stime + seconds))


def _limit(kind: int, value: int) -> None:
    """Lower a soft limit where the system lets one: macOS refuses some."""
    hard = resource.getrlimit(kind)[1]
    bounded = value if hard == resource.RLIM_INFINITY else min(value, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (bounded, hard))


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _die_with_parent(lifeline: int) -> None:
    """The parent never writes: a read returns only when it is gone."""
    os.read(lifeline, 1)
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
