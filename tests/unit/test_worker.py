"""What a worker does to its items, on a memory ledger and store, with real threads."""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest

from batchq.clock import ManualClock, SystemClock
from batchq.errors import BatchqError, DeviceLost, ExitCode
from batchq.inference.base import Output, Prepared
from batchq.item import Document, Item, item_key
from batchq.lease import Lease
from batchq.ledger.base import Committed, Counts, Role, Run, WorkerState
from batchq.ledger.memory import MemoryLedger
from batchq.ledger.uptime import uptime
from batchq.result import Envelope, Result, result_key, sha256_hex
from batchq.store.memory import MemoryStore
from batchq.worker import window
from batchq.worker.heartbeat import Heartbeat, Registration
from batchq.worker.holdings import Work
from batchq.worker.pace import FIRST_HOLD, HOLD_LOST
from batchq.worker.window import Window
from tests.unit.patience import PATIENCE_S, comes_true
from tests.unit.worker_kit import FAST, POLICY, Kit, Lapsing, Leaping, LossyLedger, nothing_due


def numbered(count: int) -> dict[str, str]:
    return {f"doc-{n:04}": f"text number {n}" for n in range(count)}


def wait_for_more_in_hand(kit: Kit) -> None:
    """Until something was claimed that has not come to the device."""
    while kit.tallies.attempts <= sum(len(batch) for batch in kit.processor.batches):
        kit.clock.wait(threading.Event(), 0.01)


def test_every_document_ends_with_its_own_result() -> None:
    """A plain run: all completed, each with the output of its own text, exit 0."""
    kit = Kit.of(numbered(300))
    assert kit.work() == ExitCode.OK
    expected = {name: {"shout": text.upper()} for name, text in kit.shelf.documents.items()}
    assert expected == kit.outputs()
    assert (kit.tallies.completed, kit.tallies.leased, kit.tallies.ready) == (300, 0, 0)
    assert kit.tallies.attempts == 300


def test_a_worker_that_watches_nothing_says_so() -> None:
    """As one that is run as a library, with its signals left alone."""
    kit = Kit.of(numbered(1))
    kit.work()
    assert kit.events_of("started")[0]["notices"] == ["none: lease expiry only"]


def test_a_second_worker_finds_nothing_to_do() -> None:
    """A finished run ends at once, without loading the model."""
    kit = Kit.of(numbered(3))
    kit.work()
    kit.processor.load = lambda device: pytest.fail("the model was loaded for nothing")  # type: ignore[method-assign]
    assert kit.work() == ExitCode.OK
    assert "nothing to do" in kit.events_of("stopped")[-1]["reason"]


def test_an_empty_run_ends_and_says_so() -> None:
    """A worker does not wait for documents that nobody is enqueueing."""
    kit = Kit.of({})
    assert kit.work() == ExitCode.OK
    assert "empty" in kit.events_of("stopped")[-1]["reason"]


def test_a_worker_waits_while_an_enqueue_is_under_way(caplog: pytest.LogCaptureFixture) -> None:
    """It ends only when nothing is left and no enqueuer is alive, and says so once."""
    caplog.set_level("INFO", "batchq.worker")
    kit = Kit.of({})
    kit.ledger.register(kit.run, "slow-enqueuer", 60, Role.ENQUEUER, {})
    working = kit.work_in_thread()
    kit.shelf.documents |= numbered(20)
    kit.enqueue(numbered(20))
    assert comes_true(lambda: kit.tallies.completed == 20)
    wait_for = "an enqueue is under way"
    assert comes_true(lambda: any(wait_for in line for line in caplog.messages))
    assert working.code is None
    kit.ledger.stop("slow-enqueuer", "done")
    assert working.join() == ExitCode.OK
    assert len([line for line in caplog.messages if wait_for in line]) == 1
    assert kit.tallies.completed == 20


def test_one_bad_document_fails_alone() -> None:
    """A batch that raises is halved until only the bad one is charged."""
    kit = Kit.of(numbered(50) | {"bad": "poison"})
    assert kit.work() == ExitCode.DEAD_LETTERS
    assert (kit.tallies.completed, kit.tallies.dead_lettered) == (50, 1)
    assert POLICY.max_failures == kit.tallies.failures
    [letter] = kit.ledger.dead_letters(kit.run, 0, 10)
    assert (letter.source_id, letter.cause) == ("bad", "infer_failed")
    assert "RuntimeError: the device chokes" in letter.error


