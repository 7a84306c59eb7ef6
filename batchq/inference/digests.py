"""SHA-256 of model files, in parallel, remembered between processes.

Hashing a large model takes longer than anything else that `enqueue` does with it, so
digests are kept in a small file of the user's cache, under all that the system says
of the file they were computed from. A cache that cannot be read or written only
costs time.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from batchq.clock import Clock, SystemClock, random_hex
from batchq.errors import BatchqError

__all__ = ["file_digests"]

_ENTRIES = 4_096
_THREADS = 8
# A file written within this many seconds can change again without its times changing.
_SETTLED = 2.0


def file_digests(
    folder: Path, names: Sequence[str], *, clock: Clock | None = None
) -> dict[str, str]:
    """The SHA-256, in hex, of each of `names` in `folder`, by name.

    Raises BatchqError for a file that cannot be read or changes meanwhile.
    """
    cache = _read_cache()
    now = (clock or SystemClock()).now()
    known = len(cache)

    def digest(name: str) -> str:
        return _digest(folder / name, cache, now)

    try:
        with ThreadPoolExecutor(max_workers=_THREADS) as pool:
            digests = dict(zip(names, pool.map(digest, names), strict=True))
    except OSError as error:
        raise BatchqError(
            f"cannot read the model file {error.filename}: {error.strerror}",
            hint="fetch the model again, or make it readable",
        ) from None
    if len(cache) > known:
        _write_cache(cache)
    return digests


def _digest(path: Path, cache: dict[str, str], now: float) -> str:
    with path.open("rb") as stream:
        before = _identity(path, os.fstat(stream.fileno()))
        if before in cache:
            return cache[before]
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        status = os.fstat(stream.fileno())
        if _identity(path, status) != before:
            raise BatchqError(f"{path} changed while it was read", hint="try again")
    if max(status.st_mtime, status.st_ctime) < now - _SETTLED:
        cache[before] = digest
    return digest


def _identity(path: Path, status: os.stat_result) -> str:
    return json.dumps(
        [
            str(path.absolute()),
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
            status.st_dev,
            status.st_ino,
        ]
    )


def _cache_file() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "batchq" / "model-digests.json"


def _read_cache() -> dict[str, str]:
    try:
        cache = json.loads(_cache_file().read_bytes())
    except (OSError, ValueError, RuntimeError, RecursionError):
        return {}
    if not isinstance(cache, dict):
        return {}
    return {
        key: value for key, value in cache.items() if isinstance(value, str) and len(value) == 64
    }


def _write_cache(cache: dict[str, str]) -> None:
    newest = dict(list(cache.items())[-_ENTRIES:])
    try:
        file = _cache_file()
        file.parent.mkdir(parents=True, exist_ok=True)
        # Two processes may write at once; each replaces the whole, and a lost entry
        # is only computed again.
        draft = file.with_name(f"{file.name}.{random_hex(64)}")
        try:
            draft.write_text(json.dumps(newest))
            os.replace(draft, file)
        finally:
            draft.unlink(missing_ok=True)
    except (OSError, RuntimeError):
        return
