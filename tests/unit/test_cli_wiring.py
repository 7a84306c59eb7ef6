"""From settings to parts: above all, whether a worker may work on a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from batchq import wiring
from batchq.clock import SystemClock
from batchq.config import Config, Loaded, load
from batchq.enqueue import require_manifest
from batchq.errors import ProcessingVersionMismatch, UsageError
from batchq.fingerprint import processing_version
from batchq.inference.stats import Stats
from batchq.ledger.base import Run
from tests.s3 import BUCKET, strict_server


def settings(**options: str) -> Loaded:
    """What a command sees that was given these options and nothing else."""
    return load(options, {}, Path("/nonexistent"))


def run_of(manifest: Mapping[str, Any]) -> Run:
    return Run(1, "default", "default-1", processing_version(manifest), manifest, "item")


def manifest_of(loaded: Loaded) -> dict[str, Any]:
    return wiring.full_manifest(wiring.new_processor(loaded.config))


def test_a_worker_takes_kind_and_parameters_from_the_run() -> None:
    """It was set up for nothing in particular, and the run is not of the default kind."""
    run = run_of(manifest_of(settings(processor="stats")))

    processor = wiring.run_processor(run, settings())

    assert processor.manifest()["kind"] == "stats"


def test_parameters_of_the_run_survive_defaults_here(tmp_path: Path) -> None:
    """A default is no setting that somebody made."""
    (tmp_path / "batchq.toml").write_text("[processor]\noverlap = 8\n")
    run = run_of(manifest_of(load({}, {}, tmp_path)))

    processor = wiring.run_processor(run, settings())

    assert processor.manifest()["parameters"]["overlap"] == 8


@pytest.mark.parametrize(
    ("here", "there", "hint"),
    [
        (None, "4.10.4", "with the extra `docs`: pip install '.[docs]'"),
        ("4.10.4", None, "without the extra `docs`: pip uninstall kreuzberg"),
        ("4.10.4", "4.10.5", None),
    ],
)
def test_a_worker_without_the_extra_of_the_run_learns_its_name(
    monkeypatch: pytest.MonkeyPatch, here: str | None, there: str | None, hint: str | None
) -> None:
    """The difference names a library, and nobody installs that by its name."""
    manifest = manifest_of(settings(processor="stats"))

    def extracting(version: str | None) -> dict[str, Any]:
        return {**manifest, "extractor": {**manifest["extractor"], "kreuzberg": version}}

    monkeypatch.setattr(wiring, "full_manifest", lambda processor: extracting(here))

    with pytest.raises(ProcessingVersionMismatch, match=r"extractor\.kreuzberg") as caught:
        wiring.run_processor(run_of(extracting(there)), settings())

    said = caught.value.hint or ""
    assert ("`docs`" in said) == (hint is not None)
    assert (hint or "") in said
    assert "two processing versions" in said


def test_changed_code_of_a_teams_own_is_named_by_its_module() -> None:
    """Two digests tell nobody which file to look at; another class is told by its name alone."""
    ours = {"kind": "own", "processor": "team.own:Own", "code": "new"}
    there = run_of({**ours, "code": "old"})

    with pytest.raises(ProcessingVersionMismatch) as caught:
        require_manifest(there, ours)
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("the files of team are not those that the run was created")

    for other in ({**ours, "processor": "team:Other"}, {**there.manifest, "parameters": {"a": 1}}):
        with pytest.raises(ProcessingVersionMismatch) as caught:
            require_manifest(there, other)
        assert caught.value.hint is not None
        assert "the files of" not in caught.value.hint


def test_the_same_settings_given_again_are_no_difference(tmp_path: Path) -> None:
    """The usual fleet: one configuration file everywhere."""
    (tmp_path / "batchq.toml").write_text('[processor]\nkind = "embed"\noverlap = 8\n')
    loaded = load({}, {}, tmp_path)

    wiring.run_processor(run_of(manifest_of(loaded)), loaded)


def test_another_parameter_here_is_refused_by_name(tmp_path: Path) -> None:
    """With both values, exit code 13, and the way out."""
    (tmp_path / "batchq.toml").write_text("[processor]\noverlap = 16\n")
    run = run_of(manifest_of(settings()))

    with pytest.raises(ProcessingVersionMismatch, match=r"overlap: 16 here, 32 in the run") as no:
        wiring.run_processor(run, load({}, {}, tmp_path))

    assert no.value.exit_code == 13
    assert "--run" in str(no.value.hint)


def test_another_kind_here_is_refused_by_name() -> None:
    """Nothing else is compared then: what the fields mean differs."""
    run = run_of(manifest_of(settings()))

    with pytest.raises(ProcessingVersionMismatch) as no:
        wiring.run_processor(run, settings(processor="stats"))

    assert no.value.message.splitlines()[1:] == ['processor: "stats" here, "embed" in the run']


@pytest.mark.parametrize(
    "path",
    [
        ("code",),
        ("model", "files", "model.safetensors"),
        ("model", "files", "tokenizer.json"),
        ("extractor", "pypdfium2"),
    ],
)
def test_other_code_weights_or_extractor_are_refused_by_name(path: tuple[str, ...]) -> None:
    """The run was created on a machine that had something else under the same name."""
    manifest = manifest_of(settings())
    inner = manifest
    for name in path[:-1]:
        inner[name] = dict(inner[name])
        inner = inner[name]
    assert path[-1] in inner
    inner[path[-1]] = "another"

    with pytest.raises(ProcessingVersionMismatch) as no:
        wiring.run_processor(run_of(manifest), settings())

    (line,) = no.value.message.splitlines()[1:]
    assert line.startswith(f"{'.'.join(path)}: ")
    assert line.endswith('"another" in the run')


@pytest.mark.parametrize(
    ("address", "said"),
    [("dynamodb://table?rejoin=eu", "rejoin"), ("postgresql+x://host/db", "address")],
)
def test_a_ledger_of_another_kind_is_refused_by_name(address: str, said: str) -> None:
    """What this build cannot do is said before anything is tried."""
    with pytest.raises(UsageError, match=said):
        wiring.open_ledger(Config(ledger=address), SystemClock())


def test_an_export_goes_to_a_file_or_to_an_object_of_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the address alone; one that names a bucket or a folder names no object."""
    monkeypatch.chdir(tmp_path)
    local = wiring.open_destination("exports/all.jsonl")
    assert (local.url, local.suffix) == ("exports/all.jsonl", ".jsonl")
    with strict_server(monkeypatch):
        bucket = wiring.open_destination(f"s3://{BUCKET}/exports/all.parquet")
        assert (bucket.url, bucket.suffix) == (f"s3://{BUCKET}/exports/all.parquet", ".parquet")
        assert wiring.open_destination(f"s3://{BUCKET}/all.jsonl").url.endswith("/all.jsonl")
    for address in (f"s3://{BUCKET}", f"s3://{BUCKET}/exports/", "s3://"):
        with pytest.raises(UsageError, match="names no object"):
            wiring.open_destination(address)
    (tmp_path / "folder.jsonl").mkdir()
    for address in ("", ".", "/", "folder.jsonl", "folder.jsonl/"):
        with pytest.raises(UsageError, match="names no file"):
            wiring.open_destination(address)


