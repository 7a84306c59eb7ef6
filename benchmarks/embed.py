"""How near `embed` comes to its model: ratios of rates within one run.

    python -m benchmarks.embed [--folder DIR] [--texts 2000] [--batching packed|fixed] [--json]

Texts are docstrings of Python's standard library: natural lengths, half below 30 tokens,
one in 25 longer than a window. Which ones is settled by their digests. With `--folder`
every file of a folder is a text.

    R0         the processor's own batches, already tensors, through the bare model
    encode     SentenceTransformer.encode in one call over the same windows, as texts
               (given whole, it would drop what lies beyond the first window)
    processor  prepare in a thread, sorted look-ahead, infer; nothing stored

What storing, verifying and committing cost on top is `benchmarks.pipeline`.

Each is run `--repeat` times, in turn, and the fastest counts: what else runs on the
machine only ever slows one down.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import math
import os
import queue
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchq.inference.base import Document, Prepared
from batchq.inference.batching import Batcher
from batchq.inference.device import cores_here
from batchq.inference.embed import Embed
from batchq.inference.lanes import side_by_side

WINDOW = 512


@dataclass(frozen=True)
class Workload:
    """Texts, prepared, and the batches they were run in."""

    texts: list[str]
    prepared: list[Prepared]
    batches: list[list[int]]


def library_texts(count: int) -> list[str]:
    """`count` docstrings of the standard library, in the order of their digests."""
    found: dict[str, str] = {}
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if not {"site-packages", "dist-packages", "test", "tests"} & set(file.parts):
            for text in _docstrings(file):
                found[hashlib.sha256(text.encode()).hexdigest()] = text
    return [found[digest] for digest in sorted(found)[:count]]


def _docstrings(file: Path) -> Iterator[str]:
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return
    for node in ast.walk(tree):
        if isinstance(
            node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        ) and (text := ast.get_docstring(node)):
            yield text


def folder_texts(folder: Path, count: int) -> list[str]:
    """The first `count` files of `folder` that hold text, whole."""
    texts: list[str] = []
    for file in sorted(folder.rglob("*")):
        if len(texts) == count:
            break
        try:
            if file.is_file() and (text := file.read_text(encoding="utf-8")).strip():
                texts.append(text)
        except (OSError, ValueError):
            continue
    return texts


def run_processor(processor: Embed, texts: Sequence[str]) -> Workload:
    """Prepare in a thread and infer from a sorted look-ahead, as the pipeline does."""
    prepared: list[Prepared | None] = [None] * len(texts)
    ready: queue.Queue[int | None] = queue.Queue(maxsize=2 * WINDOW)

    def prepare() -> None:
        for index, text in enumerate(texts):
            prepared[index] = processor.prepare(
                Document(f"text/{index}", "sha256:0", "text/plain", text)
            )
            ready.put(index)
        ready.put(None)

    feeder = threading.Thread(target=prepare, daemon=True)
    feeder.start()
    batcher: Batcher[int] = Batcher(processor.batch_tokens, WINDOW)
    batches = []
    ended = False
    while not ended or len(batcher):
        while not ended and not batcher.full:
            index = ready.get(timeout=600)
            if index is None:
                ended = True
            elif (one := prepared[index]) is not None:
                batcher.add(index, one.cost)
        if batch := batcher.next_batch():
            processor.infer([one for index in batch if (one := prepared[index]) is not None])
            batches.append(batch)
    return Workload(list(texts), [one for one in prepared if one is not None], batches)


def encode(encoder: Any, texts: Sequence[str]) -> None:
    """All texts in one call, on all cores."""
    with all_cores():
        encoder.encode(texts, show_progress_bar=False)


def record_steps(processor: Embed, work: Workload) -> list[tuple[Any, Any]]:
    """The very tensors (ids, mask) that the model is given for these batches."""
    model = processor._model
    steps: list[tuple[Any, Any]] = []

    def keep(module: Any, args: Any, kwargs: Any) -> None:
        steps.append((kwargs["input_ids"], kwargs["attention_mask"]))

    hook = model.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        for batch in work.batches:
            processor.infer([work.prepared[index] for index in batch])
    finally:
        hook.remove()
    return steps


def window_texts(processor: Embed, work: Workload) -> list[str]:
    """The text of every window, so that `encode` has the same tokens to run."""
    backend = processor._tokenizer()._backend
    texts = []
    for text, prepared in zip(work.texts, work.prepared, strict=True):
        spans = prepared.payload.spans
        if len(spans) == 1:
            texts.append(text)
            continue
        offsets = backend.encode(text, add_special_tokens=False).offsets
        texts += [text[offsets[start][0] : offsets[end - 1][1]] for start, end in spans]
    return texts


def run_model(processor: Embed, steps: Sequence[tuple[Any, Any]]) -> None:
    """R0: nothing but the model, as many steps at a time as the processor makes."""
    import torch

    def run(step: tuple[Any, Any]) -> None:
        with torch.inference_mode():
            processor._model(input_ids=step[0], attention_mask=step[1])

    side_by_side(run, steps, processor._lanes)
    if steps[0][0].is_cuda:
        torch.cuda.synchronize()


@contextmanager
def all_cores() -> Iterator[None]:
    """Let torch share each call among all cores, as it does by itself."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(cores_here())
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_model_step_by_step(processor: Embed, steps: Sequence[tuple[Any, Any]]) -> None:
    """R0 as a bare loop has it: one step after another, each on all cores."""
    import torch

    with torch.inference_mode(), all_cores():
        for ids, mask in steps:
            processor._model(input_ids=ids, attention_mask=mask)
        if steps[0][0].is_cuda:
            torch.cuda.synchronize()


