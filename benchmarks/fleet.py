"""A thousand workers on one PostgreSQL: their beats, claims and commits at their real rates.

    python -m benchmarks.fleet [--workers 1000] [--items-per-second 10] [--seconds 60]
                               [--connections 8] [--json]

Every simulated worker is registered and does what `batchq worker` does: a beat and a reap
every third of its TTL of 60 s; and for each lease of 100 items a look at the counts, a claim
and a commit, at a rate that its processor would set. With a rate of 0 there is nothing to do,
and all of them ask for work at their polling interval. A few connections carry them, as a
pooler would. Told are the milliseconds of each verb, how late the calls were, and what the
server's processes and the table of workers came to.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psutil

from batchq.lease import Lease, new_token
from batchq.ledger.base import Role, Run
from batchq.ledger.sql import SqlLedger
from batchq.status import snapshot
from batchq.worker.heartbeat import BEATS_PER_TTL, REAP_PAGE
from batchq.worker.pace import poll_interval
from benchmarks.filling import Filling, fill
from benchmarks.ledger import Database, databases, result, the_run
from benchmarks.ledger_bare import BATCH
from benchmarks.scale import percentile

LEASE_TTL = 60.0


@dataclass(order=True)
class Call:
    """When a worker is to do what next."""

    due: float
    order: int
    worker: str = field(compare=False)
    verb: str = field(compare=False)


class Fleet:
    """Workers whose calls lie in one queue, from which threads take what is due."""

    def __init__(self, url: str, workers: int, rate: float, seconds: float) -> None:
        self.url = url
        self.took: defaultdict[str, list[float]] = defaultdict(list)
        self.late: defaultdict[str, list[float]] = defaultdict(list)
        self.reaped = 0
        self._periods = {
            "beat": LEASE_TTL / BEATS_PER_TTL,
            "reap": LEASE_TTL / BEATS_PER_TTL,
        }
        if rate:
            self._periods["claim and commit"] = BATCH / rate
        self._order = itertools.count()
        self._lock = threading.Lock()
        self._names = [new_token() for _ in range(workers)]
        ledger = SqlLedger(url)
        run = the_run(ledger)
        for name in self._names:
            ledger.register(run, name, LEASE_TTL, Role.WORKER, {})
        if not rate:
            self._periods["poll"] = poll_interval(ledger.counts(run))
        ledger.close()
        dice = random.Random(1)
        self._start = time.perf_counter()
        self._end = self._start + seconds
        self._queue = [
            Call(self._start + dice.random() * period, next(self._order), name, verb)
            for name in self._names
            for verb, period in self._periods.items()
        ]
        heapq.heapify(self._queue)

    def run(self, connections: int) -> None:
        threads = [threading.Thread(target=self._serve) for _ in range(connections)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _serve(self) -> None:
        ledger = SqlLedger(self.url)
        run = the_run(ledger)
        while (call := self._next()) is not None:
            now = time.perf_counter()
            if call.due > now:
                time.sleep(call.due - now)
            self.late[call.verb].append(max(0.0, time.perf_counter() - call.due) * 1000)
            self._do(ledger, run, call)
        ledger.close()

    def _next(self) -> Call | None:
        """The next call, whose successor is queued at once: a late one delays no other."""
        with self._lock:
            if self._queue[0].due >= self._end:
                return None
            call = heapq.heappop(self._queue)
            due = call.due + self._periods[call.verb]
            heapq.heappush(self._queue, Call(due, next(self._order), call.worker, call.verb))
            return call

    def _do(self, ledger: SqlLedger, run: Run, call: Call) -> None:
        if call.verb == "beat":
            assert self._timed("beat", lambda: ledger.beat(call.worker, LEASE_TTL))
        elif call.verb == "reap":
            reaped = self._timed("reap", lambda: ledger.reap(call.worker, REAP_PAGE))
            self.reaped += len(reaped.workers)
        elif call.verb == "poll":
            assert self._timed("claim", self._claim(ledger, call.worker, alone=True)) is None
            self._timed("counts", lambda: ledger.counts(run))
        else:
            self._timed("counts", lambda: ledger.counts(run))
            lease = self._timed("claim", self._claim(ledger, call.worker, alone=False))
            assert lease is not None, "too few items for this long"
            results = [result(item.id, lease.token) for item in lease.items]
            self._timed("commit", lambda: ledger.commit(call.worker, results))

    def _claim(self, ledger: SqlLedger, worker: str, *, alone: bool) -> Callable[[], Lease | None]:
        return lambda: ledger.claim(worker, new_token(), BATCH, alone=alone)

    def _timed(self, name: str, call: Any) -> Any:
        before = time.perf_counter()
        answer = call()
        self.took[name].append((time.perf_counter() - before) * 1000)
        return answer


def server_cpu(database: Database) -> float:
    """Seconds of CPU that the server's processes have used so far."""
    rows = database.query("SELECT pg_postmaster_start_time()::text, pg_backend_pid()")
    postmaster = psutil.Process(psutil.Process(int(rows[0][1])).ppid())
    used = 0.0
    for process in (postmaster, *postmaster.children()):
        times = process.cpu_times()
        used += times.user + times.system
    # What backends used that have ended.
    times = postmaster.cpu_times()
    return used + float(times.children_user + times.children_system)


def measure(database: Database, workers: int, rate: float, seconds: float, lines: int) -> Any:
    if rate:
        fill(database.url, Filling(ready=int(workers * rate * seconds * 1.3) + 100 * workers))
    fleet = Fleet(database.url, workers, rate, seconds)
    used, started = server_cpu(database), time.perf_counter()
    fleet.run(lines)
    wall = time.perf_counter() - started
    report: dict[str, Any] = {
        name: {
            "per second": round(len(took) / wall, 1),
            "p50 ms": round(percentile(took, 0.5), 2),
            "p99 ms": round(percentile(took, 0.99), 2),
            "max ms": round(max(took), 1),
        }
        for name, took in fleet.took.items()
    }
    for name, late in fleet.late.items():
        report[f"{name}, late"] = {
            "p99 ms": round(percentile(late, 0.99), 1),
            "max ms": round(max(late), 1),
        }
    ledger = SqlLedger(database.url)
    run = the_run(ledger)
    taken = []
    for _ in range(20):
        before = time.perf_counter()
        snapshot(ledger, run, expected_uptime=3600.0)
        taken.append((time.perf_counter() - before) * 1000)
    ledger.close()
    dead, kept = database.query(
        "SELECT n_dead_tup, pg_total_relation_size('workers') FROM pg_stat_user_tables "
        "WHERE relname = 'workers'"
    )[0]
    return report | {
        "items/s": round(len(fleet.took.get("commit", ())) * BATCH / wall),
        "workers reaped by mistake": fleet.reaped,
        "server, cores": round((server_cpu(database) - used) / wall, 2),
        "status ms": round(percentile(taken, 0.5), 1),
        "table of workers, KiB": kept // 1024,
        "table of workers, dead rows": dead,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--items-per-second", type=float, default=10.0, help="of each worker")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--json", action="store_true", help="one document instead of lines")
    given = parser.parse_args()
    with databases(["postgresql"]) as makers:
        database = makers["postgresql"](0)
        report = measure(
            database, given.workers, given.items_per_second, given.seconds, given.connections
        )
        database.close()
    if given.json:
        print(json.dumps(report, indent=2))
        return
    for name, value in report.items():
        print(f"{name:<28} {value}", flush=True)


if __name__ == "__main__":
    main()
