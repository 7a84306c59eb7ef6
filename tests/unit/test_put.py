"""How many threads store results: no more than keep up with the device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from batchq.inference.base import Output
from batchq.lease import new_token
from batchq.store.memory import MemoryStore
from batchq.worker import put
from batchq.worker.holdings import Holdings, Work
from batchq.worker.parts import Parts
from batchq.worker.put import Putter
from batchq.worker.settle import Settler
from tests.unit import patience
from tests.unit.worker_kit import Kit

THREADS = 4


class Watched(MemoryStore):
    """Tells who puts, and lets a test hold a put up. `stored` counts those that are over."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[str] = []
        self.stored = threading.Semaphore(0)
        self.before: Callable[[int], object] = lambda number: None

    def put_if_absent(self, key: str, data: bytes, sha256: str) -> bool:
        self.threads.append(threading.current_thread().name)
        self.before(len(self.threads))
        created = super().put_if_absent(key, data, sha256)
        self.stored.release()
        return created


@contextmanager
def putting(
    store: Watched,
    results: int,
    prime: Callable[[Parts], object],
    *,
    hurried: bool = False,
    remote: bool = False,
) -> Iterator[None]:
    """The stage at work on as many results, by four threads."""
    kit = Kit.of({f"doc-{number}": "text" for number in range(results)}, store=store)
    parts = replace(kit.parts(), remote=remote)
    prime(parts)
    lease = kit.ledger.claim(parts.registration.name, new_token(), results, alone=True)
    assert lease is not None
    holdings, halt = Holdings(), threading.Event()
    works = holdings.take(lease)
    settler = Settler(parts, holdings, halt, lambda: hurried, lambda: None)

    def spoilt(work: Work, fault: Exception) -> None:
        raise fault

    putter = Putter(parts, holdings, settler, halt, lambda: hurried, lambda: None, spoilt)
    for work in works:
        putter.made(work, Output({"n": 1}, 1, 1))
    threads = [
        threading.Thread(target=putter.run, args=(number,), name=f"put-{number}", daemon=True)
        for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        halt.set()
        # Those that wait for a result see only then that nothing is to be done any more.
        holdings.settle(works)
        for _ in threads:
            putter.made(works[0], Output(None, 0, 0))
        for thread in threads:
            thread.join(patience.PATIENCE_S)


def stored(store: Watched, number: int) -> bool:
    """Whether so many puts come to their end, as long as one has patience with each."""
    return all(store.stored.acquire(timeout=patience.PATIENCE_S) for _ in range(number))


def slow_device(parts: Parts) -> None:
    parts.pace.batch_done(items=1, seconds=600.0)
    parts.pace.result_done(0.001)


def quick_device(parts: Parts) -> None:
    parts.pace.batch_done(items=1_000, seconds=0.1)
    parts.pace.result_done(0.05)


def measured_nothing(parts: Parts) -> None:
    pass


def test_a_slow_device_has_its_results_stored_by_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All that are awake besides would take turns with the model."""
    monkeypatch.setattr(put, "TICK_S", 2 * patience.PATIENCE_S)
    store, another = Watched(), threading.Event()
    # Time for another thread to come in, if there is one.
    store.before = lambda number: another.wait(timeout=0.2) if number == 1 else another.set()
    with putting(store, 8, slow_device):
        assert stored(store, 8)
    assert {"put-0"} == set(store.threads)


def others_store_while_a_put_hangs(
    prime: Callable[[Parts], object],
    monkeypatch: pytest.MonkeyPatch,
    *,
    tick_s: float | None = None,
    hurried: bool = False,
    remote: bool = False,
) -> None:
    patience_s = patience.PATIENCE_S
    monkeypatch.setattr(put, "TICK_S", tick_s or 2 * patience_s)
    store, over = Watched(), threading.Event()
    store.before = lambda number: over.wait(2 * patience_s) if number == 1 else None
    with putting(store, 4, prime, hurried=hurried, remote=remote):
        others_did = stored(store, 3)
        over.set()
    assert others_did


@pytest.mark.parametrize("prime", [quick_device, measured_nothing])
def test_a_quick_device_has_its_results_stored_by_several_threads(
    prime: Callable[[Parts], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one of which nothing is known: a store takes its time, in which a thread does nothing."""
    others_store_while_a_put_hangs(prime, monkeypatch)


def test_a_put_that_hangs_holds_up_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that was enough until now may be waiting for a store that does not answer."""
    others_store_while_a_put_hangs(slow_device, monkeypatch, tick_s=0.01)


def test_results_that_are_no_longer_held_tell_nothing_of_the_store() -> None:
    """They are dropped at once, and storing one would not take so long."""
    kit = Kit.of({f"doc-{number}": "text" for number in range(4)}, store=Watched())
    parts = kit.parts()
    parts.pace.batch_done(items=1, seconds=1.0)
    lease = kit.ledger.claim(parts.registration.name, new_token(), 4, alone=True)
    assert lease is not None
    holdings, halt = Holdings(), threading.Event()
    works = holdings.take(lease)
    holdings.settle(works)
    settler = Settler(parts, holdings, halt, lambda: False, lambda: None)
    putter = Putter(parts, holdings, settler, halt, lambda: False, lambda: None, lambda *_: None)
    for work in works:
        putter.made(work, Output({"n": 1}, 1, 1))
    thread = threading.Thread(target=putter.run, args=(0,), daemon=True)
    thread.start()
    while not putter._made.empty():
        assert thread.is_alive()
    halt.set()
    thread.join(patience.PATIENCE_S)
    assert not parts.pace.puts_keep_up(1_000)


def test_over_a_network_all_threads_store_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """They mostly wait, and disturb no device."""
    others_store_while_a_put_hangs(slow_device, monkeypatch, remote=True)


def test_in_a_hurry_all_threads_store_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a deadline the device does not matter any more."""
    others_store_while_a_put_hangs(slow_device, monkeypatch, hurried=True)
