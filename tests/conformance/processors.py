"""The processors that the suite runs on, loaded once a process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pytest

from batchq.inference.base import Document, Output, Processor
from batchq.inference.registry import build_processor

__all__ = ["PROCESSORS", "document", "loaded", "outputs"]

PROCESSORS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "stats": ("stats", {}),
    "embed packed": ("embed", {}),
    # Small steps, since dummy rows cost as much as real ones.
    "embed fixed": ("embed", {"batching": "fixed", "step_tokens": 512}),
    "user's own": ("tests.conformance.example_processor:Letters", {}),
}
"""By name: a kind and its parameters."""


@cache
def loaded(name: str) -> Processor:
    """The processor on the CPU; embedding needs the packaged weights and the extra."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    kind, parameters = PROCESSORS[name]
    if kind == "embed":
        pytest.importorskip("torch")
        pytest.importorskip("transformers")
    processor = build_processor(kind, parameters)
    processor.load("cpu")
    return processor


def document(text: str, source_id: str = "docs/a.md") -> Document:
    return Document(source_id, "sha256:" + "0" * 64, "text/plain", text)


def outputs(processor: Processor, texts: Sequence[str]) -> list[Output]:
    """Prepared one by one, inferred as one batch."""
    return list(processor.infer([processor.prepare(document(text)) for text in texts]))