def test_a_missing_document_is_dead_lettered_without_retries() -> None:
    """`source_missing` is final: asking again cannot bring it back."""
    kit = Kit.of(numbered(3))
    del kit.shelf.documents["doc-0001"]
    assert kit.work() == ExitCode.DEAD_LETTERS
    [letter] = kit.ledger.dead_letters(kit.run, 0, 10)
    assert (letter.cause, letter.attempt) == ("source_missing", 1)


def test_a_changed_document_is_never_computed_from() -> None:
    """Other bytes than the item's version end it as `source_changed`."""
    kit = Kit.of(numbered(3))
    kit.shelf.documents["doc-0001"] = "something else"
    assert kit.work() == ExitCode.DEAD_LETTERS
    [letter] = kit.ledger.dead_letters(kit.run, 0, 10)
    assert letter.cause == "source_changed"
    assert "something else" not in {text for batch in kit.processor.batches for text in batch}


def test_a_document_without_text_is_completed_as_empty() -> None:
    """White space is no text: the result says so and the processor never sees it."""
    kit = Kit.of({"blank": " \n\t ", "full": "words"})
    assert kit.work() == ExitCode.OK
    assert kit.outputs() == {"blank": None, "full": {"shout": "WORDS"}}
    assert kit.tallies.empty == 1
    assert kit.processor.batches == [["words"]]


def test_a_broken_processor_stops_the_worker_and_not_the_documents() -> None:
    """When nothing but errors comes out from the start, it is not the documents' fault."""
    kit = Kit.of(numbered(500))

    def choke(texts: object) -> None:
        raise RuntimeError("no kernel image is available")

    kit.processor.before_batch = choke
    with pytest.raises(BatchqError, match="no kernel image"):
        kit.work()
    assert uptime(kit.ledger.workers(kit.run), kit.clock.now()).interruptions == 0
    assert kit.tallies.dead_lettered == 0
    assert (kit.tallies.leased, kit.tallies.ready) == (0, 500)


def test_a_processor_whose_outputs_cannot_be_stored_is_broken_too() -> None:
    """A model that gives NaN for everything must not cost a run its documents."""
    kit = Kit.of(numbered(500))
    kit.processor.infer = lambda batch: [Output(float("nan"), 1, 1) for _ in batch]  # type: ignore[method-assign]
    with pytest.raises(BatchqError, match="gave no output") as broken:
        kit.work()
    assert "retry" in str(broken.value.hint)
    assert "another name with --run" in str(broken.value.hint)
    assert kit.tallies.dead_lettered == 0
    assert (kit.tallies.leased, kit.tallies.ready) == (0, 500)


def test_a_worker_that_gets_too_few_threads_holds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that it got must not claim on, under a new name, for a process that is leaving."""
    kit = Kit.of({"a": "one", "b": "two"})
    start, claim, claimed = threading.Thread.start, kit.ledger.claim, threading.Event()

    def start_some(thread: threading.Thread) -> None:
        if thread.name == "settle":
            assert claimed.wait(PATIENCE_S)
            raise RuntimeError("can't start new thread")
        start(thread)

    def watched(*asked: Any, **how: Any) -> Lease | None:
        lease = claim(*asked, **how)
        claimed.set()
        return lease

    monkeypatch.setattr(threading.Thread, "start", start_some)
    monkeypatch.setattr(kit.ledger, "claim", watched)
    with pytest.raises(RuntimeError, match="start new thread"):
        kit.work()
    for stage in [thread for thread in threading.enumerate() if thread.name == "claim"]:
        stage.join(PATIENCE_S)
        assert not stage.is_alive()
    assert kit.tallies.leased == 0


def test_a_notice_releases_what_has_not_begun_and_commits_what_has() -> None:
    """Drain: exit 75, nothing held, and no claim after the notice."""
    kit = Kit.of(numbered(400))

    def press_once(texts: Sequence[str]) -> None:
        if len(kit.processor.batches) == 3:
            wait_for_more_in_hand(kit)
            kit.notices.press()

    kit.processor.before_batch = press_once
    assert kit.work() == ExitCode.STOPPED
    tallies = kit.tallies
    assert tallies.leased == 0
    assert tallies.completed == sum(len(batch) for batch in kit.processor.batches)
    assert tallies.completed + tallies.ready == 400
    assert tallies.interrupted > 0
    assert (tallies.failures, tallies.lost_leases) == (0, 0)
    kinds = [event.kind for event in kit.events.all()]
    assert "claimed" not in kinds[kinds.index("notice") :]
    [worker] = [w for w in kit.ledger.workers(kit.run) if w.role is Role.WORKER]
    assert worker.state is WorkerState.STOPPED
    assert worker.stop_reason is not None
    assert re.fullmatch(
        rf"spot terminate by button; {tallies.interrupted} items? given back in \d\.\d s",
        worker.stop_reason,
    )
    # Another worker finishes what is left, and the outputs are those of a quiet run.
    kit.processor.before_batch = lambda texts: None
    assert kit.work() == ExitCode.OK
    quiet = Kit.of(numbered(400))
    quiet.work()
    assert quiet.outputs() == kit.outputs()


def test_the_stop_reason_says_how_far_ahead_the_notice_came() -> None:
    """Kept on the worker's row, with kind, action and source."""
    kit = Kit.of(numbered(60))
    kit.processor.before_batch = lambda texts: kit.notices.press(SystemClock().monotonic() + 118.4)
    assert kit.work() == ExitCode.STOPPED
    [worker] = [w for w in kit.ledger.workers(kit.run) if w.role is Role.WORKER]
    assert worker.stop_reason is not None
    assert re.match(r"spot terminate notice, 11\d s ahead, by button; ", worker.stop_reason)
    assert kit.notices.drained


