"""Enqueue, retry and reopen: items on their way in, and back in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from batchq.errors import BatchqError
from batchq.item import NewItem
from batchq.ledger import refusals
from batchq.ledger.records import CommittedResult, Enqueued, Policy, Rejection, Run, State
from batchq.ledger.sql import statements as sql
from batchq.ledger.sql.dialect import SQLITE
from batchq.ledger.sql.engine import Repeat, Transaction
from batchq.ledger.sql.names import COUNTERS, STATE_TABLES
from batchq.ledger.sql.process import Moves, Process, Row

__all__ = ["RETRY_PAGE", "enqueue", "reopen", "retry_named", "retry_page", "to_json"]

RETRY_PAGE = 5000
"""Dead letters sent back in one transaction, so that on SQLite nobody waits long."""

_SUPERSEDABLE = (State.READY, State.DELAYED, State.LEASED, State.DEAD_LETTERED)

_PASSES = 1000
"""How often to look for an item that other transactions keep moving between the tables."""


class _Named(NamedTuple):
    """An item, and the row that its document has already."""

    new: NewItem
    document: Any


@dataclass(slots=True)
class _Plan:
    """What is to become of each item of a batch; `fresh` ones are of new documents."""

    fresh: list[NewItem] = field(default_factory=list)
    same: list[_Named] = field(default_factory=list)
    changed: list[_Named] = field(default_factory=list)
    rejected: list[Rejection] = field(default_factory=list)


def enqueue(
    tx: Transaction,
    policy: Policy,
    worker: str,
    batch: int,
    items: Sequence[NewItem],
    *,
    replace: bool,
) -> Enqueued:
    """Take up a batch: documents are locked by source id, then the enqueuer's row."""
    answered = tx.record(sql.ANSWERED_BATCH, worker=worker)
    if answered is None:
        raise refusals.stranger(worker)
    if answered.last_batch >= batch:
        return _answer_again(worker, batch, answered)
    names = sorted({new.source_id for new in items})
    rows = tx.records(sql.NAMED, run=answered.run_id, names=names)
    documents = {row.source_id: row for row in rows}
    process = Process(tx, worker)
    if process.last_batch >= batch:
        # The first call of this batch was under way until now.
        return _answer_again(worker, batch, process)
    if documents or len(names) < len(items):
        plan = _plan(process, items, documents, replace=replace)
    else:
        plan = _Plan(fresh=list(items))
    answer = _Intake(process, policy).carry_out(plan, items)
    named = [name for name, document in documents.items() if document.enqueuer != process.id]
    if named:
        tx.run(sql.MARK_NAMED, run=process.run, worker=process.id, names=sorted(named))
    process.save(last_batch=batch, last_answer=to_json(answer))
    return answer


def _plan(
    process: Process, items: Sequence[NewItem], documents: dict[str, Any], *, replace: bool
) -> _Plan:
    plan = _Plan()
    named: set[str] = set()
    for new in items:
        document = documents.get(new.source_id)
        if new.source_id in named or (document and document.enqueuer == process.id):
            plan.rejected.append(Rejection(new.source_id, refusals.NAMED_TWICE))
        elif document is None:
            plan.fresh.append(new)
        elif document.source_version == new.source_version:
            plan.same.append(_Named(new, document))
        elif document.root == new.root or replace:
            plan.changed.append(_Named(new, document))
        else:
            reason = refusals.other_root(document.root, new.root)
            plan.rejected.append(Rejection(new.source_id, reason))
        named.add(new.source_id)
    return plan


