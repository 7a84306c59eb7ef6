"""Batch inference over a pile of documents, with one committed result for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchq.api import read_results

__all__ = ["__version__", "read_results"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """What it takes to read results is imported when it is first asked for."""
    if name == "read_results":
        from batchq.api import read_results

        return read_results
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