@pytest.mark.usefixtures("last_minute")
def test_a_drain_ends_by_its_deadline_though_the_device_hangs() -> None:
    """What cannot be finished in time is released, not kept."""
    kit = Kit.of(numbered(30))
    never = threading.Event()

    def hang(texts: object) -> None:
        kit.notices.press(deadline=SystemClock().monotonic() + 60.5)
        never.wait(180)

    kit.processor.before_batch = hang
    began = SystemClock().monotonic()
    assert kit.work(replace(FAST, notice_window=120)) == ExitCode.STOPPED
    assert SystemClock().monotonic() - began < 60.5
    never.set()
    assert (kit.tallies.leased, kit.tallies.ready) == (0, 30)


def test_a_reaped_worker_is_fenced_registers_anew_and_finishes() -> None:
    """Taken for dead in the middle of a batch: its result is refused, the run still ends."""
    kit = Kit.of(numbered(5))
    taken, idle = threading.Event(), nothing_due(kit)

    def lose_lease(texts: object) -> None:
        if not taken.is_set():
            taken.set()
            assert idle.wait(PATIENCE_S)
            [worker] = [w for w in kit.ledger.workers(kit.run) if w.role is Role.WORKER]
            kit.ledger.stop(worker.name, "as a reaper would")

    kit.processor.before_batch = lose_lease
    # The next beat is far off: it is the commit that learns first that the lease is gone.
    assert kit.work(replace(FAST, lease_ttl=60)) == ExitCode.OK
    assert kit.tallies.fenced == 5
    assert len(kit.events_of("fenced")) == 1
    assert (kit.tallies.completed, kit.tallies.leased) == (5, 0)
    names = {w.name for w in kit.ledger.workers(kit.run) if w.role is Role.WORKER}
    assert len(names) == 2


def test_a_result_that_an_earlier_attempt_stored_is_adopted() -> None:
    """Attempt 2 looks in the store first: no inference, and the counter says so."""
    kit = Kit.of({"doc": "hello"})
    kit.ledger.register(kit.run, "first", 60, Role.WORKER, {})
    lease = kit.ledger.claim("first", "t" * 32, 1, alone=True)
    assert lease is not None
    item = lease.items[0]
    envelope = Envelope("doc", item.source_version, "shout-1", {"shout": "HELLO"}, 1, 1)
    data = envelope.to_bytes()
    key = result_key(kit.run.prefix, item_key("doc", item.source_version, "shout-1"), "doc", 1)
    kit.store.put_if_absent(key, data, sha256_hex(data))
    kit.ledger.stop("first", "vanished after the put")
    assert kit.work() == ExitCode.OK
    assert kit.processor.batches == []
    assert (kit.tallies.completed, kit.tallies.adopted) == (1, 1)
    assert len(kit.events_of("adopted")) == 1


