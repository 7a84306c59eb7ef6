"""Times that platforms state, and what they are worth here."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchq.notice.deadline import (
    is_false_alarm,
    parse_time,
    seconds_left,
    uptime,
    was_before_boot,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2017-09-18T08:22:00Z", 1_505_722_920.0),
        (" 2017-09-18T08:22:00Z\n", 1_505_722_920.0),
        ("2017-09-18T08:22:00", 1_505_722_920.0),
        ("2017-09-18T10:22:00+02:00", 1_505_722_920.0),
        ("Mon, 18 Sep 2017 08:22:00 GMT", 1_505_722_920.0),
        ("18 Sep 2017 08:22:00 GMT", 1_505_722_920.0),
        ("", None),
        ("soon", None),
        ("2017-13-45T99:99:99Z", None),
        (None, None),
        (1_505_722_920, None),
    ],
)
def test_times_are_read_as_platforms_write_them(text: object, expected: float | None) -> None:
    """ISO 8601 and RFC 1123, UTC unless they say otherwise; nothing else."""
    assert parse_time(text) == expected


@given(st.one_of(st.text(), st.integers(), st.none()))
def test_nothing_that_a_platform_writes_raises(text: object) -> None:
    """A broken time must not end the watch."""
    parsed = parse_time(text)
    assert parsed is None or isinstance(parsed, float)


@given(
    stated=st.floats(-1e10, 1e10),
    now=st.floats(0, 1e10),
    longest=st.floats(1, 900),
)
def test_what_is_left_is_never_more_than_the_platform_warns(
    stated: float, now: float, longest: float
) -> None:
    """And never zero or less: such a time is wrong, and is none."""
    left = seconds_left(stated, now, longest)
    assert left is None or 0 < left <= longest


def test_the_uptime_is_the_machines_own(tmp_path: Path) -> None:
    """None where the system does not tell it as Linux does."""
    assert (uptime() or 0) > 0
    assert uptime(tmp_path / "missing") is None
    (tmp_path / "odd").write_text("")
    assert uptime(tmp_path / "odd") is None


def test_a_time_is_before_the_boot_only_if_both_are_known() -> None:
    """In doubt a notice counts."""
    assert was_before_boot(99.0, now=1000.0, up=900.0)
    assert not was_before_boot(100.0, now=1000.0, up=900.0)
    assert not was_before_boot(None, now=1000.0, up=900.0)
    assert not was_before_boot(1.0, now=1000.0, up=None)


def test_an_end_that_passed_long_ago_was_a_false_alarm() -> None:
    """The machine is still there; a little late is still to be feared."""
    assert is_false_alarm(600.0, now=1000.0)
    assert not is_false_alarm(701.0, now=1000.0)
    assert not is_false_alarm(None, now=1000.0)
