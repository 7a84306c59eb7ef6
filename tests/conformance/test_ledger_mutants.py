"""Each guard taken out in turn: the suite must notice."""

from __future__ import annotations

import pytest

from batchq.errors import BatchqError
from tests.conformance.conftest import open_backend
from tests.conformance.mutants import MUTANTS, Mutant
from tests.conformance.world import World
from tests.dynamodb import in_full


def backends(mutant: Mutant) -> tuple[str, ...]:
    """Those of the mutant; `make test-dynamodb` takes them out on DynamoDB Local too."""
    more = in_full() and "dynamodb" in mutant.backends
    return (*mutant.backends, "dynamodb-local") if more else tuple(mutant.backends)


CASES = [(mutant, kind) for mutant in MUTANTS for kind in backends(mutant)]


@pytest.mark.parametrize(
    ("mutant", "kind"), CASES, ids=[f"{m.name.replace(' ', '_')}-{kind}" for m, kind in CASES]
)
def test_the_suite_notices_a_missing_guard(
    mutant: Mutant, kind: str, request: pytest.FixtureRequest
) -> None:
    """The test that holds the guard fails without it."""
    for _ in range(mutant.tries):
        with open_backend(kind, request) as backend:
            world = World(backend)
            try:
                with mutant.without(world):
                    mutant.caught_by(world)
            except (AssertionError, pytest.fail.Exception):
                return
            except BatchqError as error:
                if mutant.refusal and mutant.refusal in error.message:
                    return
                raise
    raise AssertionError(f"nobody noticed: {mutant.name}, on {kind}")
