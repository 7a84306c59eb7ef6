"""What each verb takes as a ledger grows, from ten thousand items to ten million.

    python -m benchmarks.scale [--database sqlite,postgresql] [--sizes 10000,1000000]
                               [--rounds 3] [--json]

Each ledger is filled by bulk statements (`benchmarks.filling`): 59 % completed, 1 % dead
letters, 40 % ready. Every size is measured in turn in each round, so that a slow or busy
machine slows all alike; the figures are over all rounds.

    enqueue new, known   items a second in batches of 1,000, in turn; the known ones lie in
                         the middle of the ledger
    claim, commit        milliseconds of one with 100 items
    status               the snapshot that `batchq status` prints
    results, failures    a page of 1,000, at the start, in the middle and at the end
    reap                 a dead worker that held 10,000 items, in pages of 1,000
    written              bytes an item from enqueue to commit: on PostgreSQL into the WAL, on
                         SQLite all that reaches the file and its WAL
    size                 the database's bytes an item, as filled
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from batchq.clock import ManualClock
from batchq.item import NewItem
from batchq.lease import new_token
from batchq.ledger.base import Role
from batchq.ledger.sql import SqlLedger
from batchq.status import snapshot
from benchmarks.filling import Filling, fill, source_id
from benchmarks.ledger import TTL, Database, databases, result, the_run
from benchmarks.ledger_bare import BATCH, digest

ENQUEUED = 10_000
"""New items of a round; as many known ones."""

CLAIMS = 60
"""Claims of a round, each of a batch that is committed."""

PAGE = 1_000
LOST = 10_000


class Site:
    """A filled ledger and what was measured on it."""

    def __init__(self, database: Database, items: int) -> None:
        self.database = database
        self.items = items
        self.new = items
        self.found: defaultdict[str, list[float]] = defaultdict(list)
        filling = Filling(items * 59 // 100, items // 100, items * 40 // 100)
        empty = size(database)
        before = time.perf_counter()
        fill(database.url, filling)
        self.found["filled, items/s"].append(filling.total / (time.perf_counter() - before))
        self.found["size, bytes an item"].append((size(database) - empty) / filling.total)
        self.ledger = SqlLedger(database.url)
        self.run = the_run(self.ledger)
        self.worker = new_token()
        self.ledger.register(self.run, self.worker, TTL, Role.WORKER, {})
        # Opens connections and prepares statements.
        self._claim_and_commit(10, record=False)

    def enqueue(self) -> None:
        """New and known items, a batch of each in turn."""
        known = max(0, self.items // 2 - ENQUEUED // 2)
        enqueuers = {"new": new_token(), "known": new_token()}
        for enqueuer in enqueuers.values():
            self.ledger.register(self.run, enqueuer, TTL, Role.ENQUEUER, {})
        versions = self._versions(known)
        for batch, first in enumerate(range(0, ENQUEUED, PAGE), 1):
            numbers = range(self.new + first + 1, self.new + first + PAGE + 1)
            self._enqueue("new", enqueuers["new"], batch, [document(n, digest(n)) for n in numbers])
            numbers = range(known + first + 1, known + first + PAGE + 1)
            items = [document(n, versions[n]) for n in numbers if n in versions]
            if items:
                self._enqueue("known", enqueuers["known"], batch, items)
        self.new += ENQUEUED
        for enqueuer in enqueuers.values():
            self.ledger.stop(enqueuer, "end")

    def _enqueue(self, kind: str, enqueuer: str, batch: int, items: list[NewItem]) -> None:
        written = self._written() if kind == "new" else 0
        before = time.perf_counter()
        answer = self.ledger.enqueue(enqueuer, batch, items)
        self.found[f"enqueue {kind}, items/s"].append(len(items) / (time.perf_counter() - before))
        assert (answer.new if kind == "new" else answer.known) == len(items), answer
        if kind == "new":
            self.found["written at enqueue"].append((self._written() - written) / len(items))

    def _versions(self, after: int) -> dict[int, str]:
        rows = self.database.query(
            "SELECT id, source_version FROM items "
            f"WHERE id > {after} AND id <= {after + ENQUEUED} AND id <= {self.items}"
        )
        return {number: version.removeprefix("sha256:") for number, version in rows}

    def claim_and_commit(self) -> None:
        written = self._written()
        self._claim_and_commit(CLAIMS, record=True)
        self.found["written at claim and commit"].append(
            (self._written() - written) / (CLAIMS * BATCH)
        )

    def _claim_and_commit(self, number: int, *, record: bool) -> None:
        for _ in range(number):
            before = time.perf_counter()
            lease = self.ledger.claim(self.worker, new_token(), BATCH, alone=True)
            claimed = time.perf_counter()
            assert lease is not None
            results = [result(item.id, lease.token) for item in lease.items]
            ready = time.perf_counter()
            accepted = self.ledger.commit(self.worker, results).accepted
            committed = time.perf_counter()
            assert len(accepted) == BATCH
            if record:
                self.found["claim, ms"].append((claimed - before) * 1000)
                self.found["commit, ms"].append((committed - ready) * 1000)

    def read(self) -> None:
        for _ in range(20):
            self._timed(
                "status, ms", lambda: snapshot(self.ledger, self.run, expected_uptime=3600.0)
            )
        ledger, run = self.ledger, self.run
        letters = self.items * 59 // 100
        for share in (0.0, 0.5, 0.9):
            for turn in range(3):
                after = int(letters * share) + turn * PAGE
                page = self._timed("results page, ms", lambda: ledger.results(run, after, PAGE))  # noqa: B023
                assert page
                after = letters + int(self.items // 100 * share)
                page = self._timed(
                    "failures page, ms",
                    lambda: ledger.dead_letters(run, after, PAGE),  # noqa: B023
                )
                assert page

    def reap(self) -> None:
        """On a clock set by hand: 75 s pass for a reaper that beats and a worker that doesn't."""
        clock = ManualClock(time.time())
        ledger = SqlLedger(self.database.url, clock=clock, ledger_clock=clock)
        dead, reaper = new_token(), new_token()
        ledger.register(self.run, dead, 60.0, Role.WORKER, {})
        ledger.register(self.run, reaper, 60.0, Role.OPERATOR, {})
        lease = ledger.claim(dead, new_token(), LOST, alone=True)
        assert lease is not None
        assert len(lease.items) == LOST
        for _ in range(5):
            clock.advance(15.0)
            ledger.beat(reaper, 60.0)
        pages: list[Any] = []
        while not pages or pages[-1].returned == PAGE:
            pages.append(self._timed("reap page, ms", lambda: ledger.reap(reaper, PAGE)))
        assert sum(page.returned for page in pages) == LOST
        self.found["reap 10,000, ms"].append(sum(self.found["reap page, ms"]))
        ledger.close()

    def _timed(self, name: str, call: Callable[[], Any]) -> Any:
        before = time.perf_counter()
        answer = call()
        self.found[name].append((time.perf_counter() - before) * 1000)
        return answer

    def _written(self) -> int:
        """Bytes written so far for the sake of this ledger."""
        if self.database.kind == "sqlite":
            found = re.search(r"^wchar: (\d+)$", Path("/proc/self/io").read_text(), re.MULTILINE)
            assert found is not None
            return int(found[1])
        rows = self.database.query("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")
        return int(rows[0][0])

    def close(self) -> None:
        self.ledger.stop(self.worker, "end")
        self.ledger.close()
        self.database.close()