def test_a_broken_object_gives_the_item_another_key() -> None:
    """Garbage under the result key stays where it is; the item begins a new generation."""
    kit = Kit.of({"doc": "hello"})
    version, _ = kit.shelf.fingerprint("doc")
    key = result_key(kit.run.prefix, item_key("doc", version, "shout-1"), "doc", 1)
    kit.store.put_if_absent(key, b"half an obj", sha256_hex(b"half an obj"))
    assert kit.work() == ExitCode.OK
    [row] = kit.results()
    assert (row.generation, kit.store.read(key)) == (2, b"half an obj")
    assert row.stored.key.endswith(".g2.json")


@pytest.mark.parametrize("verb", ["claim", "commit", "fail", "release", "beat", "stop"])
def test_a_lost_answer_is_asked_again_and_changes_nothing(verb: str) -> None:
    """The verb took effect and the answer was lost: no loss, no double, exact tallies."""
    kit = Kit.of(numbered(40) | {"bad": "poison"})
    lossy = LossyLedger(kit.ledger, {verb}, times=1)
    assert kit.work(ledger=lossy) in (ExitCode.DEAD_LETTERS, ExitCode.STOPPED)
    assert (kit.tallies.completed, kit.tallies.dead_lettered, kit.tallies.leased) == (40, 1, 0)
    assert len(kit.outputs()) == 40
    assert (kit.tallies.fenced, kit.tallies.lost_leases) == (0, 0)


def test_a_hung_device_stops_the_beats_and_ends_the_process() -> None:
    """No step for `stall_timeout`: exit 76, and only what was on the device stays leased."""
    clock = Lapsing()
    kit = Kit.of(numbered(200), clock=clock)
    prepare, prepared, never = kit.processor.prepare, [], threading.Event()

    def counted(document: Document) -> Prepared:
        prepared.append(document)
        return prepare(document)

    def hang(texts: object) -> None:
        # Until then there is progress.
        assert comes_true(lambda: len(prepared) == FIRST_HOLD)
        clock.lapsed.set()
        never.wait(120)

    kit.processor.prepare = counted  # type: ignore[method-assign]
    kit.processor.before_batch = hang
    with pytest.raises(DeviceLost, match="no progress"):
        kit.work(replace(FAST, claim=FIRST_HOLD))
    never.set()
    on_device = len(kit.processor.batches[0])
    assert on_device == kit.tallies.leased
    assert 200 - on_device == kit.tallies.ready


def test_nobody_beats_for_a_pipeline_that_stands_still() -> None:
    """A beat would hold the items of a hung device for ever."""
    kit = Kit.of({})
    clock = ManualClock()
    registration = Registration(kit.ledger, kit.run, "host", 60, {})
    registration.register()
    beats: list[str] = []
    fatal: list[BaseException] = []
    over = threading.Event()

    def beat(worker: str, ttl: float) -> bool:
        beats.append(worker)
        over.set()
        return True

    def give_up(error: BaseException) -> None:
        fatal.append(error)
        over.set()

    kit.ledger.beat = beat  # type: ignore[method-assign]
    heartbeat = Heartbeat(
        kit.ledger,
        registration,
        clock,
        stall_timeout=30,
        last_progress=lambda: clock.monotonic() - 31,
        on_reaped=lambda name: None,
        on_fatal=give_up,
    )
    heartbeat.start()
    assert over.wait(PATIENCE_S)
    heartbeat.stop(PATIENCE_S)
    assert beats == []
    assert isinstance(fatal[0], DeviceLost)


def test_a_lost_device_leaves_its_batch_to_be_reaped_as_a_loss() -> None:
    """The rest is released at once; the batch shrinks by its losses until it is one."""
    kit = Kit.of(numbered(100))

    def die(texts: object) -> None:
        raise DeviceLost("an illegal memory access was encountered")

    kit.processor.before_batch = die
    with pytest.raises(DeviceLost):
        kit.work()
    assert len(kit.processor.batches[0]) == kit.tallies.leased


def mark_as_lost(kit: Kit, source_ids: Collection[str], losses: int) -> None:
    """As if so many workers had died with each of them."""
    kit.ledger.register(kit.run, "mover", 60, Role.OPERATOR, {})
    tables = kit.ledger._tables  # type: ignore[attr-defined]
    for row in tables.items.values():
        if row.new.source_id in source_ids:
            row.losses = losses
            tables.delay(tables.processes["mover"], row)


