"""A user's processor, as the documentation shows one: counts letters, needs no model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from batchq.inference.base import Document, Output, Prepared

__all__ = ["Letters"]


class Letters:
    """The `most` commonest letters of a text."""

    def __init__(self, *, most: int = 3) -> None:
        self.most = most

    def manifest(self) -> Mapping[str, Any]:
        return {"most": self.most}

    def load(self, device: str) -> None:
        pass

    def prepare(self, document: Document) -> Prepared:
        words = document.text.split()
        return Prepared(words, max(1, len(words)))

    def infer(self, batch: Sequence[Prepared]) -> Sequence[Output]:
        return [self._count(prepared.payload) for prepared in batch]

    def _count(self, words: Sequence[str]) -> Output:
        letters = Counter("".join(words).lower())
        commonest = sorted(letters, key=lambda letter: (-letters[letter], letter))[: self.most]
        return Output({"letters": commonest}, len(words), len(words))
