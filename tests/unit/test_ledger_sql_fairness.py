"""Processes that share one SQLite file: each gets its share, and its log does not grow."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from batchq.item import NewItem
from batchq.lease import new_token
from batchq.ledger.base import Role
from batchq.ledger.sql import SqlLedger
from batchq.result import Result, Stored

PROCESSES = 4
ITEMS = 12_000
BATCH = 100

START: Any = None


def take_barrier(barrier: Any) -> None:
    global START
    START = barrier


def work(url: str) -> int:
    """Claim and commit from the common start until nothing is left; how many items."""
    ledger = SqlLedger(url)
    run = ledger.find_run("run")
    assert run is not None
    worker = new_token()
    ledger.register(run, worker, 60.0, Role.WORKER, {})
    START.wait(240)
    committed = 0
    while lease := ledger.claim(worker, new_token(), BATCH, alone=True):
        stored = [Stored(f"run/{item.id}.json", 0, 1, f"{item.id:064x}") for item in lease.items]
        results = [
            Result(item.id, lease.token, one) for item, one in zip(lease.items, stored, strict=True)
        ]
        committed += len(ledger.commit(worker, results).accepted)
    ledger.close()
    return committed


def test_four_processes_on_one_file_all_get_work(tmp_path: Path) -> None:
    """SQLite's own wait for the lock gave one of four everything."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    ledger = SqlLedger(url)
    ledger.initialise()
    run = ledger.create_run("run", "stats-1", {"kind": "stats"}, "item")
    ledger.register(run, "enqueuer", 60.0, Role.ENQUEUER, {})
    items = [NewItem(f"{n}", f"sha256:{n}", 1, f"file:///{n}", "file:///") for n in range(ITEMS)]
    ledger.enqueue("enqueuer", 1, items)
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(PROCESSES)
    with ProcessPoolExecutor(PROCESSES, context, take_barrier, (barrier,)) as pool:
        shares = list(pool.map(work, [url] * PROCESSES))
    assert sum(shares) == ITEMS
    assert min(shares) >= ITEMS / PROCESSES / 4
    assert ledger.counts(run).tallies.completed == ITEMS
    ledger.close()


def test_the_log_is_emptied_as_it_is_written(tmp_path: Path) -> None:
    """Whoever writes many rows moves the log into the file: 20,000 items log 10 MiB."""
    ledger = SqlLedger(f"sqlite:///{tmp_path}/ledger.db")
    ledger.initialise()
    run = ledger.create_run("run", "stats-1", {"kind": "stats"}, "item")
    ledger.register(run, "enqueuer", 60.0, Role.ENQUEUER, {})
    for batch in range(20):
        numbers = range(batch * 1000, batch * 1000 + 1000)
        items = [NewItem(f"{n}", f"sha256:{n:064x}", 1, f"file:///{n}", "/") for n in numbers]
        assert ledger.enqueue("enqueuer", batch + 1, items).new == 1000
    assert (tmp_path / "ledger.db-wal").stat().st_size < 4 * 2**20
    ledger.close()
