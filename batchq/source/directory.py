"""Documents in folders of this machine: listing them.

What is taken: regular files, in every folder below the root, and links to such files.
What is not, each rejected by name: links that lead outside the root, to a folder or to
nothing; sockets, pipes and devices; folders that cannot be read. Names that begin with a
dot are passed over, as `ls` and the shell do, unless an include pattern names the dot.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence, Set
from dataclasses import dataclass

from batchq.errors import UsageError
from batchq.source.base import Found, Skipped
from batchq.source.globs import matcher
from batchq.source.local import LocalReader
from batchq.source.names import (
    checked_prefix,
    locator_below,
    to_locator,
    to_name,
    to_names,
    to_quoted,
)

__all__ = ["DirectorySource", "LocalReader"]

_KINDS = {
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFLNK: "a link",
    stat.S_IFREG: "a regular file",
    stat.S_IFSOCK: "a socket",
}

_PAGE = 1_000
"""Names that are decoded at once."""

_TWIN = "its name is that of another {} beside it, once in Unicode form NFC; rename one of them"


@dataclass(frozen=True, slots=True)
class _Folder:
    """One folder to list. `below` is its path below the root, "" or ending in a slash.

    `taken`: what lies in it is wanted without matching an include pattern itself.
    """

    path: bytes
    source_id: str
    below: str
    taken: bool


class DirectorySource:
    """A folder, or a single file, as a SOURCE.

    A source id is the root's name (or `prefix`) and the path below it. The root of a
    single file is the folder it lies in, so that `docs` and `docs/a.md` name one and the
    same document. `include` and `exclude` are patterns (see `globs`) for paths below a
    folder; a file that is itself a SOURCE is always taken. `avoid` names files and
    folders that are passed over wherever they lie: batchq's own ledger and results.

    Raises UsageError if `path` is missing, unreadable or neither folder nor file, and if
    its folder is to be avoided itself.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        prefix: str | None = None,
        include: Iterable[str] = (),
        exclude: Iterable[str] = (),
        avoid: Iterable[str | os.PathLike[str]] = (),
    ) -> None:
        include, exclude = tuple(include), tuple(exclude)
        given = os.fsencode(path)
        self._file = None if _is_folder(given) else given
        folder = given if self._file is None else os.path.dirname(given) or b"."
        self._path = os.path.realpath(folder)
        self._name = _root_name(folder) if prefix is None else checked_prefix(prefix)
        self._all_wanted, self._none_excluded = not include, not exclude
        self._included = matcher(include, hidden=False)
        self._excluded = matcher(exclude, hidden=True)
        self._enters_hidden = any("/." in f"/{pattern}" for pattern in include)
        self._avoid = frozenset(os.path.realpath(os.fsencode(each)) for each in avoid)
        if self._path in self._avoid:
            raise UsageError(
                f"the folder of SOURCE {os.fsdecode(given)!r} is that of the results",
                hint="give results a folder of their own with --results: each enqueue would take "
                "those of the last one for documents",
            )
        self.root = to_locator(self._path)

    def list(self, *, sized: bool = True) -> Iterator[Found | Skipped]:
        """Documents and what is none: a folder's files in byte order, then its folders.

        Holds the names of one folder and of the folders still to be listed. A folder tells
        what is a regular file; a call of the system for each document tells its size.
        """
        if self._file is not None:
            source_id = f"{self._name}/{to_name(os.path.basename(self._file))}"
            yield self._linked(os.path.realpath(self._file), source_id)
            return
        pending = [_Folder(self._path, self._name, "", self._all_wanted)]
        while pending:
            folder = pending.pop()
            files: list[bytes] = []
            folders: list[bytes] = []
            unclear = set[bytes]()
            try:
                with os.scandir(folder.path) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(entry.name)
                            continue
                        files.append(entry.name)
                        if sized or not entry.is_file(follow_symlinks=False):
                            unclear.add(entry.name)
            except OSError as error:
                yield Skipped(folder.source_id, f"folder not read to its end: {_reason(error)}")
            yield from self._list_files(folder, files, unclear)
            below: list[_Folder] = []
            yield from self._list_folders(folder, folders, below)
            pending.extend(reversed(below))

    def _list_files(
        self, folder: _Folder, names: Sequence[bytes], unclear: Set[bytes]
    ) -> Iterator[Found | Skipped]:
        """Those whose names are `unclear` are looked at: for what they are, or their size."""
        base = os.path.join(folder.path, b"")
        base_id, base_locator = f"{folder.source_id}/", locator_below(self._path, base)
        all_wanted = folder.taken and self._none_excluded
        avoid = {path[len(base) :] for path in self._avoid if path.startswith(base)}
        for name, shown, quoted, twin in _in_order(names):
            wanted = (all_wanted and shown[0] != ".") or self._wants(folder, shown)
            if not wanted or name in avoid:
                continue
            source_id = base_id + shown
            if not twin and name not in unclear:
                yield Found(source_id, base_locator + quoted, None)
                continue
            path = base + name
            try:
                status = os.lstat(path)
            except OSError as error:
                yield Skipped(source_id, _reason(error))
                continue
            if twin:
                yield Skipped(source_id, _TWIN.format("document"))
            elif stat.S_ISREG(status.st_mode):
                yield Found(source_id, base_locator + quoted, status.st_size)
            elif not stat.S_ISLNK(status.st_mode):
                yield Skipped(source_id, f"{_kind(status.st_mode)}, no regular file")
            elif (followed := self._follow(path, source_id)) is not None:
                yield followed

    def _list_folders(
        self, folder: _Folder, names: Sequence[bytes], below: MutableSequence[_Folder]
    ) -> Iterator[Skipped]:
        for name, shown, _, twin in _in_order(names):
            path = os.path.join(folder.path, name)
            relative = folder.below + shown
            if path in self._avoid or _either(self._excluded, relative):
                continue
            hidden = shown.startswith(".")
            taken = (folder.taken and not hidden) or _either(self._included, relative)
            if not taken and (self._all_wanted or (hidden and not self._enters_hidden)):
                continue
            source_id = f"{folder.source_id}/{shown}"
            if twin:
                yield Skipped(source_id, _TWIN.format("folder"))
            else:
                below.append(_Folder(path, source_id, f"{relative}/", taken))

    def _wants(self, folder: _Folder, shown: str) -> bool:
        if not ((folder.taken and shown[0] != ".") or self._included(folder.below + shown)):
            return False
        return self._none_excluded or not self._excluded(folder.below + shown)

    def _follow(self, link: bytes, source_id: str) -> Found | Skipped | None:
        """A link stands for the file it leads to, if that is below the root."""
        try:
            target = os.path.realpath(link, strict=True)
        except OSError as error:
            return Skipped(source_id, f"link not followed: {_reason(error)}")
        if not self._is_below(target):
            return Skipped(source_id, "link not followed: it leads outside the folder enqueued")
        return None if target in self._avoid else self._linked(target, source_id)

    def _is_below(self, path: bytes) -> bool:
        return path.startswith(os.path.join(self._path, b""))

    def _linked(self, target: bytes, source_id: str) -> Found | Skipped:
        try:
            status = os.lstat(target)
        except OSError as error:
            return Skipped(source_id, _reason(error))
        if stat.S_ISREG(status.st_mode):
            below = self._is_below(target)
            locator = locator_below(self._path, target) if below else to_locator(target)
            return Found(source_id, locator, status.st_size)
        return Skipped(source_id, f"link not followed: it leads to {_kind(status.st_mode)}")


