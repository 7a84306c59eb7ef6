"""A worker with one guard taken out, and the test that must notice.

A mutant is the guard's own function with a piece of its source replaced. One whose piece is
no longer there is an error, so that no mutant outlives what it mutates.
"""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from batchq.store import verified
from batchq.worker import guarded
from batchq.worker.claim import Claimer
from batchq.worker.heartbeat import Heartbeat, Registration
from batchq.worker.holdings import Holdings
from batchq.worker.pace import Pace
from batchq.worker.pipeline import Pipeline
from batchq.worker.put import Putter
from tests.faults.faulty_store import PutFault
from tests.unit import patience
from tests.unit import test_guarded as processors
from tests.unit import test_put as putters
from tests.unit import test_verified as stores
from tests.unit import test_worker as workers
from tests.unit import test_worker_outages as outages

__all__ = ["MUTANTS", "Mutant"]


@dataclass(frozen=True)
class Cut:
    """`old` in the source of `owner.name`, and what stands there without the guard."""

    owner: type | ModuleType
    name: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """What is missing, where (a guard may stand in two places), and who notices."""

    name: str
    cuts: tuple[Cut, ...]
    caught_by: Callable[[], object]

    @contextmanager
    def at_large(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for cut in self.cuts:
                patch.setattr(cut.owner, cut.name, _rewritten(cut))
            # What does not come true here never would.
            patch.setattr(patience, "PATIENCE_S", 0.3)
            yield


def with_patches(test: Callable[..., object], *arguments: object) -> Callable[[], None]:
    """The test, with patches of its own."""

    def run() -> None:
        with pytest.MonkeyPatch.context() as patch:
            test(*arguments, monkeypatch=patch)

    return run


def _rewritten(cut: Cut) -> Any:
    function = getattr(cut.owner, cut.name)
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(cut.old) != 1:
        raise LookupError(f"{function.__qualname__} says {cut.old!r} {source.count(cut.old)} times")
    code = compile(
        source.replace(cut.old, cut.new),
        inspect.getfile(function),
        "exec",
        flags=__future__.annotations.compiler_flag,
        dont_inherit=True,
    )
    made: dict[str, Any] = {}
    exec(code, function.__globals__, made)
    return made[cut.name]


MUTANTS = [
    Mutant(
        "a claim is sent after the notice",
        (Cut(Claimer, "_closed", " or self._parts.drain.started", ""),),
        workers.test_a_notice_between_two_calls_lets_no_claim_through,
    ),
    Mutant(
        "a token goes out under two names",
        (
            Cut(
                Claimer,
                "_claim",
                "name, token = parts.registration.name, new_token()",
                "name, token = parts.registration.name, token or new_token()",
            ),
        ),
        outages.test_no_token_is_sent_under_two_names,
    ),
    Mutant(
        "what a claim in flight brings is worked on",
        (
            Cut(Pipeline, "_hand_out", "if self._parts.drain.started:", "if False:"),
            Cut(Pipeline, "_closing_early", "self._parts.drain.started or ", ""),
        ),
        workers.test_what_a_claim_in_flight_brings_goes_back_and_is_not_begun,
    ),
    Mutant(
        "what was lost is kept",
        (Cut(Registration, "renew", "cancel()", "pass"),),
        workers.test_a_reaped_worker_drops_what_it_has_not_begun,
    ),
    Mutant(
        "work that is no longer held is begun",
        (Cut(Holdings, "holds", "self._works.get(work.held) is work", "True"),),
        workers.test_a_reaped_worker_drops_what_it_has_not_begun,
    ),
    Mutant(
        "one reaping is answered twice",
        (Cut(Registration, "renew", "if self.name != lost_name:", "if False:"),),
        workers.test_a_name_that_was_renewed_already_cancels_nothing,
    ),
    Mutant(
        "a worker that has left comes back",
        (Cut(Heartbeat, "_beat", " and not self._stop.is_set()", ""),),
        workers.test_a_worker_that_leaves_registers_no_more,
    ),
    Mutant(
        "a hung device is beaten for",
        (Cut(Heartbeat, "_beat", "self._refuse_stall()", "pass"),),
        workers.test_nobody_beats_for_a_pipeline_that_stands_still,
    ),
    Mutant(
        "a beat without an answer is not made up for",
        (Cut(Heartbeat, "_guard", "pause = interval / 2", "pass"),),
        outages.test_a_beat_without_an_answer_is_sent_again_within_a_sixth_of_the_ttl,
    ),
    Mutant(
        "time spent idle counts as a stall",
        (Cut(Claimer, "_take", "self._step()", "pass"),),
        outages.test_time_spent_idle_is_no_stall_once_something_is_claimed,
    ),
    Mutant(
        "suspects are handed out in company",
        (Cut(Claimer, "_claim", "alone=len(self._holdings) == 0", "alone=True"),),
        workers.test_a_worker_that_holds_something_never_claims_as_if_alone,
    ),
    Mutant(
        "what was lost once is held by the thousand",
        (Cut(Pace, "hold", "if lost_before", "if False"),),
        workers.test_of_what_was_lost_before_little_is_held_at_a_time,
    ),
    Mutant(
        "what does not fit the deadline is begun",
        (Cut(Putter, "_put", "parts.drain.started and not", "False and not"),),
        workers.test_a_result_that_does_not_fit_the_deadline_is_given_back,
    ),
    Mutant(
        "a batch that cannot end in time is waited for",
        (Cut(Pipeline, "_release_hopeless", "if left > 0 and not", "if False and not"),),
        partial(
            workers.test_a_batch_is_finished_if_it_fits_the_deadline_and_else_given_back_at_once,
            900.0,
            False,
        ),
    ),
    Mutant(
        "an output is stored as its processor has left it",
        (Cut(guarded, "_checked", "_plain(output.value)", "output.value"),),
        processors.test_an_output_that_is_filled_again_by_the_next_batch_is_stored_as_it_was,
    ),
    Mutant(
        "an output that cannot be stored counts as one",
        (Cut(Pipeline, "_spoilt", "self._outputs.add(-1)", "pass"),),
        workers.test_a_processor_whose_outputs_cannot_be_stored_is_broken_too,
    ),
    Mutant(
        "all threads store results, needed or not",
        (Cut(Putter, "run", "number > 0 and", "False and"),),
        with_patches(putters.test_a_slow_device_has_its_results_stored_by_one_thread),
    ),
    Mutant(
        "one thread stores the results of any device",
        (Cut(Pace, "puts_keep_up", "<= number * per_item", "<= per_item or number > 0"),),
        with_patches(putters.others_store_while_a_put_hangs, putters.quick_device),
    ),
    Mutant(
        "results wait for a put that hangs",
        (Cut(Putter, "_others_keep_up", "waited == 0 or", "True or"),),
        with_patches(putters.test_a_put_that_hangs_holds_up_nothing_else),
    ),
    Mutant(
        "results are stored at leisure in a hurry",
        (Cut(Putter, "_others_keep_up", "self._hurried() or", ""),),
        with_patches(putters.test_in_a_hurry_all_threads_store_results),
    ),
    Mutant(
        "few threads store results over a network",
        (Cut(Putter, "_others_keep_up", "parts.remote or", ""),),
        with_patches(putters.test_over_a_network_all_threads_store_results),
    ),
    Mutant(
        "a put is believed",
        (Cut(verified, "_put_and_read_back", "if _reads_back(store, ours):", "if True:"),),
        partial(
            stores.test_a_store_that_spoils_an_object_does_not_get_it_committed,
            PutFault.TRUNCATED,
            remote=False,
        ),
    ),
    Mutant(
        "whatever lies there is adopted",
        (Cut(verified, "_adopt", "if _identity(envelope) != identity:", "if False:"),),
        stores.test_another_items_result_ends_the_command_naming_both,
    ),
]
