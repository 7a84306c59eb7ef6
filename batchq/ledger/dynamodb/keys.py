"""Which row lies under which key, what an item's id is, and how ranks spread.

    schema                    pk `batchq`            sk `schema`
    run                       pk `runs`              sk NAME
    name of a process         pk `p#NAME`            sk `-`         which run it belongs to
    document, current item    pk `i#RUN#SHARD`       sk DIGEST
    its other versions        pk `i#RUN#SHARD`       sk DIGEST`#`ORDINAL
    bundle of ready items     pk `b#RUN#SHARD`       sk RANK              see `bundles`
    process, said once        pk `w#RUN#SHARD`       sk `0about#NAME`
    process, while it lives   pk `w#RUN#SHARD`       sk `1beat#NAME`
    process, not yet settled  pk `w#RUN#SHARD`       sk `1over#NAME`
    process, its tallies      pk `w#RUN#SHARD`       sk `2process#NAME`
    sum of those put away     pk `w#RUN#SHARD`       sk `2sum`
    open lease                pk `w#RUN#SHARD`       sk `3lease#NAME#TOKEN`
    process, put away         pk `w#RUN#SHARD`       sk `4ended#NAME`     see `ended`
    refused commit            pk `f#RUN#ID`          sk TOKEN
    result that was reopened  pk `h#RUN#ID`          sk GENERATION

An item's id is its document's digest (80 bits of SHA-256 over the source id) and the
ordinal of its version (16 bits). So an id leads to its row without an index, and since the
first bits of the digest choose the shard, the shards one after the other are all items in
the order of their ids: pages of results need no index either. Two documents of one run
with one digest are rejected by name; at a hundred million that is a chance of 1 in 10^8.

Bundles lie at random ranks, so that claims do not meet. The index `queue` holds what waits for
its time, the dead letters and the open leases, no more:

    delayed        q `RUN#d`        r NOT_BEFORE`#`ID    in milliseconds
    dead letter    q `RUN#x`        r ID
    open lease     q `RUN#l`        r SINCE              in milliseconds
"""

from __future__ import annotations

import hashlib
from typing import Protocol

from batchq.clock import random_hex
from batchq.ledger.dynamodb.wire import Key

__all__ = [
    "INDEX",
    "RANK_BITS",
    "Keys",
    "RandomRanks",
    "Ranks",
    "document_of",
    "item_id",
    "name_key",
    "ordinal_of",
    "run_key",
]

INDEX = "queue"

DIGEST_BITS = 80
ORDINAL_BITS = 16
RANK_BITS = 64


class Ranks(Protocol):
    """Where documents stand in the pages and bundles in the queue, and where a worker begins."""

    def digest(self, source_id: str) -> int:
        """The upper 80 bits of a document's ids."""
        ...

    def next(self) -> int:
        """The 64-bit rank of a new bundle."""
        ...

    def start(self) -> int:
        """The rank after which a worker's first claim looks."""
        ...


class RandomRanks:
    """Everywhere at random, so that workers seldom meet and no partition is hotter."""

    def digest(self, source_id: str) -> int:
        return int.from_bytes(hashlib.sha256(source_id.encode()).digest()[: DIGEST_BITS // 8])

    def next(self) -> int:
        return int(random_hex(RANK_BITS), 16)

    start = next


def item_id(digest: int, ordinal: int) -> int:
    return digest << ORDINAL_BITS | ordinal


def document_of(item: int) -> int:
    """The digest in an id."""
    return item >> ORDINAL_BITS


def ordinal_of(item: int) -> int:
    return item & ((1 << ORDINAL_BITS) - 1)


SCHEMA_KEY: Key = "batchq", "schema"


RUNS = "runs"
"""The partition with a row for each run."""


def run_key(name: str) -> Key:
    return RUNS, name


def name_key(process: str) -> Key:
    """The row that says which run a process belongs to."""
    return f"p#{process}", "-"


class Keys:
    """The keys of one run. `shards` is a power of two."""

    def __init__(self, run: int, shards: int) -> None:
        self.run = run
        self.shards = shards
        self._run = f"{run:012x}"
        self._bits = shards.bit_length() - 1

    # -- documents and items -------------------------------------------------------

    def items(self, shard: int) -> str:
        return f"i#{self._run}#{shard:02x}"

    def shard_of(self, digest: int) -> int:
        return digest >> (DIGEST_BITS - self._bits)

    def document(self, digest: int) -> Key:
        return self.items(self.shard_of(digest)), f"{digest:020x}"

    def version(self, item: int) -> Key:
        partition, digest = self.document(document_of(item))
        return partition, f"{digest}#{ordinal_of(item):04x}"

    def history(self, item: int, generation: int) -> Key:
        return f"h#{self._run}#{item:024x}", f"{generation:08}"

    def fenced(self, item: int, token: str) -> Key:
        return f"f#{self._run}#{item:024x}", token

    # -- processes -----------------------------------------------------------------

    def fleet(self, shard: int) -> str:
        return f"w#{self._run}#{shard:02x}"

    def _of(self, name: str) -> str:
        return self.fleet(hashlib.sha256(name.encode()).digest()[0] % self.shards)

    def about(self, name: str) -> Key:
        return self._of(name), f"0about#{name}"

    def beat(self, name: str) -> Key:
        return self._of(name), f"1beat#{name}"

    def over(self, name: str) -> Key:
        return self._of(name), f"1over#{name}"

    def process(self, name: str) -> Key:
        return self._of(name), f"2process#{name}"

    def ended(self, name: str) -> Key:
        return self._of(name), f"4ended#{name}"

    def sum(self, name: str) -> Key:
        """The sum to which a process's tallies are added when it is put away."""
        return self._of(name), "2sum"

    def leases(self, name: str) -> Key:
        """The beginning of the sort keys of a process's leases."""
        return self._of(name), f"3lease#{name}#"

    def lease(self, name: str, token: str) -> Key:
        partition, start = self.leases(name)
        return partition, start + token

    # -- the queue -------------------------------------------------------------------

    def bundle(self, rank: int) -> Key:
        return self.bundles(self.ring(rank)), f"{rank:016x}"

    def bundles(self, shard: int) -> str:
        return f"b#{self._run}#{shard:02x}"

    def ring(self, rank: int) -> int:
        """The shard in which a rank lies."""
        return rank >> (RANK_BITS - self._bits)

    def delayed(self, not_before: int, item: int) -> Key:
        return self.all_delayed, f"{not_before:015d}#{item:024x}"

    @property
    def all_delayed(self) -> str:
        return f"{self._run}#d"

    def dead(self, item: int) -> Key:
        return self.all_dead, f"{item:024x}"

    def leased(self, since: int) -> Key:
        return self.all_leased, f"{since:015d}"

    @property
    def all_leased(self) -> str:
        return f"{self._run}#l"

    @property
    def all_dead(self) -> str:
        return f"{self._run}#x"
