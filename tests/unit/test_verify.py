"""The audit: what it finds in a store behind the ledger's back, and how it mends it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchq.errors import BatchqError, StoreUnusable, UsageError
from batchq.ledger.base import State
from batchq.result import Envelope, result_key, sha256_hex
from batchq.store.base import StoreError
from batchq.verify import Journal, verb
from batchq.verify import sample as sampling
from tests.faults.faulty_store import FaultyStore, ReadFault
from tests.unit.audit_kit import VERSION, Audited, flip, truncate

LAYOUTS = pytest.mark.parametrize("layout", ["item", "shard"])


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that every audit here has several."""
    monkeypatch.setattr(verb, "PAGE", 7)


# -- what it finds ---------------------------------------------------------------------


@LAYOUTS
def test_a_sound_run_is_sound(tmp_path: Path, layout: str) -> None:
    """Every result read, every object explained, nothing to complain of."""
    world = Audited(tmp_path, layout)
    world.complete(20, each=3)
    report = world.audit()
    assert (report.checked, report.ok, report.missing, report.corrupt) == (20, 20, 0, 0)
    assert (report.orphans, report.unsettled, report.tally_drift) == (0, 0, {})
    assert report.is_sound


def test_an_empty_run_is_sound(tmp_path: Path) -> None:
    """Nothing was promised."""
    report = Audited(tmp_path).audit()
    assert (report.checked, report.is_sound) == (0, True)


@LAYOUTS
def test_every_altered_or_missing_result_is_found(tmp_path: Path, layout: str) -> None:
    """A flipped bit, a truncation and a deletion, and nothing besides."""
    world = Audited(tmp_path, layout)
    rows = world.complete(30, each=1)
    expected = []
    for number, how in ((0, flip), (7, truncate), (8, None), (29, flip)):
        world.spoil(rows[number], how)
        expected.append((rows[number].source_id, "corrupt" if how else "missing"))
    report = world.audit()
    assert expected == world.damaged(report)
    assert (report.checked, report.ok, report.missing, report.corrupt) == (30, 26, 1, 3)
    assert not report.is_sound


def test_in_a_shard_only_the_damaged_frames_count(tmp_path: Path) -> None:
    """Their neighbours in the same object are whole."""
    world = Audited(tmp_path, "shard")
    rows = world.complete(12, each=6)
    world.spoil(rows[3], flip)
    assert world.damaged(world.audit()) == [("d003", "corrupt")]


def test_a_shard_that_was_cut_short_loses_its_last_frames(tmp_path: Path) -> None:
    """And those alone."""
    world = Audited(tmp_path, "shard")
    rows = world.complete(6, each=6)
    key = rows[0].stored.key
    world.replace(key, world.objects.read(key)[: rows[4].stored.offset + 1])
    assert world.damaged(world.audit()) == [("d004", "corrupt"), ("d005", "corrupt")]


def test_a_shard_that_is_gone_loses_all_of_its_results(tmp_path: Path) -> None:
    """Each of them is missing."""
    world = Audited(tmp_path, "shard")
    rows = world.complete(6, each=3)
    world.objects.delete(rows[0].stored.key)
    assert world.damaged(world.audit()) == [(f"d{n:03}", "missing") for n in range(3)]


def test_bytes_appended_to_a_result_are_damage(tmp_path: Path) -> None:
    """In layout `item` the object is the result."""
    world = Audited(tmp_path)
    [row] = world.complete(1)
    world.spoil(row, lambda data: data + b" ")
    assert world.damaged(world.audit()) == [("d000", "corrupt")]


def test_the_result_of_another_item_is_damage(tmp_path: Path) -> None:
    """The identity inside is compared even where the digest was committed so."""
    world = Audited(tmp_path)
    world.enqueue("a", "b")
    lease = world.claim()
    one, two = world.put(lease)
    swapped = [
        type(one)(one.item_id, one.token, two.stored),
        type(two)(two.item_id, two.token, one.stored),
    ]
    world.ledger.commit("worker", swapped)
    assert world.damaged(world.audit()) == [("a", "corrupt"), ("b", "corrupt")]


