"""batchq, on either database."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from batchq.item import NewItem
from batchq.lease import new_token
from batchq.ledger.base import Role
from batchq.ledger.sql import SqlLedger
from benchmarks.ledger import result, the_run
from benchmarks.ledger_bare import BATCH
from benchmarks.peers.base import Done, batches

__all__ = ["Batchq"]

TTL = 2.0


class Batchq:
    setting = "enqueue by 1,000, claim and commit by 100, lease TTL 2 s"

    def __init__(self, address: str) -> None:
        self._ledger = SqlLedger(address)

    def create(self) -> None:
        self._ledger.initialise()
        the_run(self._ledger)

    def enqueue(self, numbers: range, late: Callable[[], bool]) -> int:
        me = new_token()
        self._ledger.register(the_run(self._ledger), me, 600.0, Role.ENQUEUER, {})
        count = 0
        for batch, part in enumerate(batches(numbers, 1000, late), 1):
            items = [NewItem(f"{n:08d}", f"sha256:{n}", 1, f"file:///{n}", "f") for n in part]
            count += self._ledger.enqueue(me, batch, items).new
        self._ledger.stop(me, "end")
        return count

    def work(self, done: Done, late: Callable[[], bool], pause: float = 0.0) -> None:
        run = the_run(self._ledger)
        me = new_token()
        self._ledger.register(run, me, TTL, Role.WORKER, {})
        over = threading.Event()
        beating = threading.Thread(target=self._beat, args=(me, over))
        beating.start()
        while not late():
            lease = self._ledger.claim(me, new_token(), BATCH, alone=True)
            if lease is None:
                if self._ledger.counts(run).run_is_over:
                    break
                time.sleep(0.05)
                continue
            for item in lease.items:
                if pause:
                    time.sleep(pause)
                done(int(item.source_id))
            self._ledger.commit(me, [result(item.id, lease.token) for item in lease.items])
        over.set()
        beating.join()
        self._ledger.stop(me, "end")

    def _beat(self, me: str, over: threading.Event) -> None:
        while not over.wait(TTL / 3):
            self._ledger.beat(me, TTL)
            self._ledger.reap(me, 1000)

    def left(self) -> set[int]:
        run = the_run(self._ledger)
        completed = {int(r.source_id) for r in self._ledger.results(run, 0, 10**6)}
        return set(range(self._ledger.counts(run).tallies.total)) - completed
