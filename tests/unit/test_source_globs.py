"""Patterns of --include and --exclude."""

from __future__ import annotations

import fnmatch
import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from batchq.errors import UsageError
from batchq.source.globs import matcher

MATCHES = [
    ("*.md", "a.md", True),
    ("*.md", "guide/deep/a.md", True),
    ("*.md", "a.mdx", False),
    ("*.md", "guide.md/a.txt", False),
    ("guide/*.md", "guide/a.md", True),
    ("guide/*.md", "guide/deep/a.md", False),
    ("guide/*.md", "other/guide/a.md", False),
    ("./guide/*.md", "guide/a.md", True),
    ("/a.md", "a.md", True),
    ("guide/**", "guide/deep/a.md", True),
    ("guide/**", "guide", False),
    # A folder is asked about with a slash at its end: is all that lies below it meant?
    ("guide/**", "guide/", True),
    ("guide/", "guide/", True),
    ("guide", "guide/", False),
    ("/", "a/b", True),
    ("guide/", "guide/deep/a.md", True),
    ("guide/", "other/guide/a.md", True),
    ("/guide/", "other/guide/a.md", False),
    ("**/a.md", "a.md", True),
    ("**/a.md", "x/y/a.md", True),
    ("a/**/b", "a/b", True),
    ("a/**/b", "a/x/y/b", True),
    ("?.md", "ab.md", False),
    ("[ab].md", "b.md", True),
    ("[!ab].md", "b.md", False),
    ("[!ab].md", "c.md", True),
    ("[]].md", "].md", True),
    ("[a-c]x", "bx", True),
    ("[^a]x", "^x", True),
    ("a.c", "abc", False),
    ("a\n*", "a\nb", True),
    ("-*", "-rf", True),
    ("e\u0301*", "été", True),
    ("*a*b", "xaxbxb", True),
    ("*ab*b", "aab", False),
    ("a*?*c", "abc", True),
    ("a**c", "abc", True),
    ("*[ab]*[!a]", "bab", True),
    ("**/**/a", "x/y/z/a", True),
    ("a/**/**", "a/b/c", True),
]


@pytest.mark.parametrize(("pattern", "path", "expected"), MATCHES)
def test_patterns_match_as_a_shell_user_expects(pattern: str, path: str, expected: bool) -> None:
    """A pattern without a slash is for names at any depth; with one, for whole paths."""
    assert expected is matcher([pattern], hidden=False)(path)


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("*", ".hidden", False),
        ("*.md", ".git/a.md", False),
        ("**", ".git/config", False),
        ("?git", ".git", False),
        ("[.]git", ".git", False),
        (".*", ".hidden", True),
        (".github/**", ".github/a.md", True),
        (".github/**", ".github/.secret/a.md", False),
    ],
)
def test_a_leading_dot_is_matched_only_by_a_dot(pattern: str, path: str, expected: bool) -> None:
    """Hidden names are included by naming them; an exclusion need not."""
    assert expected is matcher([pattern], hidden=False)(path)
    assert matcher([pattern], hidden=True)(path)


def test_any_of_several_patterns_is_enough() -> None:
    """Patterns add up; none match nothing."""
    either = matcher(["*.md", "*.txt"], hidden=False)
    assert either("a.md")
    assert either("a.txt")
    assert not either("a.py")
    assert not matcher([], hidden=False)("a.md")


@pytest.mark.parametrize("pattern", ["", ".", "../*.md", "a/../b", "[ab", "[z-a]"])
def test_a_pattern_that_can_match_nothing_is_refused(pattern: str) -> None:
    """A pattern with a mistake in it is no silent way to enqueue nothing."""
    with pytest.raises(UsageError, match="pattern"):
        matcher([pattern], hidden=False)


@pytest.mark.parametrize(
    "pattern", ["*a" * 20 + "*b", "*" * 40 + "b", "**/" * 12 + "b/c", "a*/" * 9 + "b"]
)
def test_no_pattern_takes_more_than_a_moment(pattern: str) -> None:
    """Each star could stand for anything, which need not be tried out."""
    matches = matcher([pattern], hidden=False)
    began = time.thread_time()
    assert not matches("/".join(["a" * 120] * 30))
    assert time.thread_time() - began < 10


@given(st.text("ab*?", min_size=1, max_size=9), st.text("ab", min_size=1, max_size=9))
def test_within_a_name_a_pattern_means_what_it_means_to_python(pattern: str, name: str) -> None:
    """Which knows of no folders."""
    assume(pattern != "**")
    assert matcher([pattern], hidden=True)(name) is fnmatch.fnmatchcase(name, pattern)