def test_a_read_that_was_spoilt_on_its_way_is_no_damage(tmp_path: Path) -> None:
    """It takes two reads to condemn a result."""
    world = Audited(tmp_path)
    world.complete(5)
    faults = [ReadFault.FLIPPED, ReadFault.SHORT, ReadFault.FLIPPED]
    world.store = FaultyStore(world.objects, reads=faults)
    report = world.audit()
    assert (report.checked, report.ok) == (5, 5)


def test_tallies_that_drifted_are_named(tmp_path: Path) -> None:
    """With the difference, and as damage: no repair of the store mends them."""
    world = Audited(tmp_path)
    world.complete(3)
    world.memory._tables.processes["worker"].tally["completed"] += 2
    report = world.audit(repair=True)
    assert report.tally_drift == {"completed": -2}
    assert not report.is_sound


def test_tallies_of_a_run_at_work_are_not_judged(tmp_path: Path) -> None:
    """Two snapshots of what moves differ by themselves."""
    world = Audited(tmp_path)
    world.complete(2)
    world.enqueue(*(f"more-{n}" for n in range(9)))
    recount = world.ledger.recount

    def while_others_claim(run: Any) -> Any:
        world.claim(limit=1)
        return recount(run)

    world.ledger.recount = while_others_claim  # type: ignore[method-assign]
    report = world.audit()
    assert report.tally_drift is None
    assert report.is_sound


# -- samples ---------------------------------------------------------------------------


def test_a_sample_reads_so_many_and_no_more(tmp_path: Path) -> None:
    """And looks for no orphans, which it could not tell from what it did not look at."""
    world = Audited(tmp_path)
    world.complete(40)
    world.store = reads = FaultyStore(world.objects)
    report = world.audit(sample=10)
    assert (report.checked, reads.read_calls) == (10, 10)
    assert (report.orphans, report.unsettled) == (None, None)


def test_a_sample_larger_than_the_run_reads_it_all(tmp_path: Path) -> None:
    """Each result once."""
    world = Audited(tmp_path)
    world.complete(9)
    assert world.audit(sample=100).checked == 9


class Apart:
    """A ledger whose ids are far apart and anywhere, as digests are, or `step` from each other."""

    def __init__(self, world: Audited, step: int | None = None) -> None:
        self.world = world
        self.rows_read = 0
        number = 0
        ids = []
        for row in world.results:
            number = number + step if step else int(sha256_hex(row.source_id.encode())[:24], 16)
            ids.append(number)
        self.rows = [
            replace(row, item_id=item_id)
            for row, item_id in zip(world.results, sorted(ids), strict=True)
        ]

    def counts(self, run: Any) -> Any:
        return self.world.ledger.counts(run)

    def results(self, run: Any, after: int, limit: int) -> Any:
        found = [row for row in self.rows if row.item_id > after][:limit]
        self.rows_read += len(found)
        return found


@pytest.mark.parametrize("step", [1, 3, 40, None])
@pytest.mark.parametrize("worth", [0, 50])
def test_every_result_is_as_likely_in_a_sample_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int | None, worth: int
) -> None:
    """Of 20 results, 5 in each of 400 samples: near 100 times each (sigma is 8.7).

    Drawn or read, with ids that follow on each other, with gaps and with a window of three.
    """
    monkeypatch.setattr(sampling, "WORTH", worth)
    monkeypatch.setattr(sampling, "WINDOW", 3)
    world = Audited(tmp_path)
    world.complete(20)
    ledger: Any = Apart(world, step)
    drawn: Counter[int] = Counter()
    for _ in range(400):
        drawn.update(sampling.choose(ledger, world.run, 5, lambda _: None))
    assert sum(drawn.values()) == 2000
    assert all(50 < drawn[row.item_id] < 150 for row in ledger.rows), drawn


