"""Who is dead, and the end of what a process holds that has ended.

DynamoDB has no clock to judge by. A process is dead when its beat has not moved for a TTL
as this client's monotonic clock saw it, in unbroken contact. Its beat is then deleted on
condition that it still has not moved, in one transaction with the mark on its row: a beat
finds nothing to move any more, and no claim can announce itself. What the process has
announced until then is all there is to take back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from batchq.clock import random_hex
from batchq.lease import ReleaseReason
from batchq.ledger.contact import Contact
from batchq.ledger.dynamodb import items
from batchq.ledger.dynamodb.calls import Calls
from batchq.ledger.dynamodb.ended import put_away
from batchq.ledger.dynamodb.fleet import Beat, LeaseRow, Process, entry_rev
from batchq.ledger.dynamodb.items import ItemRow
from batchq.ledger.dynamodb.keys import INDEX, Keys
from batchq.ledger.dynamodb.refusals import ConditionFailed
from batchq.ledger.dynamodb.settling import pages
from batchq.ledger.dynamodb.unit import Unit, read_items, together, unit_items
from batchq.ledger.dynamodb.wire import Key, absent, equal, present, write
from batchq.ledger.records import Policy, Reaped, State, WorkerState

__all__ = ["Ending", "Watch", "reap", "rows_of_the_living", "stop"]


@dataclass(frozen=True, slots=True)
class _Seen:
    number: int
    since: float


class Watch:
    """The beats of a run as one client has seen them move. Safe for threads."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._beats: dict[str, Beat] = {}
        self._over: list[str] = []
        self._looked = float("-inf")
        self._lock = threading.Lock()

    def note(self, name: str, number: int, now: float) -> None:
        """A beat that this client itself has sent."""
        with self._lock:
            self._seen[name] = _Seen(number, now)

    def stale(self, now: float, age: float) -> bool:
        """Whether the last look lies `age` seconds back."""
        with self._lock:
            return now - self._looked >= age

    def look(self, rows: Iterable[Mapping[str, object]], now: float) -> None:
        """What stands there at `now`."""
        beats: dict[str, Beat] = {}
        over: list[str] = []
        for row in rows:
            kind, _, name = str(row["sk"]).partition("#")
            if kind == "1beat":
                beats[name] = Beat.unpack(row)
            else:
                over.append(name)
        with self._lock:
            before = self._seen
            self._seen = {
                name: seen
                if (seen := before.get(name)) and seen.number == beat.number
                else _Seen(beat.number, now)
                for name, beat in beats.items()
            }
            self._beats, self._over, self._looked = beats, over, now

    def silent(self, now: float, ttl: float, contact: Contact) -> list[Beat]:
        """Those whose beat has not moved for the longer of `ttl` and their own TTL."""
        with self._lock:
            silent = []
            for name, beat in self._beats.items():
                longest = max(ttl, beat.ttl / 1000)
                seen = self._seen.get(name)
                if seen and seen.number == beat.number and now - seen.since >= longest:
                    silent.append((beat, longest))
        return [beat for beat, longest in silent if contact.lasted(longest)]

    def ended(self, name: str) -> None:
        """This client has marked it, or found it marked."""
        with self._lock:
            self._beats.pop(name, None)
            if name not in self._over:
                self._over.append(name)

    def settled(self, name: str) -> None:
        """It holds nothing any more."""
        with self._lock:
            self._over = [other for other in self._over if other != name]

    def over(self) -> list[str]:
        """Processes that have ended and may still hold something."""
        with self._lock:
            return list(self._over)


def rows_of_the_living(calls: Calls, keys: Keys) -> Iterator[Mapping[str, object]]:
    """The beats of a run, and the marks of those that have ended with something in hand."""

    def shard(number: int) -> list[dict[str, object]]:
        return list(calls.query(keys.fleet(number), "begins_with(#s, :a)", "1"))

    for rows in calls.each(shard, range(keys.shards)):
        yield from rows


