"""Text embeddings by sentence-transformers models."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from batchq.errors import BatchqError, DocumentError, UsageError
from batchq.fingerprint import HINTS
from batchq.inference.base import Document, Output, Prepared
from batchq.inference.batching import Step, fixed_steps, packed_steps
from batchq.inference.device import (
    cores_here,
    import_torch,
    is_out_of_memory,
    load_failed,
    make_room,
    pick_device,
    raise_if_lost,
    use_cores,
)
from batchq.inference.digests import file_digests
from batchq.inference.embedding_model import EmbeddingModel, read_embedding_model
from batchq.inference.lanes import side_by_side
from batchq.inference.model_files import shaping_files
from batchq.inference.tokens import Row, Tokenizer
from batchq.inference.vectors import pool, shortest_floats
from batchq.inference.weights import ModelFolder, find_model
from batchq.inference.windows import windows

__all__ = ["DEFAULT_MODEL", "Embed"]

DEFAULT_MODEL = "all-MiniLM-L6-v2"

_DTYPES = ("float32", "bfloat16", "float16", "float64")
_BATCHINGS = ("packed", "fixed")
_STEP = 1_024
# Small steps pad less, and a core gains nothing from larger ones; an accelerator does.
_CORE_STEP = 512
_ACCELERATOR_STEP = 8_192
_STEPS_A_BATCH = 8
# So many steps a batch that no core waits long for another's last one.
_STEPS_A_CORE = 8


@dataclass(frozen=True, slots=True)
class _Windows:
    """A document's token ids (int32 array, without special tokens) and its windows."""

    ids: Any
    spans: list[tuple[int, int]]