@pytest.mark.parametrize("step", [1, 3, None])
def test_a_sample_of_a_large_run_reads_few_of_its_rows(tmp_path: Path, step: int | None) -> None:
    """Neither of the rows nor, on a ledger of digests, of the requests."""
    world = Audited(tmp_path)
    world.complete(2000)
    ledger: Any = Apart(world, step)
    chosen = sampling.choose(ledger, world.run, 20, lambda _: None)
    assert len(set(chosen)) == 20
    assert {*chosen} <= {row.item_id for row in ledger.rows}
    assert ledger.rows_read < 400


def test_tallies_that_say_too_much_hold_no_sample_up(tmp_path: Path) -> None:
    """Then there are fewer results than could be drawn: all are read instead."""
    world = Audited(tmp_path)
    world.complete(9)
    world.memory._tables.processes["worker"].tally["completed"] += 100_000
    assert len(sampling.choose(world.ledger, world.run, 20, lambda _: None)) == 9


# -- repair ----------------------------------------------------------------------------


@LAYOUTS
def test_repair_sends_back_what_is_damaged_and_nothing_else(tmp_path: Path, layout: str) -> None:
    """Each as a new generation; when they are done again the run is sound."""
    world = Audited(tmp_path, layout)
    rows = world.complete(24, each=4)
    for number in (0, 5, 6, 23):
        world.spoil(rows[number], flip)
    report = world.audit(repair=True)
    assert (report.corrupt, report.repaired, report.unrepaired) == (4, 4, 0)
    assert report.is_sound
    lease = world.claim()
    assert [(i.source_id, i.generation) for i in lease.items] == [
        (rows[n].source_id, 2) for n in (0, 5, 6, 23)
    ]
    world.ledger.commit("worker", world.put(lease))
    again = world.audit()
    assert (again.checked, again.ok, again.is_sound) == (24, 24, True)
    assert [result.item_id for result in world.memory._tables.history] == [
        rows[n].item_id for n in (0, 5, 6, 23)
    ]


def test_what_somebody_else_repaired_meanwhile_is_left_alone(tmp_path: Path) -> None:
    """The condition is the generation and digest that were read."""
    world = Audited(tmp_path)
    [row] = world.complete(1)
    world.spoil(row, flip)
    reopen = world.ledger.reopen

    def after_another(worker: str, run: Any, broken: Any) -> int:
        assert reopen(world.worker, run, broken) == 1
        world.ledger.commit("worker", world.put(world.claim()))
        return reopen(worker, run, broken)

    world.ledger.reopen = after_another  # type: ignore[method-assign]
    report = world.audit(repair=True)
    assert (report.corrupt, report.repaired, report.unrepaired) == (1, 0, 0)
    assert world.results[0].generation == 2


# -- orphans ---------------------------------------------------------------------------


def test_a_broken_object_left_under_an_older_generation_is_an_orphan(tmp_path: Path) -> None:
    """It says nothing of itself, but its key is that of an item completed elsewhere."""
    world = Audited(tmp_path)
    rows = world.complete(3)
    world.spoil(rows[1], truncate)
    world.audit(repair=True)
    world.ledger.commit("worker", world.put(world.claim()))
    report = world.audit()
    assert report.orphan_keys == (rows[1].stored.key,)
    assert (report.orphans, report.is_sound) == (1, True)


def test_a_valid_object_of_an_older_generation_is_an_orphan(tmp_path: Path) -> None:
    """The same, where the object can be read."""
    world = Audited(tmp_path)
    [row] = world.complete(1)
    world.ledger.reopen(world.worker, world.run, [row])
    world.ledger.commit("worker", world.put(world.claim()))
    assert world.audit().orphan_keys == (row.stored.key,)


def test_what_a_dead_worker_left_of_an_open_item_stays(tmp_path: Path) -> None:
    """The next attempt adopts it, maybe at this very moment."""
    world = Audited(tmp_path)
    world.register("dying")
    world.enqueue("a")
    world.put(world.claim("dying"), "dying")
    world.ledger.stop("dying", "notice")
    report = world.audit(remove_orphans=True)
    assert (report.orphans, report.unsettled, report.removed) == (0, 1, 0)
    assert world.objects.head(next(iter(world.objects.list(f"{world.run.prefix}/"))).key)


