"""Fingerprints: the manifest of everything that shapes a result, and its digest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchq.result import canonical_json, sha256_hex

__all__ = ["HINTS", "difference", "processing_version"]

HINTS = "hints"
"""The one key of a manifest that is no part of the identity: where things were found."""


def processing_version(manifest: Mapping[str, Any]) -> str:
    """`<kind>-<12 hex>`: the processor's kind and the digest of the canonical manifest.

    `manifest` must hold "kind" and be JSON throughout.
    """
    return f"{manifest['kind']}-{sha256_hex(canonical_json(_identity(manifest)))[:12]}"


def difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """One line a field that differs, as `parameters.overlap: 16 here, 32 in the run`."""
    lines = []
    flat_ours, flat_theirs = _flatten(_identity(ours)), _flatten(_identity(theirs))
    for name in sorted(flat_ours.keys() | flat_theirs.keys()):
        here = flat_ours.get(name, "absent")
        there = flat_theirs.get(name, "absent")
        if here != there:
            lines.append(f"{name}: {here} here, {there} in the run")
    return lines


def _identity(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in manifest.items() if key != HINTS}


def _flatten(value: Any, name: str = "") -> dict[str, str]:
    if isinstance(value, Mapping) and value:
        flat: dict[str, str] = {}
        for key, inner in value.items():
            flat |= _flatten(inner, f"{name}.{key}" if name else str(key))
        return flat
    return {name: canonical_json(value).decode()}
