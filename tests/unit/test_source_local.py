"""Reading documents again: the very bytes that were enqueued, or a named failure."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import threading
from pathlib import Path

import pytest

from batchq.errors import DocumentError
from batchq.source.base import Found, SourceAbsent, SourceUnavailable
from batchq.source.directory import DirectorySource
from batchq.source.local import CHUNK, LocalReader
from batchq.source.names import to_locator
from batchq.source.ranges import LocalRanges
from tests.unit.descriptors import open_files
from tests.unit.test_source_directory import anyones, without_privileges

__all__ = ["anyones"]

READER = LocalReader()


def located(path: Path) -> str:
    return to_locator(os.fsencode(path))


def version_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7])
def test_the_fingerprint_is_the_digest_of_all_bytes(tmp_path: Path, size: int) -> None:
    """Whatever the size, and so is what is read back."""
    data = os.urandom(size)
    (tmp_path / "a").write_bytes(data)
    locator = located(tmp_path / "a")
    assert (version_of(data), size) == READER.fingerprint(locator)
    assert data == READER.read(locator, version_of(data), size)


def test_a_file_without_a_size_is_read_to_its_end() -> None:
    """The kernel's own files say 0 and hold more."""
    if not os.path.exists("/proc/version"):
        pytest.skip("no /proc here")
    version, size = READER.fingerprint("file:///proc/version")
    with open("/proc/version", "rb") as file:
        data = file.read()
    assert (version_of(data), len(data)) == (version, size)
    assert data == READER.read("file:///proc/version", version, 1 << 20)


def test_changed_bytes_are_never_handed_out(tmp_path: Path) -> None:
    """Another version is dead-lettered, not computed from."""
    (tmp_path / "a").write_bytes(b"one")
    version, _ = READER.fingerprint(located(tmp_path / "a"))
    (tmp_path / "a").write_bytes(b"two")
    with pytest.raises(DocumentError) as error:
        READER.read(located(tmp_path / "a"), version, 100)
    assert (error.value.cause, error.value.final) == ("source_changed", True)


@pytest.mark.parametrize("name", ["missing", "a/below", "with%00zero"])
def test_a_missing_document_is_missing_for_good(tmp_path: Path, name: str) -> None:
    """Also where a folder on the way has become a file."""
    (tmp_path / "a").write_bytes(b"one")
    locator = f"{located(tmp_path)}/{name}"
    for attempt in (
        lambda: READER.fingerprint(locator),
        lambda: READER.read(locator, version_of(b""), 100),
    ):
        with pytest.raises(DocumentError) as error:
            attempt()
        assert (error.value.cause, error.value.final) == ("source_missing", True)
        assert locator in error.value.message


def test_a_document_above_the_limit_is_not_read(tmp_path: Path) -> None:
    """The limit holds for what is there, not for what the ledger remembers."""
    (tmp_path / "a").write_bytes(b"x" * 101)
    with pytest.raises(DocumentError) as error:
        READER.read(located(tmp_path / "a"), version_of(b"x" * 101), 100)
    assert (error.value.cause, error.value.final) == ("too_large", True)


def test_an_unreadable_document_may_become_readable(anyones: Path) -> None:
    """A permission can be given back, so the failure is not final."""
    (anyones / "a").write_bytes(b"x")
    os.chmod(anyones / "a", 0o000)
    with without_privileges(), pytest.raises(DocumentError) as error:
        READER.read(located(anyones / "a"), version_of(b"x"), 100)
    assert (error.value.cause, error.value.final) == ("source_unreadable", False)


def test_a_link_put_in_a_documents_place_is_not_followed(tmp_path: Path) -> None:
    """Or a document could be swapped for any file that the worker may read."""
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "a").symlink_to("secret")
    for attempt in (
        lambda: READER.fingerprint(located(tmp_path / "a")),
        lambda: READER.read(located(tmp_path / "a"), version_of(b"secret"), 100),
    ):
        with pytest.raises(DocumentError) as error:
            attempt()
        assert (error.value.cause, error.value.final) == ("source_changed", True)


def test_a_socket_put_in_a_documents_place_is_final(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No second attempt can make a document of it."""
    # A socket's path may have 107 bytes.
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("a")
        with pytest.raises(DocumentError) as error:
            READER.read(located(tmp_path / "a"), version_of(b""), 100)
    assert (error.value.cause, error.value.final) == ("source_changed", True)


@pytest.mark.timeout(120)
def test_a_pipe_put_in_a_documents_place_blocks_nobody(tmp_path: Path) -> None:
    """Opening a pipe waits for its other end, unless one asks not to."""
    os.mkfifo(tmp_path / "a")
    for attempt in (
        lambda: READER.fingerprint(located(tmp_path / "a")),
        lambda: READER.read(located(tmp_path / "a"), version_of(b""), 100),
    ):
        with pytest.raises(DocumentError) as error:
            attempt()
        assert error.value.cause == "source_changed"


def test_nothing_stays_open(tmp_path: Path) -> None:
    """Neither after a success nor after a refusal."""
    (tmp_path / "a").write_bytes(b"x")
    os.mkfifo(tmp_path / "pipe")
    before = open_files()
    for name in ("a", "pipe", "missing", "a/b"):
        for _ in range(5):
            try:
                READER.read(located(tmp_path) + "/" + name, version_of(b"y"), 100)
            except DocumentError:
                continue
    assert open_files() <= before


def test_threads_share_a_reader(tmp_path: Path) -> None:
    """It keeps nothing between calls."""
    for number in range(50):
        (tmp_path / str(number)).write_bytes(b"%d" % number)
    wrong: list[int] = []

    def check() -> None:
        for number in range(50):
            if READER.fingerprint(located(tmp_path / str(number)))[0] != version_of(b"%d" % number):
                wrong.append(number)

    threads = [threading.Thread(target=check) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT])
def test_an_error_of_the_machine_is_not_charged_to_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Too few descriptors here, or a server that is away, would cost a run its documents."""
    (tmp_path / "a").write_bytes(b"one")
    locator = located(tmp_path / "a")

    def refused(*arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refused)
    for ask in (
        READER.fingerprint,
        lambda each: READER.read(each, version_of(b"one"), 100),
        LocalRanges,
    ):
        with pytest.raises(SourceUnavailable, match=os.strerror(number).lower()):
            ask(locator)


@pytest.mark.parametrize("name", ["docs", "docs/sub/b.md"])
def test_where_nothing_is_mounted_no_document_is_missing(tmp_path: Path, name: str) -> None:
    """A worker on a machine without the folder would cost the run all its documents."""
    docs = tmp_path / "docs"
    (docs / "sub").mkdir(parents=True)
    (docs / "sub" / "b.md").write_bytes(b"two")
    [found] = DirectorySource(tmp_path / name).list()
    assert isinstance(found, Found)
    docs.rename(tmp_path / "elsewhere")

    def refused() -> None:
        for ask in (READER.fingerprint, lambda each: READER.read(each, "sha256:0", 9), LocalRanges):
            with pytest.raises(SourceAbsent, match="is not here, or is empty") as absent:
                ask(found.locator)
            assert str(tmp_path) in str(absent.value)

    refused()
    (docs / "sub" if name == "docs/sub/b.md" else docs).mkdir(parents=True)
    refused()
    (docs / "sub").mkdir(exist_ok=True)
    (docs / "sub" / "c.md").write_bytes(b"three")
    with pytest.raises(DocumentError) as missing:
        READER.read(found.locator, "sha256:0", 9)
    assert (missing.value.cause, missing.value.final) == ("source_missing", True)
