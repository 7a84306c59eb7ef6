"""Enqueue: a batch in parts, each one transaction with the count of what is done.

The enqueuer's row says how many documents of its batch have been taken up, and what they
brought. So a batch asked again goes on where it stopped, and two calls at once share it.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from batchq.item import NewItem
from batchq.ledger.dynamodb import ended, items
from batchq.ledger.dynamodb.bundles import rows_for
from batchq.ledger.dynamodb.calls import Calls
from batchq.ledger.dynamodb.fleet import Answer, Process
from batchq.ledger.dynamodb.items import ItemRow
from batchq.ledger.dynamodb.keys import Keys, Ranks, item_id
from batchq.ledger.dynamodb.refusals import ConditionFailed
from batchq.ledger.dynamodb.unit import PER_PROCESS, Unit, current_rows
from batchq.ledger.dynamodb.wire import equal
from batchq.ledger.records import Enqueued, State
from batchq.ledger.refusals import NAMED_TWICE, earlier_batch, other_root

__all__ = ["enqueue"]

PER_NEW, PER_KNOWN = 1, 3
"""Rows that a document may take: its own; that of another version, and a lease."""

BYTES = 2_000_000
"""A transaction may have 4 MB."""


def enqueue(
    calls: Calls,
    keys: Keys,
    ranks: Ranks,
    process: Process,
    batch: int,
    new: Sequence[NewItem],
    now: int,
    *,
    replace: bool,
) -> Enqueued:
    """Take up what is left of `new`; the answer of the whole batch."""
    name = process.name
    away: set[str] = set()
    while True:
        if batch < process.batch:
            raise earlier_batch(name, batch, process.batch)
        if batch > process.batch:
            process.done, process.answer = -1, Answer()
        done = max(0, process.done)
        if process.batch == batch and done >= len(new):
            return process.answer.enqueued(new)
        intake = _Intake(calls, keys, ranks, process, away, now, replace)
        only_if = (
            [equal("batch", process.batch), equal("done", process.done)]
            if process.batch == batch
            else [equal("batch", process.batch)]
        )
        try:
            done += intake.take_up(new, done)
            answer = intake.answer
            intake.unit.process(
                name, {"batch": batch, "done": done, "answer": answer.pack()}, only_if
            )
            intake.unit.write()
        except ConditionFailed:
            # A row has changed since it was read, or the same batch is sent elsewhere too.
            row = ended.find(calls, keys, name)
            assert row is not None, f"the row of {name} has been deleted"
            process = Process.unpack(row)
            continue
        process.batch, process.done, process.answer = batch, done, answer


class _Intake:
    """One part of a batch."""

    def __init__(
        self,
        calls: Calls,
        keys: Keys,
        ranks: Ranks,
        process: Process,
        away: set[str],
        now: int,
        replace: bool,
    ) -> None:
        self._calls = calls
        self._keys = keys
        self._ranks = ranks
        self._name = process.name
        self._now = now
        self._replace = replace
        self._before = process.answer
        self._brought: Counter[str] = Counter()
        self._rejected: defaultdict[str, list[int]] = defaultdict(list)
        for reason, places in process.answer.rejected.items():
            self._rejected[reason].extend(places)
        self._rows: dict[int, ItemRow] = {}
        self._was: dict[int, int | None] = {}
        self.unit = Unit(calls, keys, away, ranks)

    @property
    def answer(self) -> Answer:
        before = self._before
        return Answer(
            new=before.new + self._brought["new"],
            known=before.known + self._brought["known"],
            superseded=before.superseded + self._brought["superseded"],
            rejected=dict(self._rejected),
        )

    def take_up(self, batch: Sequence[NewItem], done: int) -> int:
        """Put as many as fit into the unit, from the place `done` on; how many.

        Raises ConditionFailed if a row is not there any more that another leads to.
        """
        # Beside the rows of this process, and the bundles if all are new.
        room = self._calls.transaction - PER_PROCESS
        new = batch[done : done + room - rows_for(room)]
        digests = [self._ranks.digest(one.source_id) for one in new]
        self._rows = current_rows(self._calls, self._keys, digests)
        self._was = {digest: row.rev for digest, row in self._rows.items()}
        self.unit.read_leases(row for row in self._rows.values() if row.state == State.LEASED)
        size = 0
        for taken, (digest, one) in enumerate(zip(digests, new, strict=True)):
            size += 1_000 + 6 * len(one.source_id) + 6 * len(one.locator)
            rows = PER_KNOWN if digest in self._rows else PER_NEW
            if not self.unit.has_room(rows) or (taken and size > BYTES):
                return taken
            reason = self._take_one(digest, one)
            if reason is not None:
                self._rejected[reason].append(done + taken)
        return len(new)

    def _take_one(self, digest: int, new: NewItem) -> str | None:
        row = self._rows.get(digest)
        if row is None:
            self._create(digest, new, 1, "")
            return None
        if row.source_id != new.source_id:
            return f"its name has the same digest as {row.source_id}; rename one of the two"
        if row.named_by == self._name:
            return NAMED_TWICE
        if row.source_version == new.source_version:
            self._know(row, new)
            row.named_by = self._name
            self._put(row)
            return None
        if row.root != new.root and not self._replace:
            # Whoever names it next is not the first to do so.
            row.named_by = self._name
            self._put(row)
            return other_root(row.root, new.root)
        self._supersede(row, new)
        return None

    def _create(self, digest: int, new: NewItem, ordinal: int, versions: str) -> None:
        row = ItemRow(
            digest,
            ordinal=ordinal,
            source_id=new.source_id,
            source_version=new.source_version,
            size=new.size,
            locator=new.locator,
            root=new.root,
            named_by=self._name,
            versions=versions,
            rev=1,
        )
        self._rows[digest] = row
        self._brought["new"] += 1
        self.unit.tally(self._name).update(total=1, ready=1)
        self._put(row)

    def _put(self, row: ItemRow) -> None:
        self.unit.put(row, self._was.get(row.digest))

    def _know(self, row: ItemRow, new: NewItem) -> None:
        self._brought["known"] += 1
        self.unit.tally(self._name)["known"] += 1
        if row.state != State.COMPLETED:
            row.locator = new.locator

    def _supersede(self, outdated: ItemRow, new: NewItem) -> None:
        """The outdated version moves to a row of its own; the named one takes its place."""
        digest = outdated.digest
        versions = outdated.ordinals()
        known = versions.get(new.source_version)
        tally = self.unit.tally(self._name)
        if outdated.state == State.LEASED:
            self.unit.leave(outdated)
        if outdated.state != State.COMPLETED:
            items.move(outdated, State.SUPERSEDED, tally)
            self._brought["superseded"] += 1
        # A version row is written and deleted along with the document's, which guards it.
        apart = replace(outdated, versions="", named_by="", apart=True)
        if known is None:
            versions[new.source_version] = max(versions.values()) + 1
            self._create(digest, new, versions[new.source_version], json.dumps(versions))
        else:
            self._bring_back(digest, known, json.dumps(versions), new)
        # A current row's revision never returns: old claims of other versions must fail.
        self._rows[digest].rev = max(self._rows[digest].rev, outdated.rev) + 1
        self.unit.put(apart, None)

    def _bring_back(self, digest: int, ordinal: int, versions: str, new: NewItem) -> None:
        key = self._keys.version(item_id(digest, ordinal))
        found = self._calls.get(key)
        if found is None:
            # Another enqueue has just brought it back.
            raise ConditionFailed(f"version {ordinal} of {new.source_id} has no row")
        row = ItemRow.unpack(found)
        self.unit.delete(key, row.rev)
        row.apart = False
        self._know(row, new)
        row.root, row.named_by, row.versions = new.root, self._name, versions
        self._rows[digest] = row
        if row.state == State.SUPERSEDED:
            items.begin_anew(row, self.unit.tally(self._name), self._now)
        self._put(row)
