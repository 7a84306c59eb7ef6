"""Listing folders: what is taken, under which id, and what is rejected by name."""

from __future__ import annotations

import os
import socket
import tempfile
import tracemalloc
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from batchq.errors import DocumentError, UsageError
from batchq.source.base import Found, Skipped
from batchq.source.directory import DirectorySource, LocalReader

NOBODY = 65534


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """An empty folder called docs."""
    folder = tmp_path / "docs"
    folder.mkdir()
    return folder


@pytest.fixture
def anyones() -> Iterator[Path]:
    """A folder that every user of this machine reaches."""
    before = os.umask(0o022)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)
    os.umask(before)


@contextmanager
def without_privileges() -> Iterator[None]:
    """Root may read everything, so it becomes nobody for a moment."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def write(folder: Path, *names: str) -> None:
    """Files below `folder`, each holding its own name."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(os.fsencode(name))


def found(source: DirectorySource) -> list[str]:
    """The source ids; nothing may have been skipped."""
    listed = list(source.list())
    assert [each for each in listed if isinstance(each, Skipped)] == []
    return [each.source_id for each in listed if isinstance(each, Found)]


def skipped(source: DirectorySource) -> dict[str, str]:
    """Names of what was skipped, and why."""
    return {each.source: each.reason for each in source.list() if isinstance(each, Skipped)}


def test_a_source_id_is_the_roots_name_and_the_path_below_it(docs: Path) -> None:
    """Ids do not depend on where the folder lies."""
    write(docs, "a.md", "guide/deep/b.md")
    assert found(DirectorySource(docs)) == ["docs/a.md", "docs/guide/deep/b.md"]


def test_what_is_found_can_be_read_by_its_locator(docs: Path) -> None:
    """Size and locator are those of the file."""
    write(docs, "with space & é.md")
    [document] = list(DirectorySource(docs).list())
    assert isinstance(document, Found)
    version, size = LocalReader().fingerprint(document.locator)
    assert document.size == size == len("with space & é.md".encode())
    assert version.startswith("sha256:")


def test_the_order_is_stable_whatever_the_file_system_says(docs: Path) -> None:
    """A folder's files in byte order, then its folders."""
    names = ["b", "a", "C", "ä", "0/z", "0/a", "z/0"]
    write(docs, *names)
    expected = ["docs/C", "docs/a", "docs/b", "docs/ä", "docs/0/a", "docs/0/z", "docs/z/0"]
    assert expected == found(DirectorySource(docs))


