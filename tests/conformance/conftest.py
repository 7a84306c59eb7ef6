"""Fixtures: a fresh ledger on every backend for every test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from batchq.clock import random_hex
from batchq.ledger.base import Ledger
from batchq.ledger.sql import SqlLedger
from tests.conformance.backends import (
    Backend,
    MemoryBackend,
    dynamo_backend,
    postgres_backend,
    sqlite_backend,
)
from tests.conformance.world import World
from tests.dynamodb import in_full, local_endpoint, moto_endpoint, unavailable
from tests.postgres import create_database, drop_database, running_server

EVERYDAY = {
    "dynamodb": ("commit", "dynamodb", "mutants", "processes", "repeated"),
    "dynamodb-local": ("commit",),
}
"""What else runs there: they take half a second a test, and the others a hundredth."""

BACKENDS = ("memory", "sqlite", "postgresql", "dynamodb", "dynamodb-local")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take out what does not run every day; the summary counts it as deselected."""
    if in_full():
        return
    left_out = [item for item in items if not _everyday(item)]
    items[:] = [item for item in items if _everyday(item)]
    config.hook.pytest_deselected(items=left_out)


def _everyday(item: pytest.Item) -> bool:
    chosen = getattr(item, "callspec", None)
    kind = None if chosen is None else chosen.params.get("backend", chosen.params.get("kind"))
    if kind not in EVERYDAY:
        return True
    return item.path.stem.removeprefix("test_ledger_") in EVERYDAY[kind]


@pytest.fixture(scope="session")
def postgres_server() -> str:
    """The address of the session's PostgreSQL."""
    return running_server()


@pytest.fixture(scope="session")
def postgres_database(postgres_server: str) -> Iterator[str]:
    """The address of a database with the schema, this process's own."""
    name = f"ledger_{random_hex(32)}"
    url = create_database(postgres_server, name)
    _initialise(url)
    yield url
    drop_database(postgres_server, name)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the schema, to be copied."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    _initialise(f"sqlite:///{path}")
    return path


def _initialise(url: str) -> None:
    ledger = SqlLedger(url)
    ledger.initialise()
    ledger.close()


def open_backend(kind: str, request: pytest.FixtureRequest) -> AbstractContextManager[Backend]:
    """A fresh backend of a kind, its template made at the first use in the session."""
    if kind == "memory":
        return nullcontext(MemoryBackend())
    if kind == "sqlite":
        folder = request.getfixturevalue("tmp_path")
        return sqlite_backend(request.getfixturevalue("sqlite_template"), folder)
    if kind == "postgresql":
        return postgres_backend(request.getfixturevalue("postgres_database"))
    if kind == "dynamodb":
        return dynamo_backend(kind, moto_endpoint())
    if (reason := unavailable()) is not None:
        # Java and npm are no part of a Python installation; the session's header says so too.
        pytest.skip(reason)
    return dynamo_backend(kind, local_endpoint())


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """An empty ledger of each kind."""
    with open_backend(request.param, request) as opened:
        yield opened


@pytest.fixture
def world(backend: Backend) -> World:
    """A ledger with one run, and short ways to act on it."""
    return World(backend)


@pytest.fixture
def ledger(world: World) -> Ledger:
    """The ledger of `world`."""
    return world.ledger
