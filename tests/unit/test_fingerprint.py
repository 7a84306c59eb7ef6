"""Processing versions and the difference between two manifests."""

from __future__ import annotations

import re

import pytest

from batchq.fingerprint import difference, processing_version

MANIFEST = {
    "kind": "embed",
    "parameters": {"overlap": 16, "prompt": "", "limits": {"pages": None}},
    "model": {"id": "all-MiniLM-L6-v2", "files": {"model.safetensors": "ab" * 32}},
    "dtype": "float32",
}


def test_a_processing_version_is_the_kind_and_twelve_digits() -> None:
    """Short enough to be read, and the same on every machine."""
    version = processing_version(MANIFEST)
    assert re.fullmatch(r"embed-[0-9a-f]{12}", version)
    reordered = {name: MANIFEST[name] for name in reversed(list(MANIFEST))}
    assert version == processing_version(reordered)


def test_a_processing_version_is_fixed_for_a_manifest() -> None:
    """Written out once, so that no release changes it unnoticed."""
    assert processing_version({"kind": "stats", "code": 1}) == "stats-110c147dcd2f"


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "float16"},
        {"parameters": {"overlap": 17, "prompt": "", "limits": {"pages": None}}},
        {"parameters": {"overlap": 16, "prompt": " ", "limits": {"pages": None}}},
        {"extra": None},
        {"kind": "classify"},
    ],
)
def test_every_field_shapes_the_processing_version(change: dict[str, object]) -> None:
    """Also one deep inside, and one that is new."""
    assert processing_version(MANIFEST) != processing_version({**MANIFEST, **change})


def test_equal_manifests_have_no_difference() -> None:
    """Nothing to say."""
    assert difference(MANIFEST, dict(MANIFEST)) == []


def test_a_difference_names_each_field_with_both_values() -> None:
    """Changed, missing here, missing there; by name, in order."""
    ours = {"kind": "embed", "parameters": {"overlap": 16, "batch": 8}, "dtype": "float16"}
    theirs = {"kind": "embed", "parameters": {"overlap": 32}, "dtype": "float16", "revision": "r"}
    assert difference(ours, theirs) == [
        "parameters.batch: 8 here, absent in the run",
        "parameters.overlap: 16 here, 32 in the run",
        'revision: absent here, "r" in the run',
    ]


def test_text_and_number_differ_and_are_told_apart() -> None:
    """16 is not "16"."""
    assert difference({"a": 16}, {"a": "16"}) == ['a: 16 here, "16" in the run']


def test_an_empty_group_differs_from_none() -> None:
    """{} is a value like another."""
    assert difference({"a": {}}, {"a": None}) == ["a: {} here, null in the run"]
    assert difference({"a": {}}, {"a": {"b": 1}}) == [
        "a: {} here, absent in the run",
        "a.b: absent here, 1 in the run",
    ]
