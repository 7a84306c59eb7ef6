"""Signals, poison and restarts, with real processes and a ledger on disk."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from batchq.clock import SystemClock
from tests.end_to_end.fleet import Site
from tests.faults.checker import audit, tally


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, f"sqlite:///{tmp_path}/ledger.db", seconds=0.01)


def fill(site: Site, count: int) -> None:
    for number in range(count):
        site.write(f"{number:04}.txt", f"document number {number}")
    site.call("enqueue", "docs")


def wait_until(condition: Callable[[], bool], seconds: float = 120.0, pause: float = 0.05) -> None:
    clock = SystemClock()
    end = clock.monotonic() + seconds
    while not condition():
        assert clock.monotonic() < end, "waited in vain"
        clock.wait(threading.Event(), pause)


def events_of(output: str, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in output.splitlines()]
    return [line for line in lines if line["event"] == kind]


def some_committed(site: Site) -> bool:
    return tally(site.ledger, "default", "completed") > 0


def wait_for_more(site: Site) -> None:
    done = tally(site.ledger, "default", "completed")
    wait_until(lambda: tally(site.ledger, "default", "completed") > done)


def read_until(worker: subprocess.Popen[str], kind: str) -> str:
    """The events that a worker prints, up to the first one of that kind."""
    assert worker.stdout is not None
    lines: list[str] = []
    while not lines or json.loads(lines[-1])["event"] != kind:
        lines.append(worker.stdout.readline())
        assert lines[-1], f"ended without {kind}: {lines}"
    return "".join(lines)


def read_rest(worker: subprocess.Popen[str]) -> str:
    """What else it prints until it ends. `communicate` passes over what was read ahead."""
    assert worker.stdout is not None
    rest = worker.stdout.read()
    worker.wait(120)
    return rest


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_another_worker_finishes(site: Site, number: signal.Signals) -> None:
    """Exit 75, nothing held, no claim after the notice, and nothing is charged."""
    fill(site, 300)
    site.hold(after=1)
    worker = site.start("worker", "--json")
    wait_until(lambda: some_committed(site))
    worker.send_signal(number)
    output = read_until(worker, "notice")
    site.let_go()
    output += read_rest(worker)
    assert worker.returncode == 75
    kinds = [json.loads(line)["event"] for line in output.splitlines()]
    assert "claimed" not in kinds[kinds.index("notice") :]
    [stopped] = events_of(output, "stopped")
    assert stopped["reason"].startswith(f"signal {number.name}")
    assert " items given back in " in stopped["reason"]
    status = site.call("status")
    assert status["items"]["leased"] == 0
    assert status["items"]["ready"] > 0
    [row] = [each for each in status["workers"] if each["role"] == "worker"]
    assert row["stop_reason"] == stopped["reason"]
    assert row["state"] == "stopped"
    site.hurry()
    site.call("worker")
    assert audit(site.ledger, site.results, "default", site.documents) == []
    assert tally(site.ledger, "default", "failures") == 0


def test_a_worker_whose_terminal_goes_drains_and_charges_nothing(site: Site) -> None:
    """Also where its processor prints to the terminal: exit 75, as with any other notice."""
    module = site.folder / "slow_digest.py"
    code = module.read_text()
    module.write_text(code.replace("return [", 'print("at work", flush=True)\n        return ['))
    fill(site, 300)
    site.hold(after=1)
    terminal, theirs = pty.openpty()
    os.set_blocking(terminal, False)
    worker = subprocess.Popen(
        [sys.executable, "-m", "batchq", "worker"],
        cwd=site.folder,
        env={**site.environment, "BATCHQ_MAX_FAILURES": "1"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    shown = b""

    def at_work() -> bool:
        nonlocal shown
        with suppress(BlockingIOError):
            shown += os.read(terminal, 1 << 16)
        return b"at work" in shown and some_committed(site)

    wait_until(at_work)
    os.close(terminal)
    site.let_go()
    assert worker.wait(120) == 75
    status = site.call("status")
    assert (status["items"]["leased"], status["rework"]["failures"]) == (0, 0)
    [row] = [each for each in status["workers"] if each["role"] == "worker"]
    assert "the terminal has gone" in row["stop_reason"]


def test_a_repeated_sigterm_changes_nothing(site: Site) -> None:
    """Schedulers send it twice; the drain goes on, told to people in two lines."""
    fill(site, 300)
    site.hold(after=1)
    worker = site.start("worker")
    wait_until(lambda: some_committed(site))
    log, warning = site.folder / "log.txt", "warning: signal SIGTERM; "
    worker.send_signal(signal.SIGTERM)
    wait_until(lambda: warning in log.read_text())
    for _ in range(3):
        worker.send_signal(signal.SIGTERM)
    site.let_go()
    assert worker.wait(120) == 75
    *told, last = log.read_text().splitlines()
    assert sum(line.startswith(warning) for line in told) == 1
    assert not any("released" in line for line in told)
    given_back = r"\d+ items? given back in [\d.]+ s"
    assert re.fullmatch(rf"signal SIGTERM; {given_back}; work remains: start another worker", last)


def takes_sigterm(process: subprocess.Popen[str]) -> bool:
    """Whether the process has a handler for it, or ignores it; see proc(5)."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    masks = re.findall(r"^Sig(?:Cgt|Ign):\t(\w+)$", status, re.M)
    return any(int(mask, 16) >> (signal.SIGTERM - 1) & 1 for mask in masks)


