"""The configuration file: TOML, with the line of every key for the messages."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from batchq.errors import UsageError
from batchq.words import did_you_mean

__all__ = ["Given", "read_file"]

DEFAULT_FILE = "batchq.toml"


@dataclass(frozen=True, slots=True)
class Given:
    """A value somebody gave, and where."""

    value: object
    origin: str


def read_file(
    cwd: Path, named: str | None, known: Sequence[str]
) -> tuple[dict[str, Given], dict[str, Given]]:
    """The settings in the file, and the processor's parameters.

    `named` is the file somebody asked for, `known` the names of all settings. Raises
    UsageError, naming file, line and column where they are known.
    """
    shown = DEFAULT_FILE if named is None else named
    try:
        text = (cwd / shown).read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        if named is None:
            return {}, {}
        raise UsageError(
            f"there is no configuration file {shown}",
            hint="--config or BATCHQ_CONFIG names it, relative to the current folder",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else f"it is not UTF-8 ({error.reason})"
        raise UsageError(
            f"cannot read the configuration file {shown}: {why}",
            hint="make it readable, and save it as UTF-8",
        ) from None
    try:
        raw = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _broken(shown, text, error) from None

    lines = _lines(text)

    def place(*path: str) -> str:
        line = lines.get(path)
        return shown if line is None else f"{shown}:{line}"

    table = raw.pop("processor", {})
    settings = {name: Given(value, place(name)) for name, value in raw.items()}
    for name in settings:
        _expect(name, known, settings[name].origin)
    if not isinstance(table, dict):
        return settings | {"processor": Given(table, place("processor"))}, {}

    parameters = {name: Given(value, place("processor", name)) for name, value in table.items()}
    if kind := parameters.pop("kind", None):
        settings["processor"] = kind
    if model := parameters.pop("model", None):
        if "model" in settings:
            raise UsageError(
                f"{model.origin}: the model is named at {settings['model'].origin} as well",
                hint="keep one of the two",
            )
        settings["model"] = model
    for name, given in parameters.items():
        _check_parameter(name, given)
    return settings, parameters


def _expect(name: str, known: Sequence[str], where: str) -> None:
    if name in known:
        return
    raise UsageError(
        f"{where}: there is no setting {name!r}",
        hint=did_you_mean(name, known)
        or f"the settings are {', '.join(known)}, and what only a processor knows goes into the "
        "table [processor]",
    )


def _check_parameter(name: str, given: Given) -> None:
    if not name.isidentifier():
        raise UsageError(
            f"{given.origin}: the processor's parameter {name!r} cannot be an argument's name",
            hint="use letters, digits and underscores",
        )
    if not _is_json(given.value):
        raise UsageError(
            f"{given.origin}: the processor's parameter {name} is no JSON value",
            hint="it enters the run's manifest: write dates as text, and no nan or inf",
        )


def _is_json(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_json, value.values()))
    if isinstance(value, list):
        return all(map(_is_json, value))
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, str | int)


_PLACE = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)\Z")


def _broken(shown: str, text: str, error: Exception) -> UsageError:
    said = str(error)
    match = _PLACE.search(said)
    what = said[: match.start()] if match else said
    if match and match[1]:
        where = f"{shown}:{match[1]}:{match[2]}"
    else:
        where = f"{shown}:{text.count(chr(10)) + 1}"
    return UsageError(
        f"{where}: not valid TOML: {what}",
        hint='text is written in quotes, as in run = "default"; see https://toml.io',
    )


_KEY = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*(?:=|\.)""")
_TABLE = re.compile(r"""\s*\[+\s*(?:"([^"]*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*[].]""")


def _lines(text: str) -> dict[tuple[str, ...], int]:
    """Line numbers of keys, which tomllib does not tell; those it cannot see are absent."""
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.split("\n"), start=1):
        if match := _TABLE.match(line):
            table = (next(filter(None, match.groups()), ""),)
            found.setdefault(table, number)
        elif match := _KEY.match(line):
            found.setdefault((*table, next(filter(None, match.groups()), "")), number)
    return found
