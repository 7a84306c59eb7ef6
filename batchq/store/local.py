"""The result store in a local folder, or one that several machines mount.

    <root>/<run>-<id>/<2 hex>/<name>.json     a result
    <root>/<run>-<id>/<2 hex>/.tmp-<random>   one being written, or left by a killed process

An object is written to a hidden file, flushed to disk and then linked to its name. A
link never overwrites, and shows the whole content or none. Keys lead through folders
opened one by one below the root, none of them through a symbolic link.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from batchq.clock import random_hex
from batchq.errors import StoreUnusable
from batchq.result import sha256_hex
from batchq.store.base import ObjectInfo, ObjectMissing, StoreError, is_key_part, key_parts

__all__ = ["LocalStore"]

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Without O_NONBLOCK opening a named pipe that someone left there would wait for ever.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

# On macOS fsync stops at the disk's own cache; only this goes further.
_FULL_FLUSH: int | None = getattr(fcntl, "F_FULLFSYNC", None)

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)


class LocalStore:
    """Objects as files below `folder`, which `probe` creates where it is missing.

    `remote` is false: whether other machines mount the folder is not known here.
    """

    remote = False

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._root = os.path.abspath(folder)
        self.url = self._root
        self._durable: set[tuple[str, ...]] = set()
        """Folders whose own entry this process has flushed to disk, or seen flushed."""
        self._seen: set[str] = set()
        """Folders right below the root that were there: a run's, with its marker."""

    # -- the verbs ---------------------------------------------------------------

    def probe(self) -> None:
        try:
            _make_folders(self._root)
            with self._folder(()) as root:
                _prove_create_only(root, self._root)
        except OSError as error:
            explained = _explain(error, self._root)
            if isinstance(explained, StoreUnusable):
                raise explained from error
            raise StoreUnusable(
                str(explained), hint="check the disk, or choose another folder with --results"
            ) from error

    def put_if_absent(self, key: str, data: bytes, sha256: str) -> bool:
        *folders, name = key_parts(key)
        if sha256_hex(data) != sha256:
            raise StoreError(f"{key}: the bytes do not have the digest they were sent with")
        with self._explained(key), self._folder(folders, create=True) as folder:
            created = not _exists(folder, name) and _create(folder, name, data)
            # Also where it exists: its creator may not have come as far as this.
            _flush(folder)
            return created

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        *folders, name = key_parts(key)
        with self._explained(key):
            try:
                with self._folder(folders) as folder, _opened(folder, name) as file:
                    size = _regular(os.fstat(file), key).st_size
                    end = size if length is None else min(size, offset + length)
                    return _read(file, offset, end - offset)
            except FileNotFoundError:
                raise ObjectMissing(key) from None

    def head(self, key: str) -> ObjectInfo | None:
        *folders, name = key_parts(key)
        with self._explained(key):
            try:
                with self._folder(folders) as folder:
                    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                return None
        return ObjectInfo(key, _regular(found, key).st_size)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """In key order. Holds the names of one folder at a time, and of those above it."""
        with self._explained(prefix):
            yield from self._list((), prefix, after)

    def delete(self, key: str) -> None:
        *folders, name = key_parts(key)
        missing = contextlib.suppress(FileNotFoundError)
        with self._explained(key), missing, self._folder(folders) as folder:
            os.unlink(name, dir_fd=folder)
            _flush(folder)

    # -- folders -----------------------------------------------------------------

    def _list(self, folders: tuple[str, ...], prefix: str, after: str) -> Iterator[ObjectInfo]:
        above = "".join(f"{name}/" for name in folders)
        try:
            with self._folder(folders) as folder:
                for path in _entries(folder, above, prefix, after):
                    if path.endswith("/"):
                        yield from self._list((*folders, path[len(above) : -1]), prefix, after)
                        continue
                    with contextlib.suppress(FileNotFoundError):
                        found = os.stat(path[len(above) :], dir_fd=folder, follow_symlinks=False)
                        yield ObjectInfo(path, found.st_size)
        except FileNotFoundError:
            return

    @contextlib.contextmanager
    def _folder(self, names: Sequence[str], *, create: bool = False) -> Iterator[int]:
        """A descriptor of the folder below the root, reached through no symbolic link."""
        depth, current = self._first(names)
        try:
            while depth < len(names):
                depth += 1
                inner = self._inner(current, tuple(names[:depth]), create)
                os.close(current)
                current = inner
            yield current
        finally:
            os.close(current)

    def _first(self, names: Sequence[str]) -> tuple[int, int]:
        """A folder on the way and its depth: the one below the root if it is known, in one step."""
        if names and (names[0],) in self._durable:
            with contextlib.suppress(FileNotFoundError):
                return 1, os.open(f"{self._root}/{names[0]}", _FOLDER | os.O_NOFOLLOW)
        try:
            return 0, os.open(self._root, _FOLDER)
        except FileNotFoundError:
            raise StoreUnusable(
                f"the results folder {self._root} is missing",
                hint="give the run's own with --results, or mount or restore it; `batchq init` "
                "creates it where it never existed",
            ) from None

    def _inner(self, parent: int, path: tuple[str, ...], create: bool) -> int:
        name = path[-1]
        # Asked before it is looked for: another thread may be making it for the first time.
        was_there = len(path) == 1 and name in self._seen
        try:
            inner = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
        except FileNotFoundError:
            if was_there:
                raise StoreUnusable(
                    f"{name} has vanished from the results folder {self._root}",
                    hint="mount or restore the folder as it was; what was committed lies there",
                ) from None
            if not create:
                raise
            self._durable.discard(path)
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=parent)
            inner = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
        if create and path not in self._durable:
            # Not only where we made it: whoever did may not have flushed it yet.
            try:
                _flush(parent)
            except BaseException:
                os.close(inner)
                raise
            self._durable.add(path)
        self._seen.add(path[0])
        return inner

    @contextlib.contextmanager
    def _explained(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _explain(error, os.path.join(self._root, key)) from error


# -- creating --------------------------------------------------------------------


def _create(folder: int, name: str, data: bytes) -> bool:
    """Create the file whole, or not at all; false if the name is taken."""
    temporary = f".tmp-{random_hex()}"
    file = os.open(temporary, _NEW_FILE, 0o666, dir_fd=folder)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]
        _flush(file)
        return _link(folder, temporary, name, file)
    finally:
        os.close(file)
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)


