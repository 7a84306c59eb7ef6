"""Committed results read back: everything is checked, and a file appears whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import batchq
from batchq.clock import ManualClock
from batchq.errors import BatchqError, LedgerUnreachable, UsageError
from batchq.ledger.base import Committed, CommittedResult, Run
from batchq.ledger.dynamodb.settling import Settling
from batchq.result import Result, sha256_hex
from batchq.results import StoreObject, documents, exporting, fetch, parquet, reading
from batchq.results.journal import Growing
from batchq.store.memory import MemoryStore
from batchq.store.s3 import S3Limits, S3Store
from tests.conformance.backends import dynamo_backend
from tests.dynamodb import moto_endpoint
from tests.faults.faulty_store import FaultyStore, PutFault, ReadFault
from tests.faults.strict_s3 import Fault
from tests.s3 import BUCKET, strict_server
from tests.unit.archive import Archive

LAYOUTS = ("item", "shard")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def left_behind(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.name != "store")


# -- one result ------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_result_is_the_envelope_and_where_it_lies(tmp_path: Path, layout: str) -> None:
    """The envelope as stored, with the ledger's digest of its file bytes."""
    archive = Archive(tmp_path, 3, layout)

    document = fetch(archive.ledger, archive.run, archive.store, "docs/1.md")

    stored = document.pop("stored")
    data = archive.object_of("docs/1.md").read_bytes()
    part = data[stored["offset"] : stored["offset"] + stored["length"]]
    assert (document["source_id"], document["output"]) == ("docs/1.md", {"words": 3})
    assert stored["sha256"] == sha256_hex(part)
    assert (len(part) == len(data)) == (layout == "item")


def test_a_document_that_was_never_enqueued_is_named(tmp_path: Path) -> None:
    """It is no result without content, but a mistake."""
    archive = Archive(tmp_path, 1)

    with pytest.raises(UsageError, match=r"no document 'docs/other\.md'"):
        fetch(archive.ledger, archive.run, archive.store, "docs/other.md")


def test_a_document_without_a_result_says_where_it_stands(tmp_path: Path) -> None:
    """Ready, leased or dead-lettered: each needs something else."""
    archive = Archive(tmp_path, 0)
    archive.enqueue(["docs/a.md"])

    with pytest.raises(BatchqError, match="has no result: it is ready"):
        fetch(archive.ledger, archive.run, archive.store, "docs/a.md")


# -- all to a file ---------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_results_go_to_a_file_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """More than two pages of them, in several portions each, each once."""
    monkeypatch.setattr(reading, "PAGE", 10)
    monkeypatch.setattr(reading, "PORTION_BYTES", 1_000)
    archive = Archive(tmp_path, 27, layout)
    path = tmp_path / "all.jsonl"

    assert archive.export(path).written == 27

    found = lines(path)
    assert [f"docs/{number}.md" for number in range(27)] == [each["source_id"] for each in found]
    assert [fetch(archive.ledger, archive.run, archive.store, "docs/5.md")] == found[5:6]
    assert left_behind(tmp_path) == ["all.jsonl"]


def test_neighbouring_frames_are_read_in_one_request(tmp_path: Path) -> None:
    """Seven frames an object: an export of 28 results asks four times."""
    store = FaultyStore(MemoryStore())
    archive = Archive(tmp_path, 28, "shard", store=store)
    reads = store.read_calls

    assert archive.export(tmp_path / "all.jsonl").written == 28

    assert store.read_calls - reads == 4


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fault", [ReadFault.ERROR, ReadFault.FLIPPED, ReadFault.SHORT])
def test_a_read_that_was_damaged_is_read_again(
    tmp_path: Path, layout: str, fault: ReadFault
) -> None:
    """What the wire did to one answer fails no export."""
    store = FaultyStore(MemoryStore(), hides_digest=True)
    archive = Archive(tmp_path, 5, layout, store=store)
    store._reads = iter([fault])
    assert archive.export(tmp_path / "all.jsonl").written == 5


def test_a_store_that_stays_silent_ends_the_export(tmp_path: Path) -> None:
    """The result may well be there: the error says that nothing was lost."""
    store = FaultyStore(MemoryStore())
    archive = Archive(tmp_path, 2, "shard", store=store)
    store._reads = iter([ReadFault.ERROR] * 9)
    with pytest.raises(BatchqError, match=r"docs/0\.md' cannot be read") as caught:
        archive.export(tmp_path / "all.jsonl")
    assert caught.value.hint is not None
    assert "nothing was lost" in caught.value.hint


