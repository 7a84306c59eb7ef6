"""Documents staged in the result store, for workers on other machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchq.errors import DocumentError, StoreUnusable
from batchq.result import sha256_hex
from batchq.store.inputs import SCHEME, Inputs
from batchq.store.memory import MemoryStore

TEXT = b"a document of a laptop"
VERSION = f"sha256:{sha256_hex(TEXT)}"


def test_staged_bytes_are_read_back_by_their_locator() -> None:
    """The same bytes lie once, however often they are staged."""
    store = MemoryStore()
    inputs = Inputs(store)
    assert inputs.stage(TEXT, VERSION) == inputs.stage(TEXT, VERSION)
    assert inputs.read(f"{SCHEME}{sha256_hex(TEXT)}", VERSION, 1_000) == TEXT
    assert [info.key for info in store.list("")] == [f"inputs/{sha256_hex(TEXT)}"]


def test_what_marks_a_row_is_no_part_of_the_place() -> None:
    """A staged row of a table keeps its mark, and its bytes are found all the same."""
    inputs = Inputs(MemoryStore())
    locator = inputs.stage(TEXT, VERSION)
    assert inputs.read(f"{locator}#table=jsonl&text=body", VERSION, 1_000) == TEXT


def test_a_missing_copy_and_other_bytes_are_told_apart() -> None:
    """Both are final, and never computed from."""
    store = MemoryStore()
    store.remote = True
    inputs = Inputs(store)
    with pytest.raises(DocumentError) as missing:
        inputs.read(f"{SCHEME}{'0' * 64}", VERSION, 1_000)
    assert (missing.value.cause, missing.value.final) == ("source_missing", True)
    locator = inputs.stage(TEXT, VERSION)
    with pytest.raises(DocumentError) as changed:
        inputs.read(locator, f"sha256:{'1' * 64}", 1_000)
    assert (changed.value.cause, changed.value.final) == ("source_changed", True)
    with pytest.raises(DocumentError) as large:
        inputs.read(locator, VERSION, 5)
    assert large.value.cause == "too_large"


def test_a_store_that_holds_no_copies_condemns_no_document() -> None:
    """A run without documents takes any store, and a worker with the first one finds its marker."""
    with pytest.raises(StoreUnusable, match="enqueued with another one"):
        Inputs(MemoryStore()).read(f"{SCHEME}{'0' * 64}", VERSION, 1_000)


def test_one_damaged_read_decides_nothing() -> None:
    """The copy is read again before it is called changed."""
    store = MemoryStore()
    inputs = Inputs(store)
    locator = inputs.stage(TEXT, VERSION)
    read, damaged = store.read, [True]

    def once_damaged(key: str, offset: int = 0, length: int | None = None) -> bytes:
        data = read(key, offset, length)
        return data[:-1] + b"?" if damaged and damaged.pop() else data

    store.read = once_damaged  # type: ignore[method-assign]
    assert inputs.read(locator, VERSION, 1_000) == TEXT


def test_documents_of_this_machine_are_staged_only_where_others_reach_the_store(
    tmp_path: Path,
) -> None:
    """A local store needs no copies; a remote one gets one, and the locator says so."""
    from batchq.wiring import open_reader, open_staging

    document = tmp_path / "a.txt"
    document.write_bytes(TEXT)
    locator = document.as_uri()
    store = MemoryStore()
    assert open_staging(store, open_reader(store))(locator, VERSION) == locator
    store.remote = True
    reader = open_reader(store)
    staged = open_staging(store, reader)(locator, VERSION)
    assert staged.startswith(SCHEME)
    document.unlink()
    assert reader.read(staged, VERSION, 1_000) == TEXT