def test_a_signal_before_anything_is_watched_stops_in_order(site: Site) -> None:
    """In the first second, while the parts are still being put together: exit 75."""
    # However late this process comes to send it, no worker gets past its imports: it sleeps
    # there for as long as a file exists, since a process that only imports hears nothing else.
    gate = site.folder / "gate.py"
    lines = ["import os, time", "while os.path.exists('unfinished'):", "    time.sleep(0.01)"]
    gate.write_text("\n".join([*lines, gate.read_text()]))
    fill(site, 20)
    (site.folder / "unfinished").touch()
    worker = site.start("worker", "--json")
    wait_until(lambda: takes_sigterm(worker), pause=0.001)
    worker.send_signal(signal.SIGTERM)
    output, _ = worker.communicate(timeout=120)
    assert (worker.returncode, output) == (75, "")
    assert tally(site.ledger, "default", "attempts") == 0
    assert "before anything was claimed" in (site.folder / "log.txt").read_text()


@pytest.mark.parametrize("documents", [5, 400])
def test_a_storm_of_signals_to_the_very_end_changes_no_exit_code(
    site: Site, documents: int
) -> None:
    """From the first claim until the process is gone, one each millisecond."""
    fill(site, documents)
    worker = site.start("worker", "--json")
    wait_until(lambda: tally(site.ledger, "default", "attempts") > 0)
    while worker.poll() is None:
        worker.send_signal(signal.SIGTERM)
        worker.send_signal(signal.SIGUSR1)
        SystemClock().wait(threading.Event(), 0.001)
    [stopped] = events_of(read_rest(worker), "stopped")
    assert worker.returncode == stopped["exit_code"]
    assert worker.returncode in (0, 75)
    assert site.call("status")["items"]["leased"] == 0


def test_a_second_interrupt_leaves_at_once(site: Site) -> None:
    """Ctrl-C twice: exit 130; the leases expire and the next worker goes on."""
    fill(site, 60)
    site.hold(after=0)
    worker = site.start("worker", "--json")
    wait_until(lambda: worker.pid in site.begun_by())
    worker.send_signal(signal.SIGINT)
    output = read_until(worker, "notice")
    worker.send_signal(signal.SIGINT)
    output += read_rest(worker)
    assert worker.returncode == 130, output
    [stopped] = events_of(output, "stopped")
    assert stopped["exit_code"] == 130
    [row] = [each for each in site.call("status")["workers"] if each["role"] == "worker"]
    assert row["stop_reason"] == stopped["reason"] == "left at once, at a second SIGINT"
    site.let_go()
    site.call("worker")
    assert audit(site.ledger, site.results, "default", site.documents) == []


