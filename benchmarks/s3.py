"""What S3 costs a worker: ratios of rates within one run, against a server on this machine.

    python -m benchmarks.s3 [shard] [item] [large] [delay] [--documents 4096] [--texts 600]
                            [--repeat 3] [--json]

    shard, item  a worker with `stats` in that layout at 256 results a flush
    large        the same in layout `item`, with 256 results of 512 KiB
    delay        a worker with `embed` in layout `item`, each request delayed by 20 ms, over
                 the same worker without the delay, and over one with a folder for a store; and
                 with that folder delayed, which shows what waiting alone costs

The first three are compared with the same worker that has a folder for a store, and with bare
loops of as many threads that upload the very objects it made, create-only, with their SHA-256:

    sdk          put_object of boto3, as one would write it
    put          the store's own client, which takes a third of the SDK's CPU
    put_and_head the same, each read back as the worker does; neither claims, reads documents,
                 computes nor commits

The server is the strict one of the tests, in a process of its own: it checks every checksum and
every signature, and takes its share of the same cores. CPU is what worker and server spent, in
milliseconds an item; `others`: how many cores other programs kept busy meanwhile. Where those were
not the same for what is compared, the ratio says little.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import boto3
import psutil
from botocore.config import Config

from batchq.clock import SystemClock
from batchq.enqueue import enqueue, ensure_run
from batchq.event import RecordedEvents
from batchq.inference.base import Output, Prepared, Processor
from batchq.inference.registry import full_manifest
from batchq.inference.stats import Stats
from batchq.ledger.base import Run
from batchq.ledger.sql import SqlLedger
from batchq.result import sha256_hex
from batchq.source.directory import DirectorySource, LocalReader
from batchq.source.extract import Extractor, extractor_manifest
from batchq.store.base import ObjectInfo, Store
from batchq.store.local import LocalStore
from batchq.store.s3 import S3Store
from batchq.worker.worker import WorkerSettings, run_worker
from benchmarks.embed import library_texts
from benchmarks.pipeline import Loaded
from tests.faults.strict_s3 import StrictS3

FLUSH = 256
LARGE = 512 * 1024
DELAY_S = 0.02
PUTTERS = 32
BUCKET = "bucket"


def serve(delay: float) -> None:
    """Say where, and serve until stdin is closed."""
    with StrictS3(secrets={"benchmark": "benchmark"}) as server:
        server.state.create_bucket(BUCKET)
        take = server.next_fault

        def delayed(operation: str, key: str) -> Any:
            time.sleep(delay)
            return take(operation, key)

        if delay:
            server.next_fault = delayed  # type: ignore[method-assign]
        print(server.url, flush=True)
        sys.stdin.read()


@contextmanager
def serving(delay: float = 0.0) -> Iterator[psutil.Process]:
    """A server that the SDK finds, in the process that this yields."""
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
        yield psutil.Process(process.pid)
        process.stdin.close()


class Large(Stats):
    """Results of LARGE bytes."""

    def infer(self, batch: Sequence[Prepared]) -> Sequence[Output]:
        return [replace(output, value={"text": "x" * LARGE}) for output in super().infer(batch)]


class DelayedFolder(LocalStore):
    """A folder that takes as long for each request as a store over a network."""

    remote = True

    def put_if_absent(self, key: str, data: bytes, sha256: str) -> bool:
        time.sleep(DELAY_S)
        return super().put_if_absent(key, data, sha256)

    def head(self, key: str) -> ObjectInfo | None:
        time.sleep(DELAY_S)
        return super().head(key)

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        time.sleep(DELAY_S)
        return super().read(key, offset, length)


@dataclass(frozen=True)
class Spent:
    """Seconds from a beginning to an end, and of CPU, by whom."""

    wall: float
    worker: float
    server: float
    machine: float

    @property
    def others(self) -> float:
        """Cores that neither worker nor server had."""
        return (self.machine - self.worker - self.server) / self.wall

    def an_item(self, items: int) -> dict[str, float]:
        return {
            "worker": round(1000 * self.worker / items, 3),
            "server": round(1000 * self.server / items, 3),
            "others": round(self.others, 2),
        }


@contextmanager
def spending(server: psutil.Process | None) -> Iterator[Callable[[], Spent]]:
    """Gives a function that says what was spent since."""

    def moment() -> tuple[float, ...]:
        times, machine = server.cpu_times() if server else None, psutil.cpu_times()
        return (
            time.perf_counter(),
            time.process_time(),
            times.user + times.system if times else 0.0,
            sum(machine) - machine.idle - machine.iowait,
        )

    began = moment()
    yield lambda: Spent(*(now - then for now, then in zip(moment(), began, strict=True)))


def work(
    processor: Processor,
    docs: Path,
    place: Path,
    store: Store,
    layout: str,
    server: psutil.Process | None = None,
    **settings: Any,
) -> tuple[Spent, Run]:
    """What was spent from the worker's start to its end; the enqueue is not part of it."""
    clock = SystemClock()
    place.mkdir()
    ledger = SqlLedger(f"sqlite:///{place}/ledger.db")
    ledger.initialise()
    store.probe()
    manifest = full_manifest(processor, extractor_manifest())
    run = ensure_run(ledger, store, place.name, manifest, layout)
    enqueue(ledger, run, [DirectorySource(docs)], LocalReader(), clock=clock)
    with closing(Extractor()) as extractor, spending(server) as spent:
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
        took = spent()
    tallies = ledger.counts(run).tallies
    ledger.close()
    if tallies.completed != tallies.total:
        raise SystemExit(f"only {tallies.completed} documents completed")
    return took, run


