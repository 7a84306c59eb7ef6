"""How much of this machine one document may take while its text is extracted."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["ExtractLimits"]


@dataclass(frozen=True, slots=True)
class ExtractLimits:
    """A document above a limit fails; none is cut. So limits don't shape results.

    `document_bytes`, `pages` and `characters` of one document; `memory_bytes` of address
    space of one extraction process (not enforced by macOS); `cpu_s` and `wall_s` seconds
    for one document; `processes` at once.
    """

    document_bytes: int = 100 << 20
    pages: int = 10_000
    characters: int = 50_000_000
    memory_bytes: int = 1 << 30
    cpu_s: float = 60.0
    wall_s: float = 120.0
    processes: int = max(1, min(4, os.cpu_count() or 1))
