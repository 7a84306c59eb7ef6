"""Claim: an intent that names what is wanted, then each item on condition that it is free.

The intent is a lease row, written in one transaction with the worker's own row, so none can
be written once the worker is marked as reaped; what it takes out of bundles is in that
transaction too. It names each item with the revision at which it was seen. Whoever ends the
lease gives an item that the claim has not reached yet another revision, and a claim that lands
late finds nothing to take.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from batchq.lease import Lease
from batchq.ledger.dynamodb import ended
from batchq.ledger.dynamodb.bundles import Bundle, walk
from batchq.ledger.dynamodb.calls import Calls
from batchq.ledger.dynamodb.fleet import LeaseRow, Process, entry, entry_id, entry_rev
from batchq.ledger.dynamodb.items import ItemRow
from batchq.ledger.dynamodb.keys import INDEX, Keys, document_of, item_id, ordinal_of
from batchq.ledger.dynamodb.refusals import ConditionFailed
from batchq.ledger.dynamodb.unit import Unit, read_items, together
from batchq.ledger.dynamodb.wire import Key, absent, equal, write
from batchq.ledger.records import ISOLATED_LOSSES, State, WorkerState, lease_cap
from batchq.ledger.refusals import leases_over

__all__ = ["Claiming"]

Wanted = tuple[bytes, Key]
"""An entry of the lease, and where its row lies."""

ROUNDS = 20
"""Claims that found everything taken by others, before this one gives up."""

PAGE = 100


@dataclass(frozen=True, slots=True)
class Candidate:
    """A delayed item as the index shows it."""

    entry: bytes
    losses: int
    place: Key


@dataclass(frozen=True, slots=True)
class Choice:
    """What a claim wants: delayed items that are due, and entries `taken` out of bundles."""

    due: list[Candidate]
    taken: list[tuple[Bundle, frozenset[bytes]]] = field(default_factory=list)

    def wanted(self, keys: Keys) -> list[Wanted]:
        """Each item once, at the last of the revisions at which it was seen."""
        # A ready item is its document's current one.
        places = {
            one: keys.document(document_of(entry_id(one)))
            for _, taken in self.taken
            for one in taken
        }
        places.update((one.entry, one.place) for one in self.due)
        last = {entry_id(one): one for one in sorted(places)}
        return [(one, places[one]) for one in last.values()]


class Claiming:
    """One worker's claims. `cursor` is the rank after which the next one looks first."""

    def __init__(self, calls: Calls, keys: Keys, worker: str, cursor: int) -> None:
        self._calls = calls
        self._keys = keys
        self._worker = worker
        self.cursor = cursor

    def claim(
        self, process: Process, token: str, limit: int, now: int, *, alone: bool
    ) -> Lease | None:
        if process.state is not WorkerState.LIVE:
            raise leases_over(self._worker, process.state)
        if token == process.last_token:
            return self._again(token, process.committed)
        last = process.last_token
        for _ in range(ROUNDS):
            choice = self._choose(limit, now, alone)
            if not choice.due and not choice.taken:
                return None
            wanted = choice.wanted(self._keys)
            announced = self._intend(token, last, choice, wanted, now)
            last = token if announced is None else announced
            if announced == token:
                return self._again(token, process.committed)
            if announced is not None:
                continue
            rows = self._take(token, wanted, process.committed)
            if rows:
                return _lease(token, rows)
        return None

    # -- choosing ------------------------------------------------------------------------

    def _choose(self, limit: int, now: int, alone: bool) -> Choice:
        due = self._due(limit, now, alone)
        if due and due[0].losses:
            return Choice(due)
        choice = Choice(due)
        room = limit - len(due)
        # The lease and the worker's row are written along with the bundles.
        most = self._calls.transaction - 2
        found = walk(self._calls, self._keys, self.cursor, room) if room > 0 else iter(())
        for bundle in islice(found, most):
            taken = frozenset(sorted(bundle.entries)[:room])
            choice.taken.append((bundle, taken))
            room -= len(taken)
            # What is left of this one comes first the next time.
            self.cursor = max(0, bundle.rank - (taken != bundle.entries))
            if room == 0:
                break
        return choice

    def _due(self, limit: int, now: int, alone: bool) -> list[Candidate]:
        """Delayed items whose time has come: as many losses as the first, as many as may be."""
        chosen: list[Candidate] = []
        # A time is followed by a mark that sorts below the one used here.
        rows = self._calls.query(
            self._keys.all_delayed, "#s < :a", f"{now:015d}~", index=INDEX, limit=max(PAGE, limit)
        )
        for row in rows:
            one = _candidate(row)
            if one.losses >= ISOLATED_LOSSES and not alone:
                continue
            if not chosen or one.losses == chosen[0].losses:
                chosen.append(one)
            if len(chosen) == lease_cap(chosen[0].losses, limit):
                break
        return chosen

    # -- taking --------------------------------------------------------------------------

    def _intend(
        self, token: str, last: str, choice: Choice, wanted: list[Wanted], now: int
    ) -> str | None:
        """Write down what this claim wants; the worker's last token if that was refused.

        It is where another has taken from one of the bundles, and where an intent landed after
        `last`: so one that lands late, after its claim was asked again, takes nothing.
        """
        entries = frozenset(one for one, _ in wanted)
        due = entries.intersection(one.entry for one in choice.due)
        lease = LeaseRow(self._worker, token, now, entries - due, due, 1)
        table, keys = self._calls.table, self._keys
        announced = keys.lease(self._worker, token)
        try:
            self._calls.transact(
                [
                    write(table, announced, put=lease.pack(keys), only_if=[absent()]),
                    write(
                        table,
                        keys.process(self._worker),
                        set={"token": token},
                        add=lease.taken(entries),
                        only_if=[
                            equal("state", WorkerState.LIVE.value),
                            equal("token", last) if last else absent("token"),
                        ],
                    ),
                    *(bundle.without(table, taken) for bundle, taken in choice.taken),
                ]
            )
        except ConditionFailed:
            row = ended.find(self._calls, keys, self._worker)
            process = None if row is None else Process.unpack(row)
            if process is None or process.state is not WorkerState.LIVE:
                state = process.state if process else "unknown"
                raise leases_over(self._worker, state) from None
            return process.last_token
        return None

    def _take(
        self, token: str, wanted: list[Wanted], committed: int, lost: Iterable[bytes] = ()
    ) -> list[ItemRow]:
        """Claim each; those that others have taken, and the `lost`, leave the lease."""
        rows = self._calls.each(lambda one: self._take_one(token, *one, committed), wanted)
        lost = [*lost, *(one[0] for one, row in zip(wanted, rows, strict=True) if row is None)]
        if lost:
            self._give_up(token, lost)
        return [row for row in rows if row is not None]

    def _take_one(self, token: str, one: bytes, place: Key, committed: int) -> ItemRow | None:
        item = entry_id(one)
        changes: dict[str, object] = {
            "st": State.LEASED.value,
            "tok": token,
            "hold": self._worker,
            "hc": committed,
        }
        try:
            row = self._calls.write(
                place,
                set=changes,
                add={"v": 1, "att": 1},
                remove=("q", "r"),
                only_if=[equal("v", entry_rev(one)), equal("n", ordinal_of(item))],
            )
            return ItemRow.unpack(row)
        except ConditionFailed:
            # Perhaps by this very claim, whose answer was lost.
            taken = read_items(self._calls, self._keys, [item]).get(item)
            return taken if taken and taken.held_under(token) else None

    def _give_up(self, token: str, lost: list[bytes]) -> None:
        def give_up(unit: Unit) -> None:
            for one in lost:
                unit.drop(self._worker, token, entry_id(one))

        together(self._calls, self._keys, give_up)

    # -- asked again ---------------------------------------------------------------------

    def _again(self, token: str, committed: int) -> Lease | None:
        """What the token holds, having claimed what its first call has not reached yet."""
        row = self._calls.get(self._keys.lease(self._worker, token))
        if row is None:
            return None
        lease = LeaseRow.unpack(row)
        found = read_items(self._calls, self._keys, lease.entries)
        held = [row for row in found.values() if row.held_under(token)]
        # Those that the first call has not reached, or not yet.
        wanted = [
            (one, row.lies_at(self._keys))
            for item, row in found.items()
            if row.rev == entry_rev(one := lease.entries[item])
        ]
        # Others took these meanwhile. Revisions only grow: no late claim finds them again.
        lost = [
            lease.entries[item]
            for item, row in found.items()
            if row.rev != entry_rev(lease.entries[item])
            and not (row.held_under(token) or row.committed_under(token))
        ]
        return _lease(token, held + self._take(token, wanted, committed, lost))


def _candidate(row: dict[str, Any]) -> Candidate:
    digest = int(row["sk"].partition("#")[0], 16)
    one = entry(item_id(digest, row["n"]), row["v"])
    return Candidate(one, row.get("ls", 0), (row["pk"], row["sk"]))


def _lease(token: str, rows: list[ItemRow]) -> Lease | None:
    items = tuple(row.item() for row in sorted(rows, key=lambda row: row.id))
    return Lease(token, items) if items else None