class _Intake:
    """Writes what was planned, counting it in the process's tallies."""

    def __init__(self, process: Process, policy: Policy) -> None:
        self._process = process
        self._policy = policy
        self._tx = process.tx
        self._run = process.run

    def carry_out(self, plan: _Plan, items: Sequence[NewItem]) -> Enqueued:
        versions = self._versions([one.new.source_id for one in plan.changed])
        known = [(one.new, one.document.item_id, one.document.locator) for one in plan.same]
        created = plan.fresh
        if plan.changed:
            of_new_versions = {id(new) for new in plan.fresh}
            for one in plan.changed:
                version = versions.get((one.new.source_id, one.new.source_version))
                if version is None:
                    of_new_versions.add(id(one.new))
                else:
                    known.append((one.new, version.id, version.locator))
            # Numbered in the order in which they were listed.
            created = [new for new in items if id(new) in of_new_versions]
        item_ids = self._new_ids(len(created))
        ids = {new.source_id: item_id for new, item_id in zip(created, item_ids, strict=True)}
        if self._tx.dialect is SQLITE and created is plan.fresh and _one_root(created):
            # A value that is read back there costs a fraction of one that is handed over.
            self._add_items(created, item_ids)
            self._add_documents_like_items(created, item_ids)
        else:
            self._add_documents(plan.fresh, ids)
            self._add_items(created, item_ids)
        self._name_again(known)
        superseded = self._supersede([one.document.item_id for one in plan.changed])
        current = ids | {new.source_id: item_id for new, item_id, _ in known}
        self._repoint([one.new for one in plan.changed], current)
        return Enqueued(len(ids), len(known), superseded, tuple(plan.rejected))

    def _versions(self, names: list[str]) -> dict[tuple[str, str], Any]:
        """Every item of the named documents."""
        rows = self._tx.records(sql.VERSIONS, run=self._run, names=names) if names else ()
        return {(row.source_id, row.source_version): row for row in rows}

    def _new_ids(self, count: int) -> list[int]:
        """Ids for new items, so that a document is written once, with its item."""
        if not count:
            return []
        if self._tx.dialect is SQLITE:
            highest = self._tx.rows(sql.HIGHEST_ID)[0][0]
            return list(range(highest + 1, highest + 1 + count))
        return sorted(row[0] for row in self._tx.rows(sql.NEXT_IDS, count=count))

    def _add_documents(self, fresh: list[NewItem], ids: dict[str, int]) -> None:
        run, enqueuer = self._run, self._process.id
        rows = [(run, new.source_id, ids[new.source_id], new.root, enqueuer) for new in fresh]
        rows.sort()
        columns = ("run_id", "source_id", "item_id", "root", "enqueuer")
        if self._tx.insert("documents", columns, rows, new_only=True) < len(rows):
            # Another enqueue has just added some of them: now they are known.
            raise Repeat

    def _add_documents_like_items(self, fresh: list[NewItem], item_ids: list[int]) -> None:
        """For items that were just added, and have the highest ids there are."""
        root, enqueuer = fresh[0].root, self._process.id
        self._tx.run(sql.NAME_LIKE_ITEMS, root=root, enqueuer=enqueuer, first=item_ids[0])

    def _add_items(self, created: list[NewItem], ids: list[int]) -> None:
        if not created:
            return
        run = self._run
        items = [
            (item_id, run, new.source_id, new.source_version, new.size, new.locator)
            for item_id, new in zip(ids, created, strict=True)
        ]
        columns = ("id", "run_id", "source_id", "source_version", "size", "locator")
        self._tx.insert("items", columns, items)
        self._tx.run(sql.MAKE_READY, run=run, ids=ids)
        self._process.moved(None, State.READY, len(items))

    def _name_again(self, known: list[tuple[NewItem, int, str]]) -> None:
        """Known items: where they lie may have changed, and superseded ones come back."""
        self._process.tally["known"] += len(known)
        moved = [(item_id, new.locator) for new, item_id, was in known if was != new.locator]
        if moved:
            completed = self._completed([item_id for item_id, _ in moved])
            self._tx.run_each(
                sql.RELOCATE,
                [{"item": i, "locator": to} for i, to in sorted(moved) if i not in completed],
            )
        if not known:
            return
        table = STATE_TABLES[State.SUPERSEDED]
        ids = sorted(item_id for _, item_id, _ in known)
        moves = Moves(self._process, State.SUPERSEDED, self._policy)
        for row in self._tx.rows(sql.rows_of(table), run=self._run, ids=ids):
            moves.delay(Row(*row).begin_anew())
        moves.save()

    def _supersede(self, item_ids: list[int]) -> int:
        """Supersede those that are not completed, wherever they are; how many that were."""
        missing, superseded = set(item_ids), 0
        for _ in range(_PASSES):
            if not missing:
                return superseded
            # Others move items meanwhile, and one may slip past from table to table.
            for state in _SUPERSEDABLE:
                rows = self._take(state, missing)
                missing -= {row[0] for row in rows}
                superseded += len(rows)
            missing -= self._completed(sorted(missing))
        raise BatchqError(
            f"items {sorted(missing)} are in no state of the ledger",
            hint="run `batchq verify` to see what else is damaged",
        )

    def _take(self, state: State, item_ids: set[int]) -> Sequence[Any]:
        if not item_ids:
            return ()
        statement = sql.take_from(STATE_TABLES[state])
        rows = self._tx.rows(statement, run=self._run, ids=sorted(item_ids))
        superseded = [(self._run, *row) for row in sorted(rows)]
        self._tx.insert(STATE_TABLES[State.SUPERSEDED], ("run_id", "id", *COUNTERS), superseded)
        self._process.moved(state, State.SUPERSEDED, len(rows))
        return rows

    def _completed(self, item_ids: list[int]) -> set[int]:
        if not item_ids:
            return set()
        return {row[0] for row in self._tx.rows(sql.COMMITTED, run=self._run, ids=item_ids)}

    def _repoint(self, changed: list[NewItem], current: dict[str, int]) -> None:
        self._tx.run_each(
            sql.REPOINT,
            [
                {
                    "run": self._run,
                    "source_id": new.source_id,
                    "item": current[new.source_id],
                    "root": new.root,
                }
                for new in sorted(changed, key=lambda new: new.source_id)
            ],
        )


