"""The verified write over HTTP, against a server that fails in every way S3 can.

Each fault is met by BATCHQ_FAULT_ROUNDS items (24 unless set), several at a time. However
it goes, each item ends with one valid result in the store, and with the counters that
belong to what happened.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from batchq.clock import ManualClock
from batchq.result import Envelope, InvalidEnvelope, result_key, sha256_hex
from batchq.store import verified
from batchq.store.base import StoreError
from batchq.store.s3 import S3Limits, S3Store
from batchq.store.verified import BrokenObject, Written, find_result, write_result
from tests.faults.strict_s3 import Fault, Honesty, StrictS3
from tests.s3 import BUCKET, strict_server

ROUNDS = int(os.environ.get("BATCHQ_FAULT_ROUNDS", "24"))
AT_ONCE = 8
AT_ONCE_IN_SILENCE = 24
"""Which costs time alone, and so the whole test as much as one of them."""

VERSION = "stats-0123456789ab"

SLOW = (Fault.SILENCE, Fault.SILENCE_AFTER, Fault.LATE)
LIMITS = S3Limits(timeout=60)
IMPATIENT = S3Limits(timeout=1.0)
"""Who waits for silence; the other requests answer in time on a busy machine too."""

MEBIBYTE = 1024 * 1024


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[StrictS3]:
    """An honest server with an empty bucket."""
    with strict_server(monkeypatch) as running:
        yield running


def opened(limits: S3Limits = LIMITS) -> S3Store:
    store = S3Store(f"s3://{BUCKET}", limits=limits, clock=ManualClock())
    store.probe()
    return store


def envelope(number: int, output: object = "ours", attempt: int = 1) -> Envelope:
    source_id = f"docs/{number:04d}.md"
    version = f"sha256:{sha256_hex(source_id.encode())}"
    return Envelope(source_id, version, VERSION, output, 7, 7, {"attempt": attempt})


def key_of(mine: Envelope, generation: int = 1) -> str:
    return result_key("run-1", mine.item_key, mine.source_id, generation)


def write(store: S3Store, mine: Envelope, generation: int = 1) -> Written:
    return write_result(store, key_of(mine, generation), mine, clock=ManualClock())


def valid_results(server: StrictS3, mine: Envelope) -> list[bytes]:
    """What lies in the bucket for an item, past the store, as far as it is valid."""
    valid = []
    for path in server.state.keys(BUCKET, key_of(mine).removesuffix(".json")):
        data = server.state.get(BUCKET, path).data
        try:
            Envelope.from_bytes(data)
        except InvalidEnvelope:
            continue
        valid.append(data)
    return valid


def each(number_of_rounds: int, round_: Callable[[int], None], *, at_once: int = AT_ONCE) -> None:
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(round_, range(number_of_rounds)))


def assert_flags(written: Written, *, adopted: bool, divergent: bool = False) -> None:
    assert (adopted, divergent) == (written.adopted, written.divergent)


# -- one fault at a time ---------------------------------------------------------


@pytest.mark.parametrize("operation", ["PutObject", "HeadObject"])
@pytest.mark.parametrize(
    "fault",
    [
        Fault.ERROR,
        Fault.ERROR_AFTER,
        Fault.SLOW_DOWN,
        Fault.CONFLICT,
        Fault.SILENCE,
        Fault.SILENCE_AFTER,
        Fault.LATE,
        Fault.CUT_BEFORE,
        Fault.CUT_AFTER,
    ],
)
def test_a_lost_or_refused_answer_ends_with_our_own_result(
    server: StrictS3, fault: Fault, operation: str
) -> None:
    """Whether it took effect or not: written once, ours, nothing counted as adopted."""
    store = opened(IMPATIENT if fault in SLOW else LIMITS)

    def round_(number: int) -> None:
        mine = envelope(number)
        server.inject(operation, *[fault] * (1 + number % 2), key=key_of(mine))
        written = write(store, mine)
        assert [mine.to_bytes()] == valid_results(server, mine)
        assert sha256_hex(mine.to_bytes()) == written.stored.sha256
        assert_flags(written, adopted=False)

    each(ROUNDS, round_, at_once=AT_ONCE_IN_SILENCE if fault in SLOW else AT_ONCE)
    assert server.count(operation) > ROUNDS


@pytest.mark.parametrize("fault", [Fault.CUT_BODY, Fault.FLIPPED, Fault.ERROR, Fault.CUT_BEFORE])
@pytest.mark.parametrize("honesty", [Honesty.HONEST, Honesty.UNCHECKED])
def test_a_damaged_read_adopts_what_is_there_all_the_same(
    monkeypatch: pytest.MonkeyPatch, fault: Fault, honesty: Honesty
) -> None:
    """A worker before us died after its put; whether our output differs is told rightly."""
    with strict_server(monkeypatch, honesty=honesty) as server:
        store = opened()

        def round_(number: int) -> None:
            theirs = envelope(number, "theirs" if number % 2 else "ours", attempt=1)
            assert_flags(write(store, theirs), adopted=False)
            server.inject("GetObject", fault, key=key_of(theirs))
            mine = envelope(number, attempt=2)
            written = write(store, mine)
            assert [theirs.to_bytes()] == valid_results(server, mine)
            assert sha256_hex(theirs.to_bytes()) == written.stored.sha256
            assert_flags(written, adopted=True, divergent=bool(number % 2))

        each(ROUNDS, round_)


@pytest.mark.parametrize("fault", [Fault.CUT_BODY, Fault.FLIPPED, Fault.ERROR, Fault.SLOW_DOWN])
def test_a_damaged_look_up_before_inference_finds_the_result(
    server: StrictS3, fault: Fault
) -> None:
    """The second attempt at an item finds what the first one left, and computes nothing."""
    store = opened()

    def round_(number: int) -> None:
        mine = envelope(number)
        first = write(store, mine)
        server.inject("GetObject", fault, key=key_of(mine))
        found = find_result(
            store,
            key_of(mine),
            source_id=mine.source_id,
            source_version=mine.source_version,
            processing_version=VERSION,
        )
        assert found is not None
        assert first.stored == found.stored
        assert_flags(found, adopted=True)

    each(ROUNDS, round_)


def spoilt_objects_end_as_a_new_generation(server: StrictS3, store: S3Store) -> None:
    def round_(number: int) -> None:
        mine = envelope(number)
        server.inject("PutObject", Fault.STORED_TRUNCATED, key=key_of(mine))
        generation = 1
        try:
            written = write(store, mine)
        except BrokenObject:
            # What the worker does: give the item up, and whoever claims it next writes here.
            generation = 2
            written = write(store, mine, generation)
        assert key_of(mine, generation) == written.stored.key
        assert [mine.to_bytes()] == valid_results(server, mine)
        assert_flags(written, adopted=False)

    each(ROUNDS, round_)


@pytest.mark.parametrize("honesty", [Honesty.HONEST, Honesty.UNCHECKED])
def test_half_an_object_under_a_200_is_never_taken_for_a_result(
    monkeypatch: pytest.MonkeyPatch, honesty: Honesty
) -> None:
    """Reading back finds it, and the item begins anew under another key."""
    with strict_server(monkeypatch, honesty=honesty) as server:
        spoilt_objects_end_as_a_new_generation(server, opened())


def test_without_the_read_back_half_an_object_would_be_committed(
    server: StrictS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above would notice: it fails on a write that trusts the server's 200."""
    monkeypatch.setattr(verified, "_reads_back", lambda store, ours: True)
    with pytest.raises(AssertionError):
        spoilt_objects_end_as_a_new_generation(server, opened())