class Embed:
    """Kind `embed`: one vector a document, a list of floats.

    `model`: a name or folder; `revision`: of a name, to pin it. `dtype`: what to
    compute in, by default what the checkpoint is kept in. `max_tokens`: of a window,
    special tokens included, by default the model's. `overlap`: tokens shared by
    neighbouring windows of a long document, whose vectors are averaged by length.
    `prompt`: put before each window, by default the model's own. `normalise`: to unit
    length. `batching`: `packed`, or `fixed` for outputs that do not depend on
    neighbours. `step_tokens`: tokens of one call of the model, padding included; with
    `packed` it follows the device unless given. `model_folder`: where the model lies
    here if not where `model` says; no part of the processing version.
    """

    CODE_VERSION = 1

    def __init__(
        self,
        *,
        model: str = DEFAULT_MODEL,
        revision: str | None = None,
        dtype: str | None = None,
        max_tokens: int | None = None,
        overlap: int = 32,
        prompt: str | None = None,
        normalise: bool = True,
        batching: str = "packed",
        step_tokens: int | None = None,
        model_folder: str | None = None,
    ) -> None:
        for name, text in (("model", model), ("revision", revision), ("prompt", prompt)):
            _require(name, text, isinstance(text, str | None), "text")
        _require("normalise", normalise, isinstance(normalise, bool), "true or false")
        _require_one_of("batching", batching, _BATCHINGS)
        if dtype is not None:
            _require_one_of("dtype", dtype, _DTYPES)
        _require_whole("overlap", overlap, 0)
        if max_tokens is not None:
            _require_whole("max_tokens", max_tokens, 8)
        if step_tokens is not None:
            _require_whole("step_tokens", step_tokens, 1)
        self._model_name = model
        self._revision = revision
        self._dtype = dtype
        self._max_tokens = max_tokens
        self._overlap = overlap
        self._prompt = prompt
        self._normalise = normalise
        self._fixed = batching == "fixed"
        self._given_step_tokens = step_tokens
        self._step_tokens = step_tokens or _STEP
        self._model_folder = model_folder
        self._tokenizer_lock = threading.Lock()
        self._device = "cpu"
        self._lanes = 1
        self._model: Any = None
        self._about: dict[str, Any] = {}

    @property
    def batch_tokens(self) -> int:
        """Tokens that `infer` likes to be given at once: several steps, to sort them."""
        return max(_STEPS_A_BATCH, _STEPS_A_CORE * self._lanes) * self._step_tokens

    @property
    def model_path(self) -> Path:
        """Where the model lies here."""
        return self._found.path

    # -- identity ------------------------------------------------------------------

    @cached_property
    def _found(self) -> ModelFolder:
        return find_model(self._model_name, revision=self._revision, folder=self._model_folder)

    @cached_property
    def _facts(self) -> EmbeddingModel:
        facts = read_embedding_model(
            self._found.path, dtype=self._dtype, max_tokens=self._max_tokens, prompt=self._prompt
        )
        if self._overlap > facts.max_tokens // 2:
            raise UsageError(
                f"an overlap of {self._overlap} is more than half a window of {facts.max_tokens}",
                hint="lower overlap, or raise max_tokens",
            )
        return facts

    def manifest(self) -> Mapping[str, Any]:
        facts = self._facts
        parameters: dict[str, Any] = {
            "model": self._found.name,
            "revision": self._revision,
            "dtype": facts.dtype,
            "max_tokens": facts.max_tokens,
            "overlap": self._overlap,
            "prompt": facts.prompt,
            "normalise": self._normalise,
            "batching": "fixed" if self._fixed else "packed",
        }
        if self._fixed or self._given_step_tokens is not None:
            parameters["step_tokens"] = self._step_tokens
        manifest: dict[str, Any] = {
            "kind": "embed",
            "processor": "embed",
            "code": self.CODE_VERSION,
            "parameters": parameters,
            "model": {
                "pooling": facts.pooling,
                "files": file_digests(self._found.path, shaping_files(self._found.path)),
            },
        }
        if self._found.place == "folder":
            manifest[HINTS] = {"model_folder": str(self._found.path.absolute())}
        return manifest

    def provenance(self) -> Mapping[str, Any]:
        """What the outputs were computed on and with; known once loaded."""
        return dict(self._about)

    # -- loading -------------------------------------------------------------------

    def load(self, device: str) -> None:
        """Bring the model to `device`; `auto` takes the best there is."""
        torch = import_torch()
        facts = self._facts
        self._device = pick_device(device)
        self._lanes = use_cores(self._device)
        import transformers

        # The bar would be one more writer to a terminal that is drawn on already.
        log: Any = transformers.utils.logging
        log.disable_progress_bar()
        try:
            model = transformers.AutoModel.from_pretrained(
                str(self._found.path),
                dtype=getattr(torch, facts.dtype),
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
            )
            if getattr(model.config, "is_encoder_decoder", False):
                model = model.get_encoder()
            model = model.eval().to(self._device)
        except Exception as error:
            raise_if_lost(error)
            raise load_failed(self._found.name, error) from error
        self._model = model
        self._tokenizer()
        if self._given_step_tokens is None and not self._fixed:
            self._step_tokens = _CORE_STEP if self._device == "cpu" else _ACCELERATOR_STEP
        self._about = {
            "device": self._device,
            "device_name": _device_name(self._device),
            "threads": cores_here(),
            "attention": model.config._attn_implementation,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }

    def _tokenizer(self) -> Tokenizer:
        with self._tokenizer_lock:
            return self._loaded_tokenizer

    @cached_property
    def _loaded_tokenizer(self) -> Tokenizer:
        facts = self._facts
        return Tokenizer(self._found.name, self._found.path, prompt=facts.prompt, lower=facts.lower)

    # -- documents -----------------------------------------------------------------

    def prepare(self, document: Document) -> Prepared:
        """Tokenize, in windows. The cost counts what the model will see, overlaps too.

        Raises DocumentError (`invalid_text`) for text that is no Unicode.
        """
        tokenizer = self._tokenizer()
        try:
            ids = tokenizer.ids(document.text)
        except UnicodeEncodeError as error:
            raise DocumentError(
                "invalid_text", f"the text is not valid Unicode: {error}", final=True
            ) from None
        size = self._facts.max_tokens - tokenizer.extra
        spans = windows(len(ids), size, min(self._overlap, size - 1))
        cost = sum(end - start + tokenizer.extra for start, end in spans)
        return Prepared(_Windows(ids, spans), max(1, cost))

    def infer(self, batch: Sequence[Prepared]) -> Sequence[Output]:
        """One vector each, in order.

        Out of memory halves the step and goes on. A vector that is not finite is
        computed once more by itself. Raises DocumentError (`out_of_memory`,
        `not_finite`) for a batch of one; for more, an error that says nothing of
        any one document (MemoryError, FloatingPointError), so that the caller can
        try them one by one. Raises DeviceLost if the device is of no use any more.
        """
        if not batch:
            return []
        if self._model is None:
            raise BatchqError("infer before load", hint="call load(device) first")
        import numpy

        vectors, shapes = self._merged(batch)
        broken = numpy.flatnonzero(~numpy.isfinite(vectors).all(axis=1)).tolist()
        for index in broken if len(batch) > 1 else ():
            again, shape = self._merged([batch[index]])
            vectors[index], shapes[index] = again[0], shape[0]
        if not numpy.isfinite(vectors).all():
            if len(batch) == 1:
                raise DocumentError("not_finite", "the model's output is not finite", final=True)
            raise FloatingPointError(f"of {len(batch)} documents some have no finite output")
        values = shortest_floats(vectors)
        return [
            Output(value, len(prepared.payload.ids), len(prepared.payload.ids), shape)
            for value, prepared, shape in zip(values, batch, shapes, strict=True)
        ]

    def _merged(self, batch: Sequence[Prepared]) -> tuple[Any, list[tuple[int, int]]]:
        """A float32 array (documents, dimensions), and the step each began in."""
        import numpy

        documents: list[_Windows] = [prepared.payload for prepared in batch]
        rows = [
            (document.ids, start, end) for document in documents for start, end in document.spans
        ]
        pooled, shapes = self._run(rows, alone=len(batch) == 1)
        counts = [len(document.spans) for document in documents]
        firsts = numpy.cumsum([0, *counts[:-1]])
        weights = numpy.array([max(1, end - start) for _, start, end in rows], dtype=numpy.float64)
        weights /= numpy.repeat(numpy.add.reduceat(weights, firsts), counts)
        merged = numpy.add.reduceat(pooled.astype(numpy.float64) * weights[:, None], firsts)
        if self._normalise:
            norms = numpy.sqrt((merged * merged).sum(axis=1, keepdims=True))
            merged /= numpy.where(norms == 0, 1.0, norms)
        return merged.astype(numpy.float32), [shapes[first] for first in firsts]

    # -- the device ----------------------------------------------------------------

    def _run(self, rows: Sequence[Row], *, alone: bool) -> tuple[Any, list[tuple[int, int]]]:
        """Pooled float32 vectors (windows, dimensions), and each one's step as (rows, width)."""
        import numpy

        extra = self._tokenizer().extra
        lengths = [end - start + extra for _, start, end in rows]
        left = list(range(len(rows)))
        order: list[int] = []
        parts: list[Any] = []
        shapes: list[tuple[int, int]] = [(0, 0)] * len(rows)
        while left:
            steps = self._steps([lengths[index] for index in left])
            made, failed = self._try([rows[index] for index in left], steps)
            for step, part in made:
                members = [left[member] for member in step.members]
                parts.append(part)
                order += members
                for index in members:
                    shapes[index] = (step.rows, step.width)
            if failed is None:
                break
            make_room(self._device)
            self._shrink(failed, alone=alone)
            ran = set(order)
            left = [index for index in left if index not in ran]
        pooled = import_torch().cat(parts).cpu().numpy()
        result = numpy.empty_like(pooled)
        result[order] = pooled
        return result, shapes

    def _try(
        self, rows: Sequence[Row], steps: Sequence[Step]
    ) -> tuple[list[tuple[Step, Any]], Step | None]:
        """Those steps that ran, with their vectors, and one that did not fit into memory."""
        outcomes = side_by_side(lambda step: self._step(rows, step), steps, self._lanes)
        failed: Step | None = None
        made = []
        for step, outcome in zip(steps, outcomes, strict=True):
            if isinstance(outcome, Exception):
                raise_if_lost(outcome)
                if not is_out_of_memory(outcome):
                    raise outcome
                failed = failed or step
            elif outcome is not None:
                made.append((step, outcome))
        return made, failed

    def _steps(self, lengths: Sequence[int]) -> list[Step]:
        if self._fixed:
            return fixed_steps(lengths, self._step_tokens, self._facts.max_tokens)
        return packed_steps(lengths, self._step_tokens, self._lanes)

    def _shrink(self, failed: Step, *, alone: bool) -> None:
        """After a step that did not fit: smaller ones from now on, or one at a time."""
        if not self._fixed and failed.rows > 1:
            self._step_tokens = max(1, failed.rows // 2 * failed.width)
            return
        if self._lanes > 1:
            self._lanes = 1
            return
        where = (
            f"{failed.rows} x {failed.width} tokens do not fit into the memory of {self._device}"
        )
        if alone:
            hint = "lower step_tokens, in a new run" if self._fixed else "lower max_tokens"
            raise DocumentError("out_of_memory", where, hint=hint)
        raise MemoryError(where)

    def _step(self, rows: Sequence[Row], step: Step) -> Any:
        """Pooled vectors of the step's members, on the device, in float32."""
        torch = import_torch()
        members = [rows[member] for member in step.members]
        ids, lengths = self._tokenizer().padded(members, step)
        with torch.inference_mode():
            on_device = torch.from_numpy(ids).to(self._device, non_blocking=True)
            counts = torch.from_numpy(lengths).to(self._device, non_blocking=True)
            mask = torch.arange(step.width, device=self._device)[None, :] < counts[:, None]
            hidden = self._model(input_ids=on_device, attention_mask=mask.long())[0].float()
            return pool(hidden, mask, counts, self._facts.pooling)[: len(members)]


def _require_one_of(name: str, value: str, known: Sequence[str]) -> None:
    _require(name, value, value in known, f"one of {', '.join(known)}")


def _require_whole(name: str, value: int, least: int) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
    _require(name, value, whole, f"a whole number, {least} or more")


def _require(name: str, value: object, fits: bool, expected: str) -> None:
    if not fits:
        raise UsageError(f"{name} is {value!r}", hint=expected)


def _device_name(device: str) -> str:
    torch = import_torch()
    return str(torch.cuda.get_device_name(device)) if device.startswith("cuda") else device
