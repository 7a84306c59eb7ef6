"""Ledgers with one guard taken out, and the test that must notice.

A guard that nothing notices is either untested or not needed. A mutant is a way to
take a guard out while the test runs; it fails by itself when there is nothing left that
it could take out, so that it does not outlive what it mutates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from batchq.ledger import memory
from batchq.ledger.base import CommittedResult, State
from batchq.ledger.contact import Contact
from batchq.ledger.dynamodb import (
    bundles,
    calls,
    claiming,
    ended,
    items,
    reaping,
    settling,
    unit,
    wire,
)
from batchq.ledger.dynamodb import ledger as dynamo_ledger
from batchq.ledger.dynamodb import reading as dynamo_reading
from batchq.ledger.dynamodb.fleet import entry, entry_id
from batchq.ledger.dynamodb.keys import document_of
from batchq.ledger.memory import MemoryLedger
from batchq.ledger.rows import Row, Tables
from batchq.ledger.sql import engine, enqueueing, holding, process
from tests.conformance import test_ledger_claim as claims
from tests.conformance import test_ledger_commit as commits
from tests.conformance import test_ledger_dynamodb as apart
from tests.conformance import test_ledger_enqueue as enqueues
from tests.conformance import test_ledger_processes as processes
from tests.conformance import test_ledger_races as races
from tests.conformance import test_ledger_reading as reading
from tests.conformance import test_ledger_reap as reaps
from tests.conformance import test_ledger_reopen as reopens
from tests.conformance import test_ledger_repeated as repeated
from tests.conformance import test_ledger_returns as returns
from tests.conformance import test_ledger_shortcuts as shortcuts
from tests.conformance import test_ledger_transactions as transactions
from tests.conformance.world import World

__all__ = ["MUTANTS", "Mutant"]

Guardless = Callable[[World], AbstractContextManager[None]]

ALL = ("memory", "sqlite", "postgresql")
SQL = ("sqlite", "postgresql")


@dataclass(frozen=True)
class Mutant:
    """What is missing, where, and who notices.

    A race needs several `tries` to be lost. `refusal` is what the ledger itself says, where
    it is the one to notice; otherwise a test's assertion does.
    """

    name: str
    backends: tuple[str, ...]
    without: Guardless
    caught_by: Callable[[World], object]
    tries: int = 1
    refusal: str = ""


# -- ways to take something out ----------------------------------------------------------


def replaced(owner: object, name: str, function: Any) -> Guardless:
    """Another function in the place of `owner.name`."""

    @contextmanager
    def without(_: World) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, function)
            yield

    return without


def reworded(**words: tuple[str, str]) -> Guardless:
    """In every statement of a backend, the second text in the place of the first."""

    @contextmanager
    def without(world: World) -> Iterator[None]:
        old, new = words[world.backend.name]
        render = engine.Database.rendered
        found = []

        def rendered(database: engine.Database, statement: str) -> tuple[str, bool]:
            if old in statement:
                found.append(statement)
            return render(database, statement.replace(old, new))

        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(engine.Database, "rendered", rendered)
                yield
        finally:
            if not found:
                raise LookupError(f"no statement says {old!r} any more")

    return without


@contextmanager
def unconstrained(world: World, **constraints: str) -> Iterator[None]:
    """PostgreSQL's tables without the constraint that each name is given, as it was added."""
    url = transactions.url_of(world)
    names = {table: definition.split()[0] for table, definition in constraints.items()}
    transactions.execute(
        url, *(f"ALTER TABLE {t} DROP CONSTRAINT {name}" for t, name in names.items())
    )
    try:
        yield
    finally:
        transactions.execute(
            url,
            *(f"DELETE FROM {table}" for table in constraints),
            *(f"ALTER TABLE {t} ADD CONSTRAINT {how}" for t, how in constraints.items()),
        )


def each(**guardless: Guardless) -> Guardless:
    """What is missing, said for each backend in its own way; `sql` stands for both."""

    def without(world: World) -> AbstractContextManager[None]:
        kind = world.backend.name
        return guardless[kind if kind in guardless else "sql"](world)

    return without


