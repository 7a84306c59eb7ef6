"""Committed results read back: everything is checked, and a file appears whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from batchq import results
from batchq.errors import BatchqError, UsageError
from batchq.item import NewItem
from batchq.lease import new_token
from batchq.ledger.base import Role, Run
from batchq.ledger.memory import MemoryLedger
from batchq.result import Envelope, Result, Stored, result_key, sha256_hex
from batchq.store.local import LocalStore

VERSION = "stats-0123456789ab"


class Archive:
    """A run whose documents all have a committed result in a folder."""

    def __init__(self, folder: Path, documents: int) -> None:
        self.folder = folder / "store"
        self.ledger = MemoryLedger()
        self.store = LocalStore(self.folder)
        self.store.probe()
        self.run: Run = self.ledger.create_run("default", VERSION, {}, "item")
        self.ledger.register(self.run, "worker", 60, Role.WORKER, {})
        if documents:
            names = [f"docs/{number}.md" for number in range(documents)]
            items = [NewItem(n, f"sha256:{n}", 1, f"file:///{n}", "file:///") for n in names]
            self.ledger.enqueue("worker", 1, items)
            lease = self.ledger.claim("worker", new_token(), documents, alone=True)
            assert lease is not None
            self.ledger.commit(
                "worker",
                [
                    Result(item.id, lease.token, self._put(item.source_id, item.source_version))
                    for item in lease.items
                ],
            )

    def _put(self, source_id: str, source_version: str) -> Stored:
        envelope = Envelope(source_id, source_version, VERSION, {"words": 3}, 3, 3)
        data = envelope.to_bytes()
        key = result_key(self.run.prefix, envelope.item_key, source_id, 1)
        self.store.put_if_absent(key, data, sha256_hex(data))
        return Stored(key, 0, len(data), sha256_hex(data))

    def object_of(self, source_id: str) -> Path:
        state = self.ledger.lookup(self.run, source_id)
        assert state is not None
        assert state.result is not None
        return self.folder / state.result.stored.key

    def export(self, path: Path, *, force: bool = False) -> int:
        return results.export(self.ledger, self.run, self.store, path, force=force)


def test_one_result_is_the_envelope_and_where_it_lies(tmp_path: Path) -> None:
    """The envelope as stored, with the ledger's digest of it."""
    archive = Archive(tmp_path, 2)

    document = results.fetch(archive.ledger, archive.run, archive.store, "docs/1.md")

    stored = document.pop("stored")
    data = archive.object_of("docs/1.md").read_bytes()
    assert document == json.loads(data)
    assert document["output"] == {"words": 3}
    assert stored["sha256"] == sha256_hex(data)
    assert (stored["offset"], stored["length"]) == (0, len(data))


def test_a_document_that_was_never_enqueued_is_named(tmp_path: Path) -> None:
    """It is no result without content, but a mistake."""
    archive = Archive(tmp_path, 1)

    with pytest.raises(UsageError, match=r"no document 'docs/other\.md'"):
        results.fetch(archive.ledger, archive.run, archive.store, "docs/other.md")


def test_a_document_without_a_result_says_where_it_stands(tmp_path: Path) -> None:
    """Ready, leased or dead-lettered: each needs something else."""
    archive = Archive(tmp_path, 0)
    item = NewItem("docs/a.md", "sha256:a", 1, "file:///a", "file:///")
    archive.ledger.enqueue("worker", 1, [item])

    with pytest.raises(BatchqError, match="has no result: it is ready"):
        results.fetch(archive.ledger, archive.run, archive.store, "docs/a.md")


def test_all_results_go_to_a_file_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than two pages of them, each once."""
    monkeypatch.setattr(results, "PAGE", 10)
    archive = Archive(tmp_path, 27)
    path = tmp_path / "all.jsonl"

    assert archive.export(path) == 27

    lines = [json.loads(line) for line in path.read_text().splitlines()]
    expected = [f"docs/{number}.md" for number in range(27)]
    assert [line["source_id"] for line in lines] == expected
    assert all(line["stored"]["sha256"] for line in lines)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["all.jsonl", "store"]


def test_a_file_is_not_replaced_unless_asked(tmp_path: Path) -> None:
    """Yesterday's export may be the only one."""
    archive = Archive(tmp_path, 1)
    path = tmp_path / "all.jsonl"
    path.write_text("precious")

    with pytest.raises(UsageError, match="exists already"):
        archive.export(path)
    assert path.read_text() == "precious"

    assert archive.export(path, force=True) == 1
    assert "precious" not in path.read_text()


def _alter(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"words":3', b'"words":4'))


def _lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (Path.unlink, "is missing from the store"),
        (_alter, "differs from what was committed"),
        (_lengthen, "differs from what was committed"),
        (lambda path: path.write_bytes(b""), "differs from what was committed"),
    ],
)
def test_a_damaged_object_ends_the_export_by_name(
    tmp_path: Path, damage: Callable[[Path], object], said: str
) -> None:
    """The file is not published, since it would be taken for all results."""
    archive = Archive(tmp_path, 5)
    damage(archive.object_of("docs/3.md"))
    path = tmp_path / "all.jsonl"

    with pytest.raises(BatchqError, match=rf"docs/3\.md' {said}") as caught:
        archive.export(path)

    assert caught.value.exit_code == 1
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["store"]


def test_only_jsonl_is_written(tmp_path: Path) -> None:
    """A suffix promises a format."""
    archive = Archive(tmp_path, 1)

    with pytest.raises(UsageError, match=r"\.parquet"):
        archive.export(tmp_path / "all.parquet")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The operating system's own word for it, and no traceback."""
    archive = Archive(tmp_path, 1)

    with pytest.raises(BatchqError, match=r"all\.jsonl: No such file or directory"):
        archive.export(tmp_path / "missing" / "all.jsonl")
