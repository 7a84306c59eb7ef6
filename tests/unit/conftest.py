"""Fixtures: databases of the test's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from batchq.clock import random_hex
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
