"""The processor as the pipeline trusts it: whatever it does is one document's failure.

A processor may be anybody's code. What it raises, Rust's panics and a stray exit among
it, and what it returns is turned into an error that the pipeline charges to a document;
only an error of batchq's own, such as a lost device, passes as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from batchq.errors import BatchqError
from batchq.inference.base import Output, Prepared, Processor
from batchq.inference.vectors import shortest_floats
from batchq.item import Document

__all__ = ["Guarded", "ProcessorFault"]

DEFAULT_BATCH_COST = 16_384

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
        self._processor.load(device)

    @property
    def batch_tokens(self) -> int:
        """Known for certain only once it is loaded."""
        return int(getattr(self._processor, "batch_tokens", DEFAULT_BATCH_COST))

    def provenance(self) -> Mapping[str, Any]:
        describe = getattr(self._processor, "provenance", dict)
        return dict(describe())

    def prepare(self, document: Document) -> Prepared:
        """Raises DocumentError, ProcessorFault."""
        prepared = _call("prepare_failed", self._processor.prepare, document)
        if not isinstance(prepared, Prepared) or not _is_whole(prepared.cost, least=1):
            raise ProcessorFault(
                "prepare_failed",
                f"prepare returned {_described(prepared)}, and not Prepared(payload, cost) with "
                "a whole cost of at least 1",
            )
        return prepared

    def infer(self, batch: Sequence[Prepared]) -> list[Output]:
        """One output each, their values plain. Raises DocumentError, ProcessorFault."""
        outputs = _call("infer_failed", self._inferred, batch)
        if len(outputs) != len(batch):
            raise ProcessorFault(
                "infer_failed", f"{len(outputs)} outputs for {len(batch)} documents"
            )
        for output in outputs:
            if not isinstance(output, Output) or not (
                _is_whole(output.tokens_total) and _is_whole(output.tokens_used)
            ):
                raise ProcessorFault(
                    "output_invalid",
                    f"infer returned {_described(output)}, and not Output(value, tokens_total, "
                    "tokens_used) with whole numbers of tokens",
                )
        return outputs

    def _inferred(self, batch: Sequence[Prepared]) -> list[Output]:
        return [_plain(output) for output in self._processor.infer(batch)]


def _plain(output: Output) -> Output:
    """Arrays become lists here, where an error is still the processor's.

    Rows of float32 become the shortest decimals that restore them, half as long as others.
    """
    value: Any = getattr(output, "value", None)
    if str(getattr(value, "dtype", "")) == "float32" and getattr(value, "ndim", 0) in (1, 2):
        rows = shortest_floats(value if value.ndim == 2 else value[None])
        return replace(output, value=rows if value.ndim == 2 else rows[0])
    to_list = getattr(value, "tolist", None)
    return replace(output, value=to_list()) if callable(to_list) else output


def _call(cause: str, verb: Callable[[A], R], argument: A) -> R:
    try:
        return verb(argument)
    except BatchqError:
        raise
    except BaseException as error:
        described = f"{type(error).__name__}: {error}"
    # Raised outside, since the traceback of what was caught holds tensors.
    raise ProcessorFault(cause, described)


def _is_whole(number: object, least: int = 0) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= least


def _described(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
