"""Both layouts: what is written is found again where the answer says, and judged by every byte."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchq.clock import ManualClock
from batchq.item import Item
from batchq.result import Envelope, InvalidEnvelope, Stored, sha256_hex
from batchq.store import frames, verified
from batchq.store.base import Store, StoreError
from batchq.store.committed import (
    AlteredResult,
    DamagedResult,
    ForeignResult,
    MissingResult,
    read_committed,
)
from batchq.store.frames import packed, unpacked, unpacked_together
from batchq.store.layout import Layout, Made, layout_named
from batchq.store.memory import MemoryStore
from batchq.store.verified import Written
from tests.faults.faulty_store import FaultyStore, PutFault, ReadFault

VERSION = "stats-0123456789ab"
LAYOUTS = ("item", "shard")


def opened(name: str, store: Store) -> Layout:
    return layout_named(
        name, store, prefix="run-1", processing_version=VERSION, clock=ManualClock()
    )


def made(layout: Layout, number: int, output: object = "ours") -> Made:
    source_id = f"docs/{number}.md"
    version = f"sha256:{sha256_hex(source_id.encode())}"
    item = Item(number, source_id, version, 1, "file:///doc", 1, 1, 0, 0)
    return layout.make(item, Envelope(source_id, version, VERSION, output, 7, 7, {"attempt": 1}))


def write(layout: Layout, results: list[Made]) -> list[Written]:
    if layout.gathers:
        return layout.write(results)
    return [layout.write([each])[0] for each in results]


def read(store: Store, layout: str, stored: Stored, of: Made) -> bytes:
    return read_committed(
        store,
        layout,
        stored,
        source_id=of.item.source_id,
        source_version=of.item.source_version,
        processing_version=VERSION,
    ).whole


# -- frames ----------------------------------------------------------------------


@given(st.binary(min_size=1, max_size=2_000))
def test_a_frame_holds_its_line(line: bytes) -> None:
    """Bytes to frame to bytes."""
    assert line == unpacked(packed(line))


def test_a_damaged_frame_is_no_frame() -> None:
    """Cut, lengthened, doubled, or with any bit flipped: never other content."""
    line = b'{"output":[0.25,-1.5]}\n' * 5
    frame = packed(line)
    damaged = [frame[:n] for n in range(len(frame))] + [frame + b"\0", frame * 2]
    for position in range(len(frame)):
        for bit in range(8):
            altered = bytearray(frame)
            altered[position] ^= 1 << bit
            damaged.append(bytes(altered))
    for each in damaged:
        try:
            assert line == unpacked(each)
        except InvalidEnvelope:
            continue
        # A bit that says nothing of the content.
        assert len(each) == len(frame)


@pytest.mark.parametrize("line", [b"x", b'{"output":[0.25,-1.5]}\n' * 5, b"a" * 200])
def test_frames_unpacked_together_are_judged_as_by_themselves(line: bytes) -> None:
    """A damaged one among them, in every way there is, gives no line that it alone would not."""
    frame, other = packed(line), packed(b"another line")
    damaged = [frame[:n] for n in range(1, len(frame))]
    damaged += [frame + b"\0", frame * 2, packed(b""), b"\x50\x2a\x4d\x18\1\0\0\0a" + frame]
    for position in range(len(frame)):
        for bit in range(8):
            altered = bytearray(frame)
            altered[position] ^= 1 << bit
            damaged.append(bytes(altered))
    for each in damaged:
        places = [(0, len(other)), (len(other), len(each)), (len(other + each), len(other))]
        lines = unpacked_together(other + each + other, places)
        if lines is None:
            continue
        assert [b"another line", unpacked(each), b"another line"] == lines


@pytest.mark.parametrize(
    "line", [b"a" * 1_000_000, bytes(range(256)) * 2_000, random.Random(1).randbytes(400_000)]
)
def test_frames_of_several_blocks_are_unpacked_together(line: bytes) -> None:
    """Blocks that repeat a byte, that are packed and that are not: all end where they say."""
    frame = packed(line)
    places = [(0, len(frame)), (len(frame), len(frame))]
    assert [line, line] == unpacked_together(frame * 2, places)


def test_frames_that_hold_too_much_are_not_unpacked_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A few bytes may become very many, and all at once they would be in memory."""
    frame = packed(b"a" * 1000)
    monkeypatch.setattr(frames, "TOGETHER", 1999)
    assert unpacked_together(frame, [(0, len(frame))]) == [b"a" * 1000]
    assert unpacked_together(frame * 2, [(0, len(frame)), (len(frame), len(frame))]) is None
    assert unpacked_together(frame, [(0, len(frame) + 1)]) is None


