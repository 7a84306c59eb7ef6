"""From settings to parts: the only place that names concrete adapters.

Each function imports what it builds when it is called, so that `status` never pays
for what only a worker needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchq.clock import Clock
from batchq.config import Config, Loaded
from batchq.errors import ProcessingVersionMismatch, UsageError
from batchq.fingerprint import HINTS, difference, processing_version
from batchq.redact import redact

if TYPE_CHECKING:
    from batchq.inference.base import Processor
    from batchq.ledger.base import Ledger, Run
    from batchq.notice.base import NoticeSource
    from batchq.source.base import Extractor, Reader, Source
    from batchq.store.base import Store

__all__ = [
    "creates_ledger",
    "full_manifest",
    "new_layout",
    "new_processor",
    "open_extractor",
    "open_ledger",
    "open_notices",
    "open_reader",
    "open_sources",
    "open_store",
    "run_processor",
]


def open_ledger(config: Config, clock: Clock) -> Ledger:
    """The ledger at `config.ledger`. Raises UsageError for a kind that is not built in."""
    from batchq.ledger.base import Policy
    from batchq.ledger.sql import SqlLedger

    if config.ledger.startswith("dynamodb:"):
        raise UsageError(
            f"no DynamoDB in this build: {redact(config.ledger)}",
            hint="a ledger is sqlite:///PATH or postgresql://HOST/DATABASE",
        )
    policy = Policy(max_failures=config.max_failures, max_losses=config.max_losses)
    return SqlLedger(config.ledger, policy=policy, clock=clock)


def creates_ledger(config: Config) -> bool:
    """Whether `enqueue` makes the ledger by itself: it belongs to this machine alone."""
    return config.ledger.startswith("sqlite:")


def open_store(config: Config) -> Store:
    """The result store at `config.results`. Raises UsageError for a kind not built in."""
    from batchq.store.local import LocalStore

    if config.results.startswith("s3:"):
        raise UsageError(
            f"no S3 in this build: {redact(config.results)}",
            hint="a result store is a folder; several machines may mount it",
        )
    return LocalStore(Path(config.results))


def new_layout(config: Config) -> str:
    """The layout of a new run's results. Raises UsageError for one that is not built in."""
    if config.layout != "item":
        raise UsageError(
            f"no layout {config.layout} in this build",
            hint="layout item keeps one object for each item",
        )
    return config.layout


def open_sources(
    sources: Sequence[str],
    config: Config,
    *,
    prefix: str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> list[Source]:
    """One source for each SOURCE argument, none of which lists batchq's own files.

    Raises UsageError for one that is not there, or whose kind is not built in.
    """
    from batchq.source.directory import DirectorySource

    for source in sources:
        if source.startswith("s3://"):
            raise UsageError(
                f"no S3 in this build: {redact(source)}", hint="a source is a folder or a file"
            )
    avoid = [config.results]
    if creates_ledger(config):
        path = config.ledger.removeprefix("sqlite:///")
        avoid += [path, f"{path}-wal", f"{path}-shm"]
    return [
        DirectorySource(source, prefix=prefix, include=include, exclude=exclude, avoid=avoid)
        for source in sources
    ]


def open_reader() -> Reader:
    """Reads documents by the locators that `open_sources` gives them."""
    from batchq.source.directory import LocalReader

    return LocalReader()


@contextmanager
def open_extractor() -> Iterator[Extractor]:
    """Turns documents into text, in processes that are ended with the context."""
    from batchq.source.extract import Extractor

    extractor = Extractor()
    try:
        yield extractor
    finally:
        extractor.close()


def open_notices(config: Config, clock: Clock) -> tuple[list[NoticeSource], list[str]]:
    """What warns a worker of its end, and a line about each for people.

    Raises UsageError for what cannot be watched here.
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
    )
    return sources, describe_sources(sources)


def full_manifest(processor: Processor) -> dict[str, Any]:
    """Everything that shapes a result: the processor's manifest and the extractor's."""
    from batchq.inference.registry import full_manifest
    from batchq.source.extract import extractor_manifest

    return full_manifest(processor, extractor_manifest())


def new_processor(config: Config) -> Processor:
    """The processor that the settings describe, not loaded yet."""
    from batchq.inference.registry import build_processor

    return build_processor(config.processor, _parameters(config))


def run_processor(run: Run, loaded: Loaded) -> Processor:
    """The processor of an existing run, with the code and the files that are here.

    Kind and parameters come from the run. Raises ProcessingVersionMismatch, field by
    field, if a setting given here says otherwise, or if code, weights or extractor
    here differ from those that the run was created with.
    """
    from batchq.inference.registry import rebuild_processor

    config, origin = loaded.config, loaded.origin
    if origin["processor"] != "default" and config.processor != run.manifest.get("processor"):
        raise _mismatch(run, {**run.manifest, "processor": config.processor})
    given = _parameters(config)
    manifest = {**run.manifest, "parameters": {**run.manifest["parameters"], **given}}
    if "model" in given:
        # The run remembers where its own model lay, and that place would be asked first.
        manifest.pop(HINTS, None)
    processor = rebuild_processor(manifest)
    ours = full_manifest(processor)
    if processing_version(ours) != run.processing_version:
        raise _mismatch(run, ours)
    return processor


def _parameters(config: Config) -> dict[str, Any]:
    """The processor's parameters, as far as somebody named them."""
    model = {} if config.model is None else {"model": config.model}
    return {**config.parameters, **model}


def _mismatch(run: Run, ours: Mapping[str, Any]) -> ProcessingVersionMismatch:
    lines = "\n".join(difference(ours, run.manifest))
    return ProcessingVersionMismatch(
        f"run {run.name!r} is {run.processing_version}, which is not what is set up here:\n{lines}",
        hint="results of two processing versions never mix in one run: use what the run "
        "was created with, or enqueue under another name with --run",
    )