def test_a_file_is_not_replaced_unless_asked(tmp_path: Path) -> None:
    """Yesterday's export may be the only one."""
    archive = Archive(tmp_path, 1)
    path = tmp_path / "all.jsonl"
    path.write_text("precious")

    with pytest.raises(UsageError, match="exists already"):
        archive.export(path)
    assert path.read_text() == "precious"

    assert archive.export(path, force=True).written == 1
    assert "precious" not in path.read_text()


def _alter(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:40] + bytes([data[40] ^ 1]) + data[41:])


def _lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


@pytest.mark.parametrize(
    ("layout", "damage", "said"),
    [
        ("item", Path.unlink, "is missing from the store"),
        ("item", _alter, "differs from what was committed"),
        ("item", _lengthen, "differs from what was committed"),
        ("item", lambda path: path.write_bytes(b""), "differs from what was committed"),
        ("shard", Path.unlink, "is missing from the store"),
        ("shard", _alter, "differs from what was committed"),
        ("shard", lambda path: path.write_bytes(b""), "differs from what was committed"),
    ],
)
def test_a_damaged_object_ends_the_export_by_name(
    tmp_path: Path, layout: str, damage: Callable[[Path], object], said: str
) -> None:
    """The file is not published, since it would be taken for all results."""
    archive = Archive(tmp_path, 5, layout, together=1)
    damage(archive.object_of("docs/3.md"))

    with pytest.raises(BatchqError, match=rf"docs/3\.md' {said}") as caught:
        archive.export(tmp_path / "all.jsonl")

    assert caught.value.exit_code == 1
    assert left_behind(tmp_path) == []


def test_only_known_formats_are_written(tmp_path: Path) -> None:
    """A suffix promises a format."""
    archive = Archive(tmp_path, 1)

    with pytest.raises(UsageError, match=r"\.csv"):
        archive.export(tmp_path / "all.csv")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The operating system's own word for it, and no traceback."""
    archive = Archive(tmp_path, 1)

    with pytest.raises(BatchqError, match=r"all\.jsonl: No such file or directory"):
        archive.export(tmp_path / "missing" / "all.jsonl")


def test_only_the_latest_versions_are_written_where_asked(tmp_path: Path) -> None:
    """Of a document that changed, its newer result; of one that has none yet, nothing."""
    archive = Archive(tmp_path, 4)
    archive.add({"docs/1.md": {"words": 9}}, version=2)
    archive.enqueue(["docs/2.md"], version=2)

    assert archive.export(tmp_path / "all.jsonl").written == 5
    assert archive.export(tmp_path / "current.jsonl", current_only=True).written == 3

    found = {
        each["source_id"]: each["output"]["words"] for each in lines(tmp_path / "current.jsonl")
    }
    assert found == {"docs/0.md": 3, "docs/1.md": 9, "docs/3.md": 3}


# -- interrupted -----------------------------------------------------------------


class Stopped(BaseException):
    """The process is told to end."""


@pytest.fixture
def stopped_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Ends the next exports when they come to the result of that item, until set to none."""
    stop: list[int | None] = [None]
    pages = reading._portions

    def portions(asked: Iterator[list[CommittedResult]]) -> Iterator[list[CommittedResult]]:
        for portion in pages(asked):
            if stop[0] is not None and portion[-1].item_id > stop[0]:
                raise Stopped
            yield portion

    monkeypatch.setattr(reading, "_portions", portions)
    monkeypatch.setattr(reading, "PAGE", 10)
    monkeypatch.setattr(reading, "AHEAD", 0)
    monkeypatch.setattr(parquet.Parquet, "ahead", 0)
    return lambda item: stop.__setitem__(0, item)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_an_interrupted_export_goes_on_where_it_stopped(
    tmp_path: Path, stopped_at: Callable[[int | None], None], suffix: str
) -> None:
    """Nothing that was written is read again, and the file is that of a quiet export."""
    store = FaultyStore(MemoryStore())
    archive = Archive(tmp_path, 35, store=store)
    quiet, path = tmp_path / f"quiet{suffix}", tmp_path / f"all{suffix}"
    archive.export(quiet)
    stopped_at(25)
    with pytest.raises(Stopped):
        archive.export(path)
    assert not path.exists()
    stopped_at(None)
    reads = store.read_calls

    exported = archive.export(path)

    assert (exported.written, exported.resumed) == (35, 20)
    # A Parquet file's first output is looked at again, to know what outputs are.
    assert store.read_calls - reads == 15 + (suffix == ".parquet")
    assert quiet.read_bytes() == path.read_bytes()
    assert left_behind(tmp_path) == sorted([path.name, quiet.name])


def test_what_a_ledger_has_not_counted_yet_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On DynamoDB a commit is seen before it is counted, and so without a change of any tally."""
    with dynamo_backend("dynamodb", moto_endpoint()) as backend:
        ledger = backend.client()
        commit, held_back = ledger.commit, list[Result]()

        def commit_later(worker: str, results: Sequence[Result]) -> Committed:
            if not held_back:
                held_back.extend(results)
                return Committed()
            return commit(worker, results)

        def stop(written: int) -> None:
            raise Stopped

        monkeypatch.setattr(Settling, "_settle", lambda self, rows: None)
        monkeypatch.setattr(ledger, "commit", commit_later)
        archive = Archive(tmp_path, 3, ledger=ledger)
        path = tmp_path / "all.jsonl"
        with pytest.raises(Stopped):
            archive.export(path, progress=stop)
        commit("worker", held_back)

        assert archive.export(path).written == 3