def test_the_document_that_kills_its_process_is_found_and_charged_alone(site: Site) -> None:
    """Leases shrink from loss to loss, until the poison is alone; its neighbours complete."""
    fill(site, 150)
    (site.folder / "docs" / "0077.txt").write_text("POISON")
    site.documents.pop("docs/0077.txt")
    site.call("enqueue", "docs")
    site.hurry()
    exits: list[int] = []
    while not exits or exits[-1] not in (0, 3):
        worker = site.start("worker", "--json")
        worker.communicate(timeout=120)
        exits.append(worker.returncode)
        assert len(exits) < 12, exits
    assert exits[-1] == 3
    assert set(exits[:-1]) == {139}
    [failure] = site.call("failures")["failures"]
    assert (failure["source_id"], failure["cause"]) == ("docs/0077.txt", "worker_lost")
    status = site.call("status")
    assert status["items"]["completed"] == 149
    assert status["rework"]["failures"] == 0


def test_a_worker_stopped_for_longer_than_its_lease_does_no_harm(site: Site) -> None:
    """SIGSTOP beyond two TTLs: another takes over, and the sleeper's work is refused."""
    fill(site, 80)
    site.hold(after=1)
    sleeper = site.start("worker")
    wait_until(lambda: some_committed(site))
    site.pause(sleeper)
    site.let_go()
    site.call("worker")
    assert site.call("status")["items"]["completed"] == 80
    sleeper.send_signal(signal.SIGCONT)
    sleeper.communicate(timeout=120)
    assert sleeper.returncode == 0
    assert audit(site.ledger, site.results, "default", site.documents) == []
    assert tally(site.ledger, "default", "lost_leases") > 0


def test_a_worker_with_another_parameter_is_refused_with_the_difference(site: Site) -> None:
    """Exit 13, the field that differs, and not one claim."""
    fill(site, 3)
    config = site.folder / "batchq.toml"
    config.write_text(config.read_text().replace("seconds = 0.01", "seconds = 0.5"))
    refused = site.start("worker")
    refused.communicate(timeout=120)
    log = (site.folder / "log.txt").read_text()
    assert refused.returncode == 13
    assert "parameters.seconds: 0.5 here, 0.01 in the run" in log
    assert tally(site.ledger, "default", "attempts") == 0


def test_an_interrupted_run_ends_with_the_outputs_of_a_quiet_one(tmp_path: Path) -> None:
    """The real model with fixed batches: bit for bit the same vectors after two stops."""
    gated = """
from gate import Gate

from batchq.inference.embed import Embed


class Gated(Embed):
    batch_tokens = 1_024

    def load(self, device):
        super().load(device)
        self.gate = Gate()

    def infer(self, batch):
        self.gate.enter(batch)
        return super().infer(batch)
"""
    outputs = []
    for name, interruptions in (("quiet", []), ("stormy", [signal.SIGTERM, signal.SIGKILL])):
        folder = tmp_path / name
        folder.mkdir()
        site = Site(folder, f"sqlite:///{folder}/ledger.db")
        (folder / "gated.py").write_text(gated)
        (folder / "batchq.toml").write_text(
            'results = "results"\nlease_ttl = "1s"\n\n'
            '[processor]\nkind = "gated:Gated"\nbatching = "fixed"\n'
        )
        for place in range(120):
            text = f"document {place}: " + "a few more words " * (place % 23)
            site.write(f"{place:04}.txt", text)
        site.call("enqueue", "docs")
        for number in interruptions:
            site.hold(after=1)
            worker = site.start("worker", "--json")
            wait_for_more(site)
            worker.send_signal(number)
            if number is not signal.SIGKILL:
                read_until(worker, "notice")
            site.let_go()
            read_rest(worker)
            assert worker.returncode == (-number if number is signal.SIGKILL else 75)
        site.call("worker")
        site.call("results", "--output", str(folder / "all.jsonl"))
        rows = [json.loads(line) for line in (folder / "all.jsonl").read_text().splitlines()]
        outputs.append({row["source_id"]: row["output"] for row in rows})
    quiet, stormy = outputs
    assert len(quiet) == 120
    assert quiet == stormy
