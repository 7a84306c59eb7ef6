"""The verified write, against a store that fails in every way it can."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchq.clock import ManualClock
from batchq.errors import ExitCode, StoreUnusable
from batchq.result import Envelope, result_key, sha256_hex
from batchq.store import verified
from batchq.store.base import Store, StoreError
from batchq.store.memory import MemoryStore
from batchq.store.verified import BrokenObject, ForeignObject, Written, find_result, write_result
from tests.faults.faulty_store import FaultyStore, PutFault, ReadFault


def envelope(attempt: int = 1, output: object = "ours", source_id: str = "docs/a.md") -> Envelope:
    return Envelope(
        source_id, "sha256:" + "a" * 64, "stats-0123456789ab", output, 7, 7, {"attempt": attempt}
    )


OURS = envelope()
KEY = result_key("run-1", OURS.item_key, OURS.source_id, 1)


def write(store: Store, mine: Envelope = OURS) -> Written:
    return write_result(store, KEY, mine, clock=ManualClock())


def find(store: Store, mine: Envelope = OURS) -> Written | None:
    return find_result(
        store,
        KEY,
        source_id=mine.source_id,
        source_version=mine.source_version,
        processing_version=mine.processing_version,
    )


def lay(store: Store, data: bytes) -> None:
    assert store.put_if_absent(KEY, data, sha256_hex(data))


def assert_ours(store: Store, written: Written, mine: Envelope = OURS) -> None:
    data = mine.to_bytes()
    assert data == store.read(KEY)
    assert (KEY, 0, len(data), sha256_hex(data)) == (
        written.stored.key,
        written.stored.offset,
        written.stored.length,
        written.stored.sha256,
    )
    assert (written.adopted, written.divergent) == (False, False)


# -- our own result --------------------------------------------------------------


def test_a_result_is_stored_and_described_as_it_lies_there() -> None:
    """The plain case: our bytes, their digest, nothing adopted."""
    store = MemoryStore()
    assert_ours(store, write(store))


def test_an_output_of_null_is_empty() -> None:
    """A document without text has a result, and it is marked."""
    assert write(MemoryStore(), envelope(output=None)).empty
    assert not write(MemoryStore(), envelope(output=[])).empty


@pytest.mark.parametrize("fault", [PutFault.ERROR_BEFORE, PutFault.LOST_ANSWER, PutFault.LATE])
@pytest.mark.parametrize("times", [1, 3])
def test_a_put_without_an_answer_is_asked_again_and_is_our_own(fault: PutFault, times: int) -> None:
    """Whether it took effect or not, the result is ours and nothing counts as adopted."""
    store = FaultyStore(MemoryStore(), [fault] * times)
    assert_ours(store.inner, write(store))
    assert times + 1 == store.put_calls


def test_a_visible_object_is_not_taken_for_a_durable_one() -> None:
    """Only a put that answers says that what lies there survives a power failure."""
    store = FaultyStore(MemoryStore(), [PutFault.LOST_ANSWER] * 9)
    with pytest.raises(StoreError):
        write(store)
    assert store.put_calls == 4


def test_a_store_that_stays_silent_is_given_up_after_its_pauses() -> None:
    """Four attempts, three growing pauses, then the outcome is called unknown."""
    clock = ManualClock()
    store = FaultyStore(MemoryStore(), [PutFault.ERROR_BEFORE] * 9)
    began = clock.monotonic()
    with pytest.raises(StoreError, match="503"):
        write_result(store, KEY, OURS, clock=clock, backoff=2.0)
    assert store.put_calls == 4
    assert 7.0 <= clock.monotonic() - began <= 14.0


def test_an_existing_object_that_cannot_be_read_is_asked_for_again() -> None:
    """The store says "exists" and then knows nothing: unknown, not written."""
    store = FaultyStore(MemoryStore(), [PutFault.LIES_EXISTS])
    assert_ours(store.inner, write(store))
    with pytest.raises(StoreError):
        write(FaultyStore(MemoryStore(), [PutFault.LIES_EXISTS] * 9))


@pytest.mark.parametrize("fault", [ReadFault.ERROR, ReadFault.FLIPPED, ReadFault.SHORT])
@pytest.mark.parametrize("hides_digest", [True, False])
def test_a_damaged_read_decides_nothing(fault: ReadFault, hides_digest: bool) -> None:
    """What the wire did to one read condemns no object and adopts nothing."""
    for before in range(3):
        reads = [ReadFault.NONE] * before + [fault]
        store = FaultyStore(MemoryStore(), reads=reads, hides_digest=hides_digest)
        assert_ours(store.inner, write(store))


def test_a_store_with_its_own_digest_is_not_read() -> None:
    """The digest that the store computed is proof enough, and saves the transfer."""
    store = FaultyStore(MemoryStore())
    write(store)
    assert store.read_calls == 0


def test_output_that_json_cannot_say_never_reaches_the_store() -> None:
    """NaN is refused before the first put."""
    store = FaultyStore(MemoryStore())
    with pytest.raises(ValueError, match="JSON"):
        write(store, envelope(output=[float("nan")]))
    assert store.put_calls == 0


# -- somebody else's -------------------------------------------------------------


@pytest.mark.parametrize(("output", "divergent"), [("ours", False), ("theirs", True)])
def test_another_attempts_result_is_adopted(output: str, divergent: bool) -> None:
    """It is committed in place of ours; divergent tells that ours was another output."""
    store, theirs = MemoryStore(), envelope(attempt=2, output=output).to_bytes()
    lay(store, theirs)
    written = write(store)
    assert (True, divergent) == (written.adopted, written.divergent)
    assert sha256_hex(theirs) == written.stored.sha256
    assert theirs == store.read(KEY)


def test_adoption_describes_their_result_and_not_ours() -> None:
    """Length and emptiness are those of the object that lies there."""
    store, theirs = MemoryStore(), envelope(attempt=2, output=None)
    lay(store, theirs.to_bytes())
    written = write(store)
    assert written.empty
    assert len(theirs.to_bytes()) == written.stored.length


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\x00" * 40,
        b"null",
        b"[" * 100_000,
        OURS.to_bytes()[:-20],
        OURS.to_bytes().replace(b'"ours"', b'"hers"'),
        OURS.to_bytes().replace(b"a.md", b"b.md"),
        OURS.to_bytes().replace(b'"ours"', b"NaN"),
        OURS.to_bytes().replace(b"a.md", rb"\ud800"),
        OURS.to_bytes().replace(b'"tokens_used":7', b'"tokens_used":1e999'),
        OURS.to_bytes().replace(b"batchq/1", b"batchq/2"),
    ],
)
def test_a_broken_object_is_named_and_left_alone(garbage: bytes) -> None:
    """Neither writing nor looking up replaces it, and neither trusts it."""
    store = MemoryStore()
    lay(store, garbage)
    for verb in (write, find):
        with pytest.raises(BrokenObject, match="run-1/") as caught:
            verb(store)
        assert caught.value.key == KEY
    assert garbage == store.read(KEY)


@pytest.mark.parametrize("fault", [PutFault.TRUNCATED, PutFault.GARBAGE_FIRST])
@pytest.mark.parametrize("remote", [True, False])
def test_a_store_that_spoils_an_object_does_not_get_it_committed(
    fault: PutFault, remote: bool
) -> None:
    """The put reported success, or "exists"; reading back finds out, with and without a digest."""
    store = FaultyStore(MemoryStore(), [fault])
    store.remote = remote
    with pytest.raises(BrokenObject):
        write(store)


def test_another_items_result_ends_the_command_naming_both() -> None:
    """Two runs share a key: that is no accident of this item."""
    store = MemoryStore()
    lay(store, envelope(source_id="docs/other.md").to_bytes())
    for verb in (write, find):
        with pytest.raises(ForeignObject, match=r"docs/a\.md.*docs/other\.md") as caught:
            verb(store)
        assert caught.value.exit_code == ExitCode.STORE_UNUSABLE
        assert caught.value.hint


def test_an_unusable_store_is_not_asked_again() -> None:
    """A full disk ends the command at once; pausing would not free any space."""

    class Full(MemoryStore):
        calls = 0

        def put_if_absent(self, key: str, data: bytes, sha256: str) -> bool:
            self.calls += 1
            raise StoreUnusable("no space left")

    store = Full()
    with pytest.raises(StoreUnusable):
        write(store)
    assert store.calls == 1


# -- looking up ------------------------------------------------------------------


def test_nothing_is_found_where_nothing_lies() -> None:
    """Absent is an answer, not an error."""
    assert find(MemoryStore()) is None


def test_an_earlier_attempts_result_is_found_and_adopted() -> None:
    """Inference is spared, and the counter `adopted` says so."""
    store = MemoryStore()
    first = write(store)
    found = find(store)
    assert found == Written(first.stored, adopted=True, divergent=False, empty=False)


def test_what_is_found_is_made_durable_before_it_is_returned() -> None:
    """Its writer may have died between making it visible and flushing the folder."""
    store = FaultyStore(MemoryStore(), [PutFault.NONE, PutFault.ERROR_BEFORE, PutFault.NONE])
    write(store)
    assert find(store) is not None
    assert store.put_calls == 3


@pytest.mark.parametrize("fault", [ReadFault.ERROR, ReadFault.FLIPPED, ReadFault.SHORT])
def test_a_look_up_survives_one_damaged_read(fault: ReadFault) -> None:
    """And its digest is that of the object, not of the damaged copy."""
    store = MemoryStore()
    first = write(store)
    for before in range(2):
        found = find(FaultyStore(store, reads=[ReadFault.NONE] * before + [fault]))
        assert found is not None
        assert first.stored == found.stored


def test_a_look_up_without_an_answer_is_no_absence() -> None:
    """Unknown is not absent: the caller must not conclude that nothing lies there."""
    store = MemoryStore()
    write(store)
    with pytest.raises(StoreError):
        find(FaultyStore(store, reads=[ReadFault.ERROR] * 9))


# -- whatever happens ------------------------------------------------------------


def never_wrong(
    puts: Sequence[PutFault], reads: Sequence[ReadFault], hides_digest: bool, theirs: bool
) -> None:
    """Two attempts on one key: whatever is called written is there and is valid."""
    store = MemoryStore()
    if theirs:
        lay(store, envelope(attempt=9, output="theirs").to_bytes())
    faulty = FaultyStore(store, puts, reads, hides_digest=hides_digest)
    committed = []
    for attempt in (1, 2):
        try:
            found = find(faulty) if attempt == 2 else None
            committed.append(found or write(faulty, envelope(attempt)))
        except (StoreError, BrokenObject):
            continue
    for written in committed:
        there = store.read(KEY)
        assert sha256_hex(there) == written.stored.sha256
        assert len(there) == written.stored.length
        assert OURS.item_key == Envelope.from_bytes(there).item_key
        assert written.adopted or not theirs


@given(
    st.lists(st.sampled_from(PutFault), max_size=8),
    st.lists(st.sampled_from(ReadFault), max_size=12),
    st.booleans(),
    st.booleans(),
)
def test_whatever_is_called_written_lies_there_whole(
    puts: list[PutFault], reads: list[ReadFault], hides_digest: bool, theirs: bool
) -> None:
    """Any schedule of faults: a result is right, or it is not called written."""
    never_wrong(puts, reads, hides_digest, theirs)


def _any_schedule() -> None:
    for puts in itertools.product(PutFault, repeat=2):
        for reads in itertools.product(ReadFault, repeat=3):
            for hides_digest in (True, False):
                for theirs in (True, False):
                    never_wrong(puts, reads, hides_digest, theirs)


def test_every_short_schedule_of_faults_ends_well() -> None:
    """Two faults of puts and three of reads, all combinations."""
    _any_schedule()


@pytest.mark.parametrize(
    ("guard", "mutant"),
    [
        # Trust the put, and read nothing back.
        ("_reads_back", lambda store, ours: True),
        # Believe a single look.
        ("_read_settled", lambda store, key: store.read(key)),
    ],
)
def test_without_the_guard_some_schedule_ends_badly(
    monkeypatch: pytest.MonkeyPatch, guard: str, mutant: object
) -> None:
    """The schedules above would notice if the read-back or the second look were gone."""
    monkeypatch.setattr(verified, guard, mutant)
    with pytest.raises(AssertionError):
        _any_schedule()