def test_the_frames_of_a_shard_are_one_stream_of_lines() -> None:
    """Any zstd tool prints the shard as JSON lines."""
    import zstandard

    layout = opened("shard", MemoryStore())
    results = [made(layout, number) for number in range(3)]
    shard = b"".join(each.data for each in results)
    stream = zstandard.ZstdDecompressor().stream_reader(shard, read_across_frames=True)
    assert b"".join(each.envelope.to_bytes() for each in results) == stream.read()


# -- writing ---------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_result_lies_where_the_answer_says(name: str) -> None:
    """Key, offset, length and digest, in file bytes; what is inside is the envelope."""
    store = MemoryStore()
    layout = opened(name, store)
    results = [made(layout, number, output) for number, output in enumerate(["a", None, [0.1]])]
    written = write(layout, results)
    for one, result in zip(written, results, strict=True):
        assert result.envelope.to_bytes() == read(store, name, one.stored, result)
    assert [one.empty for one in written] == [False, True, False]
    keys = {one.stored.key for one in written}
    assert len(keys) == (1 if name == "shard" else 3)


def test_the_frames_of_a_shard_lie_end_to_end() -> None:
    """No byte of the object belongs to nobody."""
    store = MemoryStore()
    layout = opened("shard", store)
    written = write(layout, [made(layout, number) for number in range(4)])
    offset = 0
    for one in written:
        assert offset == one.stored.offset
        offset += one.stored.length
    assert offset == len(store.read(written[0].stored.key))


@pytest.mark.parametrize(
    "faults",
    [
        [PutFault.ERROR_BEFORE],
        [PutFault.LOST_ANSWER],
        [PutFault.LATE, PutFault.LATE],
        [PutFault.TRUNCATED],
        [PutFault.GARBAGE_FIRST],
        [PutFault.LIES_EXISTS],
        [PutFault.TRUNCATED, PutFault.LOST_ANSWER, PutFault.GARBAGE_FIRST],
    ],
)
@pytest.mark.parametrize("hides_digest", [True, False])
def test_a_shard_survives_whatever_a_put_does(faults: list[PutFault], hides_digest: bool) -> None:
    """Every frame can be read afterwards, and nothing counts as adopted."""
    store = FaultyStore(MemoryStore(), faults, hides_digest=hides_digest)
    layout = opened("shard", store)
    results = [made(layout, number) for number in range(3)]
    for one, result in zip(write(layout, results), results, strict=True):
        assert result.envelope.to_bytes() == read(store.inner, "shard", one.stored, result)
        assert (one.adopted, one.divergent) == (False, False)


def spoilt_shard_is_written_anew() -> None:
    store = FaultyStore(MemoryStore(), [PutFault.TRUNCATED])
    layout = opened("shard", store)
    result = made(layout, 0)
    [one] = write(layout, [result])
    assert len(list(store.list("run-1/shards/"))) == 2
    assert result.envelope.to_bytes() == read(store.inner, "shard", one.stored, result)


def test_a_spoilt_shard_is_written_anew_under_another_key() -> None:
    """What lies there stays, since nothing is ever replaced."""
    spoilt_shard_is_written_anew()


