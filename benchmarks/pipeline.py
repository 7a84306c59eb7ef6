"""How near a worker comes to its model: everything durable against the bare model.

    python -m benchmarks.pipeline [--texts 2000] [--batching packed|fixed] [--repeat 3] [--json]

The same texts as `benchmarks.embed`, as files in a folder, are enqueued on SQLite and
worked on by a whole worker: claims, extraction, tokenizing, inference, files with fsync,
read-back, commits. In the same run the very batches that the worker made are replayed
through the bare model (R0), and SentenceTransformer encodes all texts in one call.

    R0        the worker's own batches, already tensors, through the bare model: on a CPU
              a step a core, as the worker runs them
    loop      the same, one step after another, each on all cores, as torch does by itself
    R1        the pipeline with a store and a ledger in memory: no fsync
    R2        everything durable
    encode    SentenceTransformer.encode over all texts in one call

Loading the model is outside every figure. `feed_stall_s` is how long the device of the
fastest R2 had nothing to do between its first batch and its last.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from batchq.clock import SystemClock
from batchq.enqueue import enqueue, ensure_run
from batchq.event import RecordedEvents
from batchq.inference.base import Output, Prepared
from batchq.inference.embed import Embed
from batchq.inference.registry import full_manifest
from batchq.ledger.base import Ledger
from batchq.ledger.memory import MemoryLedger
from batchq.ledger.sql import SqlLedger
from batchq.source.directory import DirectorySource
from batchq.source.extract import Extractor, extractor_manifest
from batchq.source.local import LocalReader
from batchq.store.base import Store
from batchq.store.local import LocalStore
from batchq.store.memory import MemoryStore
from batchq.worker.worker import WorkerSettings, run_worker
from benchmarks.embed import (
    Workload,
    encode,
    library_texts,
    record_steps,
    run_model,
    run_model_step_by_step,
)

Steps = list[tuple[Any, Any]]


class Loaded(Embed):
    """The processor, loaded once for all runs, that notes its batches and its idle time."""

    def __init__(self, **parameters: Any) -> None:
        super().__init__(**parameters)
        self._ready = False
        self.batches: list[list[Prepared]] = []
        self.busy_s = 0.0
        self.began = 0.0
        self.ended = 0.0

    def load(self, device: str) -> None:
        if not self._ready:
            super().load(device)
            self._ready = True

    def forget(self) -> None:
        self.batches, self.busy_s, self.began = [], 0.0, 0.0

    def infer(self, batch: Sequence[Prepared]) -> Sequence[Output]:
        began = time.perf_counter()
        self.began = self.began or began
        outputs = super().infer(batch)
        self.ended = time.perf_counter()
        self.busy_s += self.ended - began
        self.batches.append(list(batch))
        return outputs

    @property
    def stall_s(self) -> float:
        return self.ended - self.began - self.busy_s


def work(processor: Loaded, docs: Path, ledger: Ledger, store: Store) -> float:
    """Seconds from the worker's start to its end; the enqueue is not among them."""
    clock = SystemClock()
    ledger.initialise()
    store.probe()
    manifest = full_manifest(processor, extractor_manifest())
    run = ensure_run(ledger, store, "benchmark", manifest, "item")
    enqueue(ledger, run, [DirectorySource(docs)], LocalReader(), clock=clock)
    processor.forget()
    with closing(Extractor()) as extractor:
        began = time.perf_counter()
        run_worker(
            ledger=ledger,
            run=run,
            store=store,
            reader=LocalReader(),
            extractor=extractor,
            processor=processor,
            settings=WorkerSettings(),
            events=RecordedEvents(),
            clock=clock,
        )
        seconds = time.perf_counter() - began
    completed = ledger.counts(run).tallies.completed
    ledger.close()
    if completed != len(list(docs.iterdir())):
        raise SystemExit(f"only {completed} documents completed")
    return seconds


def replayed(processor: Loaded) -> Steps:
    """The tensors of the batches that the last worker made."""
    batches = processor.batches
    flat = [one for batch in batches for one in batch]
    places = iter(range(len(flat)))
    plan = [[next(places) for _ in batch] for batch in batches]
    return record_steps(processor, Workload([], flat, plan))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--texts", type=int, default=2_000)
    parser.add_argument("--batching", choices=("packed", "fixed"), default="packed")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    texts = library_texts(options.texts)
    processor = Loaded(batching=options.batching)
    processor.load("cpu")

    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(
        str(processor._found.path), device=processor._device, local_files_only=True
    )
    rows: list[dict[str, float]] = []
    stalls: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        docs = Path(folder) / "docs"
        docs.mkdir()
        for number, text in enumerate(texts):
            (docs / f"{number:05}.txt").write_text(text)
        for turn in range(options.repeat):
            place = Path(folder) / f"run{turn}"
            place.mkdir()
            row = {}
            ledger = SqlLedger(f"sqlite:///{place}/ledger.db")
            row["R2"] = work(processor, docs, ledger, LocalStore(place / "out"))
            stalls.append(processor.stall_s)
            steps = replayed(processor)
            began = time.perf_counter()
            run_model(processor, steps)
            row["R0"] = time.perf_counter() - began
            began = time.perf_counter()
            run_model_step_by_step(processor, steps)
            row["loop"] = time.perf_counter() - began
            row["R1"] = work(processor, docs, MemoryLedger(), MemoryStore())
            began = time.perf_counter()
            encode(encoder, texts)
            row["encode"] = time.perf_counter() - began
            rows.append(row)
    best = {name: min(row[name] for row in rows) for name in rows[0]}
    ratios = sorted(row["R0"] / row["R2"] for row in rows)
    report = {
        "schema": 1,
        "texts": len(texts),
        "batching": options.batching,
        "seconds": {name: round(value, 2) for name, value in best.items()},
        "R1_to_R0": round(best["R0"] / best["R1"], 3),
        "R2_to_R0": round(best["R0"] / best["R2"], 3),
        "R2_to_R0_by_turn": [round(ratio, 3) for ratio in ratios],
        "R2_to_loop": round(best["loop"] / best["R2"], 3),
        "R2_to_encode": round(best["encode"] / best["R2"], 3),
        "feed_stall_s": round(min(stalls), 2),
    }
    if options.json:
        print(json.dumps(report))
        return
    for name, value in report.items():
        print(f"{name:20} {value}")


if __name__ == "__main__":
    main()
