"""Vectors: pooling of hidden states, and numbers that print short."""

from __future__ import annotations

import json

import numpy
import pytest

from batchq.inference.vectors import pool, shortest_floats

torch = pytest.importorskip("torch")


def test_floats_print_in_the_fewest_digits_that_restore_them() -> None:
    """For any bit pattern the JSON text is the shortest that reads back as the same float32."""
    draw = numpy.random.default_rng(11)
    bits = draw.integers(0, 2**32, size=40_000, dtype=numpy.uint64).astype(numpy.uint32)
    anything = bits.view(numpy.float32)
    unit = draw.normal(0, 0.05, size=40_000).astype(numpy.float32)
    special = numpy.array([0.0, -0.0, 1.0, -1.0, 0.1, 1e-45, 3.4e38, 1e-12, 1e12], numpy.float32)
    values = numpy.concatenate([anything[numpy.isfinite(anything)], unit, special])
    (row,) = shortest_floats(values[None, :])
    assert [float(str(value)) for value in values] == row
    read = numpy.array(json.loads(json.dumps(row)), dtype=numpy.float32)
    assert values.tobytes() == read.tobytes()


def test_rows_keep_their_places() -> None:
    """Each row of the array is a list, in order, odd values in their own columns."""
    array = numpy.array([[0.1, 0.0], [1e-30, 0.3]], dtype=numpy.float32)
    assert shortest_floats(array) == [[0.1, 0.0], [1e-30, 0.3]]


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ("mean", [[2.0, 3.0], [5.0, 6.0]]),
        ("cls", [[1.0, 2.0], [5.0, 6.0]]),
        ("max", [[3.0, 4.0], [5.0, 6.0]]),
        ("lasttoken", [[3.0, 4.0], [5.0, 6.0]]),
    ],
)
def test_pooling_sees_real_tokens_only(pooling: str, expected: list[list[float]]) -> None:
    """What stands at padding, however large, never reaches a vector."""
    hidden = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [1e9, 1e9]]])
    counts = torch.tensor([2, 1])
    mask = torch.arange(2)[None, :] < counts[:, None]
    assert expected == pool(hidden, mask, counts, pooling).tolist()