def _either(matches: Callable[[str], bool], folder: str) -> bool:
    """Whether a folder or all that lies below it is meant."""
    return matches(folder) or matches(f"{folder}/")


def _in_order(names: Sequence[bytes]) -> Iterator[tuple[bytes, str, str, bool]]:
    """Each name in byte order: as it is, in source ids, in locators; and whether it is a twin.

    A twin is shown in source ids as one before it is.
    """
    names = sorted(names)
    # Two names differ in bytes and are shown alike only where one is in another Unicode form.
    seen = None if all(map(bytes.isascii, names)) else set[str]()
    for start in range(0, len(names), _PAGE):
        page = names[start : start + _PAGE]
        for name, shown, quoted in zip(page, to_names(page), to_quoted(page), strict=True):
            yield name, shown, quoted, seen is not None and shown in seen
            if seen is not None:
                seen.add(shown)


def _is_folder(path: bytes) -> bool:
    """Whether a SOURCE is a folder, or a file. Raises UsageError if it is neither."""
    shown = os.fsdecode(path)
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
            return stat.S_ISDIR(mode)
    except OSError as error:
        denied = isinstance(error, PermissionError)
        hint = "let this user read it" if denied else "name a folder or a file that exists"
        raise UsageError(
            f"SOURCE {shown!r}: {_reason(error)}",
            hint=f"{hint}; paths are relative to {os.getcwd()}, and s3://BUCKET/FOLDER is one too",
        ) from None
    raise UsageError(f"SOURCE {shown!r} is {_kind(mode)}", hint="give a folder or a regular file")


def _root_name(folder: bytes) -> str:
    """The folder's own name, as given; that of the folder it resolves to for `.` and `..`."""
    name = os.path.basename(folder.rstrip(b"/"))
    if name in (b"", b".", b".."):
        name = os.path.basename(os.path.realpath(folder))
    if not name:
        raise UsageError(
            "the root of the file system has no name that source ids could begin with",
            hint="give them one with --prefix NAME",
        )
    return to_name(name)


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "something unknown")


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
