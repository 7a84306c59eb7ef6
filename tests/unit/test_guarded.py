"""A processor that misbehaves on one document: that document alone is charged."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy
import pytest

from batchq.errors import BatchqError, DeviceLost, DocumentError, ExitCode, UsageError
from batchq.inference.base import Document, Output, Prepared
from batchq.worker.guarded import Guarded, ProcessorFault
from tests.unit.patience import comes_true
from tests.unit.worker_kit import FAST, POLICY, Kit, Lapsing


class Panic(BaseException):
    """As a panic in a Rust extension reaches Python."""


class Unlistable:
    def tolist(self) -> list[float]:
        raise OSError("the array's file is gone")


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message either")


class Partless(DocumentError):
    def __init__(self) -> None:
        pass


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("the tensor's device is gone")

    def __index__(self) -> int:
        raise RuntimeError("the tensor's device is gone")


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(200_000):
        value = [value]
    return value


def raise_it(error: BaseException) -> Any:
    raise error


# What the types forbid is just what is tried here, and in INFERS.
PREPARES: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "no cost": lambda: Prepared("odd", None),  # type: ignore[arg-type]
    "cost 0": lambda: Prepared("odd", 0),
    "panic": lambda: raise_it(Panic("at the disco")),
    "exit": lambda: raise_it(SystemExit(3)),
    "stop iteration": lambda: raise_it(StopIteration()),
    "an error without a message": lambda: raise_it(Silent()),
    "an error without its parts": lambda: raise_it(Partless()),
    "an error with odd parts": lambda: raise_it(DocumentError(5, None)),  # type: ignore[arg-type]
    "a cause that no database keeps": lambda: raise_it(DocumentError("\0" * 5_000, "odd")),
    "what cannot be shown": lambda: Unshowable(),
    "a cost that cannot be shown": lambda: Prepared("odd", Unshowable()),  # type: ignore[arg-type]
}

INFERS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "a dict": lambda: {"value": 1},
    "float tokens": lambda: Output(1, 1.5, 1),  # type: ignore[arg-type]
    "no tokens": lambda: Output(1, None, "x"),  # type: ignore[arg-type]
    "more tokens than there are": lambda: Output(1, 10**30, 1),
    "unlistable": lambda: Output(Unlistable(), 1, 1),
    "too deep": lambda: Output(deep(), 1, 1),
    "bytes": lambda: Output(b"raw", 1, 1),
    "panic": lambda: raise_it(Panic("at the disco")),
    "interrupt": lambda: raise_it(KeyboardInterrupt()),
    "an error without a message": lambda: raise_it(Silent()),
    "an error without its parts": lambda: raise_it(Partless()),
    "an error with odd parts": lambda: raise_it(DocumentError(5, None)),  # type: ignore[arg-type]
    "a cause that no database keeps": lambda: raise_it(DocumentError("\0" * 5_000, "odd")),
    "what cannot be shown": lambda: Unshowable(),
    "tokens that cannot be shown": lambda: Output(1, Unshowable(), 1),  # type: ignore[arg-type]
}


def kit_with_one_odd_document(**parts: Any) -> Kit:
    return Kit.of({f"doc-{n}": f"text {n}" for n in range(6)} | {"odd": "odd"}, **parts)


def assert_only_the_odd_one_ended(kit: Kit) -> None:
    assert kit.work() == ExitCode.DEAD_LETTERS
    [letter] = kit.ledger.dead_letters(kit.run, 0, 10)
    assert letter.source_id == "odd"
    assert letter.cause.isprintable()
    assert len(letter.cause) <= 100
    assert len(kit.outputs()) == 6
    assert kit.tallies.failures == POLICY.max_failures


@pytest.mark.parametrize("name", PREPARES)
def test_whatever_prepare_does_with_a_document_is_charged_to_it(name: str) -> None:
    """It is tried again, then dead-lettered; the others complete."""
    kit = kit_with_one_odd_document()
    prepare = kit.processor.prepare

    def misbehave(document: Document) -> Prepared:
        return PREPARES[name]() if document.text == "odd" else prepare(document)

    kit.processor.prepare = misbehave  # type: ignore[method-assign]
    assert_only_the_odd_one_ended(kit)


@pytest.mark.parametrize("change", ["sort", "clear"])
def test_a_batch_cannot_be_changed_by_whom_it_is_given_to(change: str) -> None:
    """Outputs in the order of a batch that was sorted in place would be other documents'."""
    kit = kit_with_one_odd_document()
    infer = kit.processor.infer

    def misbehave(batch: Sequence[Prepared]) -> Sequence[Output]:
        if any(prepared.payload == "odd" for prepared in batch):
            how = {"key": lambda prepared: prepared.payload} if change == "sort" else {}
            getattr(batch, change)(**how)
        return infer(batch)

    kit.processor.infer = misbehave  # type: ignore[method-assign]
    assert_only_the_odd_one_ended(kit)