def upload_again(store: S3Store, run: Run) -> dict[str, float]:
    """Seconds that bare loops take to upload the run's objects, and how many those are."""
    keys = [each.key for each in store.list(f"{run.prefix}/")]
    objects = [store.read(key) for key in keys if not key.endswith("/run.json")]
    digests = [sha256_hex(data) for data in objects]
    config = Config(max_pool_connections=PUTTERS, request_checksum_calculation="when_required")
    s3 = boto3.session.Session().client("s3", config=config)

    def by_sdk(key: str, data: bytes, digest: str) -> bool:
        checksum = base64.b64encode(bytes.fromhex(digest)).decode()
        s3.put_object(Bucket=BUCKET, Key=key, Body=data, IfNoneMatch="*", ChecksumSHA256=checksum)
        return True

    def put_and_head(key: str, data: bytes, digest: str) -> bool:
        store.put_if_absent(key, data, digest)
        found = store.head(key)
        return found is not None and (found.size, found.sha256) == (len(data), digest)

    loops: dict[str, Callable[[str, bytes, str], bool]] = {
        "sdk": by_sdk,
        "put": store.put_if_absent,
        "put_and_head": put_and_head,
    }
    seconds = {}
    for name, upload in loops.items():
        names = [f"again/{run.prefix}/{name}/{number}" for number in range(len(objects))]
        began = time.perf_counter()
        with ThreadPoolExecutor(PUTTERS) as pool:
            uploaded = list(pool.map(upload, names, objects, digests))
        seconds[name] = time.perf_counter() - began
        if not all(uploaded):
            raise SystemExit("an object was there already, or is not what was put")
    return {**seconds, "objects": len(objects)}


