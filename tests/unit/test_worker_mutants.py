"""Each of the worker's guards taken out in turn: a test must notice."""

from __future__ import annotations

import pytest

from tests.unit.worker_mutants import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=[m.name.replace(" ", "_") for m in MUTANTS])
def test_a_missing_guard_is_noticed(mutant: Mutant) -> None:
    """The test that holds the guard fails without it."""
    with mutant.at_large(), pytest.raises((AssertionError, pytest.fail.Exception)):
        mutant.caught_by()
