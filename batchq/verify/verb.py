"""The audit: every committed result read back, then every object explained.

1. The tallies against a recount of the rows, both while nothing moves.
2. Each committed result, or a sample: twice, if the first read finds it missing or altered.
3. Each object of the run that no row names, by the orphan rule.
4. Asked for: what is damaged, and still is, goes back as a new generation; orphans are removed.

The ledger may be at work meanwhile. A result that is committed behind the place where the
audit has come to is not read, and the object of one is found in the ledger by its content.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from itertools import islice

from batchq.errors import StoreUnusable
from batchq.garbage import seldom_collected
from batchq.ledger.base import CommittedResult, Ledger, Run
from batchq.result import marker_key
from batchq.store.base import Store, StoreError
from batchq.verify.journal import Damage, Journal
from batchq.verify.objects import judge_objects, place_of
from batchq.verify.reading import Reading
from batchq.verify.rule import Verdict
from batchq.verify.sample import choose

__all__ = ["Report", "audit"]

PAGE = 1024
"""Results or objects between two entries of the journal."""

READERS = 16
"""Objects read at once: a remote store answers each in tens of milliseconds."""

LISTED = 1000
"""Damaged results and orphans that a report names."""

COUNTED = (
    *("total", "ready", "delayed", "leased", "completed", "empty", "dead_lettered"),
    "superseded",
)
"""The tallies that are numbers of rows."""

Progress = Callable[[str, int, int | None], None]
"""Hears what is being looked at, how many so far and of how many."""

Operator = Callable[[], AbstractContextManager[str]]
"""Registers a process for as long as the context lasts; its name."""


@dataclass(frozen=True, slots=True)
class Report:
    """What an audit found.

    `orphans`, `unsettled` (objects that no row names and that are no orphans) and
    `tally_drift` are none where only a sample was read. `tally_drift`: what a recount found,
    less the tally, of each that differs; none too if the run never stood still. `repaired`:
    items this audit sent back; `unrepaired`: damaged ones still committed. `damage` and
    `orphan_keys` hold the first LISTED.
    """

    checked: int
    missing: int
    corrupt: int
    orphans: int | None
    unsettled: int | None
    tally_drift: Mapping[str, int] | None
    repaired: int
    unrepaired: int
    removed: int
    damage: tuple[Damage, ...]
    orphan_keys: tuple[str, ...]

    @property
    def ok(self) -> int:
        return self.checked - self.missing - self.corrupt

    @property
    def is_sound(self) -> bool:
        """Whether no damage is left. Orphans are litter, not damage."""
        return self.unrepaired == 0 and not self.tally_drift


def audit(
    ledger: Ledger,
    run: Run,
    store: Store,
    journal: Journal,
    *,
    sample: int | None = None,
    repair_as: Operator | None = None,
    remove_orphans: bool = False,
    progress: Progress = lambda what, done, total: None,
) -> Report:
    """Audit `run`, going on where `journal` stopped.

    `sample`: read so many results, chosen uniformly, and look for no orphans and no drift.
    `repair_as`: registers a process that sends damaged items back, if that is asked for.
    Raises StoreUnusable where the store gives no answer: nothing is known then, and the
    same audit asked again goes on from there.
    """
    drift = _tally_drift(ledger, run) if sample is None else None
    with (
        seldom_collected(),
        ThreadPoolExecutor(READERS, thread_name_prefix="verify") as readers,
    ):
        task = _Audit(ledger, run, store, journal, readers, progress)
        try:
            task.results(sample)
            if sample is None:
                task.objects()
            if repair_as is not None or journal.resumed:
                task.settle_damage(repair_as)
            if remove_orphans:
                task.remove_orphans()
        except StoreError as error:
            raise StoreUnusable(
                f"the store {store.url} gave no answer, so the audit stops here: {error}",
                hint="this is no damage; check the store and repeat the command, which goes on "
                "where it stopped",
            ) from error
    return Report(
        checked=journal.checked,
        missing=journal.damage_count("missing"),
        corrupt=journal.damage_count("corrupt"),
        orphans=journal.orphan_count() if sample is None else None,
        unsettled=journal.unsettled if sample is None else None,
        tally_drift=drift,
        repaired=journal.repaired,
        unrepaired=journal.unrepaired_count,
        removed=journal.orphan_count(removed=True),
        damage=tuple(journal.damage(LISTED)),
        orphan_keys=tuple(journal.orphans(LISTED)),
    )


def _tally_drift(ledger: Ledger, run: Run, tries: int = 3) -> Mapping[str, int] | None:
    for _ in range(tries):
        before = ledger.counts(run)
        recounted = asdict(ledger.recount(run))
        # Whatever moves an item also moves a counter that only grows: equal means still.
        if before.exact and before.tallies == ledger.counts(run).tallies:
            tallies = asdict(before.tallies)
            drift = {name: recounted[name] - tallies[name] for name in COUNTED}
            return {name: by for name, by in drift.items() if by}
    return None


class _Audit:
    def __init__(
        self,
        ledger: Ledger,
        run: Run,
        store: Store,
        journal: Journal,
        readers: ThreadPoolExecutor,
        progress: Progress,
    ) -> None:
        self._ledger = ledger
        self._run = run
        self._store = store
        self._journal = journal
        self._readers = readers
        self._progress = progress

    # -- results -----------------------------------------------------------------

    def results(self, sample: int | None) -> None:
        if self._journal.results_done:
            return
        if sample is not None and not self._journal.sampled:
            chosen = choose(
                self._ledger,
                self._run,
                sample,
                lambda seen: self._progress("rows to choose from", seen, None),
            )
            self._journal.choose(chosen)
        total = self._journal.sampled or self._ledger.counts(self._run).tallies.completed
        for last, rows, reading in self._read_ahead(sample):
            damage = reading.damage()
            # A sample cannot tell an orphan from what it did not look at.
            named = self._named(rows) if sample is None else {}
            self._journal.saw_results(last, len(rows), named.items(), damage)
            self._progress("results", self._journal.checked, total)
        self._journal.finish_results()

    def _read_ahead(
        self, sample: int | None
    ) -> Iterator[tuple[int, list[CommittedResult], Reading]]:
        """The same pages, each while the store is asked for the next one's results."""
        begun: deque[tuple[int, list[CommittedResult], Reading]] = deque()
        for last, rows in self._pages(sample):
            begun.append((last, rows, self._reading(rows)))
            if len(begun) > 1:
                yield begun.popleft()
        yield from begun

    def _reading(self, rows: list[CommittedResult]) -> Reading:
        return Reading(self._readers, self._store, self._run, rows)

    def _pages(self, sample: int | None) -> Iterator[tuple[int, list[CommittedResult]]]:
        """Pages of results from where the journal stands, each with its last item id."""
        last = self._journal.last_result
        if sample is None:
            asked = self._readers.submit(self._ledger.results, self._run, last, PAGE)
            while rows := asked.result():
                last = rows[-1].item_id
                asked = self._readers.submit(self._ledger.results, self._run, last, PAGE)
                yield last, rows
        else:
            while items := self._journal.chosen(last, PAGE):
                last = items[-1]
                yield last, [row for item in items for row in self._row(item)]

    def _is_committed(self, row: CommittedResult) -> bool:
        """Whether nobody has sent the item back since."""
        return row in self._row(row.item_id)

    def _row(self, item: int) -> list[CommittedResult]:
        """The item's result, unless it has been reopened since it was chosen."""
        rows = self._ledger.results(self._run, item - 1, 1)
        return [row for row in rows if row.item_id == item]

    def _named(self, rows: list[CommittedResult]) -> dict[tuple[int, int], int]:
        return {place_of(self._run.layout, row.stored.key): row.item_id for row in rows}

    # -- objects -----------------------------------------------------------------

    def objects(self) -> None:
        if self._journal.objects_done:
            return
        marker = marker_key(self._run.prefix)
        listing = self._store.list(f"{self._run.prefix}/", self._journal.last_key)
        seen = 0
        while page := list(islice(listing, PAGE)):
            keys = [info.key for info in page if info.key != marker]
            verdicts = list(self._judge([key for key in keys if not self._is_named(key)]))
            orphans = [key for key, verdict in verdicts if verdict is Verdict.ORPHAN]
            unsettled = sum(verdict is Verdict.UNSETTLED for _, verdict in verdicts)
            self._journal.saw_objects(page[-1].key, unsettled, orphans)
            seen += len(page)
            self._progress("objects", seen, None)
        self._journal.finish_objects()

    def _is_named(self, key: str) -> bool:
        place, generation = place_of(self._run.layout, key)
        return any(generation == named for named, _ in self._journal.named_at(place))

    def _judge(self, keys: list[str]) -> Iterator[tuple[str, Verdict]]:
        if not keys:
            return iter(())
        return judge_objects(
            self._readers, self._ledger, self._run, self._store, self._journal, keys
        )

    # -- mending -----------------------------------------------------------------

    def settle_damage(self, operator: Operator | None) -> None:
        """Forget damage that is gone or was repaired, and with an operator send back the rest."""
        last = 0
        while rows := self._journal.unrepaired(last, PAGE):
            last = rows[-1].item_id
            # It may have been noted long ago: an object restored since is a result again.
            damaged = [damage.result for damage in self._reading(rows).damage()]
            left = {row.item_id for row in damaged}
            self._journal.forget([row for row in rows if row.item_id not in left])
            if operator is None:
                gone = [row for row in damaged if not self._is_committed(row)]
                self._journal.repair(gone, sent_back=0)
                continue
            if not damaged:
                continue
            # One for each page: it beats no more, and a long audit would see it reaped.
            with operator() as name:
                sent_back = self._ledger.reopen(name, self._run, damaged)
            # Where it took no effect, somebody else has sent the item back meanwhile.
            self._journal.repair(damaged, sent_back)
            self._progress("repaired", self._journal.repaired, None)

    def remove_orphans(self) -> None:
        while keys := self._journal.orphans(PAGE, left=True):
            list(self._readers.map(self._store.delete, keys))
            self._journal.remove(keys)
            self._progress("orphans removed", self._journal.orphan_count(removed=True), None)
