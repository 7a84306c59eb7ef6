"""Deadlines: what a time stated by a platform is worth on this machine's clocks."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

__all__ = ["is_false_alarm", "parse_time", "seconds_left", "uptime", "was_before_boot"]

TOLERANCE_S = 10.0
"""Platforms call their times approximate; further ahead than this, a clock is wrong."""

FALSE_ALARM_S = 300.0
"""No platform is so late with an end that it announced."""


def parse_time(text: object) -> float | None:
    """Seconds since 1970 of `2017-09-18T08:22:00Z`, `Mon, 19 Sep 2016 18:29:47 GMT` or
    `21 Jan 2019 09:00:43 GMT`; a time without a zone is UTC. None for anything else.
    """
    if not isinstance(text, str):
        return None
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = parse(text.strip())
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, TypeError, OverflowError, IndexError):
            continue
    return None


def seconds_left(stated: float | None, now: float, longest: float) -> float | None:
    """From `now` until `stated` (both wall clock), at most `longest` seconds.

    None if the time is unknown, has passed, or lies further ahead than the platform
    ever warns: then either clock is wrong and the difference means nothing.
    """
    if stated is None or not 0 < stated - now <= longest + TOLERANCE_S:
        return None
    return min(stated - now, longest)


def uptime(path: Path = Path("/proc/uptime")) -> float | None:
    """Seconds since this machine booted; None where the system does not say."""
    try:
        return float(path.read_text().split()[0])
    except (OSError, IndexError, ValueError):
        return None


def was_before_boot(stated: float | None, now: float, up: float | None) -> bool:
    """Whether a time (wall clock, as `now`) lies before the boot `up` seconds ago."""
    return stated is not None and up is not None and stated < now - up


def is_false_alarm(stated: float | None, now: float) -> bool:
    """Whether an end announced for `stated` (wall clock, as `now`) is not to come any more."""
    return stated is not None and stated < now - FALSE_ALARM_S
