"""Long texts: pieces lose nothing, windows cover everything."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from batchq.inference.windows import pieces, windows


@given(st.text(alphabet="ab \n\u3000é", max_size=400), st.integers(2, 50))
def test_pieces_are_short_and_lose_nothing(text: str, limit: int) -> None:
    """Joined again they are the text, and none is longer than the limit."""
    parts = list(pieces(text, limit))
    assert text == "".join(parts)
    assert all(len(part) <= limit for part in parts)
    assert all(parts) or parts == [""]


@given(st.lists(st.text(alphabet="abc", min_size=1, max_size=9), min_size=1, max_size=80))
def test_pieces_end_between_words(words: list[str]) -> None:
    """With white space within reach no word is cut, so tokens stay those of the whole."""
    parts = list(pieces("  ".join(words), 40))
    assert words == [word for part in parts for word in part.split()]
    assert all(part.startswith(" ") for part in parts[1:])


def test_a_text_without_spaces_is_cut_all_the_same() -> None:
    """A megabyte of base64 is processed, not held whole."""
    assert [len(part) for part in pieces("x" * 100, 40)] == [40, 40, 20]


@given(st.integers(0, 5_000), st.integers(2, 300), st.integers(0, 150))
def test_windows_cover_everything(total: int, size: int, overlap: int) -> None:
    """Every token is in a window, neighbours share the overlap, none is too long."""
    overlap = min(overlap, size - 1)
    spans = windows(total, size, overlap)
    assert spans[0][0] == 0
    assert spans[-1][1] == total
    assert len({end - start for start, end in spans}) == 1
    assert spans[0][1] <= size
    for (_, end), (start, _) in itertools.pairwise(spans):
        assert end - start >= overlap


@given(st.integers(0, 5_000), st.integers(2, 300), st.integers(0, 150))
def test_windows_are_the_fewest(total: int, size: int, overlap: int) -> None:
    """One window fewer could not cover the tokens with that overlap."""
    overlap = min(overlap, size - 1)
    fewer = len(windows(total, size, overlap)) - 1
    assert fewer == 0 or fewer * size - (fewer - 1) * overlap < total
