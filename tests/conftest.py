"""What holds for all tests."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from tests.dynamodb import in_full, unavailable
from tests.postgres import leave_server

# How long an example takes tells what else this machine does.
settings.register_profile(
    "unhurried", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("unhurried")


def pytest_report_header() -> str:
    """Which emulators of DynamoDB take part, and why where one does not."""
    reason = unavailable()
    tests = "all ledger tests" if in_full() else "some (make test-dynamodb: all)"
    second = "and DynamoDB Local" if reason is None else f"alone: {reason}"
    return f"DynamoDB: {tests} on moto {second}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests that take minutes come first, so that no process waits for them at the end."""
    items.sort(key=lambda item: "test_kills" not in item.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """What tests share for as long as their process lives ends with it."""
    leave_server()
