"""The contact window: when a client may believe that an expired beat means death."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from batchq.ledger.contact import AGREEMENT_S, Contact

TTL = 60.0


def seen_at(*moments: float, offset: float = 1_000_000.0) -> Contact:
    contact = Contact()
    for moment in moments:
        contact.seen(moment, moment + offset)
    return contact


def test_no_answer_is_no_contact() -> None:
    """Nor is the first one."""
    assert not Contact().lasted(TTL)
    assert not seen_at(0).lasted(TTL)


def test_a_ttl_of_regular_answers_is_contact() -> None:
    """From the first to the last, not a moment earlier."""
    assert seen_at(0, 20, 40, 60).lasted(TTL)
    assert not seen_at(0, 20, 40, 59).lasted(TTL)


def test_a_gap_of_more_than_half_a_ttl_breaks_it() -> None:
    """Whoever beats every TTL/3 might have been silent as long as the gap."""
    assert seen_at(0, 30, 60).lasted(TTL)
    assert not seen_at(0, 29, 60).lasted(TTL)
    assert seen_at(0, 31, 61, 91).lasted(TTL)


def test_what_is_a_gap_depends_on_the_ttl() -> None:
    """The same answers may be contact enough for a long TTL and not for a short one."""
    contact = seen_at(*range(0, 121, 20))
    assert contact.lasted(60)
    assert contact.lasted(120)
    assert not contact.lasted(39)
    assert not contact.lasted(121)


def test_a_lost_answer_begins_anew() -> None:
    """Contact counts from the next answer."""
    contact = seen_at(0, 20, 40, 60)
    contact.lost()
    assert not contact.lasted(TTL)
    for moment in (61, 80, 100, 120):
        contact.seen(moment, moment + 1_000_000)
    assert not contact.lasted(TTL)
    contact.seen(121, 1_000_121)
    assert contact.lasted(TTL)


def test_a_jump_of_either_clock_begins_anew() -> None:
    """Forward, backward, or a machine that slept."""
    for jump in (-86_400.0, -2 * AGREEMENT_S, 2 * AGREEMENT_S, 86_400.0):
        contact = seen_at(0, 20, 40, 60)
        contact.seen(61, 1_000_061 + jump)
        assert not contact.lasted(TTL)
        for moment in (81, 101, 121):
            contact.seen(moment, 1_000_000 + moment + jump)
        assert contact.lasted(TTL)


def test_the_jitter_of_answers_breaks_nothing() -> None:
    """Half a second here or there is the network's."""
    contact = Contact()
    for n in range(7):
        contact.seen(10.0 * n, 10.0 * n + 5_000 + (-1) ** n * AGREEMENT_S / 3)
    assert contact.lasted(TTL)


def test_a_slow_drift_adds_up_to_a_break() -> None:
    """Clocks that disagree by a tenth are not trusted, however smoothly."""
    contact = Contact()
    for n in range(20):
        contact.seen(10.0 * n, 5_000 + 11.0 * n)
    assert not contact.lasted(TTL)


def test_answers_out_of_order_do_no_harm() -> None:
    """Two threads may report in the wrong order."""
    assert seen_at(0, 20, 41, 40, 39, 60).lasted(TTL)
    assert not seen_at(0, 20, 60, 1).lasted(TTL)


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=60), st.floats(1, 200))
def test_contact_is_what_a_plain_search_says(gaps: list[float], ttl: float) -> None:
    """Against the rule written out: walk back while the gaps are short enough."""
    moments = [0.0]
    for gap in gaps:
        moments.append(moments[-1] + gap)
    start = len(moments) - 1
    while start > 0 and moments[start] - moments[start - 1] <= ttl / 2:
        start -= 1
    expected = moments[-1] - moments[start] >= ttl
    assert expected == seen_at(*moments).lasted(ttl)
