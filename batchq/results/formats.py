"""How results become a file: pieces that are appended while they come, and a last step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Protocol

from batchq.results.checked import Checked
from batchq.results.journal import Buffer

__all__ = ["Format", "Jsonl", "UnfitOutput"]


class UnfitOutput(Exception):
    """An output that the format has no place for; the message names the document."""


class Format(Protocol):
    """How results become a file. `name` says all that shapes its bytes.

    `ahead`: portions to encode, in other threads, while one is written. That helps
    only what leaves Python's lock to others for most of its time.
    """

    name: str
    ahead: int

    def encode(self, portion: list[Checked]) -> Sequence[Buffer]:
        """Pieces of the part file. Raises UnfitOutput."""
        ...

    def finish(self, part: Path) -> Path:
        """The whole file, from the whole part."""
        ...


class Jsonl:
    """One JSON document a line."""

    name = "jsonl"
    ahead = 0

    def encode(self, portion: list[Checked]) -> Sequence[Buffer]:
        return list(chain.from_iterable(checked.json_line() for checked in portion))

    def finish(self, part: Path) -> Path:
        return part
