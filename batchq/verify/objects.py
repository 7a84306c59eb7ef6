"""Objects of a run that no row names: whose they are, and whether they are orphans."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from batchq.item import item_key
from batchq.ledger.base import ItemState, Ledger, Run
from batchq.result import Envelope, InvalidEnvelope, result_key
from batchq.store.base import ObjectMissing, Store
from batchq.store.frames import all_unpacked
from batchq.verify.journal import Journal, Place
from batchq.verify.rule import Verdict, judge

__all__ = ["judge_objects", "place_of"]

Identity = tuple[str, str]
"""Source id and source version."""

_GENERATION = re.compile(r"(?:\.g(\d+))?\.json$")

ASKED_AT_ONCE = 500
"""Items whose states are asked of the ledger in one call."""


def place_of(layout: str, key: str) -> Place:
    """Where a key lies: in layout `item` the keys of one item share the number.

    63 bits of a digest. Should two items share it, the ledger is asked about both.
    """
    generation = 1
    if layout == "item":
        found = _GENERATION.search(key)
        if found:
            generation = int(found[1] or 1)
            key = key[: found.start()]
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1, generation


@dataclass(frozen=True, slots=True)
class _Content:
    """The items whose results an object holds, and who wrote them, as far as that is known."""

    key: str
    identities: tuple[Identity, ...] = ()
    writer: str | None = None


def judge_objects(
    readers: ThreadPoolExecutor,
    ledger: Ledger,
    run: Run,
    store: Store,
    journal: Journal,
    keys: Sequence[str],
) -> Iterator[tuple[str, Verdict]]:
    """The verdict on each object, read for it. Raises StoreError where one gives no answer.

    What has vanished meanwhile is passed over.
    """
    # Before the items' states: what a writer that has ended committed is then in those.
    writers = {status.name: status for status in ledger.workers(run)}
    contents = [
        content
        for content in readers.map(lambda key: _content(run, store, key), keys)
        if content is not None
    ]
    for content in contents:
        if not content.identities and run.layout == "item":
            content = _by_its_key(ledger, run, journal, content)
        yield (
            content.key,
            judge(
                content.key,
                _states(ledger, run, content.identities),
                writers.get(content.writer or ""),
                adoptable=run.layout == "item",
            ),
        )


def _states(ledger: Ledger, run: Run, identities: Sequence[Identity]) -> list[ItemState | None]:
    states: list[ItemState | None] = []
    for start in range(0, len(identities), ASKED_AT_ONCE):
        states += ledger.states(run, identities[start : start + ASKED_AT_ONCE])
    return states


def _content(run: Run, store: Store, key: str) -> _Content | None:
    try:
        data = store.read(key)
    except ObjectMissing:
        return None
    try:
        lines = [data] if run.layout == "item" else all_unpacked(data)
        envelopes = [Envelope.from_bytes(line) for line in lines]
    except InvalidEnvelope:
        return _Content(key)
    writers = {str(envelope.provenance.get("worker")) for envelope in envelopes}
    if len(writers) != 1 or not all(_belongs(run, key, each) for each in envelopes):
        return _Content(key)
    identities = tuple((each.source_id, each.source_version) for each in envelopes)
    return _Content(key, identities, writers.pop())


def _belongs(run: Run, key: str, envelope: Envelope) -> bool:
    """Whether a worker of this run can have written it there."""
    if envelope.processing_version != run.processing_version:
        return False
    if run.layout != "item":
        return True
    its_key = result_key(run.prefix, envelope.item_key, envelope.source_id, 1)
    return place_of("item", its_key)[0] == place_of("item", key)[0]


def _by_its_key(ledger: Ledger, run: Run, journal: Journal, content: _Content) -> _Content:
    """A broken object tells nothing, but its key is that of an item in a generation.

    Its item, if a result of another generation is committed.
    """
    place, _ = place_of("item", content.key)
    for _, item_id in journal.named_at(place):
        for row in ledger.results(run, item_id - 1, 1):
            key = item_key(row.source_id, row.source_version, run.processing_version)
            its_key = result_key(run.prefix, key, row.source_id, 1)
            if row.item_id == item_id and place_of("item", its_key)[0] == place:
                return _Content(content.key, ((row.source_id, row.source_version),))
    return content