# -- in parts --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "fault"),
    [
        *[("CreateMultipartUpload", fault) for fault in (Fault.ERROR, Fault.CUT_AFTER)],
        *[("UploadPart", fault) for fault in (Fault.SLOW_DOWN, Fault.STORED_TRUNCATED)],
        *[
            ("CompleteMultipartUpload", fault)
            for fault in (
                Fault.ERROR,
                Fault.ERROR_AFTER,
                Fault.CONFLICT,
                Fault.CUT_BEFORE,
                Fault.CUT_AFTER,
                Fault.SILENCE,
                Fault.SILENCE_AFTER,
                Fault.LATE,
            )
        ],
    ],
)
def test_a_large_result_in_parts_survives_the_same_faults(
    server: StrictS3, operation: str, fault: Fault
) -> None:
    """One whole object, its digest beside it, and no parts left to be paid for."""
    limits = S3Limits(
        timeout=2 if fault in SLOW else 60, multipart_above=6 * MEBIBYTE, part=5 * MEBIBYTE
    )
    store = opened(limits)
    mine = envelope(0, "x" * (7 * MEBIBYTE))
    server.inject(operation, fault, key=key_of(mine))
    written = write(store, mine)
    assert_flags(written, adopted=False)
    stored = server.state.get(BUCKET, key_of(mine))
    assert mine.to_bytes() == stored.data
    assert {"x-amz-meta-sha256": written.stored.sha256} == stored.metadata
    left = [upload for upload in server.state.uploads.values() if upload.parts]
    assert not left


# -- all at once -----------------------------------------------------------------


def test_two_workers_through_a_storm_of_faults_commit_one_and_the_same(server: StrictS3) -> None:
    """Any mixture: what anybody calls written is there, valid, and the same for both."""
    store = opened()
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    puts = [Fault.ERROR, Fault.ERROR_AFTER, Fault.SLOW_DOWN, Fault.CONFLICT, Fault.CUT_AFTER]
    reads = [Fault.ERROR, Fault.CUT_BODY, Fault.FLIPPED, Fault.CUT_BEFORE]
    for number in range(ROUNDS):
        path = key_of(envelope(number))
        server.inject("PutObject", *chance.choices(puts, k=4), key=path)
        server.inject("HeadObject", *chance.choices([Fault.ERROR, Fault.SLOW_DOWN], k=2), key=path)
        server.inject("GetObject", *chance.choices(reads, k=4), key=path)

    def attempt(number: int) -> Written | None:
        item, output = divmod(number, 2)
        try:
            return write(store, envelope(item, output, attempt=output))
        except StoreError:
            return None

    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = list(pool.map(attempt, range(2 * ROUNDS)))
    for number in range(ROUNDS):
        [there] = valid_results(server, envelope(number))
        winner = json.loads(there)["output"]
        written = outcomes[2 * number : 2 * number + 2]
        assert any(written)
        for output, mine in enumerate(written):
            if mine is not None:
                assert sha256_hex(there) == mine.stored.sha256
                assert_flags(mine, adopted=output != winner, divergent=output != winner)
