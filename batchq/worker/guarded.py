"""The processor as the pipeline trusts it: whatever it does is one document's failure.

A processor may be anybody's code. What it raises, Rust's panics and a stray exit among
it, and what it returns is turned into an error that the pipeline charges to a document;
only an error of batchq's own, such as a lost device, passes as it is. A process that it
forks and that comes back here is ended: it would be a second worker without its threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from operator import index
from typing import Any, TypeVar

from batchq.errors import BatchqError, DocumentError, UsageError
from batchq.inference.base import DEFAULT_BATCH_TOKENS, Output, Prepared, Processor
from batchq.inference.vectors import shortest_floats
from batchq.item import Document
from batchq.redact import secret_in
from batchq.result import canonical_json
from batchq.words import counted

__all__ = ["Guarded", "ProcessorFault"]

A = TypeVar("A")
R = TypeVar("R")


class ProcessorFault(Exception):
    """The processor raised what it should not, or returned what it must not. `cause` as kept."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


class Guarded:
    """Calls a processor and looks at what comes back."""

    def __init__(self, processor: Processor) -> None:
        self._processor = processor

    def load(self, device: str) -> None:
        """Raises what the processor raises; an exit there is an error like any other."""
        _returned("load", self._processor.load, device)

    @property
    def batch_tokens(self) -> int:
        """Known for certain only once it is loaded."""
        return int(getattr(self._processor, "batch_tokens", DEFAULT_BATCH_TOKENS))

    def provenance(self) -> Mapping[str, Any]:
        """JSON. Raises UsageError if it is none or holds a secret: it goes into every result."""
        describe = getattr(self._processor, "provenance", dict)
        try:
            told = dict(_returned("provenance", lambda _: describe(), None))
            canonical_json(told)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"the processor's provenance is not JSON: {_said(error)}",
                hint="provenance() returns a dict of text, numbers, lists and dicts of them",
            ) from None
        if found := secret_in(told):
            raise UsageError(
                f"the processor's provenance: {found} looks like a secret",
                hint="it is kept with every result",
            )
        return told

    def prepare(self, document: Document) -> Prepared:
        """Raises DocumentError, ProcessorFault."""
        prepared = _call("prepare_failed", self._processor.prepare, document)
        if not isinstance(prepared, Prepared) or (cost := _whole(prepared.cost, least=1)) is None:
            raise ProcessorFault(
                "prepare_failed",
                f"prepare returned {_described(prepared)}, and not Prepared(payload, cost) with "
                "a whole cost of at least 1",
            )
        return prepared if cost is prepared.cost else replace(prepared, cost=cost)

    def infer(self, batch: Sequence[Prepared]) -> list[Output]:
        """One output each, their values plain. Raises DocumentError, ProcessorFault."""
        return _call("infer_failed", self._inferred, batch)

    def _inferred(self, batch: Sequence[Prepared]) -> list[Output]:
        # A tuple: sorted in place, the documents would get each other's outputs.
        inferred = self._processor.infer(tuple(batch))
        # One more than there should be: what yields without end is found by that too. Each is
        # copied as it comes, since a generator may fill its last one again.
        outputs = [_checked(each) for each in islice(inferred, len(batch) + 1)]
        if len(outputs) != len(batch):
            number = len(outputs) if len(outputs) < len(batch) else f"more than {len(batch)}"
            documents = counted(len(batch), "document")
            raise ProcessorFault("infer_failed", f"infer returned {number} outputs for {documents}")
        return outputs


def _checked(output: Output) -> Output:
    if isinstance(output, Output):
        total, used = _whole(output.tokens_total), _whole(output.tokens_used)
        if total is not None and used is not None:
            return replace(output, value=_plain(output.value), tokens_total=total, tokens_used=used)
    raise ProcessorFault(
        "output_invalid",
        f"infer returned {_described(output)}, and not Output(value, tokens_total, "
        "tokens_used) with whole numbers of tokens",
    )


_ATOMS = frozenset((bool, float, int, str, type(None)))


def _plain(value: Any) -> Any:
    """A copy, with arrays as lists: made here, where an error is still the processor's.

    It is stored while the next batch is computed, and a processor may fill the same lists
    and dicts again. Rows of float32 become the shortest decimals that restore them, half as
    long as others.
    """
    if isinstance(value, dict):
        named = {}
        for key, inner in value.items():
            named[key] = inner if inner.__class__ in _ATOMS else _plain(inner)
        return named
    if isinstance(value, list) and _ATOMS.issuperset(map(type, value)):
        # Nearly every output is a long row of numbers.
        return list(value)
    if isinstance(value, list | tuple):
        # No comprehension, whose frames would halve the depth that fits.
        listed = []
        for inner in value:
            listed.append(inner if inner.__class__ in _ATOMS else _plain(inner))
        return listed
    if str(getattr(value, "dtype", "")) == "float32" and getattr(value, "ndim", 0) in (1, 2):
        rows = shortest_floats(value if value.ndim == 2 else value[None])
        return rows if value.ndim == 2 else rows[0]
    to_list = getattr(value, "tolist", None)
    return to_list() if callable(to_list) else value


def _call(cause: str, verb: Callable[[A], R], argument: A) -> R:
    try:
        return _at_home(verb, argument)
    except BaseException as error:
        if isinstance(error, BatchqError | ProcessorFault) and _is_complete(error):
            raise
        described = _said(error)
    # Raised outside, since the traceback of what was caught holds tensors.
    raise ProcessorFault(cause, described)


def _is_complete(error: BatchqError | ProcessorFault) -> bool:
    """A class derived from DocumentError may have left out what makes it one."""
    return not isinstance(error, DocumentError) or (
        isinstance(getattr(error, "cause", None), str)
        and isinstance(getattr(error, "message", None), str)
        and isinstance(getattr(error, "final", None), bool)
    )


def _returned(name: str, verb: Callable[[A], R], argument: A) -> R:
    try:
        return _at_home(verb, argument)
    except Exception:
        raise
    except BaseException as error:
        described = _said(error)
    raise BatchqError(
        f"the processor's {name}() ended with {described}", hint="it must return, or raise an error"
    )


def _at_home(verb: Callable[[A], R], argument: A) -> R:
    home = os.getpid()
    try:
        return verb(argument)
    finally:
        if os.getpid() != home:
            os._exit(1)


def _whole(number: Any, least: int = 0) -> int | None:
    """As Python's own whole number, which numpy's are not, or none if it is no such.

    None has more than 63 bits: a table would not hold it.
    """
    try:
        found = None if isinstance(number, bool) else index(number)
    except Exception:
        return None
    return found if found is not None and least <= found < 1 << 63 else None


def _said(error: BaseException) -> str:
    """An error with its message, which it may fail to tell, and its notes."""
    name = type(error).__name__
    try:
        notes = "; ".join(getattr(error, "__notes__", ()))
        return f"{name}: {error} ({notes})" if notes else f"{name}: {error}"
    except Exception:
        return f"{name}, without a message"


def _described(value: object) -> str:
    """Without a payload or an output, which may hold the document's text."""
    try:
        if isinstance(value, Prepared):
            return f"Prepared(…, cost={value.cost!r})"
        if isinstance(value, Output):
            return f"Output(…, {value.tokens_total!r}, {value.tokens_used!r})"
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:200]}…"
