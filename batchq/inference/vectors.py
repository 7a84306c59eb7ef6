"""From a model's hidden states to vectors, and from vectors to JSON numbers."""

from __future__ import annotations

from typing import Any

__all__ = ["pool", "shortest_floats"]


def pool(hidden: Any, mask: Any, counts: Any, pooling: str) -> Any:
    """Vectors (rows, dimensions) of hidden states (rows, width, dimensions), as tensors.

    `mask` (rows, width) is true at real tokens, `counts` (rows) says how many there are;
    they come first. `pooling` is one of `embedding_model.POOLINGS`.
    """
    if pooling == "cls":
        return hidden[:, 0]
    if pooling == "lasttoken":
        last = (counts - 1)[:, None, None].expand(-1, 1, hidden.shape[2])
        return hidden.gather(1, last)[:, 0]
    if pooling == "max":
        return hidden.masked_fill(~mask[:, :, None], -float("inf")).amax(dim=1)
    return (hidden * mask[:, :, None]).sum(dim=1) / counts[:, None]


def shortest_floats(array: Any) -> list[list[float]]:
    """Rows of a float32 array as floats that print in the fewest digits that restore it.

    Nine significant digits restore any float32, and most need eight; a plain conversion
    prints seventeen.
    """
    import numpy

    exact = array.astype(numpy.float64)
    with numpy.errstate(divide="ignore", invalid="ignore"):
        exponents = numpy.floor(numpy.log10(numpy.abs(exact)))
    ordinary = numpy.isfinite(exponents) & (numpy.abs(exponents) < 12)
    exponents = numpy.where(ordinary, exponents, 0)
    result = exact.copy()
    for digits in (9, 8, 7, 6):
        # The scaled integer and the power of ten are both exact, so their quotient is
        # the very float that the decimal reads as.
        power = digits - 1 - exponents
        up, down = 10.0 ** numpy.maximum(power, 0), 10.0 ** numpy.maximum(-power, 0)
        short = numpy.rint(exact * up / down) * down / up
        result = numpy.where(ordinary & (short.astype(numpy.float32) == array), short, result)
    rows: list[list[float]] = result.tolist()
    for row, column in zip(*numpy.nonzero(~ordinary), strict=True):
        rows[row][column] = float(str(array[row, column]))
    return rows
