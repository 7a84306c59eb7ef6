"""A worker in layout `shard`: the same promises, at a hundredth of the requests."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from batchq.clock import ManualClock, SystemClock
from batchq.errors import ExitCode
from batchq.lease import new_token
from batchq.ledger.base import Role
from batchq.store.base import Store
from batchq.store.memory import MemoryStore
from batchq.store.s3 import S3Limits, S3Store
from batchq.worker.pace import Pace
from tests.faults.faulty_store import FaultyStore, PutFault
from tests.faults.strict_s3 import StrictS3
from tests.s3 import BUCKET, strict_server
from tests.unit.patience import PATIENCE_S
from tests.unit.worker_kit import FAST, Kit, nothing_due


def numbered(count: int) -> dict[str, str]:
    return {f"doc-{n:04}": f"text number {n}" for n in range(count)}


def sharded(documents: dict[str, str], store: Store | None = None) -> Kit:
    return Kit.of(documents, store=store or MemoryStore(), layout="shard")


def shards(kit: Kit) -> list[str]:
    return [found.key for found in kit.store.list(f"{kit.run.prefix}/shards/")]


def assert_all_shouted(kit: Kit) -> None:
    expected = {name: {"shout": text.upper()} for name, text in kit.shelf.documents.items()}
    assert expected == kit.outputs()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[StrictS3]:
    with strict_server(monkeypatch) as running:
        yield running


def test_256_results_a_flush_take_a_fiftieth_of_a_put_each(server: StrictS3) -> None:
    """On a server that checks everything; the read-backs are as few."""
    documents = 1_024
    store = S3Store(f"s3://{BUCKET}", limits=S3Limits(timeout=60), clock=ManualClock())
    store.probe()
    kit = sharded(numbered(documents), store)
    before = {name: server.count(name) for name in ("PutObject", "HeadObject", "GetObject")}
    assert kit.work(replace(FAST, flush_items=256, lease_ttl=60)) == ExitCode.OK
    asked = {name: server.count(name) - number for name, number in before.items()}
    assert kit.tallies.completed == documents
    assert asked["PutObject"] / documents <= 0.02
    assert asked["HeadObject"] + asked["GetObject"] <= asked["PutObject"]
    assert_all_shouted(kit)


def test_the_last_results_wait_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """When nothing else is on its way, what there is makes a shard at once."""
    monkeypatch.setattr(Pace, "gather_interval", lambda pace: PATIENCE_S)
    kit = sharded(numbered(5))
    began = SystemClock().monotonic()
    assert kit.work() == ExitCode.OK
    assert SystemClock().monotonic() - began < PATIENCE_S
    assert_all_shouted(kit)
    assert len(shards(kit)) < 5


def test_a_document_without_text_has_its_frame_too() -> None:
    """Empty ones travel with the others."""
    kit = sharded({"blank": " \n", "full": "words"})
    assert kit.work() == ExitCode.OK
    assert kit.outputs() == {"blank": None, "full": {"shout": "WORDS"}}
    assert kit.tallies.empty == 1


def test_an_output_that_is_not_json_leaves_the_shard_to_the_others() -> None:
    """It is charged alone, before anything is put."""
    kit = sharded({"fine": "yes", "odd": "nan"})
    infer = kit.processor.infer

    def with_nan(batch):  # type: ignore[no-untyped-def]
        return [
            replace(output, value=float("nan")) if prepared.payload == "nan" else output
            for prepared, output in zip(batch, infer(batch), strict=True)
        ]

    kit.processor.infer = with_nan  # type: ignore[method-assign]
    assert kit.work() == ExitCode.DEAD_LETTERS
    assert list(kit.outputs()) == ["fine"]


def test_a_lost_lease_in_a_shard_fences_its_item_alone() -> None:
    """The others of the same object are committed; its frame is named by no row."""
    kit = sharded(numbered(20))
    taken: list[str] = []

    def supersede(texts: Sequence[str]) -> None:
        if not taken:
            taken.append("doc-0007")
            kit.shelf.documents["doc-0007"] = "newer bytes"
            kit.enqueue({"doc-0007": "newer bytes"})

    kit.processor.before_batch = supersede
    assert kit.work() == ExitCode.OK
    assert_all_shouted(kit)
    tallies = kit.tallies
    assert (tallies.completed, tallies.fenced, tallies.superseded) == (20, 1, 1)
    together = Counter(row.stored.key for row in kit.results())
    assert max(together.values()) > 1


def test_what_an_earlier_attempt_stored_is_computed_again() -> None:
    """Nobody finds a frame that no row names: attempt 2 makes its own."""
    kit = sharded({"doc": "hello"})
    kit.ledger.register(kit.run, "first", 60, Role.WORKER, {})
    assert kit.ledger.claim("first", new_token(), 1, alone=True)
    kit.ledger.stop("first", "vanished after the put")
    assert kit.work() == ExitCode.OK
    [row] = kit.results()
    assert (row.attempt, row.adopted, kit.tallies.adopted) == (2, False, 0)
    assert_all_shouted(kit)


def test_a_notice_commits_what_is_gathered() -> None:
    """Nothing that was made waits for company until the deadline is over."""
    kit = sharded(numbered(400))

    def press_once(texts: Sequence[str]) -> None:
        if len(kit.processor.batches) == 3:
            kit.notices.press()

    kit.processor.before_batch = press_once
    assert kit.work() == ExitCode.STOPPED
    tallies = kit.tallies
    assert tallies.leased == 0
    assert tallies.completed == sum(len(batch) for batch in kit.processor.batches)
    kit.processor.before_batch = lambda texts: None
    assert kit.work() == ExitCode.OK
    assert_all_shouted(kit)


@pytest.mark.usefixtures("last_minute")
def test_a_shard_that_cannot_be_stored_in_time_is_given_back() -> None:
    """A drain whose store hangs releases by its deadline, charging nobody."""
    kit = sharded(numbered(20))
    kit.processor.before_batch = lambda texts: kit.notices.press(SystemClock().monotonic() + 60.5)
    store = kit.store
    hung = threading.Event()
    kit.store = FaultyStore(store)
    kit.store.put_if_absent = lambda *args: hung.wait(180)  # type: ignore[method-assign]
    assert kit.work(replace(FAST, notice_window=120)) == ExitCode.STOPPED
    hung.set()
    assert (kit.tallies.leased, kit.tallies.ready, kit.tallies.failures) == (0, 20, 0)


def test_a_store_that_stays_silent_charges_no_document() -> None:
    """Every item of the shard is released, and completes when the store is back."""
    store = FaultyStore(MemoryStore(), [PutFault.ERROR_BEFORE] * 4)
    kit = sharded(numbered(5), store)
    assert kit.work() == ExitCode.OK
    assert (kit.tallies.completed, kit.tallies.failures) == (5, 0)
    assert kit.events_of("released")
    assert_all_shouted(kit)


def test_a_spoilt_shard_is_put_again_and_no_generation_begins() -> None:
    """The frames are at hand: they go under another key, and nothing is computed twice."""
    store = FaultyStore(MemoryStore(), [PutFault.TRUNCATED])
    kit = sharded(numbered(5), store)
    assert kit.work() == ExitCode.OK
    assert {row.generation for row in kit.results()} == {1}
    assert sum(len(batch) for batch in kit.processor.batches) == 5
    assert_all_shouted(kit)


def test_a_reaped_workers_shard_is_refused_and_made_again() -> None:
    """Taken for dead in the middle of a batch: fenced, computed again, each once."""
    kit = sharded(numbered(5))
    taken, idle = threading.Event(), nothing_due(kit)

    def lose_lease(texts: Sequence[str]) -> None:
        if not taken.is_set():
            taken.set()
            assert idle.wait(PATIENCE_S)
            [worker] = [w for w in kit.ledger.workers(kit.run) if w.role is Role.WORKER]
            kit.ledger.stop(worker.name, "as a reaper would")

    kit.processor.before_batch = lose_lease
    assert kit.work(replace(FAST, lease_ttl=60)) == ExitCode.OK
    assert (kit.tallies.fenced, kit.tallies.completed) == (5, 5)
    assert_all_shouted(kit)
