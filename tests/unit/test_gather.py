"""What is made waits for company, within bounds of number, bytes and time."""

from __future__ import annotations

import math

from batchq.clock import ManualClock
from batchq.item import Item
from batchq.result import Envelope
from batchq.store.layout import Made
from batchq.worker.holdings import Work
from batchq.worker.pace import Pace, young_interval
from batchq.worker.put import Gather, Waiting


def waiting(number: int, size: int = 10) -> Waiting:
    item = Item(number, f"doc-{number}", "sha256:0", 1, "file:///doc", 1, 1, 0, 0)
    made = Made(item, Envelope("doc", "sha256:0", "stats-0", None, 0, 0), b"x" * size)
    return Waiting(Work(item, "token"), made)


def numbers(portion: list[Waiting]) -> list[int]:
    return [each.work.item.id for each in portion]


def filled(gather: Gather, count: int, size: int = 10) -> Gather:
    for number in range(count):
        gather.add(waiting(number, size))
    return gather


def test_a_portion_is_due_when_there_are_enough_and_not_before() -> None:
    """Three make one; what is left over waits on."""
    gather = filled(Gather(ManualClock(), items=lambda: 3, size=1000, seconds=lambda: 5), 2)
    assert gather.take() == []
    gather.add(waiting(2))
    gather.add(waiting(3))
    assert numbers(gather.take()) == [0, 1, 2]
    assert (gather.take(), len(gather)) == ([], 1)


def test_a_portion_is_due_when_its_bytes_fill_an_object() -> None:
    """Memory is bounded by bytes, whatever the number; one large result goes alone."""
    gather = filled(
        Gather(ManualClock(), items=lambda: 100, size=100, seconds=lambda: 5), 3, size=40
    )
    assert numbers(gather.take()) == [0, 1]
    assert gather.take() == []
    gather.add(waiting(9, size=500))
    assert numbers(gather.take()) == [2]
    assert numbers(gather.take()) == [9]


def test_nothing_waits_for_ever() -> None:
    """The oldest decides, not the youngest."""
    clock = ManualClock()
    gather = filled(Gather(clock, items=lambda: 100, size=1000, seconds=lambda: 5), 1)
    clock.advance(4.9)
    gather.add(waiting(1))
    assert gather.take() == []
    clock.advance(0.1)
    assert numbers(gather.take()) == [0, 1]
    gather.add(waiting(2))
    assert gather.take() == []


def test_a_drain_takes_what_is_there_in_pieces_of_a_familiar_size() -> None:
    """Whatever is there, at once, but no object larger than is known to be quick."""
    gather = filled(Gather(ManualClock(), items=lambda: 100, size=1000, seconds=lambda: 5), 5)
    assert numbers(gather.take(now=True, most=25)) == [0, 1]
    assert numbers(gather.take(now=True, most=5)) == [2]
    assert numbers(gather.take(now=True)) == [3, 4]
    assert gather.take(now=True) == []


def test_what_is_gathered_fits_half_of_a_short_window() -> None:
    """Where a notice comes five seconds ahead, nothing waits for five."""
    for window, longest in ((20, 5), (4, 2)):
        pace = Pace(window_s=window)
        pace.put_done(size=1_000, seconds=30.0)
        assert pace.gather_interval() == longest


def test_what_is_gathered_is_no_more_than_a_loss_may_cost() -> None:
    """Frequent interruptions, or cheap puts, make shards small; a fixed number decides alone."""
    cheap = Pace()
    cheap.put_done(size=1_000, seconds=0.01)
    assert cheap.gather_interval() == 1.0
    cheap.flush_done(1, 0.01)
    assert cheap.gather_interval() == 2.0
    often = Pace(expected_uptime_s=60.0)
    often.put_done(size=1_000, seconds=0.03)
    assert often.gather_interval() == young_interval(0.03, 60.0)
    assert Pace(flush_items=100).gather_interval() == math.inf


def test_of_layout_item_each_is_due_at_once() -> None:
    """One result is a portion, with or without haste."""
    gather = filled(Gather(ManualClock(), items=lambda: 1, size=1000, seconds=lambda: 5), 2)
    assert [numbers(gather.take()) for _ in range(3)] == [[0], [1], []]