def _link(folder: int, temporary: str, name: str, file: int) -> bool:
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        # NFS repeats a call whose answer was lost, and then reports that the name exists.
        if _is_file(folder, name, file):
            return True
        if isinstance(error, FileExistsError):
            return False
        if error.errno in _NO_LINKS:
            raise _NoHardLinks(error.errno, error.strerror) from error
        raise
    return True


def _is_file(folder: int, name: str, file: int) -> bool:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return os.path.samestat(found, os.fstat(file))


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _flush(descriptor: int) -> None:
    """Bring a file's content, or a folder's entries, to the disk itself."""
    if _FULL_FLUSH is not None:
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, _FULL_FLUSH)
            return
    os.fsync(descriptor)


def _make_folders(path: str) -> None:
    """Create the folder and what is missing above it, each flushed into its parent."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
        parent = os.open(os.path.dirname(folder), _FOLDER)
        try:
            _flush(parent)
        finally:
            os.close(parent)


def _prove_create_only(root: int, path: str) -> None:
    """Let two writers race for one name: one must win, and its bytes must stay."""
    name = f".probe-{random_hex()}"
    contents = [bytes([number]) * 4096 for number in (1, 2, 3)]
    start = threading.Barrier(2)

    def race(content: bytes) -> bool:
        start.wait(timeout=60)
        return _create(root, name, content)

    try:
        with ThreadPoolExecutor(max_workers=2) as pool:
            won = list(pool.map(race, contents[:2]))
        won.append(_create(root, name, contents[2]))
        with _opened(root, name) as file:
            found = _read(file, 0, 2 * 4096)
        _flush(root)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=root)
    if won.count(True) != 1 or found != contents[won.index(True)]:
        raise StoreUnusable(
            f"the file system of {path} lets two writers create the same file",
            hint="use a local disk, NFS or an object store (--results s3://bucket/prefix)",
        )


# -- reading ---------------------------------------------------------------------


@contextlib.contextmanager
def _opened(folder: int, name: str) -> Iterator[int]:
    file = os.open(name, _FILE, dir_fd=folder)
    try:
        yield file
    finally:
        os.close(file)


def _read(file: int, offset: int, length: int) -> bytes:
    parts = []
    while length > 0 and (part := os.pread(file, length, offset)):
        parts.append(part)
        offset, length = offset + len(part), length - len(part)
    return b"".join(parts)


def _regular(found: os.stat_result, key: str) -> os.stat_result:
    if not stat.S_ISREG(found.st_mode):
        raise StoreUnusable(
            f"{key} in the results folder is no regular file",
            hint="something else writes into this folder: move it away",
        )
    return found


def _entries(folder: int, above: str, prefix: str, after: str) -> list[str]:
    """Paths of what may matter in a folder, in key order; those of folders end in a slash.

    Hidden files, links and whatever else is no object are passed over.
    """
    paths = []
    with os.scandir(folder) as entries:
        for entry in entries:
            path = above + entry.name
            if not is_key_part(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                path += "/"
                inside = path.startswith(prefix) or prefix.startswith(path)
                if inside and (path > after or after.startswith(path)):
                    paths.append(path)
            elif entry.is_file(follow_symlinks=False) and path.startswith(prefix) and path > after:
                paths.append(path)
    # A folder sorts with its slash, as its keys do: "a-b" comes before "a/b".
    return sorted(paths)


# -- what went wrong -------------------------------------------------------------


class _NoHardLinks(OSError):
    """The file system refuses a link to a file just created."""


_FIXES = {
    # Not another folder: a run's results stay where it was created.
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "free some space, or ask for a larger quota",
    errno.EFBIG: "raise the limit on the size of files (`ulimit -f`)",
    errno.EROFS: "mount it for writing",
    errno.EACCES: "give this user the right to write there",
    errno.EPERM: "give this user the right to write there",
    errno.ENOTDIR: "a file or a symbolic link is where a folder should be: move it away",
    errno.ENXIO: "a socket is where a result should be: move it away",
    errno.ELOOP: "a symbolic link is where a folder or a file should be: move it away",
}
"""Errors that asking again does not mend, and what does."""


def _explain(error: OSError, path: str) -> StoreUnusable | StoreError:
    if isinstance(error, _NoHardLinks):
        return StoreUnusable(
            f"result store: {path}: the file system makes no hard links ({error.strerror}), and "
            "without them batchq cannot write and be sure that it overwrites nothing",
            hint="use a local disk, NFS or an object store (--results s3://bucket/prefix); "
            "FAT, SMB and most FUSE mounts will not do",
        )
    said = f"result store: {path}: {error.strerror or error}"
    hint = _FIXES.get(error.errno or 0)
    return StoreError(said) if hint is None else StoreUnusable(said, hint=hint)
