"""A run and the store that holds its results: created together, known by a marker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchq.errors import ProcessingVersionMismatch, StoreUnusable, UsageError
from batchq.fingerprint import HINTS, difference, processing_version
from batchq.ledger.base import Ledger, Run
from batchq.result import canonical_json, marker_key, sha256_hex
from batchq.source.office import LIBRARY
from batchq.store.base import ObjectMissing, Store, StoreError
from batchq.words import pip_install

__all__ = ["check_store", "ensure_run", "require_layout", "require_manifest"]

RUN_SCHEMA = "batchq-run/1"


def ensure_run(
    ledger: Ledger, store: Store, name: str, manifest: Mapping[str, Any], layout: str
) -> Run:
    """The run called `name`, created with its marker in the store if it is new.

    Raises ProcessingVersionMismatch or UsageError if the run is there with another
    manifest or layout, StoreUnusable if `store` is not where its results lie.
    """
    version = processing_version(manifest)
    run = ledger.find_run(name) or ledger.create_run(name, version, manifest, layout)
    require_manifest(run, manifest)
    require_layout(run, layout)
    tallies = ledger.counts(run).tallies
    if tallies.total + tallies.superseded == 0:
        # Nothing can lie elsewhere yet. Later on, a missing marker means another store.
        marker = _marker(run)
        try:
            store.put_if_absent(marker_key(run.prefix), marker, sha256_hex(marker))
        except StoreError as error:
            raise _unusable(store, str(error)) from None
    check_store(store, run)
    return run


def require_manifest(run: Run, ours: Mapping[str, Any]) -> None:
    """Raise ProcessingVersionMismatch, field by field, unless `ours` makes the run's version."""
    if processing_version(ours) != run.processing_version:
        lines = "\n".join(difference(ours, run.manifest))
        raise ProcessingVersionMismatch(
            f"run {run.name!r} is {run.processing_version}, which is not what is set up here:\n"
            f"{lines}",
            hint=_about_office(run, ours)
            + _about_code(run, ours)
            + "results of two processing versions never mix in one run: use what the run "
            "was created with, or enqueue under another name with --run",
        )


def _about_office(run: Run, ours: Mapping[str, Any]) -> str:
    """Where the extra `docs` is here or in the run, and not in both: how to mend it."""
    here, there = (each.get("extractor", {}).get(LIBRARY) for each in (ours, run.manifest))
    if there and not here:
        return f"the run was created with the extra `docs`: {pip_install('docs')}; "
    if here and not there:
        return f"the run was created without the extra `docs`: pip uninstall {LIBRARY}; "
    return ""


def _about_code(run: Run, ours: Mapping[str, Any]) -> str:
    """Where the code of a team's own processor differs: what its digest is taken of."""
    spec = str(run.manifest.get("processor"))
    if ":" not in spec or ours.get("processor") != spec:
        return ""
    if ours.get("code") == run.manifest.get("code"):
        return ""
    top = spec.partition(":")[0].partition(".")[0]
    return f"the files of {top} are not those that the run was created with; "


def require_layout(run: Run, layout: str) -> None:
    """Raise UsageError unless `layout` is that of the run."""
    if run.layout != layout:
        raise UsageError(
            f"run {run.name!r} was created with layout {run.layout}, which cannot become {layout}",
            hint="leave --layout out, or enqueue under another name with --run",
        )


def check_store(store: Store, run: Run) -> None:
    """Raise StoreUnusable unless `store` holds the run's marker, `<prefix>/run.json`."""
    key = marker_key(run.prefix)
    try:
        found = store.read(key)
    except ObjectMissing:
        raise StoreUnusable(
            f"the store {store.url} is not that of run {run.name!r}: it has no {key}",
            hint="give the store that the run was created with: --results",
        ) from None
    except StoreError as error:
        raise _unusable(store, str(error)) from None
    if found != _marker(run):
        raise StoreUnusable(
            f"{key} in {store.url} describes another run than {run.name!r}",
            hint="--ledger and --results must be those of one and the same run",
        )


def _marker(run: Run) -> bytes:
    return canonical_json(
        {
            "schema": RUN_SCHEMA,
            "run": run.name,
            "prefix": run.prefix,
            "processing_version": run.processing_version,
            "manifest": {key: value for key, value in run.manifest.items() if key != HINTS},
        }
    )


def _unusable(store: Store, reason: str) -> StoreUnusable:
    return StoreUnusable(
        f"the store {store.url} cannot be used: {reason}",
        hint="see --results, and the store itself",
    )
