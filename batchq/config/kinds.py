"""What a setting's value may be, however it was written: as text or as a TOML value."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = ["Kind", "count", "duration", "or_word", "seconds", "switch", "text"]

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value: `parse` raises ValueError, `expected` completes "must be …"."""

    expected: str
    parse: Callable[[object], object]
    write: Callable[[Any], Any] = lambda value: value
    """A parsed value as somebody would write it."""


_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PATTERN = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|m|h|d|)\s*", re.ASCII)


def seconds(value: object) -> float:
    """A duration in seconds: `90`, `1.5`, `"90s"`, `"2m"`, `"1h"`. Raises ValueError."""
    if isinstance(value, str) and (match := _PATTERN.fullmatch(value)):
        return float(match[1]) * _UNITS[match[2]]
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        return float(value)
    raise ValueError(f"no duration such as 90s, 2m or 1h: {value!r}")


def duration(least: float, most: float) -> Kind:
    return Kind(
        f"a duration from {_plain(least)} to {_plain(most)}, such as 90s, 2m or 1h",
        lambda value: _within(seconds(value), least, most),
        _plain,
    )


def count(least: int) -> Kind:
    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError
        return _within(int(value), least, 2**31)

    return Kind(f"a whole number, at least {least}", parse)


def text(expected: str, pattern: str) -> Kind:
    def parse(value: object) -> str:
        if not isinstance(value, str) or re.fullmatch(pattern, value) is None:
            raise ValueError
        # An environment variable may hold any bytes; they become half surrogate pairs.
        value.encode()
        return value

    return Kind(expected, parse)


def switch() -> Kind:
    words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}

    def parse(value: object) -> bool:
        if isinstance(value, bool):
            return value
        if not isinstance(value, str) or value.lower() not in words:
            raise ValueError
        return words[value.lower()]

    return Kind("true or false", parse)


def or_word(word: str, kind: Kind) -> Kind:
    """`kind`, or `word`, which stands for None."""
    return Kind(
        f"`{word}` or {kind.expected}",
        lambda value: None if value == word else kind.parse(value),
        kind.write,
    )


def _within(value: N, least: float, most: float) -> N:
    if not least <= value <= most:
        raise ValueError
    return value


def _plain(value: float) -> str:
    for unit in ("d", "h", "m", "s"):
        if value >= _UNITS[unit] and value % _UNITS[unit] == 0:
            return f"{value / _UNITS[unit]:g}{unit}"
    return f"{value:g}s"
