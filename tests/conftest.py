"""What holds for all tests."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests that take minutes come first, so that no process waits for them at the end."""
    items.sort(key=lambda item: "test_kills" not in item.nodeid)