def test_a_secret_in_parameters_or_manifest_is_refused_before_it_is_kept(tmp_path: Path) -> None:
    """At any depth: the manifest goes into the ledger and lies beside the results."""
    (tmp_path / "batchq.toml").write_text(
        '[processor]\nkind = "keen:Keen"\noptions = { api_key = "hunter2" }\n'
    )
    with pytest.raises(UsageError, match=r"options\.api_key looks like a secret"):
        wiring.new_processor(load({}, {}, tmp_path).config)

    class Keen(Stats):
        def manifest(self) -> Mapping[str, Any]:
            return {**super().manifest(), "user": {"url": "https://me:hunter2@host/"}}

    with pytest.raises(UsageError, match=r"user\.url looks like a secret") as no:
        wiring.full_manifest(Keen())
    assert "hunter2" not in str(no.value)


def test_a_ledger_behind_a_link_is_no_document(tmp_path: Path) -> None:
    """Its log lies beside the file, not beside the link, and changes with every commit."""
    docs = tmp_path / "docs"
    docs.mkdir()
    for name in ("a.txt", "real.db", "real.db-wal", "real.db-shm"):
        (docs / name).write_text(name)
    (tmp_path / "ledger.db").symlink_to(docs / "real.db")
    config = settings(ledger=f"sqlite:///{tmp_path}/ledger.db", results=f"{tmp_path}/res").config
    [source] = wiring.open_sources([str(docs)], config)
    assert [getattr(each, "source_id", each) for each in source.list()] == ["docs/a.txt"]