def test_a_shard_that_lost_the_race_is_an_orphan_once_its_writer_has_ended(
    tmp_path: Path,
) -> None:
    """While its writer lives it may yet be committed."""
    world = Audited(tmp_path, "shard")
    world.register("slow")
    world.enqueue("a", "b")
    [result, _] = world.put(world.claim("slow"), "slow")
    assert (world.audit().orphans, world.audit().unsettled) == (0, 1)
    world.ledger.stop("slow", "notice")
    assert world.audit().orphan_keys == (result.stored.key,)


def test_a_shard_whose_items_somebody_holds_stays(tmp_path: Path) -> None:
    """Were it the writer itself, thought dead, its late commit would still be accepted."""
    world = Audited(tmp_path, "shard")
    world.register("slow")
    world.enqueue("a", "b")
    world.put(world.claim("slow"), "slow")
    world.ledger.stop("slow", "notice")
    lease = world.claim(limit=1)
    assert (world.audit().orphans, world.audit().unsettled) == (0, 1)
    world.ledger.commit("worker", world.put(lease))
    assert world.audit().orphans == 1


def test_a_shard_of_several_writers_is_nobodys(tmp_path: Path) -> None:
    """No worker writes such a thing, so nothing that is known of workers says what it is."""
    world = Audited(tmp_path, "shard")
    world.enqueue("a", "b")
    frames = b""
    for name in ("one", "two"):
        world.register(name)
        [result] = world.put(world.claim(name, limit=1), name)
        frames += world.objects.read(result.stored.key)
        world.objects.delete(result.stored.key)
        world.ledger.stop(name, "notice")
    world.lay(f"{world.run.prefix}/shards/joined.jsonl.zst", frames)
    report = world.audit(remove_orphans=True)
    assert (report.orphans, report.unsettled) == (0, 1)


def test_a_result_committed_after_the_audit_passed_is_no_orphan(tmp_path: Path) -> None:
    """It is found in the ledger by what the object holds."""
    world = Audited(tmp_path, "shard")
    world.complete(3)
    results = world.ledger.results

    def nothing_new(run: Any, after: int, limit: int, *, current_only: bool = False) -> Any:
        return [row for row in results(run, after, limit) if row.source_id != "d002"]

    world.ledger.results = nothing_new  # type: ignore[method-assign]
    world.ledger.stop("worker", "end")
    world.audit()
    report = world.audit(remove_orphans=True)
    assert (report.checked, report.orphans, report.unsettled) == (2, 0, 0)


def test_marker_inputs_and_other_runs_are_never_orphans(tmp_path: Path) -> None:
    """Only what lies in the run's own folder is looked at, and not its marker."""
    world = Audited(tmp_path)
    world.complete(1)
    others = ["inputs/" + "a" * 64, "other-run/ab/x.json", "run-2/run.json"]
    for key in others:
        world.lay(key, b"whatever")
    report = world.audit(remove_orphans=True)
    assert (report.orphans, report.unsettled) == (0, 0)
    kept = {info.key for info in world.objects.list("")}
    assert {*others, f"{world.run.prefix}/run.json"} < kept


def test_what_nobody_can_explain_stays(tmp_path: Path) -> None:
    """Garbage of an unknown item, and a result of an item the ledger never saw."""
    world = Audited(tmp_path)
    world.complete(1)
    stranger = Envelope("x", "sha256:9", VERSION, {}, 1, 1, {"worker": "worker"})
    world.lay(result_key(world.run.prefix, stranger.item_key, "x", 1), stranger.to_bytes())
    world.lay(f"{world.run.prefix}/ab/{'0' * 32}-x.json", b"garbage")
    world.lay(f"{world.run.prefix}/notes.txt", b"somebody's")
    world.ledger.stop("worker", "end")
    report = world.audit(remove_orphans=True)
    assert (report.orphans, report.unsettled, report.removed) == (0, 3, 0)