def _one_root(items: Sequence[NewItem]) -> bool:
    return len({new.root for new in items}) == 1


def _answer_again(worker: str, batch: int, process: Any) -> Enqueued:
    if process.last_batch > batch:
        raise refusals.earlier_batch(worker, batch, process.last_batch)
    raw = json.loads(process.last_answer)
    rejected = tuple(Rejection(source, reason) for source, reason in raw["rejected"])
    return Enqueued(raw["new"], raw["known"], raw["superseded"], rejected)


def to_json(answer: Enqueued) -> str:
    """What an enqueuer's row keeps, for when it asks again."""
    rejected = [(one.source, one.reason) for one in answer.rejected]
    return json.dumps(
        {
            "new": answer.new,
            "known": answer.known,
            "superseded": answer.superseded,
            "rejected": rejected,
        }
    )


def retry_named(
    process: Process, policy: Policy, run: Run, source_ids: Sequence[str], cause: str | None
) -> int:
    """Send back the dead letters among the items of the named documents."""
    names = sorted(set(source_ids))
    ids = [row[0] for row in process.tx.rows(sql.ITEMS_OF, run=run.id, names=names)]
    rows = process.tx.rows(sql.DEAD_AMONG, run=run.id, ids=ids, cause=cause)
    return _send_back(process, policy, rows)


def retry_page(
    process: Process, policy: Policy, run: Run, after: int, cause: str | None
) -> tuple[int, int | None]:
    """Send back a page of dead letters: how many, and the id to go on after, if any."""
    rows = process.tx.rows(sql.DEAD_OF_RUN, run=run.id, after=after, cause=cause, limit=RETRY_PAGE)
    sent_back = _send_back(process, policy, rows)
    return sent_back, rows[-1][0] if len(rows) == RETRY_PAGE else None


def _send_back(process: Process, policy: Policy, rows: Sequence[Any]) -> int:
    moves = Moves(process, State.DEAD_LETTERED, policy)
    for row in rows:
        moves.delay(Row(*row).begin_anew())
    moves.save()
    process.save()
    return len(rows)


def reopen(process: Process, policy: Policy, run: Run, broken: Sequence[CommittedResult]) -> int:
    """Send back the items that are still completed as given; how many."""
    given = {(one.item_id, one.generation, one.stored.sha256) for one in broken}
    ids = sorted({one.item_id for one in broken})
    moves = Moves(process, State.COMPLETED, policy)
    for *counters, sha256, empty in process.tx.rows(sql.COMPLETED, run=run.id, ids=ids):
        row = Row(*counters)
        if _is_given(row, sha256, given):
            process.tally["empty"] -= empty
            moves.delay(row.begin_anew())
    process.tx.run(sql.KEEP_HISTORY, run=run.id, ids=moves.delayed, now=process.now)
    moves.save()
    process.save()
    return len(moves.delayed)


def _is_given(row: Row, sha256: str, given: set[tuple[int, int, str]]) -> bool:
    return (row.id, row.generation, sha256) in given