def test_what_was_written_after_the_last_checkpoint_is_cut_off(
    tmp_path: Path, stopped_at: Callable[[int | None], None]
) -> None:
    """A killed process leaves bytes that nothing vouches for."""
    archive = Archive(tmp_path, 35)
    stopped_at(25)
    with pytest.raises(Stopped):
        archive.export(tmp_path / "all.jsonl")
    with (tmp_path / ".all.jsonl.part").open("ab") as part:
        part.write(b'{"half a li')
    stopped_at(None)

    archive.export(tmp_path / "all.jsonl")

    assert [f"docs/{n}.md" for n in range(35)] == [
        each["source_id"] for each in lines(tmp_path / "all.jsonl")
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda archive, part: archive.add({"docs/new.md": {"words": 1}}),
        lambda archive, part: part.write_bytes(b""),
        lambda archive, part: part.with_name(".all.jsonl.journal").write_text("{"),
    ],
)
def test_an_export_of_something_else_begins_anew(
    tmp_path: Path, stopped_at: Callable[[int | None], None], change: Callable[..., object]
) -> None:
    """A run that went on, a part that was lost, a journal that is none."""
    archive = Archive(tmp_path, 35)
    stopped_at(25)
    with pytest.raises(Stopped):
        archive.export(tmp_path / "all.jsonl")
    stopped_at(None)
    change(archive, tmp_path / ".all.jsonl.part")

    exported = archive.export(tmp_path / "all.jsonl")

    assert exported.resumed == 0
    assert exported.written == len(archive.ledger.results(archive.run, 0, 100))
    assert exported.written == len(lines(tmp_path / "all.jsonl"))


def test_other_options_begin_anew(tmp_path: Path, stopped_at: Callable[[int | None], None]) -> None:
    """What was written without --current is not what it asks for."""
    archive = Archive(tmp_path, 35)
    archive.add({"docs/1.md": {"words": 9}}, version=2)
    stopped_at(25)
    with pytest.raises(Stopped):
        archive.export(tmp_path / "all.jsonl")
    stopped_at(None)

    exported = archive.export(tmp_path / "all.jsonl", current_only=True)

    assert (exported.written, exported.resumed) == (35, 0)


def test_a_parquet_export_of_json_text_goes_on_as_such(
    tmp_path: Path, stopped_at: Callable[[int | None], None]
) -> None:
    """To try vectors again would throw away what was written after they had failed."""
    archive = Archive(tmp_path, [[0.5, 1.0], "no vector", *[[0.5, 1.0]] * 33])
    stopped_at(25)
    with pytest.raises(Stopped):
        archive.export(tmp_path / "all.parquet")
    stopped_at(None)

    exported = archive.export(tmp_path / "all.parquet")

    assert (exported.written, exported.resumed) == (35, 20)


def test_a_version_that_is_current_again_is_not_left_out(
    tmp_path: Path, stopped_at: Callable[[int | None], None]
) -> None:
    """It lies behind what was written when it was not current."""
    archive = Archive(tmp_path, 35)
    archive.add({"docs/0.md": {"words": 9}}, version=2)
    stopped_at(25)
    with pytest.raises(Stopped):
        archive.export(tmp_path / "all.jsonl", current_only=True)
    stopped_at(None)
    archive.enqueue(["docs/0.md"], version=1)

    archive.export(tmp_path / "all.jsonl", current_only=True)

    words = {each["source_id"]: each["output"]["words"] for each in lines(tmp_path / "all.jsonl")}
    assert words == {f"docs/{n}.md": 3 for n in range(35)}


