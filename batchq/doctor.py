"""Doctor: everything a worker depends on, tried out one by one before it matters.

Each check answers for itself: what fails is said with its advice, and the next one runs
all the same. Nothing is enqueued or claimed; what is written is a trial object, which is
removed again where this role may.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from batchq import wiring
from batchq.clock import Clock, random_hex
from batchq.config import Loaded
from batchq.errors import (
    BatchqError,
    ExitCode,
    StoreUnusable,
    UsageError,
)
from batchq.inference.weights import ModelNotFound, hub_cache
from batchq.ledger.base import Ledger, Run
from batchq.mounts import free_bytes, lifetime
from batchq.result import sha256_hex
from batchq.store.base import Store, StoreError

__all__ = ["Finding", "Health", "examine"]

TRIAL_BYTES = 8 * 1024 * 1024
"""Of the object by which the store's speed is measured: about a flush of embeddings."""

CLOCK_OFF_S = 60.0
"""From here on a clock is worth a warning. S3 refuses who is off by 15 minutes."""

_MEBIBYTE = 1024 * 1024

Check = Callable[[str], "Finding | None"]


class Health(StrEnum):
    OK = "ok"
    WARN = "warn"
    """It works, and something about it should be known."""
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One dependency: its health, what was seen, and how to mend it.

    `exit_code` is that of the failure; `facts` holds the figures, for programs.
    """

    name: str
    health: Health
    text: str
    advice: str | None = None
    exit_code: ExitCode = ExitCode.OK
    facts: Mapping[str, Any] = field(default_factory=dict)


def examine(loaded: Loaded, clock: Clock) -> Iterator[Finding]:
    """Every dependency in turn, as the settings name them; a run need not exist yet."""
    doctor = _Doctor(loaded, clock)
    try:
        for name, check in (
            ("ledger", doctor.ledger),
            ("clock", doctor.clock),
            ("notices", doctor.notices),
            ("ledger place", doctor.ledger_place),
            ("store", doctor.store),
            ("store speed", doctor.store_speed),
            ("store place", doctor.store_place),
            ("model", doctor.model),
            ("device", doctor.device),
        ):
            finding = _found(name, check)
            if finding is not None:
                yield finding
    finally:
        doctor.close()


def _found(name: str, check: Check) -> Finding | None:
    try:
        return check(name)
    except BatchqError as error:
        return Finding(name, Health.FAIL, error.message, error.hint, error.exit_code)
    except StoreError as error:
        advice = "check the store, and the network between here and there"
        return Finding(name, Health.FAIL, str(error), advice, ExitCode.STORE_UNUSABLE)
    except OSError as error:
        advice = "look at the disk and the permissions"
        return Finding(name, Health.FAIL, str(error), advice, ExitCode.ERROR)


class _Doctor:
    """The checks, in an order in which later ones may use what earlier ones found."""

    def __init__(self, loaded: Loaded, clock: Clock) -> None:
        self._loaded = loaded
        self._config = loaded.config
        self._clock = clock
        self._ledger: Ledger | None = None
        self._run: Run | None = None
        self._store: Store | None = None
        self._window: float | None = None
        self._on_platform = False

    def close(self) -> None:
        if self._ledger is not None:
            self._ledger.close()

    # -- the ledger --------------------------------------------------------------

    def ledger(self, name: str) -> Finding:
        self._ledger = wiring.open_ledger(self._config, self._clock)
        url = self._ledger.url
        if not wiring.ledger_exists(self._config, self._ledger):
            return Finding(name, Health.OK, f"{url} is not there yet; enqueue creates it")
        self._run = self._ledger.find_run(self._config.run)
        # Nobody's sign of life changes nothing, and is refused where nothing can be written.
        self._ledger.beat(f"doctor-{random_hex()}", self._config.lease_ttl)
        run = "no run" if self._run is None else "the run"
        return Finding(name, Health.OK, f"{url} answers, its schema fits, {run} is there")

    def clock(self, name: str) -> Finding | None:
        if self._ledger is None or self._run is None:
            return None
        before = self._clock.now()
        theirs = self._ledger.counts(self._run).now
        after = self._clock.now()
        # The answer was given at some moment between the two.
        off = max(before - theirs, theirs - after, 0.0)
        text = f"{off:.1f} s between this machine's clock and the ledger's"
        facts = {"offset_s": round(off, 3)}
        if off <= CLOCK_OFF_S:
            return Finding(name, Health.OK, text, facts=facts)
        advice = "leases do not mind, but S3 refuses a clock that is 15 minutes off: set it"
        return Finding(name, Health.WARN, text, advice, facts=facts)

    def ledger_place(self, name: str) -> Finding | None:
        if not wiring.creates_ledger(self._config):
            return None
        path = Path(self._config.ledger.removeprefix("sqlite:///"))
        return self._place(
            name, path.absolute().parent, "a ledger on a server: --ledger postgresql://…"
        )

    # -- the result store --------------------------------------------------------

    def store(self, name: str) -> Finding:
        from batchq.enqueue import check_store

        store = wiring.open_store(self._config)
        store.probe()
        self._store = store
        text = f"{store.url} creates and never replaces"
        if self._run is not None:
            check_store(store, self._run)
            text += ", and holds the run's marker"
        return Finding(name, Health.OK, text)

    def store_speed(self, name: str) -> Finding | None:
        if self._store is None:
            return None
        key = f"doctor-{random_hex()}"
        try:
            write_s, read_s, keeps_sha256 = self._trial(self._store, key)
        finally:
            left = self._removed(key)
        facts = {
            "write_mb_s": round(TRIAL_BYTES / 1e6 / write_s, 1),
            "read_mb_s": round(TRIAL_BYTES / 1e6 / read_s, 1),
            "keeps_sha256": keeps_sha256,
        }
        keeps = "keeps SHA-256" if keeps_sha256 else "keeps no SHA-256, so results are read back"
        text = (
            f"writes {facts['write_mb_s']} MB/s and reads {facts['read_mb_s']} MB/s "
            f"over one connection; {keeps}{left}"
        )
        if self._window is not None and write_s > self._window / 2:
            advice = (
                f"half of the notice of {self._window:g} s is too short for one object of "
                f"{TRIAL_BYTES // _MEBIBYTE} MiB: set flush_items low, or use a nearer store"
            )
            return Finding(name, Health.WARN, text, advice, facts=facts)
        return Finding(name, Health.OK, text, facts=facts)

    def _trial(self, store: Store, key: str) -> tuple[float, float, bool]:
        """Seconds to write an object and to read it back, and whether its SHA-256 is kept."""
        data = bytes.fromhex(random_hex(8 * TRIAL_BYTES))
        digest = sha256_hex(data)
        started = self._clock.monotonic()
        store.put_if_absent(key, data, digest)
        written = self._clock.monotonic()
        back = store.read(key)
        read = self._clock.monotonic()
        info = store.head(key)
        if sha256_hex(back) != digest or info is None or info.sha256 not in (None, digest):
            raise StoreUnusable(
                f"{store.url} gave back other bytes than it was given",
                hint="use another store: this one, or something in front of it, alters objects",
            )
        return max(written - started, 1e-6), max(read - written, 1e-6), info.sha256 is not None

    def _removed(self, key: str) -> str:
        assert self._store is not None
        try:
            self._store.delete(key)
        except (BatchqError, StoreError):
            # As it should be: a worker has no right to.
            return f"; the trial object {key} stays, as this role may not delete"
        return ""

    def store_place(self, name: str) -> Finding | None:
        if self._store is None:
            return None
        if self._store.remote:
            text, facts = "outlives every machine", {"durable": True}
            return Finding(name, Health.OK, text, facts=facts)
        folder = Path(self._config.results).absolute()
        return self._place(name, folder, "a store in S3: --results s3://BUCKET/PREFIX")

    def _place(self, name: str, folder: Path, better: str) -> Finding:
        found = lifetime(folder)
        facts = {"durable": found.durable}
        where = f"{folder} is on {found.what}"
        if found.durable:
            return Finding(name, Health.OK, where, facts=facts)
        if found.durable is False:
            return Finding(
                name, Health.WARN, f"not durable: {where}", f"take {better}", facts=facts
            )
        # Nobody takes a laptop away, but a rented machine goes, and most disks with it.
        health = Health.WARN if self._on_platform else Health.OK
        advice = f"if this machine may be taken away, verify with its provider, or take {better}"
        return Finding(name, health, where, advice, facts=facts)

    # -- the model ---------------------------------------------------------------

    def model(self, name: str) -> Finding:
        try:
            with _fetching_nothing() as forbidden:
                processor, fits = self._processor()
        except ModelNotFound as error:
            if forbidden:
                raise
            free = free_bytes(hub_cache())
            missing = error.message.partition("; looked at:")[0]
            text = f"{missing}; {_size(free)} are free where it would go"
            advice = (
                f"a worker fetches it when it starts, if the network lets it; else {error.hint}"
            )
            facts = {"present": False, "free_bytes": free}
            return Finding(name, Health.WARN, text, advice, facts=facts)
        folder: Path | None = getattr(processor, "model_path", None)
        if folder is None:
            return Finding(name, Health.OK, f"a processor without weights; {fits}")
        weights = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        text = f"{_size(weights)} in {folder}; {fits}"
        return Finding(name, Health.OK, text, facts={"present": True, "weights_bytes": weights})

    def _processor(self) -> tuple[Any, str]:
        """What would process the documents, and how it compares with the run."""
        if self._run is not None:
            processor = wiring.run_processor(self._run, self._loaded)
            return processor, f"every digest is that of the run ({self._run.processing_version})"
        processor = wiring.new_processor(self._config)
        wiring.full_manifest(processor)
        return processor, "no run to compare it with"

    def device(self, name: str) -> Finding:
        try:
            text, facts = wiring.describe_device(self._config.device)
        except UsageError as error:
            if self._config.device != "auto" or self._needs_torch():
                raise
            text = "no torch here, which this processor may do without"
            return Finding(name, Health.OK, text, error.hint)
        return Finding(name, Health.OK, text, facts=facts)

    def _needs_torch(self) -> bool:
        kind = self._config.processor
        if self._run is not None:
            kind = str(self._run.manifest.get("processor", kind))
        return kind != "stats" and ":" not in kind

    # -- notices -----------------------------------------------------------------

    def notices(self, name: str) -> Finding:
        sources, lines = wiring.open_notices(self._config, self._clock)
        windows = [source.window for source in sources if source.window is not None]
        self._window = min(windows, default=None)
        names = [source.name for source in sources]
        self._on_platform = len(names) > 1
        facts = {"sources": names, "window_s": self._window}
        return Finding(name, Health.OK, "; ".join(lines), facts=facts)


@contextmanager
def _fetching_nothing() -> Iterator[bool]:
    """Let no model be fetched from the hub meanwhile; whether that was forbidden anyway."""
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        yield before is not None
    finally:
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before


def _size(number: int) -> str:
    return f"{number / 1e9:,.1f} GB" if number >= 1e9 else f"{number / 1e6:,.1f} MB"