# -- what replaces the guards ------------------------------------------------------------


class AnyToken(dict[tuple[str, int], Any]):
    """Leases that are found by their item alone."""

    def pop(self, key: tuple[str, int], default: Any = None) -> Any:
        for token, item in self:
            if item == key[1]:
                return super().pop((token, item))
        return default


def held_under_any_token(process: Any, item_ids: Any, held: Any = holding._held) -> AnyToken:
    return AnyToken(held(process, item_ids))


def forget_the_last_token(
    ledger: MemoryLedger, worker: str, *arguments: Any, claim: Any = MemoryLedger.claim, **more: Any
) -> Any:
    ledger._tables.process(worker).last_token = ""
    return claim(ledger, worker, *arguments, **more)


def save_without_last_token(process: Any, save: Any = process.Process.save, **columns: Any) -> None:
    columns.pop("last_token", None)
    save(process, **columns)


@contextmanager
def without_replay(world: World) -> Iterator[None]:
    statements = ("SET last_token = :token, ", "SET ")
    with (
        reworded(sqlite=statements, postgresql=statements)(world),
        replaced(process.Process, "save", save_without_last_token)(world),
    ):
        yield


def save_in_a_second_transaction(
    process: Any, save: Any = process.Process.save, **columns: Any
) -> None:
    process.tx._cursor.execute("COMMIT")
    process.tx.begin("BEGIN")
    save(process, **columns)


def begin_deferred(tx: engine.Transaction, statement: str) -> None:
    tx._cursor.execute(statement.replace(" IMMEDIATE", ""))


def begin_nothing(tx: engine.Transaction, statement: str) -> None:
    """Every statement commits for itself."""


def never(*_: Any, **__: Any) -> bool:
    return False


def always(*_: Any, **__: Any) -> bool:
    return True


def nothing(*_: Any, **__: Any) -> int:
    return 0


def move_all_but_the_superseded(
    tables: Tables, process: Any, row: Row, state: State, move: Any = Tables.move
) -> None:
    if state is not State.SUPERSEDED:
        move(tables, process, row, state)


def lose_alone(moves: Any, row: Any, *, alone: bool, lose: Any = process.Moves.lose) -> None:
    lose(moves, row, alone=True)


def lose_alone_in_memory(
    tables: Tables, reaper: Any, row: Row, *, alone: bool, lose: Any = Tables.lose
) -> None:
    lose(tables, reaper, row, alone=True)


def choose_as_if_alone(
    tables: Tables, *arguments: Any, alone: bool, choose: Any = Tables.choose
) -> Any:
    return choose(tables, *arguments, alone=True)


def same_digest(one: CommittedResult, other: CommittedResult) -> bool:
    return one.stored.sha256 == other.stored.sha256


def is_given_in_any_generation(row: Any, sha256: str, given: set[tuple[int, int, str]]) -> bool:
    return any((row.id, sha256) == (item, digest) for item, _, digest in given)


def breaks_off(prepare: Any) -> Callable[[World], object]:
    return partial(transactions.test_a_verb_that_breaks_off_leaves_no_trace, prepare=prepare)


def expecting_known_ones(test: Callable[[World], object]) -> Callable[[World], object]:
    return partial(shortcuts.with_known_ones_expected, test)


def any_value(*names: str) -> Callable[..., Any]:
    """Conditions that demand of these attributes that they are there, and of others a value."""

    def equal(name: str, value: object) -> wire.Condition:
        return wire.present(name) if name in names else wire.equal(name, value)

    return equal


def whether_there_or_not(name: str = "") -> wire.Condition:
    return wire.absent("never")


def the_new_alone(of: unit.Unit) -> list[bytes]:
    items = of._items.values()
    return [entry(r.id, r.rev) for r, was in items if r.state == State.READY and was is None]


def whatever_is_ready(of: unit.Unit) -> list[bytes]:
    return [entry(r.id, r.rev) for r, _ in of._items.values() if r.state == State.READY]


