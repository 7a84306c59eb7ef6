"""Doctor: each dependency whole, and each broken in turn."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchq import wiring
from batchq.clock import SystemClock
from batchq.config import load
from batchq.doctor import Finding, Health, examine
from batchq.enqueue import ensure_run
from batchq.errors import ExitCode
from batchq.ledger.sql import SqlLedger
from batchq.mounts import Lifetime, lifetime, mount_of
from batchq.notice.base import Notice
from batchq.store.local import LocalStore
from batchq.store.memory import MemoryStore
from tests.faults.faulty_store import FaultyStore, ReadFault
from tests.faults.strict_s3 import Honesty
from tests.s3 import BUCKET, policy, strict_server
from tests.unit.model_folders import write_model
from tests.unit.test_source_directory import anyones, without_privileges

__all__ = ["anyones"]

OK, WARN, FAIL = Health.OK, Health.WARN, Health.FAIL


class Clinic:
    """Settings in a folder of their own, and what doctor finds with them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.options: dict[str, Any] = {
            "ledger": f"sqlite:///{folder}/ledger.db",
            "results": f"{folder}/results",
            "processor": "stats",
            "notice": "none",
        }
        self.clock = SystemClock()

    def examine(self, **options: Any) -> dict[str, Finding]:
        loaded = load({**self.options, **options}, {}, self.folder)
        return {finding.name: finding for finding in examine(loaded, self.clock)}

    def create_run(self, **options: Any) -> None:
        loaded = load({**self.options, **options}, {}, self.folder)
        ledger = wiring.open_ledger(loaded.config, self.clock)
        ledger.initialise()
        store = LocalStore(self.folder / "results")
        store.probe()
        manifest = wiring.full_manifest(wiring.new_processor(loaded.config))
        ensure_run(ledger, store, "default", manifest, "item")
        ledger.close()


@pytest.fixture
def clinic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clinic:
    monkeypatch.setattr(wiring, "describe_device", lambda wanted: (wanted, {"device": wanted}))
    return Clinic(tmp_path)


def failing(found: dict[str, Finding]) -> dict[str, ExitCode]:
    return {name: finding.exit_code for name, finding in found.items() if finding.health is FAIL}


# -- whole -----------------------------------------------------------------------------


def test_before_anything_exists_nothing_fails(clinic: Clinic) -> None:
    """No ledger, no run, no results yet: enqueue makes them."""
    found = clinic.examine()
    assert failing(found) == {}
    assert "enqueue creates it" in found["ledger"].text
    assert "clock" not in found
    assert not (clinic.folder / "ledger.db").exists()


def test_with_a_run_everything_is_compared_with_it(clinic: Clinic) -> None:
    """Its marker in the store, its digests, its ledger's clock."""
    clinic.create_run()
    found = clinic.examine()
    assert failing(found) == {}
    assert "the run is there" in found["ledger"].text
    assert found["clock"].facts["offset_s"] < 60
    assert "the run's marker" in found["store"].text
    assert "every digest is that of the run" in found["model"].text


def test_the_trial_object_is_removed_again(clinic: Clinic) -> None:
    """And its speed told, each way."""
    found = clinic.examine()
    assert found["store speed"].facts["write_mb_s"] > 0
    assert found["store speed"].facts["read_mb_s"] > 0
    assert list(LocalStore(clinic.folder / "results").list("")) == []