def measure(
    contenders: dict[str, Callable[[], object]], repeat: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Wall and CPU seconds, each the least of `repeat` runs, taken in turn."""
    wall: dict[str, float] = {}
    cpu: dict[str, float] = {}
    for _ in range(repeat):
        for name, run in contenders.items():
            started, used = time.perf_counter(), time.process_time()
            run()
            wall[name] = min(time.perf_counter() - started, wall.get(name, math.inf))
            cpu[name] = min(time.process_time() - used, cpu.get(name, math.inf))
    return wall, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--texts", type=int, default=2_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--batching", choices=("packed", "fixed"), default="packed")
    parser.add_argument("--step-tokens", type=int)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")

    texts = (
        folder_texts(options.folder, options.texts)
        if options.folder
        else library_texts(options.texts)
    )
    processor = Embed(batching=options.batching, step_tokens=options.step_tokens)
    processor.load(options.device)
    work = run_processor(processor, texts)
    steps = record_steps(processor, work)

    from sentence_transformers import SentenceTransformer

    folder = str(processor._found.path)
    encoder = SentenceTransformer(folder, device=processor._device, local_files_only=True)
    parts = window_texts(processor, work)
    contenders: dict[str, Callable[[], object]] = {
        "R0": lambda: run_model(processor, steps),
        "step by step": lambda: run_model_step_by_step(processor, steps),
        "processor": lambda: run_processor(processor, texts),
        "encode": lambda: encode(encoder, parts),
    }
    seconds, cpu_seconds = measure(contenders, options.repeat)
    tokens = sum(one.cost for one in work.prepared)
    padded = sum(ids.numel() for ids, _ in steps)
    report = {
        "schema": 1,
        "texts": len(texts),
        "windows": len(parts),
        "tokens": tokens,
        "useful_token_share": round(tokens / padded, 4),
        "steps": len(steps),
        "batching": options.batching,
        "step_tokens": processor._step_tokens,
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "cpu_seconds": {name: round(value, 3) for name, value in cpu_seconds.items()},
        "texts_per_s": {name: round(len(texts) / value, 1) for name, value in seconds.items()},
        "ratio_to_R0": {name: round(seconds["R0"] / value, 3) for name, value in seconds.items()},
        **processor.provenance(),
    }
    if options.json:
        print(json.dumps(report))
        return
    for name, value in report.items():
        print(f"{name:20} {value}")


if __name__ == "__main__":
    main()
