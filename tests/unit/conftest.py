"""Fixtures: databases of the test's own, and patience with a busy machine."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from batchq.clock import random_hex
from batchq.notice.metadata import MetadataService
from batchq.worker import drain
from tests.postgres import create_database, drop_database, running_server


@pytest.fixture(scope="session")
def postgres_server() -> str:
    """The address of the session's PostgreSQL."""
    return running_server()


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """The address of an empty database."""
    name = f"unit_{random_hex(32)}"
    yield create_database(postgres_server, name)
    drop_database(postgres_server, name)


@pytest.fixture
def last_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drain's last calls have a whole minute: `usable(60.5)` leaves half a second for work."""
    monkeypatch.setattr(drain, "MARGIN_S", 60.0)
    monkeypatch.setattr(drain, "MARGIN_SHARE", 1.0)


@pytest.fixture
def patient_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """A metadata service may take as long to answer as a busy machine makes it."""
    monkeypatch.setattr(MetadataService.ask, "__kwdefaults__", {"timeout": 60.0})


@pytest.fixture(autouse=True)
def as_it_was_logged() -> Iterator[None]:
    """What a command that ran in this process has set up is of no other test."""
    logger = logging.getLogger("batchq")
    handlers, level = list(logger.handlers), logger.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)