def test_a_store_in_s3_keeps_digests_and_outlives_machines(
    clinic: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its probe has shown."""
    with strict_server(monkeypatch):
        found = clinic.examine(results=f"s3://{BUCKET}/results")
    assert failing(found) == {}
    assert found["store speed"].facts["keeps_sha256"]
    assert found["store place"].facts["durable"]


def test_a_role_that_may_not_delete_is_told_what_stays(
    clinic: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It should not be able to: that is no failure."""
    with strict_server(monkeypatch, policies={"test": policy("worker")}):
        found = clinic.examine(results=f"s3://{BUCKET}/results")
    assert failing(found) == {}
    assert "may not delete" in found["store speed"].text


def test_the_model_is_measured_where_it_lies(clinic: Clinic, tmp_path: Path) -> None:
    """Its weights in bytes; nothing to compare them with before there is a run."""
    folder = write_model(tmp_path / "model")
    found = clinic.examine(processor="embed", model=str(folder))["model"]
    assert (found.health, found.facts["present"]) == (OK, True)
    assert found.facts["weights_bytes"] == sum(file.stat().st_size for file in folder.iterdir())


# -- broken ----------------------------------------------------------------------------


def break_schema(clinic: Clinic) -> dict[str, Any]:
    SqlLedger(clinic.options["ledger"]).initialise()
    with sqlite3.connect(clinic.folder / "ledger.db") as lite:
        lite.execute("UPDATE batchq_version SET version_num = '0001'")
    return {}


def break_ledger_file(clinic: Clinic) -> dict[str, Any]:
    (clinic.folder / "ledger.db").write_text("this is no database at all " * 100)
    return {}


def break_store_folder(clinic: Clinic) -> dict[str, Any]:
    (clinic.folder / "file").write_text("in the way")
    return {"results": f"{clinic.folder}/file/results"}


def point_at_another_store(clinic: Clinic) -> dict[str, Any]:
    clinic.create_run()
    return {"results": f"{clinic.folder}/another"}


def alter_the_model(clinic: Clinic) -> dict[str, Any]:
    model = write_model(clinic.folder / "model")
    options = {"processor": "embed", "model": str(model)}
    clinic.create_run(**options)
    (model / "tokenizer.json").write_text('{"version": "another"}')
    return options


BROKEN: list[tuple[str, ExitCode, Callable[[Clinic], dict[str, Any]]]] = [
    ("ledger", ExitCode.LEDGER_NOT_INITIALISED, break_schema),
    ("ledger", ExitCode.ERROR, break_ledger_file),
    (
        "ledger",
        ExitCode.LEDGER_UNREACHABLE,
        lambda _: {"ledger": "postgresql://nobody@127.0.0.1:9/none"},
    ),
    ("store", ExitCode.STORE_UNUSABLE, break_store_folder),
    ("store", ExitCode.STORE_UNUSABLE, point_at_another_store),
    ("model", ExitCode.OTHER_PROCESSING_VERSION, alter_the_model),
    ("model", ExitCode.USAGE, lambda _: {"processor": "no_such_module:Class"}),
    ("model", ExitCode.ERROR, lambda c: {"processor": "embed", "model": f"{c.folder}/absent"}),
    ("notices", ExitCode.USAGE, lambda _: {"notice": "sqs"}),
]


def test_a_ledger_that_can_only_be_read_is_not_enough(
    anyones: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's: `status` works there, and a worker would not."""
    monkeypatch.setattr(wiring, "describe_device", lambda wanted: (wanted, {"device": wanted}))
    clinic = Clinic(anyones)
    clinic.create_run()
    # What is imported on the way may lie where only root can read.
    clinic.examine()
    (anyones / "results").chmod(0o777)
    anyones.chmod(0o555)
    with without_privileges():
        found = clinic.examine()
    anyones.chmod(0o755)
    # The libraries that make up a processor's version may lie there too.
    found.pop("model")
    assert failing(found) == {"ledger": ExitCode.ACCESS_DENIED}
    assert "write access" in str(found["ledger"].advice)


@pytest.mark.parametrize(
    ("name", "code", "breaking"), BROKEN, ids=[f"{n}-{c.name.lower()}" for n, c, _ in BROKEN]
)
def test_a_broken_dependency_fails_with_its_code_and_advice(
    clinic: Clinic,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    code: ExitCode,
    breaking: Callable[[Clinic], dict[str, Any]],
) -> None:
    """By itself: what does not depend on it is looked at all the same."""
    patient = SqlLedger.__init__.__kwdefaults__ or {}
    monkeypatch.setattr(SqlLedger.__init__, "__kwdefaults__", {**patient, "patience": 0.1})
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    found = clinic.examine(**breaking(clinic))
    assert failing(found) == {name: code}
    assert found[name].advice
    assert {"ledger", "store", "model", "device", "notices"} <= set(found)


def test_a_device_that_is_not_here_fails(clinic: Clinic, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the code of a usage error, since somebody asked for it."""
    monkeypatch.undo()
    found = clinic.examine(device="cuda:99")
    assert failing(found) == {"device": ExitCode.USAGE}


def test_a_store_that_replaces_objects_fails(
    clinic: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker could destroy what another has committed."""
    with strict_server(monkeypatch, honesty=Honesty.REPLACES):
        found = clinic.examine(results=f"s3://{BUCKET}")
    assert failing(found) == {"store": ExitCode.STORE_UNUSABLE}
    assert "store speed" not in found


def test_a_store_that_alters_what_it_keeps_fails(
    clinic: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading back would find every result broken."""
    faulty = FaultyStore(MemoryStore(), reads=[ReadFault.FLIPPED])
    monkeypatch.setattr(wiring, "open_store", lambda config: faulty)
    found = clinic.examine()
    assert failing(found) == {"store speed": ExitCode.STORE_UNUSABLE}
    assert "other bytes" in found["store speed"].text


def test_the_trial_object_of_a_store_that_fails_is_removed_too(
    clinic: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else would know what it is."""
    inner = MemoryStore()
    faulty = FaultyStore(inner, reads=[ReadFault.ERROR])
    monkeypatch.setattr(wiring, "open_store", lambda config: faulty)
    found = clinic.examine()
    assert failing(found) == {"store speed": ExitCode.STORE_UNUSABLE}
    assert list(inner.list("")) == []


def test_a_model_that_is_not_here_yet_is_a_warning(
    clinic: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker would fetch it; doctor fetches nothing, and says how much room there is."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(clinic.folder / "cache"))
    found = clinic.examine(processor="embed", model="somebody/some-model")["model"]
    assert (found.health, found.facts["present"]) == (WARN, False)
    assert found.facts["free_bytes"] > 0
    assert found.text.startswith("model somebody/some-model was not found; ")
    assert "looked at" not in found.text
    assert not (clinic.folder / "cache").exists()


def test_a_clock_that_is_off_is_a_warning(clinic: Clinic) -> None:
    """Leases do not mind, S3 does."""

    class Fast(SystemClock):
        def now(self) -> float:
            return super().now() + 3600

    clinic.create_run()
    clinic.clock = Fast()
    found = clinic.examine()["clock"]
    assert found.health is WARN
    assert found.facts["offset_s"] == pytest.approx(3600, abs=60)


def test_a_notice_too_short_for_the_store_is_a_warning(
    clinic: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The speed is held against the shortest window there is."""
    assert clinic.examine(notice_window="50s")["store speed"].health is OK

    class Slow(SystemClock):
        ticks = 0.0

        def monotonic(self) -> float:
            self.ticks += 30.0
            return self.ticks

    clinic.clock = Slow()
    slow = clinic.examine(notice_window="50s")["store speed"]
    assert slow.health is WARN
    assert "half of the notice of 50 s" in (slow.advice or "")


def test_places_that_die_with_the_instance_are_called_not_durable(
    clinic: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ledger and results both, each with something better."""
    memory = Lifetime("memory (tmpfs), gone with a restart", False)
    monkeypatch.setattr("batchq.doctor.lifetime", lambda folder: memory)
    found = clinic.examine()
    for name in ("ledger place", "store place"):
        assert found[name].health is WARN
        assert "not durable" in found[name].text
        assert found[name].advice


def test_a_disk_of_a_rented_machine_is_a_warning(
    clinic: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a laptop the same disk is nothing to warn of."""

    class Platform:
        name = "ec2"
        window = 120.0

        def describe(self) -> str:
            return "ec2"

        def watch(self, report: Callable[[Notice], object]) -> None: ...

        def close(self, *, drained: bool = False) -> None: ...

    disk = Lifetime("a disk of this machine (ext4)", None)
    monkeypatch.setattr("batchq.doctor.lifetime", lambda folder: disk)
    assert clinic.examine()["store place"].health is OK
    notices = wiring.open_notices

    def rented(*arguments: Any) -> Any:
        sources, lines = notices(*arguments)
        return [Platform(), *sources], lines

    monkeypatch.setattr(wiring, "open_notices", rented)
    found = clinic.examine()["store place"]
    assert found.health is WARN
    assert "verify with its provider" in (found.advice or "")


# -- places ----------------------------------------------------------------------------

INFO = """\
21 1 259:1 / / rw - ext4 /dev/root rw
22 21 0:5 / /dev rw - devtmpfs udev rw
23 21 0:30 / /scratch rw - tmpfs tmpfs rw
24 21 0:40 / /layer rw - overlay overlay rw
25 21 0:50 / /shared rw - nfs4 server:/export rw
26 21 0:60 / /bucket rw - fuse.s3fs s3fs rw
27 21 259:7 / /fast rw - xfs /dev/nvme1n1 rw
28 21 259:9 / /plain rw - ext4 /dev/sdb1 rw
"""


@pytest.mark.parametrize(
    ("folder", "durable", "words"),
    [
        ("/var/data", None, "EBS"),
        ("/scratch/results", False, "memory"),
        ("/layer/results", False, "container"),
        ("/shared/results", True, "nfs4"),
        ("/bucket/results", None, "fuse.s3fs"),
        ("/fast/results", False, "gone with the instance"),
        ("/plain/results", None, "a disk of this machine"),
    ],
)
def test_a_place_is_known_by_its_mount_and_its_disk(
    tmp_path: Path, folder: str, durable: bool | None, words: str
) -> None:
    """The kernel's tables say what the disk is; what they do not say is unknown."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(INFO)
    for number, model in (
        ("259:1", "Amazon Elastic Block Store"),
        ("259:7", "Amazon EC2 NVMe Instance Storage"),
    ):
        (tmp_path / "block" / number / "device").mkdir(parents=True)
        (tmp_path / "block" / number / "device" / "model").write_text(f"{model}   \n")
    found = lifetime(Path(folder), mounts, tmp_path / "block")
    assert found.durable is durable
    assert words in found.what


def test_without_the_kernels_tables_nothing_is_known(tmp_path: Path) -> None:
    """Unknown is not durable, nor the opposite."""
    assert mount_of(tmp_path, tmp_path / "absent") is None
    assert lifetime(tmp_path, tmp_path / "absent").durable is None
