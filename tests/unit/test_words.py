"""What people read in many places, in the same words."""

from __future__ import annotations

import shlex

import pytest

from batchq.words import command


@pytest.mark.parametrize("run", ["slow", "two words", "it's $HOME", "-x"])
def test_a_command_in_a_hint_names_its_run_as_a_shell_reads_it(run: str) -> None:
    """Copied without it, the command would work on the default run."""
    assert shlex.split(command("retry", run)) == ["batchq", "retry", "--run", run]


def test_the_default_run_is_not_named() -> None:
    """Commands are short as they are in the documentation."""
    assert command("worker", "default") == "batchq worker"
