"""A model's tokenizer, for many threads at once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from batchq.errors import BatchqError
from batchq.inference.batching import Step
from batchq.inference.device import load_failed
from batchq.inference.windows import pieces

__all__ = ["Row", "Tokenizer"]

_PIECE = 16_384
"""Characters tokenized at a time."""

Row = tuple[Any, int, int]
"""One window: token ids (int32 array) of a document, start and end in them."""


class Tokenizer:
    """Token ids of texts without special tokens, and rows with them.

    `extra` is how many tokens each row has besides those of its window.
    """

    def __init__(self, name: str, folder: Path, *, prompt: str = "", lower: bool = False) -> None:
        # Threads are the caller's; the library's own would fight with them.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        from transformers import AutoTokenizer

        try:
            loaded = AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False, use_fast=True
            )
            self._backend = loaded.backend_tokenizer
        except Exception as error:
            raise load_failed(name, error) from error
        # Set once: setting them while another thread encodes is an error.
        self._backend.no_truncation()
        self._backend.no_padding()
        self._lower = lower
        self._pad = loaded.pad_token_id or 0
        before, after = self._specials(name)
        self._before = [*before, *self._encode(prompt)] if prompt else before
        self._after = after
        self.extra = len(self._before) + len(self._after)

    def _specials(self, name: str) -> tuple[list[int], list[int]]:
        """The special tokens that the model expects before and after a text."""
        probe = self._backend.encode("a", add_special_tokens=True)
        real = [index for index, mask in enumerate(probe.special_tokens_mask) if not mask]
        if not real:
            raise BatchqError(f"the tokenizer of {name} drops the letter a", hint="is it complete?")
        return list(probe.ids[: real[0]]), list(probe.ids[real[-1] + 1 :])

    def _encode(self, text: str) -> list[int]:
        # The library takes a lone surrogate for a wrong type; this says what it is.
        text.encode()
        # The batch call, unlike the single one, lets other threads run meanwhile.
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    def ids(self, text: str) -> Any:
        """The whole text as an int32 array. Raises UnicodeEncodeError for lone surrogates."""
        import numpy

        if self._lower:
            text = text.lower()
        parts = [
            numpy.array(self._encode(piece), dtype=numpy.int32) for piece in pieces(text, _PIECE)
        ]
        return parts[0] if len(parts) == 1 else numpy.concatenate(parts)

    def padded(self, rows: Sequence[Row], step: Step) -> tuple[Any, Any]:
        """Ids (step.rows, step.width) as int64, and each row's number of real tokens.

        Dummy rows have as many real tokens as keep the step's mask as it is: all of
        them if every row is full, else one.
        """
        import numpy

        ids = numpy.full((step.rows, step.width), self._pad, dtype=numpy.int64)
        counts = numpy.ones(step.rows, dtype=numpy.int64)
        first = len(self._before)
        for index, (tokens, start, end) in enumerate(rows):
            last = first + end - start
            counts[index] = last + len(self._after)
            ids[index, :first] = self._before
            ids[index, first:last] = tokens[start:end]
            ids[index, last : counts[index]] = self._after
        if counts[0] == step.width:
            counts[len(rows) :] = step.width
        return ids, counts
