"""What every result store promises, asked of each."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice, product
from pathlib import Path

import pytest

from batchq.clock import ManualClock
from batchq.errors import StoreUnusable
from batchq.result import Envelope, result_key, sha256_hex
from batchq.store.base import ObjectInfo, ObjectMissing, Store, StoreError
from batchq.store.local import LocalStore
from batchq.store.memory import MemoryStore
from batchq.store.s3 import S3Store
from batchq.store.verified import find_result, write_result
from tests.s3 import moto_bucket, strict_server

HOSTILE = [
    "",
    "/",
    "/etc/passwd",
    "..",
    "../outside",
    "run/../../outside",
    "run/./a",
    "run//a",
    "run/",
    ".hidden",
    "run/.tmp-1",
    "run/a\0b",
    "run/a\nb",
    "run/a\x7fb",
    "run/\ud800",
    "run/" + "x" * 256,
    "run/" + "ä" * 128,
    "/".join(["x" * 200] * 6),
]


@pytest.fixture(params=["memory", "local", "s3-strict", "s3-moto"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Store]:
    """A fresh store of each kind, probed as every command does."""
    with ExitStack() as servers:
        made: Store
        match request.param:
            case "memory":
                made = MemoryStore()
            case "local":
                made = LocalStore(tmp_path / "results")
            case "s3-strict":
                servers.enter_context(strict_server(monkeypatch))
                made = S3Store("s3://bucket")
            case "s3-moto":
                moto_bucket(monkeypatch)
                made = S3Store("s3://bucket/prefix")
        made.probe()
        yield made


def put(store: Store, key: str, data: bytes) -> bool:
    return store.put_if_absent(key, data, sha256_hex(data))


def keys(store: Store, prefix: str = "", after: str = "") -> list[str]:
    return [info.key for info in store.list(prefix, after)]


# -- creating --------------------------------------------------------------------


def test_a_new_object_is_created_and_read_back(store: Store) -> None:
    """True means created, and the bytes are those that were put."""
    assert put(store, "run-1/ab/one.json", b"content")
    assert store.read("run-1/ab/one.json") == b"content"


def test_an_existing_object_is_never_replaced(store: Store) -> None:
    """False, whether the bytes are the same or others; what was first stays."""
    put(store, "run-1/one", b"first")
    assert not put(store, "run-1/one", b"second, and longer")
    assert not put(store, "run-1/one", b"first")
    assert store.read("run-1/one") == b"first"


def test_bytes_with_another_digest_are_refused(store: Store) -> None:
    """Damage between the caller and the store leaves nothing behind."""
    with pytest.raises(StoreError, match=r"(?i)digest"):
        store.put_if_absent("run-1/one", b"damaged", sha256_hex(b"intended"))
    assert store.head("run-1/one") is None
    assert put(store, "run-1/one", b"intended")


def test_objects_of_every_size_survive_whole(store: Store) -> None:
    """Empty, tiny, across buffers, large."""
    for size in (0, 1, 65_537, 3_000_000):
        data = bytes(range(256)) * (size // 256) + bytes(size % 256)
        put(store, f"run-1/{size}", data)
        assert store.read(f"run-1/{size}") == data


def test_of_many_creators_exactly_one_wins(store: Store) -> None:
    """Threads race for one key, again and again; the content is the winner's, unmixed."""
    racers = 8
    with ThreadPoolExecutor(racers) as pool:
        for round_number in range(20):
            key = f"run-1/{round_number:02d}/one"
            start = threading.Barrier(racers)

            def create(racer: int, key: str = key, start: threading.Barrier = start) -> bool:
                start.wait(timeout=120)
                return put(store, key, bytes([racer]) * 50_000)

            won = list(pool.map(create, range(racers)))
            assert won.count(True) == 1
            assert store.read(key) == bytes([won.index(True)]) * 50_000


def test_a_hostile_key_is_refused_by_every_verb(store: Store, tmp_path: Path) -> None:
    """Nothing is created, read or told outside the store, nor hidden inside it."""
    (tmp_path / "outside").write_bytes(b"secret")
    for key in HOSTILE:
        for verb in (store.read, store.head, store.delete, lambda k: put(store, k, b"x")):
            with pytest.raises(StoreUnusable, match="cannot be a key"):
                verb(key)
    assert keys(store) == []
    assert (tmp_path / "outside").read_bytes() == b"secret"


def test_the_longest_keys_fit(store: Store) -> None:
    """255 bytes in a part, 1,024 in all, and names beyond ASCII."""
    whole = "/".join(["x" * 255] * 3 + ["y" * 251, "zzzz"])
    assert len(whole) == 1024
    for key in ("w" * 255, "run/" + "ä" * 127, whole):
        assert put(store, key, b"x")
        assert key in keys(store)


# -- reading ---------------------------------------------------------------------


def test_a_part_of_an_object_can_be_read(store: Store) -> None:
    """Offsets and lengths are in bytes; beyond the end there is nothing."""
    put(store, "run-1/one", b"0123456789")
    assert store.read("run-1/one", 3) == b"3456789"
    assert store.read("run-1/one", 3, 4) == b"3456"
    assert store.read("run-1/one", 8, 100) == b"89"
    assert store.read("run-1/one", 3, 0) == b""
    assert store.read("run-1/one", 100) == b""
    assert store.read("run-1/one", 100, 5) == b""