@pytest.mark.parametrize("name", INFERS)
def test_whatever_infer_does_with_a_document_is_charged_to_it(name: str) -> None:
    """No neighbour in its batch is charged, and nothing that cannot be read is committed."""
    kit = kit_with_one_odd_document()
    infer = kit.processor.infer

    def misbehave(batch: Sequence[Prepared]) -> Sequence[Output]:
        outputs = infer(batch)
        return [
            INFERS[name]() if prepared.payload == "odd" else output
            for prepared, output in zip(batch, outputs, strict=True)
        ]

    kit.processor.infer = misbehave  # type: ignore[method-assign]
    assert_only_the_odd_one_ended(kit)


def test_a_document_that_hangs_its_preparation_stays_leased_as_a_suspect() -> None:
    """The process ends with 76, and only the one in hand is left to be reaped as a loss."""
    clock = Lapsing()
    kit = kit_with_one_odd_document(clock=clock)
    prepare, never = kit.processor.prepare, threading.Event()

    def hang(document: Document) -> Prepared:
        if document.text == "odd" and comes_true(lambda: kit.tallies.completed == 6):
            clock.lapsed.set()
            never.wait(120)
        return prepare(document)

    kit.processor.prepare = hang  # type: ignore[method-assign]
    with pytest.raises(DeviceLost):
        kit.work(replace(FAST, flush_items=1))
    never.set()
    assert kit.tallies.leased == 1


def test_an_output_that_is_filled_again_by_the_next_batch_is_stored_as_it_was() -> None:
    """A processor may keep one dict for all its answers: each is committed with its own."""
    kit = Kit.of({f"doc-{n}": f"text {n}" for n in range(6)})
    answer: dict[str, Any] = {"words": []}

    def infer(batch: Sequence[Prepared]) -> Iterator[Output]:
        for prepared in batch:
            answer["words"][:] = prepared.payload.split()
            yield Output(answer, 2, 2)

    kit.processor.infer = infer  # type: ignore[method-assign, assignment]
    assert kit.work() == ExitCode.OK
    assert {f"doc-{n}": {"words": ["text", str(n)]} for n in range(6)} == kit.outputs()


def test_outputs_without_end_are_a_failure_and_not_the_end_of_memory() -> None:
    """No more are taken than tell that there are too many."""
    kit = Kit.of({"doc": "words"})
    outputs = iter([Output(1, 1, 1)] * 100)
    kit.processor.infer = lambda batch: outputs  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(ProcessorFault, match="returned more than 1 outputs for 1 document"):
        Guarded(kit.processor).infer([Prepared("words", 1)])
    assert len(list(outputs)) == 98


def test_a_failure_tells_nothing_of_what_a_document_holds() -> None:
    """It is kept in the ledger and shown in logs, where a text does not belong."""
    kit = Kit.of({"doc": "words"})
    kit.processor.prepare = lambda document: Prepared("my diary", 0)  # type: ignore[method-assign]
    kit.processor.infer = lambda batch: [Output("my diary", 1, None)]  # type: ignore[method-assign, arg-type]
    guarded = Guarded(kit.processor)
    document = Document("a", "sha256:0", "text/plain", "my diary")
    with pytest.raises(ProcessorFault, match=r"prepare returned Prepared\(…, cost=0\)"):
        guarded.prepare(document)
    with pytest.raises(ProcessorFault, match=r"infer returned Output\(…, 1, None\)"):
        guarded.infer([Prepared("my diary", 1)])


