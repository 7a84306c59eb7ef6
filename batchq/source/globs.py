"""Patterns of `--include` and `--exclude`, matched against paths below the root."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable

from batchq.errors import UsageError

__all__ = ["matcher"]


def matcher(patterns: Iterable[str], *, hidden: bool) -> Callable[[str], bool]:
    """A test for relative POSIX paths that any of `patterns` matches.

    A pattern without a slash matches the last name at any depth, one with a slash the
    whole path below the root. `*` and `?` stay within a name, `**` stands for any number
    of folders, `[a-z]` and `[!a-z]` for one character; `guide/` means all that lies below
    `guide`. Unless `hidden`, none of them matches the dot that a hidden name begins with,
    as in a shell. Of a folder with a slash at its end the test tells whether all that
    lies below it matches. Raises UsageError for a pattern that cannot match.
    """
    alternatives = [f"(?:{_translate(pattern, hidden)})" for pattern in patterns]
    if not alternatives:
        return lambda path: False
    compiled = re.compile("|".join(alternatives), re.DOTALL)
    return lambda path: compiled.fullmatch(path) is not None


def _translate(pattern: str, hidden: bool) -> str:
    name = "[^/]+" if hidden else r"(?!\.)[^/]+"
    text = unicodedata.normalize("NFC", pattern)
    anchored = "/" in text.rstrip("/")
    if text.endswith("/"):
        text += "**"
        anchored = anchored or text.startswith("/")
    parts = [part for part in text.split("/") if part not in ("", ".")]
    # Twice any number of folders is any number of folders, and nobody need try out which.
    both = zip(parts, ["", *parts], strict=False)
    parts = [part for part, before in both if not part == before == "**"]
    if not parts or ".." in parts:
        raise UsageError(
            f"pattern {pattern!r} matches nothing below a folder",
            hint="patterns are relative to SOURCE, such as '*.md' or 'guide/**'",
        )
    regex = "" if anchored else f"(?:{name}/)*"
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if part != "**":
            guard = "" if hidden or part[0] not in "*?[" else r"(?!\.)"
            regex += guard + _translate_name(part, pattern) + ("" if last else "/")
        elif last:
            regex += f"(?:{name}(?:/{name})*)?"
        else:
            regex += f"(?:{name}/)*"
    try:
        re.compile(regex)
    except re.error as error:
        raise UsageError(
            f"pattern {pattern!r} cannot be read: {error}",
            hint="write a range as [a-z], its lower end first",
        ) from None
    return regex


def _translate_name(part: str, pattern: str) -> str:
    """What lies between two stars is looked for once, as near as it is to be found.

    No later place could do better, and to try each out takes exponential time.
    """
    pieces = [""]
    index = 0
    while index < len(part):
        character = part[index]
        index += 1
        if character == "*":
            pieces.append("")
        elif character == "?":
            pieces[-1] += "[^/]"
        elif character == "[":
            end = part.find("]", index + 2 if part[index : index + 1] == "!" else index + 1)
            if end < 0:
                raise UsageError(
                    f"pattern {pattern!r} has a '[' without its ']'",
                    hint="close it, or write [[] for the character itself",
                )
            pieces[-1] += _translate_class(part[index:end])
            index = end + 1
        else:
            pieces[-1] += re.escape(character)
    first, *others = pieces
    if not others:
        return first
    between = "".join(f"(?>[^/]*?{piece})" for piece in others[:-1] if piece)
    return f"{first}{between}[^/]*{others[-1]}"


def _translate_class(inside: str) -> str:
    negated = inside.startswith("!")
    body = re.sub(r"([\\\[\]^&~|])", r"\\\1", inside[1:] if negated else inside)
    return f"(?!/)[{'^' if negated else ''}{body}]"
