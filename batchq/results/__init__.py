"""Committed results read back: one, all to a file, or all to a program. Every byte is checked."""

from __future__ import annotations

from batchq.results.destination import Destination, LocalFile, StoreObject
from batchq.results.exporting import Exported, export
from batchq.results.one import fetch
from batchq.results.reading import committed_portions, documents

__all__ = [
    "Destination",
    "Exported",
    "LocalFile",
    "StoreObject",
    "committed_portions",
    "documents",
    "export",
    "fetch",
]