def test_without_the_read_back_a_spoilt_shard_would_be_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The test above would notice a write that trusts the store's answer."""
    monkeypatch.setattr(verified, "_reads_back", lambda store, ours: True)
    with pytest.raises(AssertionError):
        spoilt_shard_is_written_anew()


def test_a_store_that_stays_silent_leaves_a_shard_unknown() -> None:
    """After all attempts the caller learns that nothing is known."""
    layout = opened("shard", FaultyStore(MemoryStore(), [PutFault.LOST_ANSWER] * 9))
    with pytest.raises(StoreError):
        write(layout, [made(layout, 0)])


@pytest.mark.parametrize("fault", [ReadFault.ERROR, ReadFault.FLIPPED, ReadFault.SHORT])
def test_a_damaged_read_back_condemns_no_shard(fault: ReadFault) -> None:
    """One object is written, however the first reading went."""
    store = FaultyStore(MemoryStore(), reads=[fault], hides_digest=True)
    layout = opened("shard", store)
    write(layout, [made(layout, 0)])
    assert len(list(store.list("run-1/shards/"))) == 1


def test_only_layout_item_finds_what_an_earlier_attempt_left() -> None:
    """A shard's key follows from no item."""
    store = MemoryStore()
    for name, found in (("item", True), ("shard", False)):
        layout = opened(name, store)
        result = made(layout, 0)
        write(layout, [result])
        assert (layout.find(result.item) is not None) == found


# -- reading ---------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_missing_object_is_told_from_a_silent_store(name: str) -> None:
    """Only an answer says that it is gone."""
    store = MemoryStore()
    layout = opened(name, store)
    result = made(layout, 0)
    [one] = write(layout, [result])
    with pytest.raises(MissingResult):
        read(MemoryStore(), name, one.stored, result)
    with pytest.raises(StoreError):
        read(FaultyStore(store, reads=[ReadFault.ERROR]), name, one.stored, result)


def _flip(data: bytes) -> bytes:
    return data[:20] + bytes([data[20] ^ 1]) + data[21:]


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("damage", [_flip, lambda data: data[:-1], lambda data: b""])
def test_altered_bytes_are_never_read_as_a_result(
    name: str, damage: Callable[[bytes], bytes]
) -> None:
    """Flipped, cut, emptied."""
    store, spoilt = MemoryStore(), MemoryStore()
    layout = opened(name, store)
    result = made(layout, 0)
    [one] = write(layout, [result])
    data = damage(store.read(one.stored.key))
    spoilt.put_if_absent(one.stored.key, data, sha256_hex(data))
    with pytest.raises(AlteredResult, match="differs from what was committed"):
        read(spoilt, name, one.stored, result)


@pytest.mark.parametrize("name", LAYOUTS)
def test_bytes_that_are_no_result_are_refused_though_the_digest_agrees(name: str) -> None:
    """The ledger's digest says what was committed, not that it was a result."""
    store = MemoryStore()
    data = b'{"schema":"batchq/1"}\n'
    store.put_if_absent("run-1/x", data, sha256_hex(data))
    result = made(opened(name, store), 0)
    with pytest.raises(AlteredResult, match="is no result"):
        read(store, name, Stored("run-1/x", 0, len(data), sha256_hex(data)), result)


@pytest.mark.parametrize("name", LAYOUTS)
def test_another_items_result_is_told_from_damage(name: str) -> None:
    """It is whole and valid, and the row is another's."""
    store = MemoryStore()
    layout = opened(name, store)
    mine, other = made(layout, 0), made(layout, 1)
    theirs = write(layout, [mine, other])[1]
    with pytest.raises(ForeignResult):
        read(store, name, theirs.stored, mine)


def test_a_frame_read_at_the_wrong_place_is_altered() -> None:
    """The neighbour's bytes do not pass for ours."""
    store = MemoryStore()
    layout = opened("shard", store)
    results = [made(layout, number) for number in range(2)]
    first, second = write(layout, results)
    displaced = replace(first.stored, offset=second.stored.offset)
    with pytest.raises(DamagedResult):
        read(store, "shard", displaced, results[0])