def test_the_current_folder_is_named_as_it_is_called(
    docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`enqueue .` and `enqueue docs` name the same documents."""
    write(docs, "a.md", "sub/b.md")
    expected = found(DirectorySource(docs))
    monkeypatch.chdir(docs)
    assert expected == found(DirectorySource("."))
    assert expected == found(DirectorySource("./"))
    monkeypatch.chdir(docs / "sub")
    assert expected == found(DirectorySource(".."))
    assert DirectorySource("..").root == DirectorySource(docs).root


def test_a_link_to_a_folder_is_named_as_given(docs: Path, tmp_path: Path) -> None:
    """`current -> releases/42` keeps its documents' ids when it is pointed elsewhere."""
    write(docs, "a.md")
    (tmp_path / "current").symlink_to(docs)
    source = DirectorySource(tmp_path / "current")
    assert found(source) == ["current/a.md"]
    assert source.root == DirectorySource(docs).root


def test_a_prefix_replaces_the_roots_name(docs: Path) -> None:
    """Two folders of one name can be told apart."""
    write(docs, "a.md")
    assert found(DirectorySource(docs, prefix="team/a")) == ["team/a/a.md"]
    assert found(DirectorySource(docs / "a.md", prefix="x")) == ["x/a.md"]


def test_a_single_file_has_the_id_that_its_folder_gives_it(
    docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`enqueue docs` and `enqueue docs/a.md` name one and the same document."""
    write(docs, "a.md", "b.md")
    source = DirectorySource(docs / "a.md")
    assert found(source) == ["docs/a.md"]
    assert source.root == DirectorySource(docs).root
    monkeypatch.chdir(docs)
    assert found(DirectorySource("a.md")) == ["docs/a.md"]


def test_the_root_of_the_file_system_needs_a_prefix() -> None:
    """There is no name that ids could begin with."""
    with pytest.raises(UsageError) as error:
        DirectorySource("/")
    assert "--prefix" in str(error.value.hint)
    assert DirectorySource("/", prefix="host").root == "file:///"


@pytest.mark.parametrize("missing", ["nothing", "docs/nothing", "docs/a.md/"])
def test_a_source_that_does_not_exist_is_refused(
    docs: Path, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is listed, and by the name that was given."""
    write(docs, "a.md")
    monkeypatch.chdir(docs.parent)
    with pytest.raises(UsageError, match=missing):
        DirectorySource(missing)


def test_a_source_that_is_no_document_is_refused(docs: Path) -> None:
    """A pipe has no bytes that could be read twice."""
    os.mkfifo(docs / "pipe")
    with pytest.raises(UsageError, match="a pipe"):
        DirectorySource(docs / "pipe")


def test_a_source_without_permission_is_refused(anyones: Path) -> None:
    """Saying so at once is better than a run without documents."""
    (anyones / "docs").mkdir(mode=0o700)
    write(anyones, "a.md")
    os.chmod(anyones / "a.md", 0o000)
    os.chmod(anyones / "docs", 0o000)
    with without_privileges():
        for name in ("docs", "a.md"):
            with pytest.raises(UsageError, match="permission denied"):
                DirectorySource(anyones / name)


def test_unreadable_folders_are_skipped_by_name(anyones: Path) -> None:
    """The rest of the tree is listed all the same."""
    write(anyones, "docs/closed/a.md", "docs/open/b.md")
    os.chmod(anyones / "docs/closed", 0o000)
    with without_privileges():
        listed = list(DirectorySource(anyones / "docs").list())
    assert [
        Skipped("docs/closed", "folder not read to its end: permission denied"),
        "docs/open/b.md",
    ] == [each if isinstance(each, Skipped) else each.source_id for each in listed]


def test_names_of_every_kind_are_listed(docs: Path) -> None:
    """Newlines, dashes, 255 bytes, and bytes that are no UTF-8."""
    names = [b"-rf", b"two\nlines", b"x" * 255, "ü".encode() * 127, b"a\xff\xfe.md", b"%FF", b" "]
    for name in names:
        with open(os.path.join(os.fsencode(docs), name), "wb") as file:
            file.write(name)
    ids = found(DirectorySource(docs))
    assert len(ids) == len(set(ids)) == len(names)
    assert {"docs/-rf", "docs/two\nlines", "docs/a%FF%FE.md", "docs/%25FF"} <= set(ids)
    for document in DirectorySource(docs).list():
        assert isinstance(document, Found)
        LocalReader().fingerprint(document.locator)


def test_an_undecodable_root_is_listed(tmp_path: Path) -> None:
    """The root's own name is escaped like any other."""
    root = os.path.join(os.fsencode(tmp_path), b"d\xff")
    os.mkdir(root)
    with open(os.path.join(root, b"a.md"), "wb") as file:
        file.write(b"x")
    [document] = list(DirectorySource(os.fsdecode(root)).list())
    assert isinstance(document, Found)
    assert document.source_id == "d%FF/a.md"
    assert LocalReader().fingerprint(document.locator)[1] == 1


def test_twins_in_two_unicode_forms_are_one_document_and_one_rejection(docs: Path) -> None:
    """The second is rejected by name: never in silence, and never both under one id."""
    for form in ("NFC", "NFD"):
        write(docs, unicodedata.normalize(form, "é.md"))
    if len(list(docs.iterdir())) == 1:
        pytest.skip("this file system makes them one file")
    listed = list(DirectorySource(docs).list())
    assert [Found, Skipped] == [type(each) for each in listed]
    [twin] = [each for each in listed if isinstance(each, Skipped)]
    assert twin.source == "docs/é.md"
    assert "rename one" in twin.reason


def test_twin_folders_are_one_folder_and_one_rejection(docs: Path) -> None:
    """Their documents would share ids; the second folder is rejected whole, by name."""
    for form in ("NFC", "NFD"):
        write(docs, unicodedata.normalize(form, f"é/{form}.md"))
    if len(list(docs.iterdir())) == 1:
        pytest.skip("this file system makes them one folder")
    listed = list(DirectorySource(docs).list())
    assert [each.source_id for each in listed if isinstance(each, Found)] == ["docs/é/NFD.md"]
    assert [each.source for each in listed if isinstance(each, Skipped)] == ["docs/é"]


def test_a_kelvin_sign_beside_a_k_is_a_twin(docs: Path) -> None:
    """NFC makes plain ASCII of some characters."""
    write(docs, "K.md", "\u212a.md")
    listed = list(DirectorySource(docs).list())
    assert [Found, Skipped] == [type(each) for each in listed]


def test_a_file_and_a_folder_may_be_alike(docs: Path) -> None:
    """Their ids differ, since the folder's documents have more to their names."""
    write(docs, unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é/a.md"))
    assert found(DirectorySource(docs)) == ["docs/é", "docs/é/a.md"]


def test_a_link_to_a_file_below_the_root_is_that_file_under_its_own_name(docs: Path) -> None:
    """Its locator is the target's, so that nobody reads through a link later."""
    write(docs, ".store/a.md")
    (docs / "a.md").symlink_to(".store/a.md")
    (docs / "b.md").symlink_to("a.md")
    listed = list(DirectorySource(docs).list())
    target = f"file://{docs.resolve()}//.store/a.md"
    assert [Found("docs/a.md", target, 11), Found("docs/b.md", target, 11)] == listed


def test_links_that_lead_nowhere_good_are_skipped_by_name(docs: Path, tmp_path: Path) -> None:
    """Out of the root, to a folder, in a circle, to nothing."""
    write(docs, "sub/b.md")
    write(tmp_path, "secret", "docs-2/x")
    (docs / "outside").symlink_to(tmp_path / "secret")
    (docs / "sibling").symlink_to("../docs-2/x")
    (docs / "sub/up").symlink_to("..")
    (docs / "folder").symlink_to("sub")
    (docs / "one").symlink_to("two")
    (docs / "two").symlink_to("one")
    (docs / "self").symlink_to("self")
    (docs / "dangling").symlink_to("nothing")
    (docs / "device").symlink_to("/dev/zero")
    reasons = skipped(DirectorySource(docs))
    assert {
        "outside",
        "sibling",
        "sub/up",
        "folder",
        "one",
        "two",
        "self",
        "dangling",
        "device",
    } == {name.removeprefix("docs/") for name in reasons}
    assert "outside the folder" in reasons["docs/outside"]
    assert "outside the folder" in reasons["docs/sibling"]
    assert "leads to a folder" in reasons["docs/folder"]
    assert "symbolic links" in reasons["docs/self"]
    assert "no such file" in reasons["docs/dangling"]


def test_sockets_and_pipes_are_skipped_by_name(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are never opened: that could wait for ever."""
    os.mkfifo(docs / "pipe")
    monkeypatch.chdir(docs)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        assert skipped(DirectorySource(docs)) == {
            "docs/pipe": "a pipe, no regular file",
            "docs/socket": "a socket, no regular file",
        }


def test_hidden_names_are_passed_over(docs: Path) -> None:
    """As by `ls` and the shell: version control and editors keep their own things there."""
    write(docs, "a.md", ".hidden.md", ".git/config", ".git/x/y.md")
    assert found(DirectorySource(docs)) == ["docs/a.md"]


def test_hidden_names_are_listed_where_a_pattern_names_the_dot(docs: Path) -> None:
    """So a dot is an opt-in, and only for what was named."""
    write(docs, "a.md", ".hidden.md", ".git/config.md", ".github/b.md", ".github/.x.md")
    include = ("*.md", ".github/**")
    assert found(DirectorySource(docs, include=include)) == ["docs/a.md", "docs/.github/b.md"]
    assert found(DirectorySource(docs, include=[".*.md"])) == ["docs/.hidden.md"]


def test_a_hidden_folder_is_not_even_opened(anyones: Path) -> None:
    """Whatever is to be included, unless it names a dot."""
    write(anyones, "docs/.closed/a.md", "docs/b.md")
    os.chmod(anyones / "docs/.closed", 0o000)
    with without_privileges():
        assert found(DirectorySource(anyones / "docs", include=["*.md"])) == ["docs/b.md"]


def test_a_hidden_source_is_listed(docs: Path) -> None:
    """Who names it means it."""
    write(docs, ".notes/a.md")
    assert found(DirectorySource(docs / ".notes")) == [".notes/a.md"]
    assert found(DirectorySource(docs / ".notes" / "a.md")) == [".notes/a.md"]


def test_include_and_exclude_choose_among_the_paths(docs: Path) -> None:
    """What is excluded is gone, also where it is included."""
    write(docs, "a.md", "a.txt", "guide/b.md", "guide/c.txt", "node_modules/d.md", "x/draft.md")
    assert found(DirectorySource(docs, include=["*.md"], exclude=["node_modules"])) == [
        "docs/a.md",
        "docs/guide/b.md",
        "docs/x/draft.md",
    ]
    assert found(DirectorySource(docs, include=["guide"], exclude=["*.txt"])) == ["docs/guide/b.md"]
    assert found(DirectorySource(docs, include=["*.md"], exclude=["*/", "draft.md"])) == [
        "docs/a.md"
    ]


def test_an_excluded_folder_is_not_even_opened(anyones: Path) -> None:
    """So it may be unreadable, or huge."""
    write(anyones, "docs/closed/a.md", "docs/b.md")
    os.chmod(anyones / "docs/closed", 0o000)
    for pattern in ("closed", "closed/", "closed/**"):
        with without_privileges():
            assert found(DirectorySource(anyones / "docs", exclude=[pattern])) == ["docs/b.md"]


def test_a_document_named_itself_needs_no_pattern(docs: Path) -> None:
    """Patterns choose among what a folder holds."""
    write(docs, "a.txt")
    assert found(DirectorySource(docs / "a.txt", include=["*.md"])) == ["docs/a.txt"]


@pytest.mark.parametrize("results", [".", "sub/..", "../docs", "../link"])
def test_a_folder_of_results_is_no_source(
    docs: Path, monkeypatch: pytest.MonkeyPatch, results: str
) -> None:
    """Each enqueue would take up what the last one has led to, without end."""
    write(docs, "a.md", "sub/a.md")
    (docs.parent / "link").symlink_to(docs)
    monkeypatch.chdir(docs)
    for path in (".", docs, "a.md", "../link"):
        with pytest.raises(UsageError, match="is that of the results"):
            DirectorySource(path, avoid=[results])
    assert found(DirectorySource("sub", avoid=[results])) == ["sub/a.md"]


def test_what_is_to_be_avoided_is_passed_over(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`batchq enqueue .` must not take up its own ledger and results."""
    write(docs, "a.md", "batchq-data/ledger.db", "batchq-data/results/x.json")
    monkeypatch.chdir(docs)
    avoid: list[str | Path] = ["batchq-data/ledger.db", docs / "batchq-data" / "results"]
    assert found(DirectorySource(".", avoid=avoid)) == ["docs/a.md"]
    Path("link").symlink_to("batchq-data/ledger.db")
    assert found(DirectorySource(".", avoid=avoid)) == ["docs/a.md"]


def test_what_vanishes_while_it_is_listed_is_skipped_by_name(docs: Path) -> None:
    """A folder that others clean up costs only what is gone."""
    write(docs, "a.md", "b.md", "gone/c.md", "stays/d.md")
    listing = DirectorySource(docs).list()
    first = next(listing)
    (docs / "b.md").unlink()
    (docs / "gone/c.md").unlink()
    (docs / "gone").rmdir()
    rest = list(listing)
    assert isinstance(first, Found)
    assert [each.source for each in rest if isinstance(each, Skipped)] == ["docs/b.md", "docs/gone"]
    assert [each.source_id for each in rest if isinstance(each, Found)] == ["docs/stays/d.md"]


def test_a_listing_without_sizes_looks_at_no_document(docs: Path) -> None:
    """The folder tells which they are, and reading that one is gone; all else is as ever."""
    write(docs, "a.md", "b.md", "c & d.md", "sub/e.md")
    (docs / "link").symlink_to("b.md")
    os.mkfifo(docs / "pipe")
    sized = list(DirectorySource(docs).list())
    listing = DirectorySource(docs).list(sized=False)
    unsized = [next(listing)]
    (docs / "c & d.md").unlink()
    unsized += listing
    names = {f"docs/{name}" for name in ("a.md", "b.md", "c & d.md", "sub/e.md")}
    assert unsized == [
        each._replace(size=None) if isinstance(each, Found) and each.source_id in names else each
        for each in sized
    ]
    assert Skipped("docs/pipe", "a pipe, no regular file") in unsized
    [gone] = [each for each in unsized if isinstance(each, Found) and "%20" in each.locator]
    with pytest.raises(DocumentError, match="no such file"):
        LocalReader().fingerprint(gone.locator)


def test_paths_longer_than_the_system_takes_are_skipped_by_name(docs: Path) -> None:
    """Deep trees can be made step by step that no path can name."""
    here = os.open(docs, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=here)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    reasons = skipped(DirectorySource(docs))
    assert [reason.split(": ")[-1] for reason in reasons.values()] == ["file name too long"]


def test_an_empty_folder_lists_nothing(docs: Path) -> None:
    """No documents is no error."""
    assert list(DirectorySource(docs).list()) == []


def test_a_listing_holds_one_folder_in_memory(docs: Path) -> None:
    """Four times the folders take no more memory: a million files are no million objects."""
    peaks = []
    for folders in (5, 20):
        for number in range(folders):
            write(docs, *(f"{number:02}/{name:03}" for name in range(200)))
        tracemalloc.start()
        assert folders * 200 == sum(1 for _ in DirectorySource(docs).list())
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # All of them would take ten times as much; other threads allocate a little, too.
    assert peaks[1] < peaks[0] + 100_000