def wanted_at_every_revision(choice: claiming.Choice, keys: Any) -> list[claiming.Wanted]:
    ready = [one for _, taken in choice.taken for one in taken]
    return [
        *((one, keys.document(document_of(entry_id(one)))) for one in ready),
        *((one.entry, one.place) for one in choice.due),
    ]


def every_beat(watch: Any, *_: Any) -> Any:
    return list(watch._beats.values())


def lose_alone_in_dynamodb(row: Any, *arguments: Any, alone: bool, lose: Any = items.lose) -> None:
    lose(row, *arguments, alone=True)


def one_after_the_other(ledger: Any, actions: Any, **_: Any) -> None:
    for action in actions:
        [(kind, request)] = action.items()
        ledger.ask(f"{kind.lower()}_item", **request)


DYNAMO = ("dynamodb",)

MUTANTS = [
    Mutant(
        "commit takes any token, in DynamoDB",
        DYNAMO,
        replaced(settling, "equal", any_value("tok")),
        commits.test_a_commit_under_a_token_that_does_not_hold_is_fenced,
    ),
    Mutant(
        "an item may be committed twice",
        DYNAMO,
        replaced(settling, "equal", any_value("st")),
        commits.test_the_same_token_with_another_digest_is_fenced,
    ),
    Mutant(
        "fail takes any token, in DynamoDB",
        DYNAMO,
        replaced(items.ItemRow, "held_under", lambda row, token: row.state == State.LEASED),
        returns.test_a_failure_under_a_token_that_does_not_hold_is_fenced,
    ),
    Mutant(
        "a commit is not recognised when it comes again, in DynamoDB",
        DYNAMO,
        replaced(items.ItemRow, "committed_under", never),
        repeated.test_commit_repeated,
    ),
    Mutant(
        "a commit that comes again is counted again",
        DYNAMO,
        replaced(unit.Unit, "leave", always),
        repeated.test_commit_repeated,
    ),
    Mutant(
        "a claim is not recognised when it comes again, in DynamoDB",
        DYNAMO,
        replaced(claiming.Claiming, "_again", lambda *_: None),
        repeated.test_claim_repeated,
    ),
    Mutant(
        "what a claim did not reach is not offered again",
        DYNAMO,
        replaced(unit.Unit, "_ready", the_new_alone),
        apart.test_a_claim_that_lands_after_its_worker_was_reaped_takes_nothing,
    ),
    Mutant(
        "what is in a bundle already is offered again",
        DYNAMO,
        replaced(unit.Unit, "_ready", whatever_is_ready),
        apart.test_a_ready_item_that_is_named_again_is_offered_once,
    ),
    Mutant(
        "a claim takes from a bundle as it was",
        DYNAMO,
        replaced(bundles, "equal", any_value("rev")),
        apart.test_claims_that_meet_at_a_bundle_share_it,
    ),
    Mutant(
        "a process is put away without its tallies",
        DYNAMO,
        replaced(ended, "TALLY_NAMES", ()),
        processes.test_the_tallies_of_a_stopped_process_stay_in_the_run,
    ),
    Mutant(
        "a process is put away though it acts",
        DYNAMO,
        replaced(ended, "equal", any_value("call")),
        apart.test_a_process_that_acts_while_it_is_put_away_loses_no_tally,
    ),
    Mutant(
        "counts are called exact at the first look",
        DYNAMO,
        replaced(dynamo_reading._Fleet, "same", always),
        apart.test_counts_that_someone_is_put_away_from_are_not_called_exact,
    ),
    Mutant(
        "a claim wants an item at every revision",
        DYNAMO,
        replaced(claiming.Choice, "wanted", wanted_at_every_revision),
        apart.test_an_item_that_waits_at_two_revisions_is_claimed_once,
    ),
    Mutant(
        "the reaped may announce a claim",
        DYNAMO,
        replaced(claiming, "equal", any_value("state")),
        partial(apart.test_a_worker_that_is_reaped_while_it_chooses_claims_nothing, limit=0),
    ),
    Mutant(
        "a claim may land after its worker was reaped",
        DYNAMO,
        replaced(reaping, "entry_rev", lambda one: -1),
        apart.test_a_claim_that_lands_after_its_worker_was_reaped_takes_nothing,
    ),
    Mutant(
        "a process is reaped whose beat has moved",
        DYNAMO,
        replaced(reaping, "equal", any_value("n")),
        apart.test_a_beat_after_the_last_look_saves_its_process,
    ),
    Mutant(
        "the reaped may beat, in DynamoDB",
        DYNAMO,
        replaced(dynamo_ledger, "present", whether_there_or_not),
        reaps.test_a_reaped_worker_is_over,
    ),
    Mutant(
        "a beat need not be seen for a TTL",
        DYNAMO,
        replaced(reaping.Watch, "silent", every_beat),
        reaps.test_who_beats_is_not_reaped,
    ),
    Mutant(
        "whoever comes may reap, in DynamoDB",
        DYNAMO,
        replaced(Contact, "lasted", always),
        reaps.test_a_client_that_was_silent_reaps_nothing_for_a_ttl,
    ),
    Mutant(
        "every loss counts as a lone one, in DynamoDB",
        DYNAMO,
        replaced(items, "lose", lose_alone_in_dynamodb),
        reaps.test_losses_in_company_end_nothing,
    ),
    Mutant(
        "leases and tallies are settled one after the other",
        DYNAMO,
        replaced(calls.Calls, "transact", one_after_the_other),
        partial(
            apart.test_a_process_that_dies_at_any_request_strands_nothing,
            prepare=apart.commit,
            sent=False,
        ),
    ),
    Mutant(
        "what moved is not looked at again",
        DYNAMO,
        replaced(unit, "equal", any_value("v")),
        races.test_commit_fail_and_release_of_one_token_exclude_each_other,
        tries=10,
    ),
    Mutant(
        "commit takes any token",
        ALL,
        each(
            memory=replaced(Row, "held_under", lambda row, token: row.state is State.LEASED),
            sql=reworded(
                sqlite=("AND l.id = g.id AND l.token = g.token", "AND l.id = g.id"),
                postgresql=("AND id = g.id AND token = g.token", "AND id = g.id"),
            ),
        ),
        commits.test_a_commit_under_a_token_that_does_not_hold_is_fenced,
    ),
    Mutant(
        "commit takes any token where some are not held",
        SQL,
        replaced(holding, "_held", held_under_any_token),
        commits.test_good_and_fenced_results_of_one_call_are_told_apart,
    ),
    Mutant(
        "fail takes any token",
        SQL,
        replaced(holding, "_held", held_under_any_token),
        returns.test_a_failure_under_a_token_that_does_not_hold_is_fenced,
    ),
    Mutant(
        "an item is not unique",
        ("postgresql",),
        partial(
            unconstrained,
            documents="pk_documents PRIMARY KEY (run_id, source_id)",
            items="uq_items_run_id_source_id_source_version "
            "UNIQUE (run_id, source_id, source_version)",
        ),
        races.test_concurrent_enqueues_of_the_same_items_make_one_of_each,
        tries=20,
    ),
    Mutant(
        "an item may have two results",
        ("postgresql",),
        partial(unconstrained, results="pk_results PRIMARY KEY (run_id, id)"),
        transactions.test_the_schema_refuses_a_second_result_of_an_item,
    ),
    Mutant(
        "a committed item stays leased",
        SQL,
        reworded(
            sqlite=("DELETE FROM leased WHERE", "DELETE FROM leased WHERE false AND"),
            postgresql=("DELETE FROM leased WHERE", "DELETE FROM leased WHERE false AND"),
        ),
        breaks_off(transactions.prepare_commit),
    ),
    Mutant(
        "a commit is not recognised when it comes again",
        ALL,
        each(
            memory=replaced(MemoryLedger, "_committed_before", never),
            sql=reworded(
                sqlite=(
                    "token, sha256 FROM results WHERE",
                    "token, sha256 FROM results WHERE 0 AND",
                ),
                postgresql=(
                    "token, sha256 FROM results WHERE",
                    "token, sha256 FROM results WHERE false AND",
                ),
            ),
        ),
        repeated.test_commit_repeated,
    ),
    Mutant(
        "tallies are written in a transaction of their own",
        SQL,
        replaced(process.Process, "save", save_in_a_second_transaction),
        breaks_off(transactions.prepare_release),
    ),
    Mutant(
        "a verb is several transactions",
        SQL,
        replaced(engine.Transaction, "begin", begin_nothing),
        breaks_off(transactions.prepare_fail),
    ),
    Mutant(
        "a writer begins as a reader",
        ("sqlite",),
        replaced(engine.Transaction, "begin", begin_deferred),
        transactions.test_a_verb_waits_for_its_turn_before_it_does_anything,
    ),
    Mutant(
        "whoever comes may reap",
        ALL,
        replaced(Contact, "lasted", always),
        reaps.test_a_new_client_reaps_nothing_for_a_ttl,
    ),
    Mutant(
        "a suspended machine may reap",
        ALL,
        replaced(Contact, "lasted", always),
        reaps.test_a_suspended_machine_reaps_nothing_for_a_ttl,
    ),
    Mutant(
        "a claim is not recognised when it comes again",
        ALL,
        each(
            memory=replaced(MemoryLedger, "claim", forget_the_last_token),
            sql=without_replay,
        ),
        repeated.test_claim_repeated,
    ),
    Mutant(
        "the cursor never wraps",
        SQL,
        reworded(
            sqlite=("r.id <= :until ORDER", "r.id <= :until AND :until > 9999999 ORDER"),
            postgresql=("LIMIT greatest(0, :limit - (SELECT count(*) FROM ahead))", "LIMIT 0"),
        ),
        transactions.test_items_that_come_to_light_behind_the_cursor_are_found,
    ),
    Mutant(
        "changed bytes supersede nothing",
        ALL,
        each(
            memory=replaced(Tables, "move", move_all_but_the_superseded),
            sql=replaced(enqueueing._Intake, "_supersede", nothing),
        ),
        enqueues.test_changed_bytes_supersede_a_ready_item,
    ),
    Mutant(
        "an enqueue does not lock the rows of its documents",
        ("postgresql",),
        reworded(postgresql=("ORDER BY source_id $for_update", "ORDER BY source_id")),
        races.test_concurrent_enqueues_of_different_versions_leave_one_current,
        tries=20,
        refusal="in no state of the ledger",
    ),
    Mutant(
        "new documents are taken up in any order of batches",
        ("postgresql",),
        reworded(postgresql=("WHERE me.last_batch < :batch AND", "WHERE")),
        enqueues.test_batches_of_one_process_go_forward_only,
    ),
    Mutant(
        "new documents are taken up without a lock on the process",
        ("postgresql",),
        reworded(
            postgresql=(
                "last_batch FROM workers WHERE name = :worker FOR UPDATE",
                "last_batch FROM workers WHERE name = :worker",
            )
        ),
        shortcuts.test_a_batch_that_waited_for_a_later_one_is_refused,
    ),
    Mutant(
        "new documents are added in the order of their listing",
        ("postgresql",),
        reworded(postgresql=('ORDER BY source_id COLLATE "C"', "")),
        shortcuts.test_items_are_numbered_as_listed_and_documents_added_by_name,
    ),
    Mutant(
        "known documents are not locked",
        ("postgresql",),
        reworded(postgresql=("FROM known) LIMIT 1 FOR UPDATE", "FROM known) LIMIT 1")),
        shortcuts.test_a_document_that_another_enqueue_has_just_changed_is_changed_back,
    ),
    Mutant(
        "known documents are taken up in any order of batches",
        ("postgresql",),
        reworded(postgresql=("FROM me WHERE last_batch < :batch", "FROM me")),
        shortcuts.test_batches_of_known_documents_go_forward_only,
    ),
    Mutant(
        "known documents are taken up without a lock on the process",
        ("postgresql",),
        reworded(postgresql=("FROM held) = :number FOR UPDATE", "FROM held) = :number")),
        shortcuts.test_batches_of_known_documents_go_forward_only,
    ),
    Mutant(
        "a batch of which some are known is known",
        ("postgresql",),
        reworded(postgresql=("(SELECT count(*) FROM held) = :number", "true")),
        expecting_known_ones(enqueues.test_the_same_version_again_is_known),
    ),
    Mutant(
        "known documents may have other bytes",
        ("postgresql",),
        reworded(postgresql=("AND source_version = g.source_version", "")),
        expecting_known_ones(enqueues.test_changed_bytes_supersede_a_ready_item),
    ),
    Mutant(
        "known documents may lie elsewhere",
        ("postgresql",),
        reworded(postgresql=("AND locator = g.locator", "")),
        expecting_known_ones(
            partial(enqueues.test_a_known_uncommitted_item_gets_the_new_locator, state="ready")
        ),
    ),
    Mutant(
        "known documents may be named again",
        ("postgresql",),
        reworded(postgresql=("AND enqueuer <> (SELECT id FROM known)", "")),
        shortcuts.test_a_document_that_another_enqueue_has_just_named_is_marked,
    ),
    Mutant(
        "the reaped may beat",
        SQL,
        reworded(
            sqlite=("name = :worker AND state = 'live'", "name = :worker"),
            postgresql=("name = :worker AND state = 'live'", "name = :worker"),
        ),
        reaps.test_a_reaped_worker_is_over,
    ),
    Mutant(
        "every loss counts as a lone one",
        ALL,
        each(
            memory=replaced(Tables, "lose", lose_alone_in_memory),
            sql=replaced(process.Moves, "lose", lose_alone),
        ),
        reaps.test_losses_in_company_end_nothing,
    ),
    Mutant(
        "the tallies of a stopped process are forgotten",
        SQL,
        reworded(
            sqlite=("FROM workers AS w WHERE w.id", "FROM workers AS w WHERE false AND w.id"),
            postgresql=("FROM workers AS w WHERE w.id", "FROM workers AS w WHERE false AND w.id"),
        ),
        processes.test_the_tallies_of_a_stopped_process_stay_in_the_run,
    ),
    Mutant(
        "reopen takes any generation",
        ALL,
        each(
            memory=replaced(memory, "_same_result", same_digest),
            sql=replaced(enqueueing, "_is_given", is_given_in_any_generation),
        ),
        reopens.test_another_generation_is_not_reopened,
    ),
    Mutant(
        "reopen takes any digest",
        ALL,
        each(
            memory=replaced(memory, "_same_result", always),
            sql=replaced(enqueueing, "_is_given", always),
        ),
        reopens.test_another_digest_is_not_reopened,
    ),
    Mutant(
        "reopen keeps no history",
        SQL,
        reworded(
            sqlite=(":now FROM results WHERE", ":now FROM results WHERE 0 AND"),
            postgresql=(":now FROM results WHERE", ":now FROM results WHERE false AND"),
        ),
        reopens.test_what_was_lost_stays_in_the_history,
    ),
    Mutant(
        "two may reopen a result at once",
        ("postgresql",),
        reworded(
            postgresql=(
                "AND id $in_ids ORDER BY id $for_update",
                "AND id $in_ids ORDER BY id",
            )
        ),
        reopens.test_auditors_that_race_reopen_an_item_once,
        tries=20,
        refusal="duplicate key",
    ),
    Mutant(
        "current results are all results",
        ALL,
        each(
            memory=replaced(Tables, "is_current", always),
            sql=reworded(
                sqlite=(" AND d.item_id = r.id", ""), postgresql=(" AND d.item_id = r.id", "")
            ),
        ),
        reading.test_current_results_leave_out_the_versions_that_were_replaced,
    ),
    Mutant(
        "suspects go to workers that hold others",
        ("memory",),
        replaced(Tables, "choose", choose_as_if_alone),
        claims.test_suspects_are_passed_over_where_the_worker_holds_something,
    ),
]