def test_an_export_that_cannot_begin_keeps_what_another_wrote(
    tmp_path: Path, stopped_at: Callable[[int | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger out of reach for a moment costs nothing; a first attempt leaves nothing."""
    archive = Archive(tmp_path, 35)
    stopped_at(25)
    with pytest.raises(Stopped):
        archive.export(tmp_path / "all.jsonl")
    stopped_at(None)

    def silent(run: Run) -> None:
        raise LedgerUnreachable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(archive.ledger, "counts", silent)
        for name in ("all.jsonl", "other.jsonl"):
            with pytest.raises(LedgerUnreachable):
                archive.export(tmp_path / name)

    assert left_behind(tmp_path) == [".all.jsonl.journal", ".all.jsonl.part"]
    assert archive.export(tmp_path / "all.jsonl").resumed == 20


def test_no_journal_vouches_for_the_bytes_of_another_making(tmp_path: Path) -> None:
    """An attempt with other options is killed before its first checkpoint."""
    with Growing(tmp_path / ".all") as first:
        first.resume({"current_only": False})
        first.write([b"first" * 10])
        first.checkpoint(20, 20)
    killed = Growing(tmp_path / ".all")
    killed.resume({"current_only": True})
    killed.write([b"other" * 20])
    killed._file.close()

    with Growing(tmp_path / ".all") as again:
        again.resume({"current_only": False})
        assert (again.after, again.written) == (0, 0)
        assert again.part.read_bytes() == b""


def test_a_write_that_takes_a_part_is_followed_by_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system may take less than it is given, of many pieces too."""
    pieces: list[bytes | memoryview] = [b"one", memoryview(b"twenty")[:3], b"", b"three"] * 1000
    monkeypatch.setattr(os, "writev", lambda file, given: os.write(file, b"".join(given)[:-7]))
    with Growing(tmp_path / ".all") as growing:
        growing.resume({})
        assert growing.write(pieces) == 11_000
        growing.checkpoint(1, 1)
        assert growing.part.read_bytes() == b"".join(pieces)


def test_the_journal_never_counts_what_is_not_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every moment a kill may come: what the journal vouches for is in the part."""
    monkeypatch.setattr(reading, "PAGE", 5)
    monkeypatch.setattr(exporting, "CHECKPOINT_BYTES", 1)
    archive = Archive(tmp_path, 20)
    seen: list[int] = []

    def look(written: int) -> None:
        journal = json.loads((tmp_path / ".all.jsonl.journal").read_text())
        part = (tmp_path / ".all.jsonl.part").read_bytes()[: journal["bytes"]]
        assert journal["written"] == part.count(b"\n") == written
        seen.append(written)

    archive.export(tmp_path / "all.jsonl", progress=look)

    assert seen == [5, 10, 15, 20]


def test_two_exports_to_one_file_do_not_mix(tmp_path: Path) -> None:
    """The second is told that it is not alone."""
    archive = Archive(tmp_path, 2)
    with (tmp_path / ".all.jsonl.part").open("ab") as part:
        fcntl.flock(part, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="another export"):
            archive.export(tmp_path / "all.jsonl")


def test_an_export_that_ends_while_another_begins_keeps_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the second one opened is the first one's finished file when the lock is free."""
    archive, finished = Archive(tmp_path, 2), tmp_path / "finished.jsonl"
    (tmp_path / ".all.jsonl.part").write_bytes(b"of the first")
    lock = fcntl.flock

    def late(file: Any, operation: int) -> None:
        if not finished.exists():
            (tmp_path / ".all.jsonl.part").rename(finished)
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    assert archive.export(tmp_path / "all.jsonl").written == 2
    assert finished.read_bytes() == b"of the first"
    assert len(lines(tmp_path / "all.jsonl")) == 2


def test_an_export_that_finds_no_room_for_its_journal_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full takes a file's name and none of its bytes."""
    archive = Archive(tmp_path, 2)

    def full(path: Path, text: str) -> int:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(BatchqError, match="No space left"):
        archive.export(tmp_path / "all.jsonl")
    assert left_behind(tmp_path) == []


# -- to a bucket -----------------------------------------------------------------


def test_an_export_to_a_bucket_is_one_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of a local export, sent in parts where it is large, and replaced by nothing."""
    monkeypatch.chdir(tmp_path)
    archive = Archive(tmp_path, 40)
    archive.export(tmp_path / "local.jsonl")
    with strict_server(monkeypatch, min_part=1024) as server:
        for part in (2**20, 4096):
            limits = S3Limits(multipart_above=part, part=part)
            store = S3Store(f"s3://{BUCKET}/exports", limits=limits)
            store.probe()
            destination = StoreObject(store, f"all-{part}.jsonl")
            assert archive.export(destination).written == 40
            found = server.state.get(BUCKET, f"exports/all-{part}.jsonl").data
            assert (tmp_path / "local.jsonl").read_bytes() == found
            for force in (False, True):
                with pytest.raises(UsageError, match="exists already"):
                    archive.export(destination, force=force)
        assert server.count("UploadPart") > 2
    assert left_behind(tmp_path) == ["local.jsonl"]


def test_an_upload_that_fails_is_repeated_without_reading_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was made lies here until it has been stored."""
    monkeypatch.chdir(tmp_path)
    store = FaultyStore(MemoryStore())
    archive = Archive(tmp_path, 5, store=store)
    bucket = FaultyStore(MemoryStore(), [PutFault.ERROR_BEFORE])
    with pytest.raises(BatchqError, match="cannot be written"):
        archive.export(StoreObject(bucket, "all.jsonl"))
    reads = store.read_calls

    assert archive.export(StoreObject(bucket, "all.jsonl")).written == 5

    assert store.read_calls == reads
    assert len(bucket.read("all.jsonl").splitlines()) == 5


@pytest.mark.parametrize("fault", [Fault.SLOW_DOWN, Fault.CUT_BEFORE, Fault.CUT_AFTER])
def test_an_upload_that_is_sent_again_is_sent_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    """Like any other object: one throttled request, or one lost answer, ends no export."""
    monkeypatch.chdir(tmp_path)
    archive = Archive(tmp_path, 40)
    archive.export(tmp_path / "local.jsonl")
    with strict_server(monkeypatch) as server:
        store = S3Store(f"s3://{BUCKET}", limits=S3Limits(timeout=1), clock=ManualClock())
        store.probe()
        server.inject("PutObject", fault, key="all.jsonl")
        assert archive.export(StoreObject(store, "all.jsonl")).written == 40
        found = server.state.get(BUCKET, "all.jsonl").data
    assert (tmp_path / "local.jsonl").read_bytes() == found


@pytest.mark.parametrize("hides_digest", [True, False])
def test_what_another_put_there_meanwhile_is_not_taken_for_the_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hides_digest: bool
) -> None:
    """Not even at the same size, where a store tells no digest, as S3 of what came in parts."""
    monkeypatch.chdir(tmp_path)
    archive = Archive(tmp_path, 5)
    archive.export(tmp_path / "local.jsonl")
    theirs = b"?" * (tmp_path / "local.jsonl").stat().st_size
    bucket = FaultyStore(MemoryStore(), hides_digest=hides_digest)

    def come_first(written: int) -> None:
        bucket.put_if_absent("all.jsonl", theirs, sha256_hex(theirs))

    with pytest.raises(UsageError, match="somebody else"):
        archive.export(StoreObject(bucket, "all.jsonl"), progress=come_first)
    assert theirs == bucket.read("all.jsonl")


@pytest.mark.parametrize("hides_digest", [True, False])
def test_an_export_whose_answer_was_lost_is_found_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hides_digest: bool
) -> None:
    """It was created, and asked for again the store says that it exists: with its very bytes."""
    monkeypatch.chdir(tmp_path)
    archive = Archive(tmp_path, 5)
    archive.export(tmp_path / "local.jsonl")
    ours = (tmp_path / "local.jsonl").read_bytes()
    bucket = FaultyStore(MemoryStore(), hides_digest=hides_digest)

    def land(written: int) -> None:
        bucket.put_if_absent("all.jsonl", ours, sha256_hex(ours))

    assert archive.export(StoreObject(bucket, "all.jsonl"), progress=land).written == 5
    assert left_behind(tmp_path) == ["local.jsonl"]


# -- all to a program ------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_program_reads_the_same_documents(tmp_path: Path, layout: str) -> None:
    """In the order of the file, and each with where it is stored."""
    archive = Archive(tmp_path, 12, layout)
    archive.export(tmp_path / "all.jsonl")

    read = list(documents(archive.ledger, archive.run, archive.store))

    assert lines(tmp_path / "all.jsonl") == read


def test_reading_no_further_leaves_no_thread_behind(tmp_path: Path) -> None:
    """Whoever stops after the first has paid for a few, and waits for nothing."""
    archive = Archive(tmp_path, 12)
    reading_on = documents(archive.ledger, archive.run, archive.store)
    assert next(reading_on)["source_id"] == "docs/0.md"
    reading_on.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("results")]


def test_only_what_is_offered_is_found_in_the_package() -> None:
    """A misspelt name is an error like in any module."""
    assert batchq.read_results.__doc__
    with pytest.raises(AttributeError, match="read_result"):
        batchq.read_result  # noqa: B018
