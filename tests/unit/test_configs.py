"""The examples in configs/: read by the tools they are for, as far as that can be done here."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from batchq.config import SETTINGS, seconds
from batchq.errors import ExitCode

CONFIGS = Path(__file__).parents[2] / "configs"
UNIT = CONFIGS / "systemd" / "batchq-worker.service"
USER_DATA = CONFIGS / "ec2" / "user-data.sh"
SBATCH = CONFIGS / "slurm" / "worker.sbatch"

RESTARTED = {ExitCode.STOPPED, ExitCode.DEVICE_LOST}
FINISHED = {ExitCode.OK, ExitCode.DEAD_LETTERS}
NEEDS_A_PERSON = {
    ExitCode.ERROR,
    ExitCode.USAGE,
    ExitCode.LEDGER_NOT_INITIALISED,
    ExitCode.ACCESS_DENIED,
    ExitCode.OTHER_PROCESSING_VERSION,
    ExitCode.STORE_UNUSABLE,
}


def section(name: str) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    # As the documentation of configparser does it, to keep the case of names.
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(UNIT.read_text())
    return dict(parser[name])


def numbers(text: str) -> set[int]:
    return {int(word) for word in text.split()}


def run_script(script: str, tmp_path: Path, stubs: dict[str, str], **env: str) -> list[str]:
    """Run a shell script with these commands in place of the real ones; what was called.

    The last line is the script's exit code.
    """
    calls = tmp_path / "calls"
    for name, body in stubs.items():
        stub = tmp_path / name
        stub.write_text(f'#!/bin/sh\necho "{name} $*" >>{calls}\n{body}\n')
        stub.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], env={"PATH": path, **env}, capture_output=True, timeout=240
    )
    lines = calls.read_text().splitlines() if calls.exists() else []
    return [*lines, str(done.returncode)]


def test_every_setting_in_an_example_exists() -> None:
    """A misspelt variable would be an error only on the machine where it matters."""
    known = {setting.variable for setting in SETTINGS.values()}
    for path in CONFIGS.rglob("*"):
        if path.is_file():
            assert set(re.findall(r"\bBATCHQ_[A-Z_]+", path.read_text())) <= known, path


@pytest.mark.parametrize("path", [USER_DATA, SBATCH], ids=lambda path: path.name)
def test_shell_scripts_parse(path: Path) -> None:
    """By the shell that runs them."""
    subprocess.run(["bash", "-n", str(path)], check=True, timeout=240)


# -- systemd ---------------------------------------------------------------------


def test_systemd_restarts_what_a_restart_helps() -> None:
    """75 and 76 always, a finished run and what needs a person never."""
    service = section("Service")
    assert numbers(service["RestartForceExitStatus"]) == RESTARTED | {ExitCode.LEDGER_UNREACHABLE}
    assert service["Restart"] == "on-abnormal"
    assert numbers(service["SuccessExitStatus"]) == {ExitCode.DEAD_LETTERS, ExitCode.STOPPED}


def test_systemd_signals_the_worker_itself_and_gives_it_its_window() -> None:
    """No shell in between, and less time planned than there is."""
    service = section("Service")
    assert service["ExecStart"].split()[1:] == ["worker"]
    assert (service["KillSignal"], service["KillMode"]) == ("SIGTERM", "mixed")
    name, _, window = service["Environment"].partition("=")
    assert name == SETTINGS["notice_window"].variable
    assert seconds(window) < seconds(service["TimeoutStopSec"])


# Its own program is the only judge of a unit; the tests above read the file without it.
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """Without a complaint, once its program exists."""
    text = UNIT.read_text().replace("/opt/batchq/bin/batchq", "/bin/true")
    unit = tmp_path / UNIT.name
    unit.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=240
    )
    complaints = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.returncode, complaints) == (0, [])


# -- EC2 -------------------------------------------------------------------------


def heredoc(word: str) -> str:
    match = re.search(rf"<<'{word}'\n(.*?)^{word}$", USER_DATA.read_text(), re.S | re.M)
    assert match is not None
    return match[1]


def test_user_data_installs_the_unit_as_it_is() -> None:
    """One text, so that both examples behave alike."""
    assert heredoc("UNIT") == UNIT.read_text()


@pytest.mark.parametrize(
    ("status", "off"), [("0", True), ("3", True), ("75", False), ("1", False), ("KILL", False)]
)
def test_the_instance_powers_off_only_when_the_run_is_finished(
    tmp_path: Path, status: str, off: bool
) -> None:
    """Never on a notice: then the platform ends it, or it was a false alarm."""
    match = re.search(r"^ExecStopPost=\+/bin/sh -c '(.*)'$", heredoc("DROPIN"), re.M)
    assert match is not None
    script = match[1].replace("$$", "$")
    calls = run_script(script, tmp_path, {"systemctl": ""}, EXIT_STATUS=status)
    assert ("systemctl poweroff --no-block" in calls) is off


# -- Kubernetes ------------------------------------------------------------------


@pytest.fixture
def job() -> dict[str, Any]:
    """The Job, parsed."""
    [parsed] = yaml.safe_load_all((CONFIGS / "kubernetes" / "job.yaml").read_text())
    assert (parsed["apiVersion"], parsed["kind"]) == ("batch/v1", "Job")
    document: dict[str, Any] = parsed
    return document


def test_kubernetes_counts_no_interruption(job: dict[str, Any]) -> None:
    """Neither 75 nor a node that goes away; a policy needs pods that are not restarted."""
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    rules = job["spec"]["podFailurePolicy"]["rules"]
    ignored = [rule for rule in rules if rule["action"] == "Ignore"]
    assert ignored[0]["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert ignored[1]["onExitCodes"]["values"] == [ExitCode.STOPPED]


def test_kubernetes_fails_the_job_where_no_pod_can_help(job: dict[str, Any]) -> None:
    """What needs a person, and a finished run with dead letters; the rest is retried."""
    rules = job["spec"]["podFailurePolicy"]["rules"]
    [failing] = [rule for rule in rules if rule["action"] == "FailJob"]
    assert set(failing["onExitCodes"]["values"]) == NEEDS_A_PERSON | {ExitCode.DEAD_LETTERS}
    [container] = job["spec"]["template"]["spec"]["containers"]
    named = [rule["onExitCodes"]["containerName"] for rule in rules if "onExitCodes" in rule]
    assert set(named) == {container["name"]}


def test_kubernetes_signals_the_worker_itself_and_gives_it_its_window(job: dict[str, Any]) -> None:
    """In exec form, and with the grace period that the worker is told of."""
    pod = job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["command"] == ["batchq", "worker"]
    env = {each["name"]: each for each in container["env"]}
    assert seconds(env["BATCHQ_NOTICE_WINDOW"]["value"]) < pod["terminationGracePeriodSeconds"]
    assert "secretKeyRef" in env["BATCHQ_LEDGER"]["valueFrom"]


# -- Slurm -----------------------------------------------------------------------


@pytest.mark.parametrize("code", [int(code) for code in ExitCode])
def test_slurm_requeues_what_a_restart_helps(tmp_path: Path, code: int) -> None:
    """And reports every other code as the job's own."""
    stubs = {"srun": f"exit {code}", "scontrol": ""}
    calls = run_script(SBATCH.read_text(), tmp_path, stubs, SLURM_JOB_ID="4711")
    expected = ["scontrol requeue 4711"] if code in RESTARTED else []
    assert calls == ["srun batchq worker", *expected, str(code)]


