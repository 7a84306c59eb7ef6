"""How results become a file: pieces that are appended while they come, and a last step."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Protocol

from batchq.results.checked import Checked

__all__ = ["Format", "Jsonl", "UnfitOutput"]


class UnfitOutput(Exception):
    """An output that the format has no place for; the message names the document."""


class Format(Protocol):
    """How results become a file. `name` says all that shapes its bytes."""

    name: str

    def encode(self, portion: list[Checked]) -> bytes:
        """A piece of the part file. Raises UnfitOutput."""
        ...

    def finish(self, part: Path) -> Path:
        """The whole file, from the whole part."""
        ...


class Jsonl:
    """One JSON document a line."""

    name = "jsonl"

    def encode(self, portion: list[Checked]) -> bytes:
        return b"".join(chain.from_iterable(checked.json_line() for checked in portion))

    def finish(self, part: Path) -> Path:
        return part