def end(
    calls: Calls,
    keys: Keys,
    name: str,
    state: WorkerState,
    reason: str | None,
    beat: Beat | None,
) -> bool:
    """Mark a live process as ended; false if it has beaten since, or has ended already."""
    call = random_hex(64)
    changed: dict[str, object] = {"state": state.value, "call": call}
    if reason is not None:
        changed["reason"] = reason
    if beat is not None:
        changed["beat_at"] = beat.at
    unmoved = [equal("n", beat.number)] if beat is not None else []
    live = equal("state", WorkerState.LIVE.value)
    try:
        calls.transact(
            [
                write(calls.table, keys.beat(name), delete=True, only_if=[present(), *unmoved]),
                write(calls.table, keys.process(name), set=changed, only_if=[live]),
                write(calls.table, keys.over(name), put={}),
            ],
            receipt=(keys.process(name), call),
        )
    except ConditionFailed:
        return False
    return True


def stop(calls: Calls, keys: Keys, policy: Policy, name: str, reason: str, now: int) -> None:
    """End a process in order. One that has ended already keeps the reason it has."""
    while (row := calls.get(keys.process(name))) is not None:
        if Process.unpack(row).state is WorkerState.REAPED:
            return
        beat = calls.get(keys.beat(name))
        last = None if beat is None else replace(Beat.unpack(beat), at=now)
        if last is None or end(calls, keys, name, WorkerState.STOPPED, reason, last):
            # Also where an earlier call had stopped it and did not come to the end.
            Ending(calls, keys, policy, name, now).release()
            return


class Ending:
    """What a process holds, taken back by another or at its own word."""

    def __init__(self, calls: Calls, keys: Keys, policy: Policy, owner: str, now: int) -> None:
        self._calls = calls
        self._keys = keys
        self._policy = policy
        self._owner = owner
        self._now = now

    def release(self) -> None:
        """As a drain does, counted to the owner."""

        def drain(unit: Unit, row: ItemRow) -> None:
            tally = unit.tally(self._owner)
            items.release(row, tally, self._policy, self._now, ReleaseReason.DRAIN, 0)

        for lease in self._leases():
            for page in pages(lease.entries, unit_items(self._calls)):
                self._end(lease, page, drain)
        put_away(self._calls, self._keys, self._owner)

    def settle(self) -> int:
        """Reduce its leases to what they hold, and count what was committed; how many are held.

        A live process may do so to itself: what it holds stays.
        """
        return sum(
            len(self._end(lease, page, None))
            for lease in self._leases()
            for page in pages(lease.entries, unit_items(self._calls))
        )

    def assess(self) -> bool:
        """Decide once whether this loss is a lone one; the process's row says so from then on.

        Nothing is claimed in its name any more once this is known.
        """
        held = self.settle()
        key = self._keys.process(self._owner)
        while True:
            row = self._calls.get(key)
            if row is None:
                # Another reaper has come to the end of it.
                return False
            process = Process.unpack(row)
            if process.lost_alone is not None:
                return process.lost_alone
            silence = max(0, self._now - process.beat_at) // 1000
            reason = f"no sign of life for {silence} s, items lost: {held}"
            with suppress(ConditionFailed):
                changes = {"alone": held == 1, "reason": reason}
                self._calls.write(key, set=changes, only_if=[present(), absent("alone")])

    def lose(self, reaper: str, limit: int, *, alone: bool) -> tuple[Reaped, bool]:
        """Take back up to `limit` items, counted to the reaper; whether these were all."""

        def lose(unit: Unit, row: ItemRow) -> None:
            items.lose(row, unit.tally(reaper), self._policy, self._now, alone=alone)

        taken: list[ItemRow] = []
        for lease in self._leases():
            for page in pages(lease.entries, unit_items(self._calls)):
                taken += self._end(lease, page[: limit - len(taken)], lose)
        all_ = not self._leases()
        if all_:
            put_away(self._calls, self._keys, self._owner)
        returned = sum(row.state == State.DELAYED for row in taken)
        return Reaped((), returned, len(taken) - returned), all_

    def _leases(self) -> list[LeaseRow]:
        partition, start = self._keys.leases(self._owner)
        rows = self._calls.query(partition, "begins_with(#s, :a)", start)
        leases = [LeaseRow.unpack(row) for row in rows]
        # Another's name may begin with this one and a mark.
        return [lease for lease in leases if lease.holder == self._owner]

    def _end(self, lease: LeaseRow, ids: Sequence[int], move: Move | None) -> list[ItemRow]:
        """End the lease for these items; those that it held.

        What was committed is counted; what the claim had not reached gets another revision,
        so that it never will; what it holds is moved, or left if there is no `move`.
        """

        def work(unit: Unit) -> list[ItemRow]:
            found = read_items(self._calls, self._keys, ids)
            unit.read_leases(row for row in found.values() if row.token == lease.token)
            held = []
            for item in ids:
                row, at = found.get(item), entry_rev(lease.entries[item])
                if row is not None and row.held_under(lease.token):
                    held.append(row)
                    if move is not None:
                        was = row.rev
                        unit.leave(row)
                        move(unit, row)
                        unit.put(row, was)
                elif row is not None and row.committed_under(lease.token):
                    unit.settle(row)
                else:
                    unit.drop(lease.holder, lease.token, item)
                    if row is not None and row.rev == at and row.state in _OPEN:
                        row.rev += 1
                        unit.put(row, at)
            return held

        return together(self._calls, self._keys, work) if ids else []


