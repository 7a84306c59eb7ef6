"""Real worker processes on a real ledger, to be killed, stopped and continued."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

__all__ = ["Fleet", "Site"]

GATE = '''
import os
import time


class Gate:
    """Says in a file that a batch begins, and lets through as many as another one says."""

    def __init__(self):
        self.begun = 0

    def enter(self, batch):
        self.begun += 1
        with open("batches", "a") as begun:
            begun.write(f"{os.getpid()} {len(batch)}\\n")
        while self.is_held():
            # The one who lets go is another process, and says so in a file.
            time.sleep(0.01)

    def is_held(self):
        try:
            with open("held") as held:
                return self.begun > int(held.read())
        except FileNotFoundError:
            return False
'''

PROCESSOR = '''
import hashlib
import os
import time

from gate import Gate

from batchq.inference.base import Output, Prepared


class SlowDigest:
    """A digest and a number of words, at the pace of a small model."""

    batch_tokens = 200

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.gate = Gate()

    def manifest(self):
        return {"kind": "slow-digest"}

    def load(self, device):
        pass

    def prepare(self, document):
        return Prepared(document.text, max(1, len(document.text.split())))

    def infer(self, batch):
        self.gate.enter(batch)
        # Real time: the processes that run this are killed by real signals.
        end = time.monotonic() + self.seconds * len(batch)
        while time.monotonic() < end and not os.path.exists("hurried"):
            # In short turns, so that a hurry is noticed.
            time.sleep(0.01)
        if any("POISON" in prepared.payload for prepared in batch):
            os._exit(139)
        return [
            Output(
                {
                    "sha256": hashlib.sha256(prepared.payload.encode()).hexdigest(),
                    "words": len(prepared.payload.split()),
                },
                prepared.cost,
                prepared.cost,
            )
            for prepared in batch
        ]
'''


class Site:
    """A folder with documents, a processor of its own, and the commands run in it.

    What a test needs to happen in the middle of the work, it lets happen while the work is held:
    no pace is right for every machine.
    """

    def __init__(self, folder: Path, ledger: str, *, seconds: float = 0.0) -> None:
        self.folder = folder
        self.ledger = ledger
        self.results = folder / "results"
        self.documents: dict[str, bytes] = {}
        (folder / "docs").mkdir()
        (folder / "gate.py").write_text(GATE)
        (folder / "slow_digest.py").write_text(PROCESSOR)
        (folder / "batchq.toml").write_text(
            'results = "results"\nlease_ttl = "1s"\n\n'
            f'[processor]\nkind = "slow_digest:SlowDigest"\nseconds = {seconds}\n'
        )
        self.environment = {
            **os.environ,
            "BATCHQ_LEDGER": ledger,
            "NO_COLOR": "1",
            # Where batchq is not installed, the commands run from this checkout.
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }

    def write(self, name: str, text: str) -> None:
        (self.folder / "docs" / name).write_text(text)
        self.documents[f"docs/{name}"] = text.encode()

    def hold(self, after: int) -> None:
        """Let each worker finish so many batches and begin one more, until `let_go`."""
        # Whole or not at all, for whoever reads it meanwhile.
        (self.folder / "held.new").write_text(str(after))
        (self.folder / "held.new").rename(self.folder / "held")

    def let_go(self) -> None:
        (self.folder / "held").unlink()

    def hurry(self) -> None:
        """From now on no document takes any time."""
        (self.folder / "hurried").touch()

    def begun_by(self) -> set[int]:
        """The processes that have begun a batch."""
        begun = self.folder / "batches"
        lines = begun.read_text().splitlines() if begun.exists() else []
        return {int(line.split()[0]) for line in lines}

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        log = (self.folder / "log.txt").open("a")
        return subprocess.Popen(
            [sys.executable, "-m", "batchq", *arguments],
            cwd=self.folder,
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )

    def pause(self, process: subprocess.Popen[str]) -> None:
        """Stop `process` (SIGSTOP) at a moment when it does not hold SQLite's only lock.

        One that holds it stops everybody, which is a fault of its own.
        """
        while True:
            process.send_signal(signal.SIGSTOP)
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            try:
                with closing(sqlite3.connect(self.ledger.removeprefix("sqlite:///"), 1)) as file:
                    file.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError:
                process.send_signal(signal.SIGCONT)

    def call(self, *arguments: str, expect: int = 0, **environment: str) -> Any:
        """Run a command with --json and parse what it prints."""
        process = self.start(*arguments, "--json", **environment)
        output, _ = process.communicate(timeout=240)
        log = (self.folder / "log.txt").read_text()[-3000:]
        assert process.returncode == expect, f"{arguments}: {process.returncode}\n{output}\n{log}"
        return json.loads(output) if arguments[0] != "worker" else output


class Fleet:
    """Workers that follow the run, each replaced as soon as it is killed."""

    def __init__(self, site: Site, size: int, dice: random.Random) -> None:
        self._site = site
        self._dice = dice
        self.exits: list[int] = []
        self._asleep: dict[int, threading.Timer] = {}
        self._workers = [self._start() for _ in range(size)]

    def _start(self) -> subprocess.Popen[str]:
        log = (self._site.folder / "log.txt").open("a")
        return subprocess.Popen(
            [sys.executable, "-m", "batchq", "worker", "--follow"],
            cwd=self._site.folder,
            env=self._site.environment,
            stdout=subprocess.DEVNULL,
            stderr=log,
            text=True,
        )

    def at_work(self) -> list[int]:
        """The places of those that have begun a batch."""
        begun = self._site.begun_by()
        return [place for place, worker in enumerate(self._workers) if worker.pid in begun]

    def kill_one(self, place: int | None = None) -> None:
        if place is None:
            place = self._one_awake()
        victim = self._workers[place]
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        self.exits.append(victim.returncode)
        self._workers[place] = self._start()

    def put_one_to_sleep(self, seconds: float) -> None:
        """Stop one (SIGSTOP) for so long. Meanwhile only the others are killed."""
        while len(self._asleep) > len(self._workers) - 3:
            # Somebody must be there to take over, and somebody to be killed.
            self._asleep.pop(next(iter(self._asleep))).join()
        place = self._one_awake()
        sleeper = self._workers[place]
        # In real time: its leases expire by the clock of a real database.
        self._asleep[place] = threading.Timer(seconds, sleeper.send_signal, (signal.SIGCONT,))
        sleeper.send_signal(signal.SIGSTOP)
        self._asleep[place].start()

    def _one_awake(self) -> int:
        self._asleep = {place: end for place, end in self._asleep.items() if end.is_alive()}
        return self._dice.choice([p for p in range(len(self._workers)) if p not in self._asleep])

    def replace_the_dead(self) -> None:
        for place, worker in enumerate(self._workers):
            if worker.poll() is not None:
                self.exits.append(worker.returncode)
                self._workers[place] = self._start()

    def stop(self) -> None:
        for end in self._asleep.values():
            end.join()
        for worker in self._workers:
            worker.send_signal(signal.SIGTERM)
        for worker in self._workers:
            worker.wait(120)
            self.exits.append(worker.returncode)


def committed(status: Mapping[str, Any]) -> int:
    return int(status["items"]["completed"])