def test_slurm_survives_a_signal_that_is_meant_for_the_worker(tmp_path: Path) -> None:
    """Signalled too, the script still sees how the worker ended; the worker gets it as well."""
    stubs = {
        "srun": "trap 'exit 75' TERM; kill -TERM $PPID; kill -TERM $$; exit 99",
        "scontrol": "",
    }
    calls = run_script(SBATCH.read_text(), tmp_path, stubs, SLURM_JOB_ID="4711")
    assert calls == ["srun batchq worker", "scontrol requeue 4711", "75"]


def test_slurm_warns_early_enough() -> None:
    """Its directives stand before the first command, and the window is less than the lead."""
    lines = SBATCH.read_text().splitlines()
    first = next(n for n, line in enumerate(lines) if line and not line.startswith("#"))
    directives = [n for n, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert max(directives) < first
    assert "#SBATCH --requeue" in lines
    lead = re.search(r"--signal=TERM@(\d+)$", SBATCH.read_text(), re.M)
    window = re.search(r"BATCHQ_NOTICE_WINDOW:-(\w+)}", SBATCH.read_text())
    assert lead is not None
    assert window is not None
    assert seconds(window[1]) < int(lead[1])


# -- containers and SkyPilot -----------------------------------------------------


def test_ecs_signals_the_worker_itself_and_gives_it_its_window() -> None:
    """In exec form, with a stop timeout that the worker is told of, and no secret in sight."""
    task = json.loads((CONFIGS / "ecs" / "task-definition.json").read_text())
    [container] = task["containerDefinitions"]
    assert [*container["entryPoint"], *container["command"]] == ["batchq", "worker"]
    env = {each["name"]: each["value"] for each in container["environment"]}
    assert seconds(env["BATCHQ_NOTICE_WINDOW"]) < container["stopTimeout"] <= 120
    assert [each["name"] for each in container["secrets"]] == ["BATCHQ_LEDGER"]
    assert "BATCHQ_LEDGER" not in env


def test_skypilot_starts_another_after_an_interruption() -> None:
    """On spot instances, with the worker in the place of the shell."""
    task = yaml.safe_load((CONFIGS / "skypilot" / "worker.yaml").read_text())
    resources = task["resources"]
    assert resources["use_spot"] is True
    assert set(resources["job_recovery"]["recover_on_exit_codes"]) == RESTARTED
    assert task["run"].strip().startswith("exec ")
    assert task["secrets"] == {"BATCHQ_LEDGER": None}
    for script in (task["setup"], task["run"]):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=240)


