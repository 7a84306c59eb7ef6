"""Processors: what is done to a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from batchq.item import Document

__all__ = ["DEFAULT_BATCH_TOKENS", "Document", "Output", "Prepared", "Processor"]

DEFAULT_BATCH_TOKENS = 16_384
"""What `infer` is given at once, in cost, where a processor does not say what it likes."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A document ready for the device. `cost` is in tokens, at least 1."""

    payload: Any
    cost: int


@dataclass(frozen=True, slots=True)
class Output:
    """One document's output: JSON, or arrays of floats. Tokens in the document and used.

    `batch`: rows and width (tokens) of the step it was computed in, for the provenance.
    """

    value: Any
    tokens_total: int
    tokens_used: int
    batch: tuple[int, int] | None = None


@runtime_checkable
class Processor(Protocol):
    """What the built-in kinds implement, and a user's `module:Class` too.

    A user's class is constructed with the parameters of `[processor]` as keyword
    arguments. `prepare` runs in several threads; `infer` and `load` in one.

    Optional: an attribute `batch_tokens` (how much cost `infer` likes to be given at
    once), a method `provenance()` (JSON: what it computes on and with) and an attribute
    `model_path` (the folder that its weights lie in here, for `doctor`).
    """

    def manifest(self) -> Mapping[str, Any]:
        """Everything that shapes an output, as JSON. Must not need torch."""
        ...

    def load(self, device: str) -> None:
        """Bring the model to `device`: `cpu`, `cuda`, `cuda:1`, `mps`, or `auto`, the best here."""
        ...

    def prepare(self, document: Document) -> Prepared:
        """Everything that needs no device: tokenize, count. Raises DocumentError."""
        ...

    def infer(self, batch: Sequence[Prepared]) -> Sequence[Output]:
        """One output each, in order. May raise DocumentError only for a batch of one."""
        ...