def test_a_valid_result_under_a_foreign_key_says_nothing(tmp_path: Path) -> None:
    """A copy that somebody made is not the item's own: its key decides whose it is."""
    world = Audited(tmp_path)
    rows = world.complete(2)
    copied = f"{world.run.prefix}/00/{'f' * 32}-copy.json"
    world.lay(copied, world.objects.read(rows[0].stored.key))
    assert (world.audit().orphans, world.audit().unsettled) == (0, 1)


def test_orphans_are_removed_only_when_asked(tmp_path: Path) -> None:
    """And then these and nothing else; asked again there is nothing left."""
    world = Audited(tmp_path)
    rows = world.complete(12)
    for row in rows[:9]:
        world.spoil(row, flip)
    world.audit(repair=True)
    world.ledger.commit("worker", world.put(world.claim()))
    assert world.audit().orphans == 9
    report = world.audit(remove_orphans=True)
    assert (report.orphans, report.removed) == (9, 9)
    left = {info.key for info in world.objects.list(f"{world.run.prefix}/")}
    assert left == {row.stored.key for row in world.results} | {f"{world.run.prefix}/run.json"}
    assert world.audit().orphans == 0


# -- interruptions ---------------------------------------------------------------------


class Outage:
    """A store that answers so many reads, and then none."""

    def __init__(self, inner: Any, reads: int) -> None:
        self._inner = inner
        self._left = reads
        self.keys: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read(self, key: str, *where: Any) -> bytes:
        if self._left == 0:
            raise StoreError("timed out")
        self._left -= 1
        self.keys.append(key)
        data: bytes = self._inner.read(key, *where)
        return data


def test_a_store_that_gives_no_answer_is_no_damage(tmp_path: Path) -> None:
    """The audit ends with 14, and goes on where it stopped, reading no sound result twice."""
    world = Audited(tmp_path)
    rows = world.complete(30)
    world.spoil(rows[2], flip)
    world.store = Outage(world.objects, 17)
    with pytest.raises(StoreUnusable, match="no answer") as caught:
        world.audit()
    assert "goes on" in (caught.value.hint or "")
    world.store = rest = Outage(world.objects, 1_000)
    report = world.audit()
    assert (report.checked, report.corrupt, report.orphans) == (30, 1, 0)
    # Two reads condemned one of the first 14 results, and two more say that it still is lost.
    assert len(rest.keys) == 30 - 14 + 2
    assert rest.keys.count(rows[2].stored.key) == 2


def test_an_audit_interrupted_among_the_objects_goes_on_there(tmp_path: Path) -> None:
    """The results are not read again."""
    world = Audited(tmp_path)
    rows = world.complete(10)
    for row in rows:
        world.ledger.reopen(world.worker, world.run, [row])
    world.ledger.commit("worker", world.put(world.claim()))
    world.store = Outage(world.objects, 12)
    with pytest.raises(StoreUnusable):
        world.audit()
    world.store = rest = Outage(world.objects, 1_000)
    assert world.audit().orphans == 10
    assert not {row.stored.key for row in world.results} & set(rest.keys)


def test_damage_found_before_an_interruption_is_repaired_after_it(tmp_path: Path) -> None:
    """Also where only the second command asked for it."""
    world = Audited(tmp_path)
    rows = world.complete(20)
    world.spoil(rows[0], None)
    world.store = Outage(world.objects, 10)
    with pytest.raises(StoreUnusable):
        world.audit()
    world.store = world.objects
    report = world.audit(repair=True)
    assert (report.missing, report.repaired) == (1, 1)
    assert world.ledger.lookup(world.run, "d000").state is State.DELAYED  # type: ignore[union-attr]


