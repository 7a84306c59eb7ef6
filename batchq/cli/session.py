"""What most commands begin with: the settings, the ledger, the store, the run."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from batchq import config, wiring
from batchq.cli.console import log_to_stderr
from batchq.clock import Clock, SystemClock, random_hex
from batchq.config import Config, Loaded
from batchq.ledger.base import Ledger, Role, Run
from batchq.store.base import Store

__all__ = ["Session", "opened", "settings"]

OPERATOR_TTL_S = 60.0
"""It does not beat: what it moves is accounted for however long it takes."""


@dataclass(frozen=True)
class Session:
    """One command's settings and parts; the ledger is open, the rest is built when asked for."""

    loaded: Loaded
    ledger: Ledger
    clock: Clock

    @property
    def config(self) -> Config:
        return self.loaded.config

    @cached_property
    def store(self) -> Store:
        return wiring.open_store(self.config)

    @cached_property
    def run(self) -> Run:
        """The run that the settings name. Raises as `wiring.existing_run`."""
        return wiring.existing_run(self.config, self.ledger)

    @contextmanager
    def operator(self, verb: str) -> Iterator[str]:
        """A registered process that keeps count of what this command moves; its name."""
        name = f"{verb}-{socket.gethostname()}-{os.getpid()}-{random_hex(32)}"
        about = {"host": socket.gethostname(), "pid": os.getpid()}
        self.ledger.register(self.run, name, OPERATOR_TTL_S, Role.OPERATOR, about)
        yield name
        self.ledger.stop(name, f"{verb} finished")

    def prepare_ledger(self) -> None:
        """Check the ledger, and create one that belongs to this machine alone."""
        if not wiring.ledger_exists(self.config, self.ledger):
            self.ledger.initialise()


def settings(options: Mapping[str, Any]) -> Loaded:
    """The settings, from options, environment, file and defaults."""
    return config.load(options, os.environ, Path.cwd())


@contextmanager
def opened(options: Mapping[str, Any]) -> Iterator[Session]:
    """A session on the ledger that the settings name."""
    log_to_stderr()
    loaded = settings(options)
    clock = SystemClock()
    ledger = wiring.open_ledger(loaded.config, clock)
    try:
        yield Session(loaded, ledger, clock)
    finally:
        ledger.close()
