"""The local store where it meets the machine: power, kills, full disks, links, other writers."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from batchq.errors import ExitCode, StoreUnusable
from batchq.result import Envelope, result_key, sha256_hex
from batchq.store import local
from batchq.store.base import Store, StoreError
from batchq.store.local import LocalStore
from batchq.store.verified import find_result
from tests.unit.descriptors import open_files

KEY = "run-1/ab/one.json"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """A probed store in a folder of its own."""
    made = LocalStore(tmp_path / "results")
    made.probe()
    return made


def put(store: Store, key: str = KEY, data: bytes = b"content") -> bool:
    return store.put_if_absent(key, data, sha256_hex(data))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if not path.is_dir())


# -- what a power failure would leave --------------------------------------------


class Disk:
    """Follows which entries of folders and which contents have reached the disk.

    What was there before it began to look counts as safe.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entries: set[tuple[int, str]] = set()
        self.contents: set[int] = set()
        self.flushes = 0
        self._real: dict[str, Callable[..., Any]] = {}
        monkeypatch.setattr(local, "_FULL_FLUSH", None)
        for name in ("mkdir", "link", "write", "fsync"):
            self._real[name] = getattr(os, name)
            monkeypatch.setattr(os, name, getattr(self, name))

    def mkdir(self, path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        self._real["mkdir"](path, mode, dir_fd=dir_fd)
        parent = os.stat(os.path.dirname(path)) if dir_fd is None else os.fstat(dir_fd)
        self.entries.add((parent.st_ino, os.path.basename(path)))

    def link(self, source: str, target: str, *, dst_dir_fd: int, **options: Any) -> None:
        self._real["link"](source, target, dst_dir_fd=dst_dir_fd, **options)
        self.entries.add((os.fstat(dst_dir_fd).st_ino, target))

    def write(self, file: int, data: bytes) -> int:
        self.contents.add(os.fstat(file).st_ino)
        return int(self._real["write"](file, data))

    def fsync(self, file: int) -> None:
        self._real["fsync"](file)
        self.flushes += 1
        found = os.fstat(file)
        self.contents.discard(found.st_ino)
        if stat.S_ISDIR(found.st_mode):
            self.entries = {entry for entry in self.entries if entry[0] != found.st_ino}

    def at_risk(self, path: Path) -> list[str]:
        """The parts of `path` that a power failure now could take away."""
        lost = [
            part.name
            for part in (path, *path.parents)
            if (part.parent.stat().st_ino, part.name) in self.entries
        ]
        return lost + (["content"] if path.stat().st_ino in self.contents else [])


def durable_when_created(disk: Disk, folder: Path) -> None:
    made = LocalStore(folder / "a" / "results")
    made.probe()
    put(made)
    assert disk.at_risk(folder / "a" / "results" / KEY) == []


def durable_when_it_exists(disk: Disk, folder: Path) -> None:
    """Another process has made it visible, and died before flushing any folder."""
    made = LocalStore(folder / "results")
    made.probe()
    (folder / "results" / "run-1").mkdir()
    (folder / "results" / "run-1" / "ab").mkdir()
    path = folder / "results" / KEY
    path.write_bytes(b"content")
    disk.entries |= {(part.parent.stat().st_ino, part.name) for part in (path, *path.parents[:2])}
    assert not put(made)
    assert disk.at_risk(path) == []


def test_a_created_object_survives_a_power_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Content, name, and every folder made on the way are on the disk before the answer."""
    durable_when_created(Disk(monkeypatch), tmp_path)


def test_an_existing_object_survives_a_power_failure_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What will be adopted is flushed by whoever adopts it."""
    durable_when_it_exists(Disk(monkeypatch), tmp_path)


def test_a_result_found_by_look_up_survives_a_power_failure(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier attempt's result is flushed before it can be committed."""
    envelope = Envelope("docs/a.md", "sha256:0", "stats-1", {"n": 1}, 1, 1)
    key = result_key("run-1", envelope.item_key, "docs/a.md", 1)
    put(store, key, envelope.to_bytes())
    path = tmp_path / "results" / key
    disk = Disk(monkeypatch)
    disk.entries.add((path.parent.stat().st_ino, path.name))
    found = find_result(
        store, key, source_id="docs/a.md", source_version="sha256:0", processing_version="stats-1"
    )
    assert found is not None
    assert disk.at_risk(path) == []


def _flush_only(wanted: Callable[[int], bool]) -> Callable[[int], None]:
    def flush(descriptor: int) -> None:
        if wanted(os.fstat(descriptor).st_mode):
            os.fsync(descriptor)

    return flush


class _Everything(set[tuple[str, ...]]):
    def __contains__(self, path: object) -> bool:
        return True


def _believe_every_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    real = LocalStore.__init__

    def init(self: LocalStore, folder: Path) -> None:
        real(self, folder)
        self._durable = _Everything()

    monkeypatch.setattr(LocalStore, "__init__", init)


def _no_flush_where_it_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    real = LocalStore.put_if_absent
    monkeypatch.setattr(
        LocalStore,
        "put_if_absent",
        lambda self, key, data, digest: self.head(key) is None and real(self, key, data, digest),
    )


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Callable[[Disk, Path], None]]] = {
    "folders are not flushed": (
        lambda patch: patch.setattr(local, "_flush", _flush_only(stat.S_ISREG)),
        durable_when_created,
    ),
    "files are not flushed": (
        lambda patch: patch.setattr(local, "_flush", _flush_only(stat.S_ISDIR)),
        durable_when_created,
    ),
    "parents of new folders are not flushed": (_believe_every_folder, durable_when_created),
    "parents of found folders are not flushed": (_believe_every_folder, durable_when_it_exists),
    "nothing is flushed where it exists": (_no_flush_where_it_exists, durable_when_it_exists),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_store_that_flushes_less_is_found_out(
    mutant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each flush is needed: without it the tests above fail."""
    weaken, check = MUTANTS[mutant]
    weaken(monkeypatch)
    with pytest.raises(AssertionError, match=r"== \[\]"):
        check(Disk(monkeypatch), tmp_path)


def test_folders_known_to_be_durable_are_not_flushed_again(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second result in a folder costs two flushes, its own and its folder's."""
    put(store)
    disk = Disk(monkeypatch)
    put(store, "run-1/ab/two.json")
    assert disk.flushes == 2


def test_a_folder_that_was_deleted_is_made_durable_anew(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the process remembers of the old folder does not count for the new one."""
    put(store)
    (tmp_path / "results" / KEY).unlink()
    (tmp_path / "results" / KEY).parent.rmdir()
    disk = Disk(monkeypatch)
    put(store)
    assert disk.at_risk(tmp_path / "results" / KEY) == []


def test_a_flush_that_fails_is_no_success(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk's own error comes out as an unknown outcome, and the next put settles it."""

    def broken(file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(local, "_flush", broken)
        with pytest.raises(StoreError, match=r"ab/one\.json: Input/output error"):
            put(store)
    assert put(store)


# -- kills -----------------------------------------------------------------------

CRASHES = """
import os, signal, sys
from pathlib import Path
from batchq.store.local import LocalStore
from batchq.result import sha256_hex

folder, data = Path(sys.argv[1]), b"x" * 20_000
VERBS = ("open", "close", "mkdir", "stat", "write", "fsync", "link", "unlink")

def crash_after(calls):
    left = [calls]
    def counted(verb, real):
        def call(*arguments, **options):
            if left[0] == 0:
                if verb == "write":
                    real(arguments[0], bytes(arguments[1])[:5_000])
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return real(*arguments, **options)
        return call
    for verb in VERBS:
        setattr(os, verb, counted(verb, getattr(os, verb)))

calls = 0
while True:
    store = LocalStore(folder / f"{calls:03d}")
    store.probe()
    child = os.fork()
    if child == 0:
        crash_after(calls)
        store.put_if_absent("run-1/ab/one.json", data, sha256_hex(data))
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status == 0:
        break
    assert os.WTERMSIG(status) == signal.SIGKILL, status
    calls += 1
print(calls)
"""


DIRECT = """
from batchq.store import local

def write_in_place(folder, name, data):
    try:
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, dir_fd=folder)
    except FileExistsError:
        return False
    os.write(file, data)
    os.fsync(file)
    return True

local._create = write_in_place
"""


def all_or_nothing(folder: Path, mutation: str = "") -> None:
    """Kill a process before each system call of a put, and in the middle of its write."""
    script = CRASHES.replace("\ncalls = 0\n", f"{mutation}\ncalls = 0\n")
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=True
    )
    points = int(done.stdout)
    assert points >= 10
    data = b"x" * 20_000
    visible = 0
    for point in range(points):
        store = LocalStore(folder / f"{point:03d}")
        listed = [(info.key, info.size) for info in store.list("")]
        assert listed in ([], [(KEY, 20_000)]), "part of an object is visible"
        visible += len(listed)
        assert put(store, data=data) is (not listed)
        assert store.read(KEY) == data
    assert 0 < visible < points


def test_a_kill_at_any_call_leaves_all_or_nothing(tmp_path: Path) -> None:
    """And whoever puts again after it has the whole object."""
    all_or_nothing(tmp_path)


def test_a_store_that_writes_in_place_is_found_out(tmp_path: Path) -> None:
    """Exclusive creation without a hidden file shows half an object after a kill."""
    with pytest.raises(AssertionError, match="part of an object is visible"):
        all_or_nothing(tmp_path, DIRECT)


KILLED = """
import sys, threading
from batchq.store.local import LocalStore
from batchq.result import sha256_hex
from batchq.clock import random_hex

store = LocalStore(sys.argv[1])

def fill():
    while True:
        data = random_hex(8 * 40_000).encode()
        digest = sha256_hex(data)
        store.put_if_absent(f"run-1/{digest[:1]}/{digest}", data, digest)

for _ in range(4):
    threading.Thread(target=fill, daemon=True).start()
threading.Event().wait()
"""


def test_killed_processes_leave_no_visible_part(store: LocalStore) -> None:
    """Kills out of the blue, with four threads writing: every visible object is whole."""
    for kill in range(6):
        before = len(list(store.list("run-1/")))
        with subprocess.Popen([sys.executable, "-c", KILLED, store.url]) as process:
            while len(list(store.list("run-1/"))) <= before + 2 * kill:
                assert process.poll() is None
            process.send_signal(signal.SIGKILL)
    listed = list(store.list("run-1/"))
    assert len(listed) > 10
    for info in listed:
        assert sha256_hex(store.read(info.key)) == info.key.rsplit("/", 1)[1]


def test_leftovers_of_the_killed_are_neither_listed_nor_in_the_way(
    store: LocalStore, tmp_path: Path
) -> None:
    """A hidden file is no object, and its random name collides with none."""
    put(store)
    (tmp_path / "results" / "run-1" / "ab" / ".tmp-0123").write_bytes(b"half")
    (tmp_path / "results" / ".probe-0123").write_bytes(b"half")
    put(store, "run-1/ab/two.json")
    assert [info.key for info in store.list("")] == [KEY, "run-1/ab/two.json"]


# -- other writers ---------------------------------------------------------------

RACER = """
import sys
from batchq.store.local import LocalStore
from batchq.result import sha256_hex

store, content = LocalStore(sys.argv[1]), sys.argv[2].encode() * 30_000
print("ready", flush=True)
sys.stdin.readline()
won = [
    store.put_if_absent(f"run-1/{n % 8:02d}/{n:03d}", content, sha256_hex(content))
    for n in range(100)
]
print("".join("01"[each] for each in won))
"""


def test_of_many_processes_exactly_one_creates_a_key(store: LocalStore) -> None:
    """Four processes race over a hundred keys in the same order."""
    names = "ABCD"
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, store.url, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    for racer in racers:
        assert racer.stdout is not None
        racer.stdout.readline()
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    won = [racer.communicate()[0].strip() for racer in racers]
    assert [len(each) for each in won] == [100] * 4
    for number, per_key in enumerate(zip(*won, strict=True)):
        assert per_key.count("1") == 1
        winner = names[per_key.index("1")].encode()
        assert store.read(f"run-1/{number % 8:02d}/{number:03d}") == winner * 30_000


def exactly_one_wins(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two writers, each of which has already seen that the name is free."""
    both_looked = threading.Barrier(2)
    real = local._exists

    def look(folder: int, name: str) -> bool:
        found = real(folder, name)
        both_looked.wait(timeout=60)
        return found

    monkeypatch.setattr(local, "_exists", look)
    with ThreadPoolExecutor(2) as pool:
        won = list(pool.map(lambda data: put(store, data=data), (b"first", b"second")))
    assert won.count(True) == 1
    assert store.read(KEY) == (b"first", b"second")[won.index(True)]


def test_looking_first_does_not_decide_the_race(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link decides, however late it comes."""
    exactly_one_wins(store, monkeypatch)


def _replacing(
    source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int, follow_symlinks: bool
) -> None:
    os.replace(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)


def test_a_store_that_replaces_is_found_out(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rename in place of link both writers win, and the race above notices."""
    monkeypatch.setattr(os, "link", _replacing)
    with pytest.raises(AssertionError):
        exactly_one_wins(store, monkeypatch)


# -- file systems that are not what they should be -------------------------------


def test_probing_refuses_a_file_system_that_replaces(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any document is processed, and by name."""
    monkeypatch.setattr(os, "link", _replacing)
    with pytest.raises(StoreUnusable, match="lets two writers create the same file"):
        store.probe()


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_probing_refuses_a_file_system_without_hard_links(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """FAT, SMB and most FUSE mounts cannot create without the risk of replacing."""

    def link(*arguments: object, **options: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(StoreUnusable, match="no hard links") as caught:
        store.probe()
    assert "NFS" in (caught.value.hint or "")
    assert str(tmp_path) in caught.value.message
    assert files(tmp_path) == []


@pytest.mark.parametrize("code", [errno.EEXIST, errno.EIO, errno.ETIMEDOUT, errno.ESTALE])
def test_a_link_reported_as_failed_counts_if_it_is_there(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """NFS repeats a call whose answer was lost, and reports the second one's failure."""
    real = os.link

    def link(*arguments: Any, **options: Any) -> None:
        real(*arguments, **options)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", link)
    assert put(store)
    assert store.read(KEY) == b"content"
    assert files(tmp_path) == ["one.json"]


def test_a_link_that_failed_is_unknown_and_leaves_nothing(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A passing error is worth asking again, and the hidden file is gone."""

    def link(*arguments: object, **options: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(StoreError):
        put(store)
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (errno.ENOSPC, "space"),
        (errno.EDQUOT, "quota"),
        (errno.EFBIG, "ulimit"),
        (errno.EROFS, "mount it for writing"),
        (errno.EACCES, "give this user the right"),
    ],
)
def test_what_asking_again_cannot_mend_ends_the_command(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, says: str
) -> None:
    """Exit code 14 with the path and the fix, and no hidden file left."""

    def write(file: int, data: bytes) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(StoreUnusable, match=r"results/run-1/ab/one\.json") as caught:
        put(store)
    assert caught.value.exit_code == ExitCode.STORE_UNUSABLE
    assert says in (caught.value.hint or "")
    assert files(tmp_path) == []


def test_short_writes_are_completed(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may take fewer bytes than it was given."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, bytes(data)[:3]))
    put(store, data=b"0123456789")
    assert store.read(KEY) == b"0123456789"


LIMITED = """
import resource, sys
from batchq.errors import StoreUnusable
from batchq.store.local import LocalStore
from batchq.result import sha256_hex

store = LocalStore(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
data = b"x" * 20_000
try:
    store.put_if_absent("run-1/ab/one.json", data, sha256_hex(data))
except StoreUnusable as error:
    print(error, error.hint)
"""


def test_a_limit_on_file_sizes_leaves_nothing(store: LocalStore, tmp_path: Path) -> None:
    """A real limit of the system, met in the middle of a write."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, store.url], capture_output=True, text=True, check=True
    )
    assert "File too large" in done.stdout
    assert "ulimit" in done.stdout
    assert files(tmp_path) == []


@contextlib.contextmanager
def mounted(folder: Path, *arguments: str) -> Iterator[None]:
    """A mount at `folder`, or a skipped test where this user may make none."""
    folder.mkdir(exist_ok=True)
    if subprocess.run(["mount", *arguments, str(folder)], capture_output=True).returncode != 0:
        pytest.skip("this user may not mount")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a tmpfs")
def test_a_full_disk_ends_the_command_and_loses_nothing(tmp_path: Path) -> None:
    """What was stored stays, nothing half is visible, and with space it goes on."""
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=256k", "tmpfs"):
        store = LocalStore(tmp_path / "small" / "results")
        store.probe()
        number = 0

        def fill() -> None:
            nonlocal number
            for number in range(100):
                put(store, f"run-1/ab/{number:03d}", b"x" * 20_000)

        with pytest.raises(StoreUnusable, match=r"small/results.*: No space left") as caught:
            fill()
        assert "free some space" in (caught.value.hint or "")
        assert number > 1
        assert [info.size for info in store.list("")] == [20_000] * number
        assert len(files(tmp_path / "small")) == number
        (tmp_path / "small" / "results" / "run-1" / "ab" / "000").unlink()
        assert put(store, f"run-1/ab/{number:03d}", b"x" * 20_000)


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a folder for reading only")
def test_a_folder_mounted_for_reading_is_refused_at_once(tmp_path: Path) -> None:
    """Probing says so, and so does a put if it becomes so later; reading goes on."""
    original, view = tmp_path / "original", tmp_path / "view"
    writable = LocalStore(original)
    writable.probe()
    put(writable)
    with mounted(view, "--bind", "-o", "ro", str(original)):
        store = LocalStore(view)
        for verb in (store.probe, lambda: put(store, "run-1/ab/two.json")):
            with pytest.raises(StoreUnusable, match="Read-only file system"):
                verb()
        assert store.read(KEY) == b"content"


def test_a_folder_without_permission_is_refused_at_once(tmp_path: Path) -> None:
    """The ordinary mistake: the results belong to another user."""
    tmp_path.chmod(0o500)
    try:
        if os.access(tmp_path, os.W_OK):
            pytest.skip("root may write everywhere; the mount above asks the same of root")
        with pytest.raises(StoreUnusable, match="Permission denied"):
            LocalStore(tmp_path / "results").probe()
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize("below", ["", "results", "deep/results"])
def test_a_file_in_place_of_a_folder_is_refused(tmp_path: Path, below: str) -> None:
    """Whether it is the results folder or one above it."""
    (tmp_path / "taken").write_bytes(b"mine")
    with pytest.raises(StoreUnusable, match="taken") as caught:
        LocalStore(tmp_path / "taken" / below).probe()
    assert "move it away" in (caught.value.hint or "")
    assert (tmp_path / "taken").read_bytes() == b"mine"


def test_a_results_folder_that_vanished_is_not_an_empty_one(
    store: LocalStore, tmp_path: Path
) -> None:
    """A mount that was lost must not read as "no results", nor be written below."""
    put(store)
    (tmp_path / "results").rename(tmp_path / "elsewhere")
    for verb in (store.read, store.head, lambda key: put(store, key), lambda k: [*store.list(k)]):
        with pytest.raises(StoreUnusable, match="is missing"):
            verb(KEY)
    assert not (tmp_path / "results").exists()


def test_a_run_whose_folder_vanished_is_not_written_elsewhere(
    store: LocalStore, tmp_path: Path
) -> None:
    """Where a mount was lost an empty folder shows: results there are not beside the others."""
    put(store, "run-1/run.json")
    reader = LocalStore(store.url)
    assert reader.read("run-1/run.json") == b"content"
    (tmp_path / "results").rename(tmp_path / "mount")
    (tmp_path / "results").mkdir()
    for each in (store, reader):
        for verb in (each.read, each.head, each.delete, lambda key, each=each: put(each, key)):
            with pytest.raises(StoreUnusable, match="run-1 has vanished") as caught:
                verb(KEY)
            assert "restore" in str(caught.value.hint)
    assert files(tmp_path / "results") == []
    put(store, "run-2/run.json")
    (tmp_path / "results").rename(tmp_path / "empty")
    (tmp_path / "mount").rename(tmp_path / "results")
    assert put(store)


def test_a_runs_folder_that_another_thread_makes_meanwhile_has_not_vanished(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was looked for before it was there, and is known by the time that is judged."""
    real, late = os.open, [True]

    def open_late(path: str, *arguments: Any, **options: Any) -> int:
        try:
            return real(path, *arguments, **options)
        except FileNotFoundError:
            if late and late.pop():
                assert put(store, "run-1/ab/two.json")
            raise

    monkeypatch.setattr(os, "open", open_late)
    assert put(store)


def test_probing_creates_the_folder_and_those_above_it(tmp_path: Path) -> None:
    """And nothing else stays."""
    LocalStore(tmp_path / "a" / "b" / "results").probe()
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["a", "b", "results"]


def test_the_address_is_the_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative folder stays the same one when the process changes its own."""
    monkeypatch.chdir(tmp_path)
    store = LocalStore("results")
    store.probe()
    monkeypatch.chdir("/")
    put(store)
    assert store.url == str(tmp_path / "results")
    assert (tmp_path / "results" / KEY).read_bytes() == b"content"


# -- traps inside the folder -----------------------------------------------------


@pytest.mark.parametrize("where", ["run-1", "run-1/ab", KEY])
@pytest.mark.parametrize("dangling", [True, False])
def test_symbolic_links_inside_the_store_lead_nowhere(
    store: LocalStore, tmp_path: Path, where: str, dangling: bool
) -> None:
    """Nothing outside is read, created or listed, whichever part is the link."""
    outside = tmp_path / "outside"
    if not dangling:
        (outside / "ab").mkdir(parents=True)
        for path in (outside / "ab" / "one.json", outside / "one.json"):
            path.write_bytes(b"secret")
    link = tmp_path / "results" / where
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(outside if where != KEY else outside / "one.json")
    before = files(tmp_path)
    for verb in (store.read, store.head):
        with pytest.raises(StoreUnusable):
            verb(KEY)
    if where == KEY:
        assert not put(store)
    else:
        with pytest.raises(StoreUnusable, match="Not a directory"):
            put(store)
    assert list(store.list("")) == []
    assert files(tmp_path) == before


def links_in_a_known_folders_place_lead_nowhere(store: LocalStore, folder: Path) -> None:
    put(store)
    (folder / "results" / "run-1").rename(folder / "elsewhere")
    (folder / "results" / "run-1").symlink_to(folder / "elsewhere")
    before = files(folder)
    for verb in (store.read, store.head, lambda key: put(store, key.replace("one", "two"))):
        with pytest.raises(StoreUnusable, match="Not a directory"):
            verb(KEY)
    assert before == files(folder)


def test_a_link_put_in_the_place_of_a_runs_folder_leads_nowhere(
    store: LocalStore, tmp_path: Path
) -> None:
    """Also where this process has written into that folder before."""
    links_in_a_known_folders_place_lead_nowhere(store, tmp_path)


def test_a_store_that_follows_links_is_found_out(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flag is what keeps them out."""
    monkeypatch.setattr(os, "O_NOFOLLOW", 0)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        links_in_a_known_folders_place_lead_nowhere(store, tmp_path)


def test_the_results_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    """People put it on another disk that way."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "results").symlink_to(tmp_path / "disk")
    store = LocalStore(tmp_path / "results")
    store.probe()
    put(store)
    assert (tmp_path / "disk" / KEY).read_bytes() == b"content"


@pytest.mark.parametrize("kind", ["folder", "pipe"])
@pytest.mark.timeout(120)
def test_what_is_no_file_is_named_and_never_waited_for(
    store: LocalStore, tmp_path: Path, kind: str
) -> None:
    """A named pipe would block a careless reader for ever."""
    path = tmp_path / "results" / KEY
    path.parent.mkdir(parents=True)
    if kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    assert not put(store)
    for verb in (store.read, store.head):
        with pytest.raises(StoreUnusable, match="no regular file"):
            verb(KEY)
    assert list(store.list("")) == []


def test_files_that_are_no_objects_are_not_listed(store: LocalStore, tmp_path: Path) -> None:
    """Names that no key may have: hidden ones, control characters, no UTF-8."""
    put(store)
    folder = os.fsencode(tmp_path / "results" / "run-1" / "ab")
    for name in (b".DS_Store", b"a\nb", b"caf\xe9"):
        with contextlib.suppress(OSError), open(os.path.join(folder, name), "wb"):
            pass
    assert [info.key for info in store.list("")] == [KEY]


def test_no_descriptor_is_left_open(store: LocalStore, tmp_path: Path) -> None:
    """Successes, failures and abandoned listings alike."""
    put(store)
    (tmp_path / "results" / "link").symlink_to(tmp_path)
    before = open_files()
    for number in range(20):
        put(store, f"run-1/{number}/a")
        store.read(KEY)
        assert store.head("run-9/zz/absent") is None
        next(store.list("run-1/"))
        with pytest.raises(StoreUnusable):
            store.read("link/outside")
        with pytest.raises(StoreUnusable):
            put(store, f"{KEY}/below")
    assert open_files() <= before


def test_many_threads_share_one_store(store: LocalStore) -> None:
    """Eight threads, results of 2 kB, in folders that all of them create."""
    envelopes = [
        Envelope(f"docs/{number}.md", "sha256:0", "stats-1", "x" * 2000, 1, 1)
        for number in range(200)
    ]

    def write(envelope: Envelope) -> bool:
        key = result_key("run-1", envelope.item_key, envelope.source_id, 1)
        return put(store, key, envelope.to_bytes())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(write, envelopes))
    assert len(list(store.list("run-1/"))) == 200