def test_an_absent_object_is_told_apart_from_an_error(store: Store) -> None:
    """`head` says none, `read` raises ObjectMissing naming the key."""
    put(store, "run-1/one", b"x")
    for key in ("absent", "run-1/absent", "other/ab/absent"):
        assert store.head(key) is None
        with pytest.raises(ObjectMissing, match=key) as caught:
            store.read(key)
        assert caught.value.key == key


def test_head_tells_the_size_and_a_digest_only_if_it_is_true(store: Store) -> None:
    """A store that computes no digest says none rather than repeat the caller's."""
    put(store, "run-1/one", b"content")
    info = store.head("run-1/one")
    assert info is not None
    assert (info.key, info.size) == ("run-1/one", 7)
    assert info.sha256 in (None, sha256_hex(b"content"))


# -- listing ---------------------------------------------------------------------

NAMES = ["a-b", "a/1", "a/2/x", "a/2-x", "a0", "b", "run-1/aa/1", "run-1/ab/1", "run-10/aa/1"]


PREFIXES = ["", "a", "a/", "a/2", "run-1", "run-1/", "run-1/a", "b", "zz"]
AFTER = ["", "a", "a/1", "a/2", "a/2-x", "a/2/x", "a0", "run-1/aa/1", "zz"]


def test_listing_follows_the_order_of_keys(store: Store) -> None:
    """By prefix of the key, not by folder, strictly after `after`, as UTF-8 sorts."""
    for name in NAMES:
        put(store, name, name.encode())
    for prefix, after in product(PREFIXES, AFTER):
        expected = sorted(n for n in NAMES if n.startswith(prefix) and n > after)
        assert keys(store, prefix, after) == expected, (prefix, after)


def test_listing_tells_sizes(store: Store) -> None:
    """Each with the number of its bytes."""
    put(store, "run-1/one", b"12345")
    assert [(info.key, info.size) for info in store.list("run-1/")] == [("run-1/one", 5)]
    assert isinstance(next(store.list("")), ObjectInfo)


def test_a_listing_can_be_taken_up_where_it_was_left(store: Store) -> None:
    """Pages by the last key give every object once."""
    for number in range(50):
        put(store, f"run-1/{number % 7}/{number:03d}", b"x")
    seen: list[str] = []
    while page := list(islice(store.list("run-1/", seen[-1] if seen else ""), 8)):
        seen += [info.key for info in page]
    assert seen == sorted(set(seen))
    assert len(seen) == 50


def test_objects_that_arrive_during_a_listing_disturb_nothing(store: Store) -> None:
    """What was there before is listed once, in order."""
    for number in range(10):
        put(store, f"run-1/{number}/one", b"x")
    listed = []
    for info in store.list("run-1/"):
        listed.append(info.key)
        put(store, f"{info.key}-later", b"x")
    before = [key for key in listed if not key.endswith("-later")]
    assert before == [f"run-1/{number}/one" for number in range(10)]
    assert listed == sorted(set(listed))


# -- deleting --------------------------------------------------------------------


def test_a_deleted_object_is_gone_and_its_neighbours_are_not(store: Store) -> None:
    """Whoever reads it is told so; the key is free again."""
    for name in ("run-1/ab/one", "run-1/ab/one-more", "run-1/ab2"):
        put(store, name, b"content")
    store.delete("run-1/ab/one")
    assert store.head("run-1/ab/one") is None
    with pytest.raises(ObjectMissing):
        store.read("run-1/ab/one")
    assert keys(store) == ["run-1/ab/one-more", "run-1/ab2"]
    assert put(store, "run-1/ab/one", b"another")


def test_deleting_what_is_not_there_changes_nothing(store: Store) -> None:
    """An audit that lost its answer asks again."""
    put(store, "run-1/one", b"content")
    for key in ("run-1/absent", "absent/ab/one"):
        store.delete(key)
    assert keys(store) == ["run-1/one"]


# -- with the verified write -----------------------------------------------------


def test_two_attempts_at_one_item_commit_the_same_object(store: Store) -> None:
    """Whichever came first is what both describe; the second adopts it."""
    first, second = (
        Envelope("docs/a.md", "sha256:0", "stats-1", {"n": 1}, 1, 1, {"attempt": attempt})
        for attempt in (1, 2)
    )
    key = result_key("run-1", first.item_key, first.source_id, 1)
    mine = write_result(store, key, first, clock=ManualClock())
    theirs = write_result(store, key, second, clock=ManualClock())
    found = find_result(
        store, key, source_id="docs/a.md", source_version="sha256:0", processing_version="stats-1"
    )
    assert found is not None
    assert mine.stored == theirs.stored == found.stored
    assert (mine.adopted, theirs.adopted, found.adopted) == (False, True, True)
    assert store.read(key) == first.to_bytes()


def test_probing_leaves_nothing_behind_and_can_be_repeated(store: Store) -> None:
    """Every command probes; none may find another one's traces."""
    put(store, "run-1/one", b"x")
    store.probe()
    assert keys(store) == ["run-1/one"]
