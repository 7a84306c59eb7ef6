"""What people read in many places, in the same words."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["command", "counted", "did_you_mean", "duration", "pip_install"]


def command(words: str, run: str) -> str:
    """`batchq worker --run slow`: a command on that run, to be copied into a shell.

    The default run is not named: that is how the documentation writes commands.
    """
    from shlex import quote

    # Here, since the settings' own errors are written with this module.
    from batchq.config import Config

    return f"batchq {words}" + ("" if run == Config().run else f" --run {quote(run)}")


def counted(number: int, noun: str) -> str:
    """`1 item`, `2,000 items`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def duration(seconds: float) -> str:
    """In the two units that matter: 8 s, 3 min 20 s, 5 h 10 min, 2 d 4 h."""
    whole = round(seconds)
    for size, unit, smaller, smaller_unit in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {smaller_unit}" if rest else "")
    return f"{whole} s"


def did_you_mean(name: str, known: Sequence[str]) -> str | None:
    """`did you mean X?` for the known name nearest to `name`, if one is near."""
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else None


def pip_install(extra: str) -> str:
    """How to get what an extra of batchq brings."""
    return f"pip install '.[{extra}]' in batchq's source folder"
