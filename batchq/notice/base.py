"""Notices: signs that this worker will soon be stopped.

A notice is only an extra signal. Everything is correct when none ever comes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

__all__ = ["DEFAULT_WINDOW_S", "Notice", "NoticeSource"]

DEFAULT_WINDOW_S = 25.0
"""From a notice to the end where nobody says: what Kubernetes grants, less a margin."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning. `deadline` is on the monotonic clock (seconds), or none if unknown.

    `kind`: `spot`, `signal`, ...; `action`: `terminate`, `stop`, `hibernate`,
    `SIGTERM`, ...; `source`: who said so; `detail`: for people. One that does not
    `drains` is to be recorded only: a risk or an appointment, not the end. `medium`: how
    the source came by it (`metadata`, `queue`), where the source's name does not tell.
    """

    kind: str
    action: str
    deadline: float | None
    source: str
    detail: str = ""
    drains: bool = True
    medium: str = ""


class NoticeSource(Protocol):
    """Watches one place and reports each notice once."""

    name: str

    @property
    def window(self) -> float | None:
        """Seconds that there surely are from a notice to the end; none if nobody can say."""
        ...

    def describe(self) -> str:
        """What is watched and with which window, in one line for people."""
        ...

    def watch(self, report: Callable[[Notice], object]) -> None:
        """Start watching; returns at once. `report` may be called from any thread."""
        ...

    def close(self, *, drained: bool = False) -> None:
        """Stop watching, within seconds and without raising.

        With `drained` what was announced has had its effect, and what announced it may be
        removed; without, it stays for whoever comes next.
        """
        ...
