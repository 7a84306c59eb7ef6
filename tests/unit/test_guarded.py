"""A processor that misbehaves on one document: that document alone is charged."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy
import pytest

from batchq.errors import DeviceLost, ExitCode
from batchq.inference.base import Document, Output, Prepared
from batchq.worker.guarded import Guarded
from tests.unit.worker_kit import FAST, POLICY, Kit


class Panic(BaseException):
    """As a panic in a Rust extension reaches Python."""


class Unlistable:
    def tolist(self) -> list[float]:
        raise OSError("the array's file is gone")


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
}

INFERS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "a dict": lambda: {"value": 1},
    "float tokens": lambda: Output(1, 1.5, 1),  # type: ignore[arg-type]
    "no tokens": lambda: Output(1, None, "x"),  # type: ignore[arg-type]
    "unlistable": lambda: Output(Unlistable(), 1, 1),
    "too deep": lambda: Output(deep(), 1, 1),
    "bytes": lambda: Output(b"raw", 1, 1),
    "panic": lambda: raise_it(Panic("at the disco")),
    "interrupt": lambda: raise_it(KeyboardInterrupt()),
}


def kit_with_one_odd_document() -> Kit:
    return Kit.of({f"doc-{n}": f"text {n}" for n in range(6)} | {"odd": "odd"})


def assert_only_the_odd_one_ended(kit: Kit) -> None:
    assert kit.work() == ExitCode.DEAD_LETTERS
    [letter] = kit.ledger.dead_letters(kit.run, 0, 10)
    assert letter.source_id == "odd"
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
    kit = kit_with_one_odd_document()
    prepare, never = kit.processor.prepare, threading.Event()

    def hang(document: Document) -> Prepared:
        if document.text == "odd":
            never.wait(30)
        return prepare(document)

    kit.processor.prepare = hang  # type: ignore[method-assign]
    with pytest.raises(DeviceLost):
        kit.work(replace(FAST, stall_timeout=0.6))
    never.set()
    assert kit.tallies.leased == 1


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
