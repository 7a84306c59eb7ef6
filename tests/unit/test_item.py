"""Item keys: what makes two items the same."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from batchq.item import item_key

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)


def test_the_key_is_the_digest_of_the_length_prefixed_parts() -> None:
    """Written out once by hand, so that no release changes it unnoticed."""
    data = b"".join(
        len(part).to_bytes(8, "big") + part for part in (b"docs/\xc3\xa9.md", b"sha256:00", b"p-1")
    )
    assert hashlib.sha256(data).hexdigest() == item_key("docs/é.md", "sha256:00", "p-1")


def test_moving_a_letter_between_the_parts_makes_another_key() -> None:
    """The lengths keep the parts apart."""
    keys = {item_key(*p) for p in [("ab", "c", "d"), ("a", "bc", "d"), ("abc", "", "d")]}
    assert len(keys) == 3


def test_unicode_forms_are_different_names() -> None:
    """Whoever wants them equal normalises before, as sources do."""
    assert item_key("\u00e9", "v", "p") != item_key("e\u0301", "v", "p")


@given(st.tuples(TEXT, TEXT, TEXT), st.tuples(TEXT, TEXT, TEXT))
def test_keys_are_equal_for_equal_identities_alone(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    """Same identity, same key; different identity, different key."""
    assert (one == other) == (item_key(*one) == item_key(*other))
    assert len(item_key(*one)) == 64
