"""The bounds that a ledger applies: backoff and the size of suspicious leases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchq.ledger.base import ISOLATED_LOSSES, TALLY_NAMES, Policy, Tallies, lease_cap


def test_the_delay_doubles_up_to_the_longest() -> None:
    """backoff * 2**(n - 1), at most max_backoff."""
    policy = Policy(backoff=2.0, max_backoff=300.0)
    assert [policy.delay(n) for n in (1, 2, 3, 8, 9, 50)] == [2, 4, 8, 256, 300, 300]


def test_the_delay_of_no_failure_is_that_of_the_first() -> None:
    """Counts begin at one; nothing below shortens the wait."""
    assert Policy().delay(0) == Policy().delay(1) == Policy().backoff


def test_the_delay_has_no_bound_on_its_count() -> None:
    """An outage of a year overflows nothing."""
    assert Policy().delay(10_000_000) == Policy().max_backoff


@given(st.integers(1, 10_000), st.floats(0, 1e6), st.floats(0, 1e6))
def test_no_delay_is_longer_than_the_longest(count: int, backoff: float, longest: float) -> None:
    """For every policy and count."""
    policy = Policy(backoff=backoff, max_backoff=longest)
    assert 0 <= policy.delay(count) <= longest
    assert policy.delay(count) <= policy.delay(count + 1)


@pytest.mark.parametrize(
    ("losses", "limit", "expected"),
    [(0, 1, 1), (0, 5_000, 5_000), (1, 100, 10), (1, 3, 3), (2, 100, 1), (3, 100, 1), (99, 7, 1)],
)
def test_a_lease_shrinks_tenfold_with_each_loss(losses: int, limit: int, expected: int) -> None:
    """The limit, then ten, then one."""
    assert expected == lease_cap(losses, limit)


@given(st.integers(0, 50), st.integers(1, 10_000))
def test_a_lease_cap_lies_between_one_and_the_limit(losses: int, limit: int) -> None:
    """It never grows with the losses, and isolation begins where it is one."""
    cap = lease_cap(losses, limit)
    assert 1 <= cap <= limit
    assert lease_cap(losses + 1, limit) <= cap
    if losses >= ISOLATED_LOSSES:
        assert cap == 1


def test_tallies_add_up_field_by_field() -> None:
    """A run's tallies are the sum of its processes'."""
    one = Tallies(*range(len(TALLY_NAMES)))
    other = Tallies(total=1, failures=-1)
    total = one + other
    assert [getattr(total, n) - getattr(one, n) for n in TALLY_NAMES] == [
        1,
        *[0] * (len(TALLY_NAMES) - 2),
        -1,
    ]
