"""Runs every peer and prints one table."""

from __future__ import annotations

import argparse
import array
import json
import multiprocessing
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

import benchmarks.peers
from benchmarks.ledger import addresses
from benchmarks.peers.base import PEERS, peer

__all__ = ["main"]

KILLED_ITEMS = 2_000
PAUSE = 0.002

_CONTEXT = multiprocessing.get_context("spawn")


def enqueue(name: str, address: str, numbers: range, seconds: float, start: Any, told: Any) -> None:
    """One process that enqueues."""
    queue = peer(name, address)
    start.wait()
    began = time.perf_counter()
    count = queue.enqueue(numbers, lambda: time.perf_counter() - began > seconds)
    told.put((count, began, time.perf_counter()))


def work(name: str, address: str, seconds: float, start: Any, told: Any) -> None:
    """One process that works; its time ends with its last item."""
    queue = peer(name, address)
    start.wait()
    began = last = time.perf_counter()
    count = 0

    def done(number: int) -> None:
        nonlocal count, last
        count += 1
        last = time.perf_counter()

    queue.work(done, lambda: time.perf_counter() - began > seconds)
    told.put((count, began, last))


def log_work(name: str, address: str, seconds: float, log: str) -> None:
    """One process that works, a moment for each item, and writes down each when it is done."""
    queue = peer(name, address)
    began = time.perf_counter()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def done(number: int) -> None:
        os.write(file, array.array("q", [number]).tobytes())

    queue.work(done, lambda: time.perf_counter() - began > seconds, PAUSE)


def rate(target: Callable[..., None], arguments: list[tuple[Any, ...]]) -> float:
    """Items a second of one process for each of the argument lists, from a common start."""
    start, told = _CONTEXT.Barrier(len(arguments)), _CONTEXT.Queue()
    processes = [_CONTEXT.Process(target=target, args=(*a, start, told)) for a in arguments]
    for process in processes:
        process.start()
    answers = [told.get(timeout=300) for _ in processes]
    for process in processes:
        process.join()
    began, ended = min(a[1] for a in answers), max(a[2] for a in answers)
    return float(sum(a[0] for a in answers) / (ended - began))


def throughput(name: str, new: Callable[[], str], items: int, seconds: float) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for processes in (1, 4):
        address = new()
        peer(name, address).create()
        part = items // processes
        shares = [range(n * part, (n + 1) * part) for n in range(processes)]
        found[f"enqueue/s, {processes}"] = round(
            rate(enqueue, [(name, address, share, seconds) for share in shares])
        )
        if PEERS[name][0] == "postgresql":
            # As autovacuum would within a minute: without statistics some peers plan badly.
            with psycopg.connect(address, autocommit=True) as connection:
                connection.execute("VACUUM ANALYZE")
        found[f"work/s, {processes}"] = round(rate(work, [(name, address, seconds)] * processes))
    return found


def kill(name: str, new: Callable[[], str], recovery: float) -> dict[str, int]:
    """What becomes of the items when a worker is killed half way and another takes over."""
    address = new()
    queue = peer(name, address)
    queue.create()
    queue.enqueue(range(KILLED_ITEMS), lambda: False)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "executed"
        log.touch()
        first = _CONTEXT.Process(target=log_work, args=(name, address, 120.0, str(log)))
        first.start()
        while first.is_alive() and log.stat().st_size < KILLED_ITEMS // 2 * 8:
            time.sleep(0.001)
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        first.join()
        began = time.perf_counter()
        # A worker that drains may find nothing before the dead one's items are free.
        while time.perf_counter() - began < recovery and queue.left():
            second = _CONTEXT.Process(target=log_work, args=(name, address, recovery, str(log)))
            second.start()
            second.join(timeout=max(0.1, recovery - (time.perf_counter() - began)))
            with suppress(ProcessLookupError):
                second.kill()
            second.join()
        executed = Counter(array.array("q", log.read_bytes()))
    stuck = queue.left()
    return {
        "lost": len(set(range(KILLED_ITEMS)) - executed.keys() - stuck),
        "doubled": sum(count - 1 for count in executed.values()),
        "stuck": len(stuck),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=(benchmarks.peers.__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--items", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=8.0, help="of a phase at most")
    parser.add_argument("--recovery", type=float, default=15.0, help="seconds after the kill")
    parser.add_argument("--json", action="store_true", help="one document instead of a table")
    given = parser.parse_args()
    report: dict[str, Any] = {}
    names = given.peers.split(",")
    with addresses(sorted({PEERS[name][0] for name in names})) as makers:
        for name in names:
            fresh = makers[PEERS[name][0]]
            found = throughput(name, fresh, given.items, given.seconds)
            report[name] = found | kill(name, fresh, given.recovery)
            report[name]["setting"] = peer(name, fresh()).setting
            if not given.json:
                if len(report) == 1:
                    print("".join(f"{head:>16}" for head in ("", *report[name])))
                print(
                    "".join(f"{word!s:>16}" for word in (name, *report[name].values())), flush=True
                )
    if given.json:
        print(json.dumps(report, indent=2))