@pytest.mark.parametrize("repair", [False, True])
def test_what_was_restored_during_an_interruption_is_sound(tmp_path: Path, repair: bool) -> None:
    """Neither counted nor sent back; of two pages of damage only what is left."""
    world = Audited(tmp_path)
    rows = world.complete(20)
    kept = {row.item_id: world.objects.read(row.stored.key) for row in rows}
    for row in rows[:10]:
        world.spoil(row, None)
    world.store = Outage(world.objects, 15)
    with pytest.raises(StoreUnusable):
        world.audit()
    world.store = world.objects
    for row in rows[:10]:
        if row not in (rows[3], rows[8]):
            world.lay(row.stored.key, kept[row.item_id])

    report = world.audit(repair=repair)

    assert world.damaged(report) == [("d003", "missing"), ("d008", "missing")]
    assert (report.checked, report.ok) == (20, 18)
    assert (report.repaired, report.unrepaired) == ((2, 0) if repair else (0, 2))
    assert len(world.results) == (18 if repair else 20)


@pytest.mark.parametrize("repair", [False, True])
def test_what_was_repaired_during_an_interruption_is_sound(tmp_path: Path, repair: bool) -> None:
    """Its old object is broken as before, and no result any more: what it was lies elsewhere."""
    world = Audited(tmp_path)
    rows = world.complete(20)
    world.spoil(rows[3], truncate)
    world.spoil(rows[8], truncate)
    world.store = Outage(world.objects, 15)
    with pytest.raises(StoreUnusable):
        world.audit()
    world.store = world.objects
    world.ledger.reopen(world.worker, world.run, [rows[3]])
    world.ledger.commit("worker", world.put(world.claim()))

    report = world.audit(repair=repair)

    assert (report.checked, report.corrupt) == (20, 2)
    assert (report.repaired, report.unrepaired) == ((1, 0) if repair else (0, 1))
    assert report.is_sound == repair


def test_what_is_restored_before_its_repair_stays_committed(tmp_path: Path) -> None:
    """Between the look at a result and its repair lies the rest of the audit."""
    world = Audited(tmp_path)
    [row] = world.complete(1)
    good = world.objects.read(row.stored.key)
    world.spoil(row, None)

    def restore(what: str, done: int, total: int | None) -> None:
        if what == "objects":
            world.lay(row.stored.key, good)

    report = world.audit(repair=True, progress=restore)
    assert (report.ok, report.repaired, report.is_sound) == (1, 0, True)
    assert world.results == [row]


def test_a_sample_goes_on_with_the_same_choice(tmp_path: Path) -> None:
    """Else the results that cannot be read would be chosen away."""
    world = Audited(tmp_path)
    world.complete(30)
    world.store = first = Outage(world.objects, 9)
    with pytest.raises(StoreUnusable):
        world.audit(sample=15)
    world.store = second = Outage(world.objects, 100)
    assert world.audit(sample=15).checked == 15
    assert len({*first.keys[:7], *second.keys}) == 15


def test_a_finished_audit_leaves_no_journal(tmp_path: Path) -> None:
    """The next one begins anew."""
    world = Audited(tmp_path)
    world.complete(3)
    world.audit()
    assert not world.path.exists()


# -- the journal -----------------------------------------------------------------------


def test_the_journal_of_another_audit_is_refused(tmp_path: Path) -> None:
    """Whatever it says is of another run, or of a sample."""
    Journal(tmp_path / "journal.db", "one").close(finished=False)
    with pytest.raises(UsageError, match="another audit"):
        Journal(tmp_path / "journal.db", "two")


def test_two_audits_never_share_a_journal(tmp_path: Path) -> None:
    """The second is told to wait, or to take another."""
    first = Journal(tmp_path / "journal.db", "one")
    with pytest.raises(UsageError, match="at work"):
        Journal(tmp_path / "journal.db", "one")
    first.close(finished=True)
    Journal(tmp_path / "journal.db", "one").close(finished=True)


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    """And left as it is."""
    path = tmp_path / "journal.db"
    path.write_text("something else entirely, and long enough to be looked at " * 20)
    before = path.read_bytes()
    with pytest.raises(BatchqError, match="cannot be used"):
        Journal(path, "one")
    assert before == path.read_bytes()
