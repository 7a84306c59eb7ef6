"""The rows of processes: what each said, its sign of life, its tallies and its leases."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from batchq.item import NewItem
from batchq.ledger.dynamodb.keys import DIGEST_BITS, ORDINAL_BITS, Keys, name_key
from batchq.ledger.dynamodb.wire import Key
from batchq.ledger.records import TALLY_NAMES, Enqueued, Rejection, Role, WorkerState

__all__ = [
    "Answer",
    "Beat",
    "LeaseRow",
    "Process",
    "entry",
    "entry_id",
    "entry_rev",
    "newcomer",
]

ID_BYTES = (DIGEST_BITS + ORDINAL_BITS) // 8
REV_BYTES = 4


def entry(item: int, rev: int) -> bytes:
    """An item in a lease: its id, and the revision at which it may be claimed."""
    return item.to_bytes(ID_BYTES) + rev.to_bytes(REV_BYTES)


def entry_id(one: bytes) -> int:
    return int.from_bytes(one[:ID_BYTES])


def entry_rev(one: bytes) -> int:
    return int.from_bytes(one[ID_BYTES:])


@dataclass(frozen=True, slots=True)
class Beat:
    """A process that lives. `number` moves with each beat; `at` in milliseconds."""

    name: str
    number: int
    ttl: int
    at: int
    role: str

    @classmethod
    def unpack(cls, row: Mapping[str, Any]) -> Beat:
        name = str(row["sk"]).partition("#")[2]
        return cls(name, row["n"], row["ttl"], row["at"], row["role"])

    def alive(self, now: int) -> bool:
        return self.at + self.ttl > now


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """What a token was meant to hold, less what has left it and is counted.

    It is written before anything is claimed; `ready` and `delayed` are entries by the
    state from which they were taken.
    """

    holder: str
    token: str
    at: int
    ready: frozenset[bytes] = frozenset()
    delayed: frozenset[bytes] = frozenset()
    rev: int = 0

    def taken(self, entries: Collection[bytes]) -> Counter[str]:
        """What a claim of these counts."""
        delayed = sum(one in self.delayed for one in entries)
        number = len(entries)
        return Counter(leased=number, attempts=number, ready=-number, delayed=-delayed)

    @property
    def entries(self) -> dict[int, bytes]:
        return {entry_id(one): one for one in sorted(self.ready | self.delayed)}

    def without(self, gone: Iterable[bytes]) -> LeaseRow:
        gone = frozenset(gone)
        return LeaseRow(
            self.holder,
            self.token,
            self.at,
            self.ready - gone,
            self.delayed - gone,
            self.rev + 1,
        )

    def pack(self, keys: Keys) -> dict[str, object]:
        row: dict[str, object] = {"at": self.at, "rev": self.rev}
        row["q"], row["r"] = keys.leased(self.at)
        # An empty set is no value.
        if self.ready:
            row["rd"] = self.ready
        if self.delayed:
            row["dl"] = self.delayed
        return row

    @classmethod
    def unpack(cls, row: Mapping[str, Any]) -> LeaseRow:
        holder, token = _split_lease(row["sk"])
        none: frozenset[bytes] = frozenset()
        return cls(holder, token, row["at"], row.get("rd", none), row.get("dl", none), row["rev"])


def _split_lease(sort_key: str) -> tuple[str, str]:
    """A name may hold the mark that separates; a token does not."""
    holder, _, token = sort_key.partition("#")[2].rpartition("#")
    return holder, token


@dataclass(frozen=True, slots=True)
class Answer:
    """What a batch has brought so far. `rejected`: the places of documents in it, by the reason.

    Their names are in the batch, and would not all fit the row of a process.
    """

    new: int = 0
    known: int = 0
    superseded: int = 0
    rejected: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def pack(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    def enqueued(self, batch: Sequence[NewItem]) -> Enqueued:
        """The answer to who sent this batch."""
        reasons = sorted(
            (place, reason) for reason, places in self.rejected.items() for place in places
        )
        rejected = tuple(Rejection(batch[place].source_id, reason) for place, reason in reasons)
        return Enqueued(self.new, self.known, self.superseded, rejected)


@dataclass(slots=True)
class Process:
    """A registered process. Times in milliseconds; `done` counts the items of batch `batch`
    that were taken up, `answer` is what they brought."""

    name: str
    state: WorkerState
    role: Role
    ttl: int
    registered_at: int
    beat_at: int
    stop_reason: str | None
    last_token: str
    lost_alone: bool | None
    batch: int
    done: int
    answer: Answer
    committed: int
    tally: Counter[str] = field(default_factory=Counter)

    @classmethod
    def unpack(cls, row: Mapping[str, Any]) -> Process:
        return cls(
            name=str(row["sk"]).partition("#")[2],
            state=WorkerState(row["state"]),
            role=Role(row["role"]),
            ttl=row["ttl"],
            registered_at=row["since"],
            beat_at=row.get("beat_at", row["since"]),
            stop_reason=row.get("reason"),
            last_token=row.get("token", ""),
            lost_alone=row.get("alone"),
            batch=row.get("batch", 0),
            done=row.get("done", 0),
            answer=Answer(**json.loads(row.get("answer", "{}"))),
            committed=row.get("committed", 0),
            tally=Counter({name: row[name] for name in TALLY_NAMES if name in row}),
        )


def newcomer(
    keys: Keys, name: str, ttl: float, role: Role, about: Mapping[str, Any], now: int
) -> dict[Key, dict[str, object]]:
    """The rows of a process that registers."""
    milliseconds = round(1000 * ttl)
    return {
        name_key(name): {"run": keys.run},
        keys.about(name): {"about": json.dumps(about)},
        keys.beat(name): {"n": 1, "ttl": milliseconds, "at": now, "role": role.value},
        keys.process(name): {
            "state": WorkerState.LIVE.value,
            "role": role.value,
            "ttl": milliseconds,
            "since": now,
            "batch": 0,
            "done": 0,
        },
    }
