"""Counts and a digest of each text: no model, for rehearsals and for comparing corpora."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from batchq.inference.base import Document, Output, Prepared

__all__ = ["Stats"]


class Stats:
    """Kind `stats`: `{"characters", "words", "lines", "sha256"}` of a document's text.

    Words are what white space separates, lines what `str.splitlines` gives, the
    digest is that of the text in UTF-8. A token is a word here.
    """

    CODE_VERSION = 1
    batch_tokens = 65_536

    def manifest(self) -> Mapping[str, Any]:
        return {
            "kind": "stats",
            "processor": "stats",
            "code": self.CODE_VERSION,
            "parameters": {},
        }

    def load(self, device: str) -> None:
        """Nothing to load, on any device."""

    def provenance(self) -> Mapping[str, Any]:
        return {"device": "cpu"}

    def prepare(self, document: Document) -> Prepared:
        text = document.text
        words = len(text.split())
        value = {
            "characters": len(text),
            "words": words,
            "lines": len(text.splitlines()),
            # A lone surrogate has no UTF-8, but it has a digest.
            "sha256": hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
        }
        return Prepared(Output(value, words, words), max(1, words))

    def infer(self, batch: Sequence[Prepared]) -> Sequence[Output]:
        return [prepared.payload for prepared in batch]