def document(number: int, version: str) -> NewItem:
    name = source_id(number)
    return NewItem(name, f"sha256:{version}", 1000, f"file:///data/{name}", "file:///data")


def size(database: Database) -> int:
    if database.kind == "sqlite":
        return os.path.getsize(database.path)
    return int(database.query("SELECT pg_database_size(current_database())")[0][0])


def measure(make: Callable[[int], Database], sizes: list[int], rounds: int) -> dict[str, Any]:
    """For each size, its figures."""
    sites = [Site(make(0), items) for items in sizes]
    for _ in range(rounds):
        for step in (Site.enqueue, Site.claim_and_commit, Site.read):
            for site in sites:
                step(site)
    for site in sites:
        site.reap()
        site.close()
    return {f"{site.items:,} items": figures(site.found) for site in sites}


def figures(found: dict[str, list[float]]) -> dict[str, float]:
    """Medians, and what 1 % of the claims and commits exceed."""
    answer = {}
    for name, values in found.items():
        answer[name] = rounded(statistics.median(values))
        if name in ("claim, ms", "commit, ms", "status, ms"):
            answer[f"{name[:-4]} p99, ms"] = rounded(percentile(values, 0.99))
    answer["commit, items/s"] = round(BATCH * 1000 / statistics.median(found["commit, ms"]))
    answer["written, bytes an item"] = round(
        answer.pop("written at enqueue") + answer.pop("written at claim and commit")
    )
    return answer


def percentile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def rounded(value: float) -> float:
    return round(value) if value >= 100 else round(value, 2)


def show(report: dict[str, Any]) -> None:
    """One table for each database: a column for each size."""
    for kind, sizes in report.items():
        print(f"\n{kind:<28}{''.join(f'{name:>20}' for name in sizes)}")
        for name in next(iter(sizes.values())):
            row = "".join(f"{found[name]:>20,}" for found in sizes.values())
            print(f"{name:<28}{row}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--database", default="sqlite,postgresql")
    parser.add_argument("--sizes", default="10000,1000000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one document instead of tables")
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.sizes.split(",")]
    with databases(arguments.database.split(",")) as makers:
        report = {k: measure(make, sizes, arguments.rounds) for k, make in makers.items()}
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        show(report)


if __name__ == "__main__":
    main()