def instructions() -> list[tuple[str, str]]:
    """Instruction and argument of each line of the Dockerfile."""
    text = (CONFIGS / "docker" / "Dockerfile").read_text()
    joined = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.M))
    split = [line.split(None, 1) for line in joined.splitlines() if line.strip()]
    return [(name, argument) for name, argument in split]


def arguments(name: str) -> list[str]:
    return [argument for instruction, argument in instructions() if instruction == name]


def test_the_image_gives_signals_to_the_worker_itself() -> None:
    """Entry point and command in exec form; the signal is the one that it drains on."""
    [entry], [command] = arguments("ENTRYPOINT"), arguments("CMD")
    assert [*json.loads(entry), *json.loads(command)] == ["batchq", "worker"]
    assert arguments("STOPSIGNAL") == ["SIGTERM"]


def test_the_image_is_reproducible_and_runs_as_nobody_special() -> None:
    """Named versions, pinned packages, no remote files, a user by number."""
    assert all(re.match(r"python:3\.\d+-\S+( AS \w+)?$", base) for base in arguments("FROM"))
    assert arguments("ADD") == []
    assert all("--constraint" in run for run in arguments("RUN") if "pip install" in run)
    [user] = arguments("USER")
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", user)
    names = [name for name, _ in instructions()]
    assert names.index("USER") < names.index("ENTRYPOINT")


def test_the_image_is_built_from_files_that_exist() -> None:
    """And that its ignore file lets through."""
    ignore = (CONFIGS / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in ignore if line.startswith("!")}
    copied = {
        source.removeprefix("./")
        for argument in arguments("COPY")
        if not argument.startswith("--from")
        for source in argument.split()[:-1]
    }
    assert copied == allowed
    assert all((CONFIGS.parent / name).exists() for name in copied)