def test_the_notes_of_an_error_are_kept_with_it() -> None:
    """Python lets whoever passes an error on say more about it."""
    kit = Kit.of({"doc": "words"})
    error = ValueError("odd")
    error.add_note("shouting.py:12")
    kit.processor.prepare = lambda document: raise_it(error)  # type: ignore[method-assign]
    with pytest.raises(ProcessorFault, match=r"^ValueError: odd \(shouting\.py:12\)$"):
        Guarded(kit.processor).prepare(Document("a", "sha256:0", "text/plain", "hey"))


def test_numbers_and_arrays_of_numpy_are_taken_at_any_depth() -> None:
    """They are what a sum over a tensor gives."""
    kit = Kit.of({"doc": "words"})
    value = {"score": numpy.float32(0.5), "vectors": [numpy.zeros(2, numpy.float32)], "n": (1, 2)}
    tokens = numpy.int64(7)
    kit.processor.infer = lambda batch: [Output(value, tokens, tokens)]  # type: ignore[method-assign, arg-type]
    kit.processor.prepare = lambda document: Prepared("words", numpy.int64(3))  # type: ignore[method-assign, arg-type]
    assert kit.work() == ExitCode.OK
    assert kit.outputs() == {"doc": {"score": 0.5, "vectors": [[0.0, 0.0]], "n": [1, 2]}}


def test_a_forked_process_that_comes_back_is_ended() -> None:
    """It would wait for work for ever, and whoever forked it for its end."""
    kit = Kit.of({"doc": "words"})
    infer, children = kit.processor.infer, []

    def forking(batch: Sequence[Prepared]) -> Sequence[Output]:
        child = os.fork()
        if child == 0:
            sys.exit(7)
        children.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return infer(batch)

    kit.processor.infer = forking  # type: ignore[method-assign]
    assert kit.work() == ExitCode.OK
    assert children == [1]


@pytest.mark.parametrize("exits", [SystemExit(0), KeyboardInterrupt(), Panic()])
def test_a_processor_that_ends_the_process_while_it_loads_is_an_error(
    exits: BaseException,
) -> None:
    """Exit code 0 would say that the run is finished, and a scheduler would believe it."""
    kit = Kit.of({"doc": "words"})
    kit.processor.load = lambda device: raise_it(exits)  # type: ignore[method-assign]
    with pytest.raises(BatchqError, match=type(exits).__name__):
        kit.work()
    assert kit.tallies.ready == 1


@pytest.mark.parametrize(
    "told", [None, {"x": {1, 2}}, {"x": float("nan")}, {1: "x"}, {"api_key": "hunter2"}]
)
def test_a_provenance_that_may_not_be_kept_is_refused_before_anything_is_claimed(told: Any) -> None:
    """It goes into every result, and would be charged to every document."""
    kit = Kit.of({"doc": "words"})
    kit.processor.provenance = lambda: told  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="provenance"):
        kit.work()
    assert (kit.tallies.ready, kit.tallies.delayed) == (1, 0)


def test_float32_arrays_become_the_shortest_decimals_that_restore_them() -> None:
    """Whoever's processor made them: half the bytes, in either layout, and no bit lost."""
    row = numpy.array([0.1, -2.5e-7, 3.4e38, 1e-45, -0.0], numpy.float32)
    kit = Kit.of({"doc": "words"})
    for value, expected in (
        (row, [0.1, -2.5e-07, 3.4e38, 1e-45, -0.0]),
        (row[None], [[0.1, -2.5e-07, 3.4e38, 1e-45, -0.0]]),
        (row[:0], []),
        (row.astype(numpy.float64), row.astype(numpy.float64).tolist()),
        (row[0], float(row[0])),
    ):
        kit.processor.infer = lambda batch, value=value: [Output(value, 1, 1)]  # type: ignore[method-assign, misc]
        [output] = Guarded(kit.processor).infer([Prepared("words", 1)])
        assert expected == output.value
        assert numpy.array(output.value, numpy.float32).tobytes() == value.astype("f4").tobytes()
