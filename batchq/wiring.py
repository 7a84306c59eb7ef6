"""From settings to parts: the only place that names concrete adapters.

Each function imports what it builds when it is called, so that `status` never pays
for what only a worker needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchq.clock import Clock
from batchq.config import Config, Loaded
from batchq.errors import LedgerNotInitialised, UsageError
from batchq.fingerprint import HINTS
from batchq.notice.signals import SignalSource
from batchq.redact import redact, secret_in
from batchq.words import command, did_you_mean, pip_install

if TYPE_CHECKING:
    from batchq.inference.base import Processor
    from batchq.ledger.base import Ledger, Run
    from batchq.notice.base import NoticeSource
    from batchq.results import Destination
    from batchq.source.base import Extractor, Reader, Source
    from batchq.store.base import Store

__all__ = [
    "SignalSource",
    "creates_ledger",
    "describe_device",
    "existing_run",
    "full_manifest",
    "ledger_exists",
    "new_processor",
    "open_destination",
    "open_extractor",
    "open_ledger",
    "open_notices",
    "open_reader",
    "open_sources",
    "open_staging",
    "open_store",
    "run_processor",
    "take_signals",
]


SHOWN_RUNS = 20
"""Names of runs, for somebody who named none of them."""


def open_ledger(config: Config, clock: Clock) -> Ledger:
    """The ledger at `config.ledger`. Raises UsageError if its library is not installed."""
    from batchq.ledger.base import Policy

    policy = Policy(max_failures=config.max_failures, max_losses=config.max_losses)
    if not config.ledger.startswith("dynamodb:"):
        from batchq.ledger.sql import SqlLedger

        return SqlLedger(config.ledger, policy=policy, clock=clock)
    try:
        from batchq.ledger.dynamodb import DynamoLedger
    except ImportError:
        raise UsageError(
            f"a ledger in {redact(config.ledger)} needs the libraries boto3 and tenacity",
            hint=pip_install("aws"),
        ) from None
    return DynamoLedger(config.ledger, policy=policy, clock=clock)


def creates_ledger(config: Config) -> bool:
    """Whether `enqueue` makes the ledger by itself: it belongs to this machine alone."""
    return config.ledger.startswith("sqlite:")


def ledger_exists(config: Config, ledger: Ledger) -> bool:
    """Whether the ledger is there; false only for one that `enqueue` makes by itself.

    Raises LedgerNotInitialised where somebody must create or upgrade it first. An older
    schema is never upgraded on the way: other processes may be at work on it.
    """
    try:
        ledger.check()
    except LedgerNotInitialised as error:
        if error.found is not None or not creates_ledger(config):
            raise
        return False
    return True


def existing_run(config: Config, ledger: Ledger) -> Run:
    """The run that the settings name.

    Raises LedgerNotInitialised, or UsageError if nothing was enqueued for it yet.
    """
    ledger.check()
    run = ledger.find_run(config.run)
    if run is None:
        raise UsageError(
            f"there is no run {config.run!r} in {ledger.url}",
            hint=_other_runs(config.run, ledger.run_names(SHOWN_RUNS))
            + f"enqueue something for it: {command('enqueue FOLDER', config.run)}",
        )
    return run


def _other_runs(wanted: str, names: Sequence[str]) -> str:
    """Which run somebody may have meant; empty if there is none."""
    if near := did_you_mean(wanted, names):
        return f"{near} Else "
    more = ", …" if len(names) == SHOWN_RUNS else ""
    return f"--run names one of {', '.join(map(repr, names))}{more}; else " if names else ""


def open_store(config: Config) -> Store:
    """The result store at `config.results`. Raises UsageError if its SDK is not installed."""
    if not config.results.startswith("s3:"):
        from batchq.store.local import LocalStore

        return LocalStore(Path(config.results))
    return _s3_store(config.results)


def _s3_store(url: str) -> Store:
    try:
        from batchq.store.s3 import S3Store
    except ImportError:
        raise UsageError(
            f"{redact(url)} needs the library boto3",
            hint=pip_install("aws"),
        ) from None
    return S3Store(url)


def open_destination(output: str) -> Destination:
    """Where an export goes: a file, or `s3://bucket/key`, whose server is probed first.

    Raises UsageError for what cannot be one, before anything is read for it.
    """
    from batchq.results import LocalFile, StoreObject

    if not output.startswith("s3:"):
        file = Path(output)
        if not file.name or file.is_dir():
            raise UsageError(f"{output!r} names no file", hint="write FOLDER/NAME.jsonl")
        return LocalFile(file)
    folder, _, name = output.rpartition("/")
    if folder in ("s3:", "s3:/") or not name:
        raise UsageError(f"{redact(output)} names no object", hint="write s3://BUCKET/NAME.jsonl")
    store = _s3_store(folder)
    store.probe()
    return StoreObject(store, name)


def open_sources(
    sources: Sequence[str],
    config: Config,
    *,
    prefix: str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    id_column: str | None = None,
    text_column: str | None = None,
) -> list[Source]:
    """One source for each SOURCE argument, none of which lists batchq's own files.

    With `text_column` each row of a table is a document. Raises UsageError for a source
    that is not there, or whose SDK is not installed.
    """
    if id_column is not None and text_column is None:
        raise UsageError(
            "--id-column names a column of a table, and without --text-column there is none",
            hint="name the column that holds the text: --text-column text",
        )
    avoid = [config.results]
    if creates_ledger(config):
        # SQLite puts the other two beside the file that a link leads to.
        path = os.path.realpath(config.ledger.removeprefix("sqlite:///"))
        avoid += [path, f"{path}-wal", f"{path}-shm"]

    def opened(source: str) -> Source:
        files = _files(source)(source, prefix=prefix, include=include, exclude=exclude, avoid=avoid)
        return files if text_column is None else _rows(files, id_column, text_column)

    return [opened(source) for source in sources]


def _files(source: str) -> Callable[..., Source]:
    if not source.startswith("s3://"):
        from batchq.source.directory import DirectorySource

        return DirectorySource
    try:
        from batchq.source.s3 import S3Source
    except ImportError:
        raise UsageError(
            f"documents in {redact(source)} need the library boto3",
            hint=pip_install("aws"),
        ) from None
    return S3Source


def _rows(files: Source, id_column: str | None, text_column: str) -> Source:
    from batchq.source.readers import AnyReader
    from batchq.source.table import TableSource

    return TableSource(files, AnyReader().open_ranges, text_column=text_column, id_column=id_column)


def open_reader(store: Store | None = None) -> Reader:
    """Reads documents by their locators: where sources found them, or staged in `store`."""
    from batchq.source.readers import AnyReader
    from batchq.store.inputs import SCHEME, Inputs

    return AnyReader({} if store is None else {SCHEME: Inputs(store)})


def open_staging(store: Store, reader: Reader) -> Callable[[str, str], str]:
    """Keeps documents of this machine in `store` if other machines reach that.

    Takes and returns a locator; see `batchq.enqueue`.
    """
    from batchq.enqueue import as_it_lies
    from batchq.source.base import MAX_DOCUMENT_BYTES
    from batchq.store.inputs import Inputs

    if not store.remote:
        return as_it_lies
    inputs = Inputs(store)

    def stage(locator: str, source_version: str) -> str:
        if not locator.startswith("file:"):
            return locator
        data = reader.read(locator, source_version, MAX_DOCUMENT_BYTES)
        staged = inputs.stage(data, source_version)
        # What marks a row of a table stays with it.
        _, mark, row = locator.partition("#")
        return f"{staged}{mark}{row}"

    return stage


@contextmanager
def open_extractor() -> Iterator[Extractor]:
    """Turns documents into text, in processes that are ended with the context."""
    from batchq.source.extract import Extractor

    extractor = Extractor()
    try:
        yield extractor
    finally:
        extractor.close()


def take_signals(hung_up: Callable[[], object]) -> SignalSource:
    """The signals, taken for the rest of this process. The first thing that a worker does.

    `hung_up` is called when the terminal has gone.
    """
    signals = SignalSource(hung_up=hung_up)
    signals.take_process()
    return signals


def open_notices(
    config: Config, clock: Clock, signals: SignalSource | None = None
) -> tuple[list[NoticeSource], list[str]]:
    """What warns a worker of its end, and a line about each for people.

    `signals`: those that this process has taken already. Raises UsageError for what cannot
    be watched here.
    """
    from batchq.notice.detect import build_sources, describe_sources

    sources = build_sources(
        config.notice,
        clock=clock,
        interval=config.notice_interval,
        window=config.notice_window,
        queue_url=config.notice_queue,
        azure_endpoint=config.azure_metadata_endpoint,
        rebalance=config.drain_on_rebalance,
        signals=signals,
    )
    return sources, describe_sources(sources)


def describe_device(wanted: str) -> tuple[str, dict[str, Any]]:
    """What `wanted` is here, for people and in figures. Raises UsageError if it is not."""
    from batchq.inference.device import describe_device

    return describe_device(wanted)


def full_manifest(processor: Processor) -> dict[str, Any]:
    """Everything that shapes a result: the processor's manifest and the extractor's.

    Raises UsageError for a manifest with a secret.
    """
    from batchq.inference.registry import full_manifest
    from batchq.source.extract import extractor_manifest

    manifest = full_manifest(processor, extractor_manifest())
    for part in ("parameters", "user"):
        _refuse_secrets("manifest:", manifest.get(part), part)
    return manifest


def new_processor(config: Config) -> Processor:
    """The processor that the settings describe, not loaded yet.

    Raises UsageError, also for a parameter that looks like a secret.
    """
    from batchq.inference.registry import build_processor

    _refuse_secrets("[processor]", config.parameters)
    return build_processor(config.processor, _parameters(config))


def _refuse_secrets(where: str, kept: Any, name: str = "") -> None:
    if found := secret_in(kept, name):
        raise UsageError(
            f"{where} {found} looks like a secret, and parameters and manifests are kept in the "
            "ledger and beside the results",
            hint="let the processor read it from an environment variable",
        )


def run_processor(run: Run, loaded: Loaded) -> Processor:
    """The processor of an existing run, with the code and the files that are here.

    Kind and parameters come from the run. Raises ProcessingVersionMismatch, field by
    field, if a setting given here says otherwise, or if code, weights or extractor
    here differ from those that the run was created with.
    """
    from batchq.enqueue import require_manifest
    from batchq.inference.registry import rebuild_processor

    config, origin = loaded.config, loaded.origin
    if origin["processor"] != "default" and config.processor != run.manifest.get("processor"):
        require_manifest(run, {**run.manifest, "processor": config.processor})
    given = _parameters(config)
    manifest = {**run.manifest, "parameters": {**run.manifest["parameters"], **given}}
    if "model" in given:
        # The run remembers where its own model lay, and that place would be asked first.
        manifest.pop(HINTS, None)
    processor = rebuild_processor(manifest)
    require_manifest(run, full_manifest(processor))
    return processor


def _parameters(config: Config) -> dict[str, Any]:
    """The processor's parameters, as far as somebody named them."""
    model = {} if config.model is None else {"model": config.model}
    return {**config.parameters, **model}