def test_a_suspect_is_worked_on_alone() -> None:
    """An item that has been lost twice is claimed when nothing else is held."""
    kit = Kit.of(numbered(60), ledger=MemoryLedger(policy=POLICY))
    suspect = "doc-0030"
    mark_as_lost(kit, [suspect], losses=2)
    held: list[int] = []

    def watch(texts: object) -> None:
        if kit.shelf.documents[suspect] in texts:  # type: ignore[operator]
            held.append(kit.tallies.leased)

    kit.processor.before_batch = watch
    assert kit.work() == ExitCode.OK
    assert held == [1]


def test_of_what_was_lost_before_little_is_held_at_a_time() -> None:
    """All that is held when the document strikes again would be worked on one by one."""
    documents = numbered(400)
    kit = Kit.of(documents, ledger=MemoryLedger(policy=POLICY))
    mark_as_lost(kit, documents, losses=1)
    held: list[int] = []
    kit.processor.before_batch = lambda texts: held.append(kit.tallies.leased)
    assert kit.work() == ExitCode.OK
    assert max(held) < HOLD_LOST + 10
    assert kit.tallies.completed == 400


def test_a_batch_does_not_wait_for_company_that_is_not_coming(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was to join it has failed, or is this document itself."""
    monkeypatch.setattr(window, "BATCH_SECONDS", PATIENCE_S)
    waiting, upstream = Window(batch_cost=1_000), [1]
    work = Work(
        Item(1, "doc", "sha256:0", 4, "locator", 1, 1, 0, 0), "token", prepared=Prepared("text", 1)
    )
    waiting.add(work)

    def none_is_coming() -> None:
        upstream[0] = 0
        waiting.look_again()

    timer = threading.Timer(0.1, none_is_coming)
    timer.start()
    began = SystemClock().monotonic()
    assert waiting.next_batch(lambda: upstream[0], 5.0) == [work]
    assert SystemClock().monotonic() - began < PATIENCE_S
    timer.join()


def test_several_workers_share_a_run_and_commit_each_item_once() -> None:
    """Four workers at once on one ledger: each item is computed and committed once."""
    kits = [Kit.of(numbered(600))]
    for _ in range(3):
        other = Kit.of({}, ledger=kits[0].ledger, store=kits[0].store)
        other.shelf.documents = kits[0].shelf.documents
        kits.append(other)
    # None may be taken for dead because the others kept it waiting.
    working = [kit.work_in_thread(replace(FAST, lease_ttl=60)) for kit in kits]
    assert [worker.join() for worker in working] == [ExitCode.OK] * 4
    assert (kits[0].tallies.completed, kits[0].tallies.attempts) == (600, 600)
    assert (kits[0].tallies.fenced, kits[0].tallies.adopted) == (0, 0)


def test_output_that_is_not_json_fails_its_document_alone() -> None:
    """A NaN cannot be stored; the document is charged, with the reason."""
    kit = Kit.of({"fine": "yes", "odd": "nan"})
    infer = kit.processor.infer

    def with_nan(batch):  # type: ignore[no-untyped-def]
        outputs = list(infer(batch))
        return [
            replace(output, value=float("nan")) if prepared.payload == "nan" else output
            for prepared, output in zip(batch, outputs, strict=True)
        ]

    kit.processor.infer = with_nan  # type: ignore[method-assign]
    assert kit.work() == ExitCode.DEAD_LETTERS
    [letter] = kit.ledger.dead_letters(kit.run, 0, 10)
    assert (letter.source_id, letter.cause) == ("odd", "output_invalid")
    assert list(kit.outputs()) == ["fine"]


def test_a_store_that_stays_silent_charges_no_document() -> None:
    """A failing store releases its items uncharged, and they complete when it is back."""
    store = MemoryStore()
    kit = Kit.of(numbered(5), store=store)
    put, left = store.put_if_absent, [12]

    def flaky(key: str, data: bytes, sha256: str) -> bool:
        from batchq.store.base import StoreError

        if left[0] > 0:
            left[0] -= 1
            raise StoreError("503 slow down")
        return put(key, data, sha256)

    store.put_if_absent = flaky  # type: ignore[method-assign]
    assert kit.work() == ExitCode.OK
    assert (kit.tallies.completed, kit.tallies.failures) == (5, 0)


def test_no_secret_and_no_nul_of_an_error_reaches_the_ledger() -> None:
    """Errors quote what they were given; the ledger is read by many."""
    kit = Kit.of({"doc": "poison"})

    def choke(texts: object) -> None:
        raise RuntimeError("GET https://me:hunter2@models\x00 failed \ud800" + "x" * 5_000)

    kit.processor.before_batch = choke
    assert kit.work() == ExitCode.DEAD_LETTERS
    [letter] = kit.ledger.dead_letters(kit.run, 0, 10)
    assert "hunter2" not in letter.error
    assert "\x00" not in letter.error
    assert len(letter.error.encode()) <= 2_000


def test_a_risk_is_recorded_and_drains_nothing() -> None:
    """A rebalance recommendation is an event; the run goes on to its end."""
    kit = Kit.of(numbered(30))
    warned: list[bool] = []

    def warn_once(texts: object) -> None:
        if not warned:
            warned.append(True)
            kit.notices.warn()

    kit.processor.before_batch = warn_once
    assert kit.work() == ExitCode.OK
    assert kit.tallies.completed == 30
    [notice] = kit.events_of("notice")
    assert (notice["action"], notice["drains"]) == ("rebalance", False)


def test_a_worker_that_holds_something_never_claims_as_if_alone() -> None:
    """Only who holds nothing may be handed a suspect."""
    kit = Kit.of(numbered(300))
    claims: list[tuple[bool, int]] = []
    claim = kit.ledger.claim

    def record(worker: str, token: str, limit: int, *, alone: bool) -> Lease | None:
        claims.append((alone, kit.tallies.leased))
        return claim(worker, token, limit, alone=alone)

    kit.ledger.claim = record  # type: ignore[method-assign]
    assert kit.work(replace(FAST, claim=20)) == ExitCode.OK
    assert [held for alone, held in claims if alone and held] == []
    assert any(not alone for alone, _ in claims)


def test_a_name_that_was_renewed_already_cancels_nothing() -> None:
    """Heartbeat and claim may both learn of one reaping; the later must not drop new leases."""
    kit = Kit.of({})
    registration = Registration(kit.ledger, kit.run, "host", 60, {})
    registration.register()
    lost, cancelled = registration.name, []
    assert registration.renew(lost, lambda: cancelled.append("first"))
    assert not registration.renew(lost, lambda: cancelled.append("second"))
    assert cancelled == ["first"]
    assert registration.name != lost


def test_a_notice_between_two_calls_lets_no_claim_through() -> None:
    """The last moment before a claim is after the counts were read: it is looked at again."""
    kit = Kit.of(numbered(300))
    counts, claims = kit.ledger.counts, []
    asked: list[bool] = []

    def notice_meanwhile(run: Run) -> Counts:
        answer = counts(run)
        asked.append(threading.current_thread().name == "claim")
        if asked.count(True) == 1:
            kit.notices.press()
        return answer

    kit.ledger.counts = notice_meanwhile  # type: ignore[method-assign]
    claim = kit.ledger.claim

    def record(*arguments: Any, **options: Any) -> Lease | None:
        claims.append(arguments)
        return claim(*arguments, **options)

    kit.ledger.claim = record  # type: ignore[method-assign]
    assert kit.work() == ExitCode.STOPPED
    assert claims == []


def test_what_a_claim_in_flight_brings_goes_back_and_is_not_begun() -> None:
    """The notice came while the ledger was answering."""
    noticed = threading.Event()

    class Dozing(SystemClock):
        """The main thread gives nothing back that a stage might do something with."""

        def wait(self, event: threading.Event, seconds: float) -> bool:
            if noticed.is_set() and threading.current_thread() is threading.main_thread():
                while kit.tallies.leased and not kit.processor.batches:
                    super().wait(threading.Event(), 0.01)
            return super().wait(event, seconds)

    kit = Kit.of(numbered(300), clock=Dozing())
    claim = kit.ledger.claim

    def interrupted(*arguments: Any, **options: Any) -> Lease | None:
        lease = claim(*arguments, **options)
        kit.notices.press()
        noticed.set()
        return lease

    kit.ledger.claim = interrupted  # type: ignore[method-assign]
    assert kit.work() == ExitCode.STOPPED
    assert kit.processor.batches == []
    assert kit.tallies.ready == 300
    assert kit.tallies.interrupted > 0


def test_a_reaped_worker_drops_what_it_has_not_begun() -> None:
    """Others hold that now; only what was on the device is computed twice."""
    kit = Kit.of(numbered(120))
    texts_of_first: list[str] = []

    def be_reaped(texts: Sequence[str]) -> None:
        if texts_of_first:
            return
        texts_of_first.extend(texts)
        wait_for_more_in_hand(kit)
        [worker] = [w for w in kit.ledger.workers(kit.run) if w.role is Role.WORKER]
        kit.ledger.stop(worker.name, "as a reaper would")
        # Until the next beat has told it.
        while sum(w.role is Role.WORKER for w in kit.ledger.workers(kit.run)) == 1:
            kit.clock.wait(threading.Event(), 0.01)

    kit.processor.before_batch = be_reaped
    assert kit.work() == ExitCode.OK
    computed = [text for batch in kit.processor.batches for text in batch]
    twice = {text for text in computed if computed.count(text) > 1}
    assert twice == set(texts_of_first)


def test_a_result_that_does_not_fit_the_deadline_is_given_back() -> None:
    """Large beyond all that was stored so far: a drain is no time to find out how long it takes."""
    kit = Kit.of({"large": "word " * 500_000})
    kit.processor.before_batch = lambda texts: kit.notices.press()
    assert kit.work() == ExitCode.STOPPED
    assert (kit.tallies.ready, kit.tallies.completed) == (1, 0)
    assert not list(kit.store.list(f"{kit.run.prefix}/"))


@pytest.mark.parametrize(("ahead", "finished"), [(900.0, False), (9_000.0, True)])
def test_a_batch_is_finished_if_it_fits_the_deadline_and_else_given_back_at_once(
    ahead: float, finished: bool
) -> None:
    """By what batches have taken so far; nobody waits for the deadline to find out."""
    clock = Leaping()
    kit = Kit.of(numbered(300), clock=clock)
    given_back_early: list[bool] = []

    def take_long(texts: Sequence[str]) -> None:
        if len(kit.processor.batches) == 2:
            kit.notices.press(clock.monotonic() + ahead)
            if finished:
                # Time to give it back, if that is what happens.
                clock.wait(threading.Event(), 0.3)
                given_back_early.append(kit.tallies.leased == 0)
            else:
                given_back_early.append(comes_true(lambda: kit.tallies.leased == 0))
        # An item takes a minute.
        clock.leap(60.0 * len(texts))

    kit.processor.before_batch = take_long
    assert kit.work(replace(FAST, stall_timeout=86_400)) == ExitCode.STOPPED
    assert given_back_early == [not finished]
    done = kit.processor.batches[: 2 if finished else 1]
    assert kit.tallies.completed == sum(len(batch) for batch in done)
    assert kit.tallies.leased == 0


def test_an_expensive_ledger_is_told_of_while_the_worker_lives(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Above a twentieth of the time somebody should look, and at the end is too late."""
    clock = Leaping()
    kit = Kit.of(numbered(3), clock=clock)
    commit = kit.ledger.commit

    def slow(worker: str, results: Sequence[Result]) -> Committed:
        clock.leap(600.0)
        return commit(worker, results)

    kit.ledger.commit = slow  # type: ignore[method-assign]
    assert kit.work(replace(FAST, stall_timeout=86_400)) == ExitCode.OK
    assert len([line for line in caplog.messages if line.startswith("commits take ")]) == 1
    [stopped] = kit.events_of("stopped")
    assert stopped["flush_share"] > 0.05


def test_a_worker_that_leaves_registers_no_more() -> None:
    """A beat that is answered after the last call finds the worker stopped, as it should be."""
    kit = Kit.of({})
    registration = Registration(kit.ledger, kit.run, "host", 60, {})
    registration.register()
    reaped: list[str] = []
    heartbeat = Heartbeat(
        kit.ledger,
        registration,
        kit.clock,
        stall_timeout=30,
        last_progress=lambda: None,
        on_reaped=reaped.append,
        on_fatal=lambda error: pytest.fail(str(error)),
    )
    beat, asked, answer = kit.ledger.beat, threading.Event(), threading.Event()

    def late(worker: str, ttl: float) -> bool:
        asked.set()
        answer.wait(PATIENCE_S)
        return beat(worker, ttl)

    kit.ledger.beat = late  # type: ignore[method-assign]
    heartbeat.start()
    assert asked.wait(PATIENCE_S)
    heartbeat.stop(0.0)
    kit.ledger.stop(registration.name, "run finished")
    answer.set()
    heartbeat.stop(PATIENCE_S)
    assert reaped == []