def measured(
    folder: Path, name: str, processor: Processor, layout: str, documents: int, repeat: int
) -> dict[str, Any]:
    docs = folder / f"docs-{name}"
    docs.mkdir()
    for number in range(documents):
        (docs / f"{number:06}.txt").write_text(f"Document {number} " + "of a few words " * 20)
    rows: list[dict[str, float]] = []
    spent: list[tuple[Spent, Spent]] = []
    with serving() as server:
        for turn in range(repeat):
            bucket = S3Store(f"s3://{BUCKET}/{name}")
            local = LocalStore(folder / f"out-{name}-{turn}")
            at = folder / f"{name}-{turn}"
            in_folder, _ = work(
                processor, docs, at.with_suffix(".local"), local, layout, flush_items=FLUSH
            )
            in_s3, run = work(
                processor, docs, at.with_suffix(".s3"), bucket, layout, server, flush_items=FLUSH
            )
            spent.append((in_folder, in_s3))
            rows.append({"folder": in_folder.wall, "s3": in_s3.wall} | upload_again(bucket, run))
    objects = max(row.pop("objects") for row in rows)
    best = {each: min(row[each] for row in rows) for each in rows[0]}
    return {
        "documents": documents,
        "puts_an_item": round(objects / documents, 4),
        "seconds": {each: round(value, 2) for each, value in best.items()},
        "s3_over": {
            each: round(value / best["s3"], 3) for each, value in best.items() if each != "s3"
        },
        "s3_over_folder_by_turn": sorted(round(row["folder"] / row["s3"], 3) for row in rows),
        "cpu_ms": {
            name: value.an_item(documents)
            for name, value in zip(("folder", "s3"), spent[-1], strict=True)
        },
    }


def delay(folder: Path, texts: int, repeat: int) -> dict[str, Any]:
    docs = folder / "texts"
    docs.mkdir()
    for number, text in enumerate(library_texts(texts)):
        (docs / f"{number:05}.txt").write_text(text)
    processor = Loaded()
    processor.load("cpu")
    places = (folder / f"embed-{number}" for number in itertools.count())
    rows: list[dict[str, Spent]] = []

    def spent(store: Store, server: psutil.Process | None = None) -> Spent:
        processor.forget()
        return work(processor, docs, next(places), store, "item", server)[0]

    for turn in range(repeat):
        row = {
            "folder": spent(LocalStore(folder / f"embedded-{turn}")),
            "delayed_folder": spent(DelayedFolder(folder / f"embedded-late-{turn}")),
        }
        for name, delay_s in (("s3", 0.0), ("delayed", DELAY_S)):
            with serving(delay_s) as server:
                row[name] = spent(S3Store(f"s3://{BUCKET}/embedded"), server)
        rows.append(row)
    best = {name: min((row[name] for row in rows), key=lambda s: s.wall) for name in rows[0]}
    elsewhere = best["delayed"].wall - best["delayed"].server / (os.cpu_count() or 1)
    return {
        "texts": texts,
        "seconds": {name: round(value.wall, 2) for name, value in best.items()},
        "delayed_over_folder": round(best["folder"].wall / best["delayed"].wall, 3),
        "delayed_over_folder_by_turn": _by_turn(rows, "folder"),
        "delayed_over_s3": round(best["s3"].wall / best["delayed"].wall, 3),
        "delayed_over_s3_by_turn": _by_turn(rows, "s3"),
        "delayed_folder_over_folder": round(best["folder"].wall / best["delayed_folder"].wall, 3),
        "delayed_folder_over_folder_by_turn": _by_turn(rows, "folder", "delayed_folder"),
        # By calculation: as if the server's CPU had been some other machine's.
        "delayed_over_folder_but_for_the_server": round(best["folder"].wall / elsewhere, 3),
        "cpu_ms": {name: value.an_item(texts) for name, value in best.items()},
    }


def _by_turn(rows: Sequence[dict[str, Spent]], name: str, late: str = "delayed") -> list[float]:
    return sorted(round(row[name].wall / row[late].wall, 3) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="default: all")
    parser.add_argument("--documents", type=int, default=4_096)
    parser.add_argument("--texts", type=int, default=600)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", type=float, metavar="DELAY")
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve)
        return
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    measures: dict[str, Callable[[Path], dict[str, Any]]] = {
        "shard": lambda folder: measured(
            folder, "shard", Stats(), "shard", options.documents, options.repeat
        ),
        "item": lambda folder: measured(
            folder, "item", Stats(), "item", options.documents, options.repeat
        ),
        "large": lambda folder: measured(folder, "large", Large(), "item", FLUSH, options.repeat),
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
