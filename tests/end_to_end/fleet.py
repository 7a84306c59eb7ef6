"""Real worker processes on a real ledger, to be killed, stopped and continued."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

__all__ = ["Fleet", "Site"]

PROCESSOR = '''
import hashlib
import time

from batchq.inference.base import Output, Prepared


class SlowDigest:
    """A digest and a number of words, at the pace of a small model."""

    batch_tokens = 200

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def manifest(self):
        return {"kind": "slow-digest"}

    def load(self, device):
        pass

    def prepare(self, document):
        return Prepared(document.text, max(1, len(document.text.split())))

    def infer(self, batch):
        with open("batches", "a") as begun:
            begun.write(f"{len(batch)}\\n")
        # Real time: the processes that run this are killed by real signals.
        time.sleep(self.seconds * len(batch))
        if any("POISON" in prepared.payload for prepared in batch):
            import os

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
    """A folder with documents, a processor of its own, and the commands run in it."""

    def __init__(self, folder: Path, ledger: str, *, seconds: float = 0.0) -> None:
        self.folder = folder
        self.ledger = ledger
        self.results = folder / "results"
        self.documents: dict[str, bytes] = {}
        (folder / "docs").mkdir()
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
                with closing(sqlite3.connect(self.ledger.removeprefix("sqlite:///"))) as file:
                    file.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError:
                process.send_signal(signal.SIGCONT)

    def call(self, *arguments: str, expect: int = 0, **environment: str) -> Any:
        """Run a command with --json and parse what it prints."""
        process = self.start(*arguments, "--json", **environment)
        output, _ = process.communicate(timeout=120)
        log = (self.folder / "log.txt").read_text()[-3000:]
        assert process.returncode == expect, f"{arguments}: {process.returncode}\n{output}\n{log}"
        return json.loads(output) if arguments[0] != "worker" else output


class Fleet:
    """Workers that follow the run, each replaced as soon as it is killed."""

    def __init__(self, site: Site, size: int, dice: random.Random) -> None:
        self._site = site
        self._dice = dice
        self.exits: list[int] = []
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

    def kill_one(self) -> None:
        place = self._dice.randrange(len(self._workers))
        victim = self._workers[place]
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        self.exits.append(victim.returncode)
        self._workers[place] = self._start()

    def any(self) -> subprocess.Popen[str]:
        return self._dice.choice(self._workers)

    def replace_the_dead(self) -> None:
        for place, worker in enumerate(self._workers):
            if worker.poll() is not None:
                self.exits.append(worker.returncode)
                self._workers[place] = self._start()

    def stop(self) -> None:
        for worker in self._workers:
            worker.send_signal(signal.SIGTERM)
        for worker in self._workers:
            worker.wait(60)
            self.exits.append(worker.returncode)


def committed(status: Mapping[str, Any]) -> int:
    return int(status["items"]["completed"])
