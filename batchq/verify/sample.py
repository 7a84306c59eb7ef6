"""Results chosen by chance, each as likely as any other, without reading all rows.

Ids are drawn at random between the first and the last, and those count that have a result.
The windows that are drawn are all of one width, so that how far an id is from its neighbours
changes nothing: whoever took the next result after a number drawn would meet those behind a
long gap more often. Where ids count up, a window is one id, since neighbours lie in one object
and would be lost together. Where they are digests, neighbours have nothing in common, and a
window is a page. The last page is not used up, which makes those in a dense part of the digests
a little less likely, by some hundredths; no property of a document leads there.
"""

from __future__ import annotations

from collections.abc import Callable

from batchq.clock import random_hex
from batchq.ledger.base import Ledger, Run

__all__ = ["choose"]

PAGE = 1024
"""Rows asked of the ledger at once, where all are read."""

WINDOW = 100
"""Results in a window of digests, on average: a ledger of such ids reads no fewer at once."""

WORTH = 50
"""Rows that are read in a page in the time that one id takes by itself."""

SPARSEST = 8
"""Ids for each result up to which they are drawn: below, most draws are in vain."""

COUNTED = 1 << 63
"""No database counts higher; ids above are digests."""


def choose(ledger: Ledger, run: Run, sample: int, progress: Callable[[int], None]) -> list[int]:
    """Item ids of `sample` results, or of all where there are fewer.

    `progress` hears how many rows have been looked at.
    """
    completed = ledger.counts(run).tallies.completed
    if sample * WORTH < completed and (bounds := _bounds(ledger, run)):
        drawn = _draw(ledger, run, sample, completed, bounds, progress)
        if drawn:
            return _some_of(sorted(drawn), sample)
    return _from_all(ledger, run, sample, progress)


def _bounds(ledger: Ledger, run: Run) -> tuple[int, int] | None:
    """The id of the first result, and one not far above that of the last."""
    rows = ledger.results(run, 0, 1)
    if not rows:
        return None
    first = low = rows[0].item_id
    step = 1
    while rows := ledger.results(run, low + step, 1):
        low, step = rows[0].item_id, 2 * step
    high = low + step
    while high - low > (high - first) // 8:
        middle = (low + high) // 2
        if rows := ledger.results(run, middle, 1):
            low = rows[0].item_id
        else:
            high = middle
    return first, high


def _draw(
    ledger: Ledger,
    run: Run,
    sample: int,
    completed: int,
    bounds: tuple[int, int],
    progress: Callable[[int], None],
) -> set[int] | None:
    """At least `sample` ids, or none where too many draws are in vain."""
    first, last = bounds
    span = last - first + 1
    is_counted = last < COUNTED
    if is_counted and span > SPARSEST * completed:
        return None
    width = 1 if is_counted else span * WINDOW // completed
    drawn: set[int] = set()
    # The tally may be wrong, and a run may lose results meanwhile.
    for _ in range(4 * SPARSEST * sample):
        # As many windows reach the first id as any other.
        start = first - width + 1 + _below(span + width - 1)
        drawn.update(_in_window(ledger, run, start, width))
        progress(len(drawn))
        if len(drawn) >= sample:
            return drawn
    return None


def _in_window(ledger: Ledger, run: Run, start: int, width: int) -> list[int]:
    found: list[int] = []
    after = start - 1
    limit = min(width, WINDOW)
    while rows := ledger.results(run, after, limit):
        found += [row.item_id for row in rows if row.item_id < start + width]
        after = rows[-1].item_id
        if len(rows) < limit or after >= start + width - 1:
            break
    return found


def _some_of(items: list[int], number: int) -> list[int]:
    """So many of them, by chance."""
    for place in range(number):
        other = place + _below(len(items) - place)
        items[place], items[other] = items[other], items[place]
    return items[:number]


def _from_all(ledger: Ledger, run: Run, sample: int, progress: Callable[[int], None]) -> list[int]:
    """A reservoir: each row takes the place of another with the chance that is its own."""
    chosen: list[int] = []
    last, seen = 0, 0
    while rows := ledger.results(run, last, PAGE):
        for row in rows:
            seen += 1
            place = _below(seen)
            if len(chosen) < sample:
                chosen.append(row.item_id)
            elif place < sample:
                chosen[place] = row.item_id
        last = rows[-1].item_id
        progress(seen)
    return chosen


def _below(bound: int) -> int:
    """A number in [0, bound). 256 bits: what is left of the bias nobody can measure."""
    return int(random_hex(256), 16) % bound
