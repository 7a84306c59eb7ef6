"""What holds for all tests."""

from __future__ import annotations

import pytest

from tests.postgres import leave_server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests that take minutes come first, so that no process waits for them at the end."""
    items.sort(key=lambda item: "test_kills" not in item.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """What tests share for as long as their process lives ends with it."""
    leave_server()
