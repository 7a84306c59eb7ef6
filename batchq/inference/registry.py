"""Processors by kind: built from a configuration, and again from a run's manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchq.errors import UsageError
from batchq.fingerprint import HINTS
from batchq.inference.base import Processor
from batchq.inference.user import load_processor, refuse_unknown
from batchq.words import did_you_mean

__all__ = ["KINDS", "build_processor", "full_manifest", "rebuild_processor"]

KINDS = ("embed", "stats")
"""The built-in kinds; any other is `module:Class`."""


def build_processor(kind: str, parameters: Mapping[str, Any]) -> Processor:
    """The processor of `kind` with `parameters` as its constructor's keyword arguments.

    Neither loads the model nor imports torch. Raises UsageError for an unknown kind or
    parameter, naming the known ones, and for a value that is out of range.
    """
    if ":" in kind:
        return load_processor(kind, parameters)
    found = _built_in(kind)
    refuse_unknown(kind, found, parameters)
    processor: Processor = found(**parameters)
    return processor


def rebuild_processor(manifest: Mapping[str, Any]) -> Processor:
    """The processor that made `manifest`, with the code and files that are here.

    Whether it is still the same shows in its own manifest. Raises UsageError for a
    manifest that names no processor of this release.
    """
    try:
        kind, parameters = str(manifest["processor"]), dict(manifest["parameters"])
    except (KeyError, TypeError, ValueError):
        raise UsageError(
            "the run's manifest names no processor",
            hint="it was made by another release of batchq; use that, or name a new run",
        ) from None
    return build_processor(kind, parameters | dict(manifest.get(HINTS, {})))


def full_manifest(processor: Processor, extractor: Mapping[str, Any]) -> dict[str, Any]:
    """All that shapes a result: the processor's manifest, and the extractor's."""
    return {**processor.manifest(), "extractor": dict(extractor)}


def _built_in(kind: str) -> type:
    if kind == "embed":
        from batchq.inference.embed import Embed

        return Embed
    if kind == "stats":
        from batchq.inference.stats import Stats

        return Stats
    raise UsageError(
        f"there is no processor {kind}",
        hint=did_you_mean(kind, KINDS) or f"one of {', '.join(KINDS)}, or module:Class",
    )
