"""What S3 costs a worker: ratios of rates within one run, against a server on this machine.

    python -m benchmarks.s3 [shard] [item] [delay] [--documents 4096] [--texts 300]
                            [--repeat 3] [--json]

    shard, item  a worker with `stats` in that layout at 256 results a flush, over a bare loop
                 that uploads the very objects it made, unverified, with as many threads; and
                 over the same worker with a folder for a store
    delay        a worker with `embed` in layout `item`, each request delayed by 20 ms, over
                 the same worker without the delay, and over one with a folder for a store

The server is the strict one of the tests, in a process of its own: it checks every checksum, and
takes its share of the same cores.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from batchq.clock import SystemClock
from batchq.enqueue import enqueue, ensure_run
from batchq.event import RecordedEvents
from batchq.inference.base import Processor
from batchq.inference.registry import full_manifest
from batchq.inference.stats import Stats
from batchq.ledger.base import Run
from batchq.ledger.sql import SqlLedger
from batchq.result import sha256_hex
from batchq.source.directory import DirectorySource, LocalReader
from batchq.source.extract import Extractor, extractor_manifest
from batchq.store.base import Store
from batchq.store.local import LocalStore
from batchq.store.s3 import S3Store
from batchq.worker.worker import WorkerSettings, run_worker
from benchmarks.embed import library_texts
from benchmarks.pipeline import Loaded
from tests.faults.strict_s3 import StrictS3

FLUSH = 256
DELAY_S = 0.02
PUTTERS = 32
BUCKET = "bucket"


def serve(delay: float) -> None:
    """Say where, and serve until stdin is closed."""
    with StrictS3() as server:
        server.state.create_bucket(BUCKET)
        take = server.next_fault

        def delayed(operation: str, key: str) -> Any:
            time.sleep(delay)
            return take(operation, key)

        server.next_fault = delayed  # type: ignore[method-assign]
        print(server.url, flush=True)
        sys.stdin.read()


@contextmanager
def serving(delay: float = 0.0) -> Iterator[None]:
    """A server that the SDK finds."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.s3", "--serve", str(delay)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        os.environ |= {
            "AWS_ENDPOINT_URL_S3": process.stdout.readline().strip(),
            "AWS_ACCESS_KEY_ID": "benchmark",
            "AWS_SECRET_ACCESS_KEY": "benchmark",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        yield
        process.stdin.close()


def work(
    processor: Processor, docs: Path, place: Path, store: Store, layout: str, **settings: Any
) -> tuple[float, Run]:
    """Seconds from the worker's start to its end; the enqueue is not among them."""
    clock = SystemClock()
    place.mkdir()
    ledger = SqlLedger(f"sqlite:///{place}/ledger.db")
    ledger.initialise()
    store.probe()
    manifest = full_manifest(processor, extractor_manifest())
    run = ensure_run(ledger, store, place.name, manifest, layout)
    enqueue(ledger, run, [DirectorySource(docs)], LocalReader(), clock=clock)
    with closing(Extractor()) as extractor:
        began = time.perf_counter()
        run_worker(
            ledger=ledger,
            run=run,
            store=store,
            reader=LocalReader(),
            extractor=extractor,
            processor=processor,
            settings=WorkerSettings(**settings),
            events=RecordedEvents(),
            clock=clock,
        )
        seconds = time.perf_counter() - began
    tallies = ledger.counts(run).tallies
    ledger.close()
    if tallies.completed != tallies.total:
        raise SystemExit(f"only {tallies.completed} documents completed")
    return seconds, run


def upload_again(store: Store, run: Run) -> tuple[float, int]:
    """Seconds that a bare loop takes to upload the run's objects, and how many they are."""
    keys = [each.key for each in store.list(f"{run.prefix}/")]
    objects = [store.read(key) for key in keys if not key.endswith("/run.json")]
    digests = [sha256_hex(data) for data in objects]
    names = [f"again/{run.prefix}/{number}" for number in range(len(objects))]
    began = time.perf_counter()
    with ThreadPoolExecutor(PUTTERS) as pool:
        created = list(pool.map(store.put_if_absent, names, objects, digests))
    seconds = time.perf_counter() - began
    if not all(created):
        raise SystemExit("an object was there already")
    return seconds, len(objects)


def stats(folder: Path, layout: str, documents: int, repeat: int) -> dict[str, Any]:
    docs = folder / f"docs-{layout}"
    docs.mkdir()
    for number in range(documents):
        (docs / f"{number:06}.txt").write_text(f"Document {number} " + "of a few words " * 20)
    rows: list[dict[str, float]] = []
    with serving():
        for turn in range(repeat):
            row: dict[str, float] = {}
            bucket = S3Store(f"s3://{BUCKET}/{layout}")
            local = LocalStore(folder / f"out-{layout}-{turn}")
            row["local"], _ = work(
                Stats(), docs, folder / f"{layout}-local-{turn}", local, layout, flush_items=FLUSH
            )
            row["s3"], run = work(
                Stats(), docs, folder / f"{layout}-s3-{turn}", bucket, layout, flush_items=FLUSH
            )
            row["bare"], row["objects"] = upload_again(bucket, run)
            rows.append(row)
    best = {name: min(row[name] for row in rows) for name in ("s3", "bare", "local")}
    return {
        "documents": documents,
        "puts_an_item": round(max(row["objects"] for row in rows) / documents, 4),
        "seconds": {name: round(value, 2) for name, value in best.items()},
        "s3_to_bare": round(best["bare"] / best["s3"], 3),
        "s3_to_local": round(best["local"] / best["s3"], 3),
        "s3_to_local_by_turn": sorted(round(row["local"] / row["s3"], 3) for row in rows),
    }


def delay(folder: Path, texts: int, repeat: int) -> dict[str, Any]:
    docs = folder / "texts"
    docs.mkdir()
    for number, text in enumerate(library_texts(texts)):
        (docs / f"{number:05}.txt").write_text(text)
    processor = Loaded()
    processor.load("cpu")
    places = (folder / f"embed-{number}" for number in itertools.count())
    rows: list[dict[str, float]] = []

    def seconds(store: Store) -> float:
        processor.forget()
        return work(processor, docs, next(places), store, "item")[0]

    for turn in range(repeat):
        row = {"local": seconds(LocalStore(folder / f"embedded-{turn}"))}
        for name, delay_s in (("s3", 0.0), ("delayed", DELAY_S)):
            with serving(delay_s):
                row[name] = seconds(S3Store(f"s3://{BUCKET}/embedded"))
        rows.append(row)
    best = {name: min(row[name] for row in rows) for name in rows[0]}
    return {
        "texts": texts,
        "seconds": {name: round(value, 2) for name, value in best.items()},
        "delayed_to_local": round(best["local"] / best["delayed"], 3),
        "delayed_to_s3": round(best["s3"] / best["delayed"], 3),
        "delayed_to_s3_by_turn": sorted(round(row["s3"] / row["delayed"], 3) for row in rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="shard, item, delay; default: all")
    parser.add_argument("--documents", type=int, default=4_096)
    parser.add_argument("--texts", type=int, default=300)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", type=float, metavar="DELAY")
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve)
        return
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    measures: dict[str, Callable[[Path], dict[str, Any]]] = {
        "shard": lambda folder: stats(folder, "shard", options.documents, options.repeat),
        "item": lambda folder: stats(folder, "item", options.documents, options.repeat),
        "delay": lambda folder: delay(folder, options.texts, options.repeat),
    }
    report: dict[str, Any] = {"schema": 1}
    with tempfile.TemporaryDirectory() as place:
        for name in options.parts or measures:
            report[name] = measures[name](Path(place))
    if options.json:
        print(json.dumps(report))
        return
    for name, value in report.items():
        print(f"{name:20} {value}")


if __name__ == "__main__":
    main()