_OPEN = (State.READY.value, State.DELAYED.value)

Move = Callable[[Unit, ItemRow], None]


def reap(
    calls: Calls,
    keys: Keys,
    policy: Policy,
    reaper: Process,
    watch: Watch,
    contact: Contact,
    monotonic: float,
    now: int,
    limit: int,
) -> Reaped:
    """Mark the silent, and take back up to `limit` items of all that have ended."""
    if not contact.lasted(reaper.ttl / 1000):
        return Reaped()
    pull_back(calls, keys, policy, now)
    names = []
    for beat in watch.silent(monotonic, reaper.ttl / 1000, contact):
        if beat.name != reaper.name and end(calls, keys, beat.name, WorkerState.REAPED, None, beat):
            names.append(beat.name)
            watch.ended(beat.name)
    returned = dead_lettered = 0
    for name in watch.over():
        row = calls.get(keys.process(name))
        if row is None:
            watch.settled(name)
            continue
        ending = Ending(calls, keys, policy, name, now)
        if Process.unpack(row).state is not WorkerState.REAPED:
            # It was stopped, and did not come to the end of that.
            ending.release()
            watch.settled(name)
            continue
        alone = ending.assess()
        left = limit - returned - dead_lettered
        if left > 0:
            taken, all_ = ending.lose(reaper.name, left, alone=alone)
            returned += taken.returned
            dead_lettered += taken.dead_lettered
            if all_:
                watch.settled(name)
    return Reaped(tuple(names), returned, dead_lettered)


def pull_back(calls: Calls, keys: Keys, policy: Policy, now: int) -> None:
    """Delays further ahead than any could have been set."""
    longest = now + round(1000 * policy.max_backoff)
    rows = calls.query(keys.all_delayed, "#s > :a", f"{longest:015d}~", index=INDEX)
    for page in pages(((row["pk"], row["sk"]) for row in rows), unit_items(calls)):

        def work(unit: Unit, page: Sequence[Key] = page) -> None:
            found = calls.get_all(page)
            for row in map(ItemRow.unpack, found.values()):
                if row.state == State.DELAYED and row.not_before > longest:
                    was, row.rev, row.not_before = row.rev, row.rev + 1, longest
                    unit.put(row, was)

        together(calls, keys, work)
