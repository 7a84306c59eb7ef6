"""Long texts in parts: pieces to tokenize, windows to run."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["pieces", "windows"]


def pieces(text: str, limit: int) -> Iterator[str]:
    """`text` in parts of at most `limit` characters, nothing lost.

    Tokenizing a long text whole takes memory and time out of proportion. A part ends
    before white space where there is any in its second half: tokenizers split there
    themselves, so the parts have the tokens of the whole.
    """
    start = 0
    while len(text) - start > limit:
        end = _boundary(text, start + limit // 2, start + limit)
        yield text[start:end]
        start = end
    yield text[start:]


def _boundary(text: str, low: int, high: int) -> int:
    """Where the last run of white space in `text[low:high]` begins, else `high`."""
    for end in range(high - 1, low, -1):
        if text[end].isspace() and not text[end - 1].isspace():
            return end
    return high


def windows(total: int, size: int, overlap: int) -> list[tuple[int, int]]:
    """[start, end) of the fewest windows of at most `size` tokens that cover `total`.

    All are of one length, so that none is too short to mean anything, and neighbours
    share at least `overlap` tokens, which is less than `size`. There is always one
    window, if an empty one.
    """
    if total <= size:
        return [(0, total)]
    count = -(-(total - overlap) // (size - overlap))
    length = -(-(total + (count - 1) * overlap) // count)
    starts = ((total - length) * index // (count - 1) for index in range(count))
    return [(start, start + length) for start in starts]
