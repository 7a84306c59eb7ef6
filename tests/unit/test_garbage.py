"""Python looks for cycles seldom while records pass in millions, and as ever afterwards."""

from __future__ import annotations

import gc

import pytest

from batchq.garbage import ENOUGH, seldom_collected


def test_collection_is_as_it_was_however_the_work_ends() -> None:
    """Whoever calls batchq from a program of their own keeps what they set."""
    before = gc.get_threshold()
    with seldom_collected():
        assert gc.get_threshold() == (ENOUGH, *before[1:])
    with pytest.raises(ValueError, match="ended"), seldom_collected():
        raise ValueError("ended")
    assert before == gc.get_threshold()
