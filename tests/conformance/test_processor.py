"""What every processor promises, built in or a user's own."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from batchq.fingerprint import processing_version
from batchq.inference.base import Output, Processor
from batchq.inference.registry import build_processor
from batchq.result import canonical_json
from tests.conformance.processors import PROCESSORS, document, loaded, outputs

TEXTS = [
    "A worker stops claiming when a notice arrives.",
    "x",
    "Die Straße ist naß, das Café zu; 東京 и 서울 sind weit. 🎈",
    "def add(a, b):\n    return a + b\n",
    "lease " * 90,
    "Ünïcödé\u0000 with a null, \u202ereversed\u202c, a tab\t and\r\nline ends",
    "A long document goes through in windows and is never cut. " * 60,
    "https://example.org/a/very/long/path?with=a&query=and#" + "fragment" * 30,
    "ready",
]


@pytest.fixture(params=PROCESSORS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def processor(name: str) -> Processor:
    return loaded(name)


def alike(one: Output, other: Output) -> bool:
    """The same output, numbers to within the rounding of another batch shape."""
    if (one.tokens_total, one.tokens_used) != (other.tokens_total, other.tokens_used):
        return False
    if not isinstance(one.value, list):
        return bool(one.value == other.value)
    return len(one.value) == len(other.value) and all(
        abs(a - b) < 2e-6 for a, b in zip(one.value, other.value, strict=True)
    )


def test_it_has_the_four_methods(processor: Processor) -> None:
    """The protocol, as the pipeline calls it."""
    assert isinstance(processor, Processor)


def test_the_manifest_is_json_and_stable(name: str, processor: Processor) -> None:
    """Built twice, loaded or not, the identity is one; it holds no path of this machine."""
    kind, parameters = PROCESSORS[name]
    manifest = dict(processor.manifest())
    assert manifest == json.loads(canonical_json(manifest))
    assert manifest == dict(build_processor(kind, parameters).manifest())
    assert processing_version(manifest) == processing_version(processor.manifest())
    assert str(manifest["kind"]).replace("-", "").isalnum()
    assert sys.prefix not in json.dumps(manifest)


def test_the_manifest_needs_no_torch(name: str) -> None:
    """So that `enqueue` and a refused worker start at once."""
    kind, parameters = PROCESSORS[name]
    program = (
        "import sys; from batchq.inference.registry import build_processor; "
        f"build_processor({kind!r}, {dict(parameters)!r}).manifest(); "
        "print({'torch', 'transformers', 'tokenizers', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.strip() == "set()"


def test_each_document_has_its_output_in_order(processor: Processor) -> None:
    """However the batch is sorted inside, outputs come back in the order of the batch."""
    alone = [outputs(processor, [text])[0] for text in TEXTS]
    shuffled = random.Random(3).sample(range(len(TEXTS)), len(TEXTS))
    together = outputs(processor, [TEXTS[index] for index in shuffled])
    assert len(together) == len(TEXTS)
    for index, output in zip(shuffled, together, strict=True):
        assert alike(output, alone[index])


def test_different_texts_have_different_outputs(processor: Processor) -> None:
    """Or the test above would hold for a processor that mixes them up."""
    values = [canonical_json(output.value) for output in outputs(processor, TEXTS)]
    assert len(set(values)) == len(values)


def test_the_same_batch_again_gives_the_same_bytes(processor: Processor) -> None:
    """On one machine and in one batch shape, nothing is left to chance."""
    first, second = outputs(processor, TEXTS), outputs(processor, TEXTS)
    assert [canonical_json(one.value) for one in first] == [
        canonical_json(one.value) for one in second
    ]


@pytest.mark.parametrize("text", ["", " ", "\n\t \u00a0\n"])
def test_a_document_without_text_does_no_harm(processor: Processor, text: str) -> None:
    """The worker commits these itself, but a processor must not fall over one."""
    output, other = outputs(processor, [text, TEXTS[0]])
    assert output.tokens_total == output.tokens_used == 0
    canonical_json(output.value)
    assert alike(other, outputs(processor, [TEXTS[0]])[0])


def test_an_empty_batch_has_no_outputs(processor: Processor) -> None:
    """Nothing in, nothing out."""
    assert list(processor.infer([])) == []


def test_no_text_is_left_out(processor: Processor) -> None:
    """All tokens are used, also of a long document, and twice the text has twice as many."""
    once, twice = outputs(processor, ["word " * 300, "word " * 600])
    assert 0 < once.tokens_total == once.tokens_used
    assert 2 * once.tokens_total == twice.tokens_total == twice.tokens_used


def test_costs_are_positive_and_grow_with_the_text(processor: Processor) -> None:
    """The batches and leases are cut by them."""
    costs = [processor.prepare(document("word " * count)).cost for count in (0, 1, 100, 3_000)]
    assert costs[0] >= 1
    assert sorted(costs) == costs
    assert costs[3] > 20 * costs[2] > 0


def test_documents_are_prepared_in_many_threads(processor: Processor) -> None:
    """What a thread prepares is what one alone prepares."""
    expected = outputs(processor, TEXTS)
    start = threading.Barrier(8)

    def prepare_all(_: int) -> list[Any]:
        start.wait(timeout=120)
        return [processor.prepare(document(text)) for text in TEXTS]

    with ThreadPoolExecutor(8) as pool:
        rounds: Sequence[list[Any]] = list(pool.map(prepare_all, range(8)))
    for prepared in (rounds[0], rounds[-1]):
        for ours, theirs in zip(processor.infer(prepared), expected, strict=True):
            assert alike(ours, theirs)
