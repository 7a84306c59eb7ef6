"""Embeddings: those of sentence-transformers, whatever the batch, the length, the memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest

from batchq.errors import BatchqError, DeviceLost, DocumentError, UsageError
from batchq.inference.base import Prepared
from batchq.inference.embed import Embed
from batchq.inference.model_files import read_json
from batchq.inference.tokens import Tokenizer
from batchq.inference.weights import find_model
from tests.conformance.processors import document, loaded, outputs
from tests.unit.embed_in_little_memory import ROOMS

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

SHORT = [
    "A worker stops claiming when a notice arrives.",
    "x",
    "Die Straße ist naß; 東京 🎈",
    "def add(a, b):\n    return a + b\n",
    "lease " * 90,
    "",
]
NEIGHBOURS = ["a", "two words", "word " * 30, "word " * 61, "word " * 62, "word " * 126]


@pytest.fixture(scope="module")
def folder() -> Path:
    return find_model("all-MiniLM-L6-v2").path


@pytest.fixture
def packed() -> Embed:
    return _embed("embed packed")


@pytest.fixture
def fixed() -> Embed:
    return _embed("embed fixed")


def _embed(name: str) -> Embed:
    processor = loaded(name)
    assert isinstance(processor, Embed)
    return processor


@pytest.fixture
def own() -> Embed:
    """A processor with a model of its own, to be broken."""
    processor = Embed()
    processor.load("cpu")
    return processor


def vectors(processor: Embed, texts: Sequence[str]) -> Any:
    return numpy.array([output.value for output in outputs(processor, texts)])


# -- the numbers -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["embed packed", "embed fixed"])
def test_short_texts_embed_as_sentence_transformers_does(name: str, folder: Path) -> None:
    """The same model, so the same vectors, to the rounding of another batch."""
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(folder), device="cpu").encode(SHORT)
    ours = vectors(_embed(name), SHORT)
    assert (theirs * ours).sum(axis=1).min() > 0.99999


def test_vectors_have_unit_length_unless_told(folder: Path) -> None:
    """`normalise = false` keeps the length that the model gave."""
    raw = Embed(normalise=False)
    raw.load("cpu")
    ours, unit = vectors(raw, SHORT), vectors(_embed("embed packed"), SHORT)
    lengths = numpy.linalg.norm(ours, axis=1, keepdims=True)
    assert numpy.allclose(numpy.linalg.norm(unit, axis=1), 1, atol=1e-6)
    assert numpy.abs(lengths - 1).min() > 0.1
    assert numpy.allclose(ours / lengths, unit, atol=1e-5)


def test_a_long_text_is_the_average_of_its_windows(packed: Embed) -> None:
    """Weighted by length, each window embedded as a text of its own would be."""
    text = " ".join(f"word{index}" for index in range(400))
    prepared = packed.prepare(document(text))
    spans = prepared.payload.spans
    assert len(spans) > 2
    raw = Embed(normalise=False)
    raw.load("cpu")
    rows, _ = raw._run([(prepared.payload.ids, start, end) for start, end in spans], alone=True)
    expected = rows.mean(axis=0)
    ours = vectors(packed, [text])[0]
    assert numpy.allclose(expected / numpy.linalg.norm(expected), ours, atol=1e-6)


def test_the_end_of_a_long_text_matters(packed: Embed) -> None:
    """It is not cut off, as encode() does in silence."""
    ones, others = "alpha " * 2_000 + "violin", "alpha " * 2_000 + "quantum " * 50
    first, second = vectors(packed, [ones, others])
    assert first @ second < 0.999


def test_pieces_have_the_tokens_of_the_whole(folder: Path) -> None:
    """Tokenizing a long text part by part changes no token of it."""
    tokenizer = Tokenizer("all-MiniLM-L6-v2", folder)
    for text in (Path(os.__file__).read_text(), "東京は日本の首都です。 " * 3_000, "ab " * 20_000):
        assert len(text) > 20_000
        whole = tokenizer._backend.encode(text, add_special_tokens=False).ids
        assert whole == tokenizer.ids(text).tolist()


def test_a_prompt_goes_before_every_window(packed: Embed, folder: Path) -> None:
    """As sentence-transformers puts it before a text; it counts as no token of the text."""
    from sentence_transformers import SentenceTransformer

    prompted = Embed(prompt="query: ")
    prompted.load("cpu")
    theirs = SentenceTransformer(str(folder), device="cpu").encode(SHORT[:4], prompt="query: ")
    ours = outputs(prompted, SHORT[:4])
    assert (theirs * numpy.array([output.value for output in ours])).sum(axis=1).min() > 0.99999
    assert [output.tokens_total for output in ours] == [
        output.tokens_total for output in outputs(packed, SHORT[:4])
    ]


# -- independence of neighbours --------------------------------------------------------


@pytest.mark.parametrize("words", [1, 62, 254, 500])
def test_a_fixed_batch_gives_the_same_bits_among_any_neighbours(fixed: Embed, words: int) -> None:
    """Alone, among others, first or last: a resumed run equals an uninterrupted one."""
    text = "word " * words
    alone = outputs(fixed, [text])[0].value
    like = ["word " * (words - 1) + "other", "word " * max(1, words - 3)]
    for batch, place in (
        ([text, *NEIGHBOURS], 0),
        ([*NEIGHBOURS, text], len(NEIGHBOURS)),
        ([*like, text, *like], 2),
    ):
        assert alone == outputs(fixed, batch)[place].value


def test_a_packed_batch_does_not_promise_that(packed: Embed) -> None:
    """Or the test above would show nothing: free padding does change the last bits."""
    alone = [outputs(packed, [text])[0].value for text in NEIGHBOURS]
    together = [output.value for output in outputs(packed, NEIGHBOURS)]
    assert alone != together
    assert numpy.allclose(alone, together, atol=2e-6)


def test_the_batch_shape_is_recorded(packed: Embed, fixed: Embed) -> None:
    """Rows and width of the step, so that a packed result can be traced to its batch."""
    assert outputs(packed, ["a b c"] * 3)[0].batch == (3, 5)
    assert outputs(fixed, ["a b c"] * 3)[0].batch == (64, 8)


# -- identity --------------------------------------------------------------------------


def test_what_the_device_decides_is_no_part_of_the_manifest(packed: Embed) -> None:
    """Loading changes nothing; a step that was halved for want of memory neither."""
    before = dict(Embed().manifest())
    assert before == dict(packed.manifest())
    assert "step_tokens" not in before["parameters"]
    assert before["parameters"]["dtype"] == "float32"


def test_what_shapes_a_vector_is_in_the_manifest() -> None:
    """Each parameter that can change an output changes the identity."""
    plain = Embed().manifest()
    changes: list[dict[str, Any]] = [
        {"dtype": "bfloat16"},
        {"max_tokens": 128},
        {"overlap": 16},
        {"prompt": "query: "},
        {"normalise": False},
        {"batching": "fixed"},
        {"batching": "fixed", "step_tokens": 512},
    ]
    manifests = [plain, *(Embed(**change).manifest() for change in changes)]
    assert len({json.dumps(manifest, sort_keys=True) for manifest in manifests}) == len(manifests)


def copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "encoder", dirs_exist_ok=True))


def rewrite(folder: Path, name: str, **changes: Any) -> None:
    (folder / name).write_text(json.dumps(read_json(folder, name) | changes))


def test_settings_come_from_the_models_folder(folder: Path, tmp_path: Path) -> None:
    """Window, pooling and default prompt as its publisher set them."""
    copy = copied(folder, tmp_path)
    rewrite(copy, "sentence_bert_config.json", max_seq_length=64)
    rewrite(copy, "1_Pooling/config.json", pooling_mode_cls_token=True)
    rewrite(copy, "1_Pooling/config.json", pooling_mode_mean_tokens=False)
    rewrite(
        copy, "config_sentence_transformers.json", prompts={"q": "ask: "}, default_prompt_name="q"
    )
    manifest = Embed(model=str(copy)).manifest()
    assert manifest["parameters"]["max_tokens"] == 64
    assert manifest["parameters"]["prompt"] == "ask: "
    assert manifest["model"]["pooling"] == "cls"


def test_the_last_position_bounds_a_window(folder: Path, tmp_path: Path) -> None:
    """A window longer than the model has positions for is refused, with the limit."""
    with pytest.raises(UsageError, match="the model takes 512"):
        Embed(max_tokens=513).manifest()
    copy = copied(folder, tmp_path)
    rewrite(copy, "config.json", model_type="roberta", pad_token_id=1)
    with pytest.raises(UsageError, match="the model takes 510"):
        Embed(model=str(copy), max_tokens=512).manifest()


def test_an_overlap_of_most_of_a_window_is_refused() -> None:
    """Windows would hardly move."""
    with pytest.raises(UsageError, match="more than half a window"):
        Embed(max_tokens=32, overlap=17).manifest()


@pytest.mark.parametrize(
    ("file", "changes", "words"),
    [
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "mean, max"),
        ("1_Pooling/config.json", {"pooling_mode": "weightedmean"}, "weightedmean"),
        ("1_Pooling/config.json", {"include_prompt": False}, "without its prompt"),
        ("config_sentence_transformers.json", {"default_prompt_name": "q"}, "no prompt named 'q'"),
    ],
)
def test_a_model_that_embed_would_run_wrongly_is_refused(
    folder: Path, tmp_path: Path, file: str, changes: dict[str, Any], words: str
) -> None:
    """Better no vector than one that the model's author would not recognise."""
    copy = copied(folder, tmp_path)
    rewrite(copy, file, **changes)
    with pytest.raises(BatchqError, match=words):
        Embed(model=str(copy)).manifest()


@pytest.mark.parametrize(
    "kind", ["sentence_transformers.models.Dense", "acme.models.Transformer", "custom.Pooling"]
)
def test_another_module_is_refused_by_name(folder: Path, tmp_path: Path, kind: str) -> None:
    """A dense layer left out would not be noticed for months."""
    copy = copied(folder, tmp_path)
    modules = json.loads((copy / "modules.json").read_text())
    modules.append({"idx": 3, "name": "3", "path": "3_More", "type": kind})
    (copy / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(BatchqError, match=kind):
        Embed(model=str(copy)).manifest()


@pytest.mark.parametrize(
    ("text", "spans", "cost", "first"),
    [
        (SHORT[0], [(0, 9)], 11, [-0.04695, 0.07437, 0.0558, -0.02107]),
        (
            " ".join(f"word{index}" for index in range(400)),
            [(0, 252), (219, 471), (438, 690), (657, 909), (876, 1128)],
            1270,
            [0.00823, -0.06694, -0.05282, -0.02419],
        ),
    ],
)
def test_outputs_are_those_of_code_version_1(
    packed: Embed, text: str, spans: list[tuple[int, int]], cost: int, first: list[float]
) -> None:
    """Where this fails, outputs have changed: raise CODE_VERSION together with these."""
    prepared = packed.prepare(document(text))
    (output,) = packed.infer([prepared])
    assert packed.CODE_VERSION == 1
    assert prepared.payload.spans == spans
    assert prepared.cost == cost
    assert numpy.allclose(output.value[:4], first, atol=2e-5)


# -- trouble ---------------------------------------------------------------------------


def poison(processor: Embed, word: str) -> None:
    """Make every text with `word` come out as NaN."""
    (token,) = processor._tokenizer().ids(word).tolist()
    with torch.no_grad():
        processor._model.embeddings.word_embeddings.weight[token] = float("nan")


def test_an_output_that_is_not_finite_fails_its_document_alone(own: Embed) -> None:
    """As the document's failure when alone; among others the caller is asked to split."""
    poison(own, "violin")
    prepared = [own.prepare(document(text)) for text in ("a violin", "a piano", "a flute")]
    with pytest.raises(DocumentError) as raised:
        own.infer(prepared[:1])
    assert raised.value.cause == "not_finite"
    with pytest.raises(FloatingPointError, match="of 3 documents"):
        own.infer(prepared)
    assert len(own.infer(prepared[1:])) == 2


def exhaust(
    processor: Embed, monkeypatch: pytest.MonkeyPatch, tokens: int
) -> list[tuple[int, int]]:
    """Let the model run out of memory above `tokens` tokens a step; the steps tried."""
    tried: list[tuple[int, int]] = []
    forward = processor._model.forward

    def limited(*args: Any, **kwargs: Any) -> Any:
        rows, width = kwargs["input_ids"].shape
        tried.append((rows, width))
        if rows * width > tokens:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return forward(*args, **kwargs)

    monkeypatch.setattr(processor._model, "forward", limited)
    return tried


@pytest.mark.parametrize("lanes", [1, 2])
def test_out_of_memory_halves_the_step_and_goes_on(
    own: Embed, monkeypatch: pytest.MonkeyPatch, lanes: int
) -> None:
    """All documents come out right and in order, and the smaller step is kept."""
    monkeypatch.setattr(own, "_lanes", lanes)
    texts = [f"{'word ' * (index % 40)}{index}" for index in range(60)]
    prepared = [own.prepare(document(text)) for text in texts]
    expected = [output.value for output in own.infer(prepared)]
    tried = exhaust(own, monkeypatch, 100)
    assert numpy.allclose(expected, [output.value for output in own.infer(prepared)], atol=2e-6)
    failures = sum(rows * width > 100 for rows, width in tried)
    assert 1 <= failures <= 3 * lanes
    tried.clear()
    own.infer(prepared)
    assert all(rows * width <= 100 for rows, width in tried)


def test_a_window_that_does_not_fit_fails_its_document(
    own: Embed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Typed when alone; among others the caller is asked to split."""
    exhaust(own, monkeypatch, 50)
    prepared = [own.prepare(document(text)) for text in ("word " * 60, "word")]
    with pytest.raises(MemoryError):
        own.infer(prepared)
    with pytest.raises(DocumentError) as raised:
        own.infer(prepared[:1])
    assert raised.value.cause == "out_of_memory"
    assert len(own.infer(prepared[1:])) == 1


def test_steps_that_fit_one_at_a_time_are_run_so(
    own: Embed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that two steps side by side do not find is no fault of a document."""
    forward = own._model.forward

    def crowded(*args: Any, **kwargs: Any) -> Any:
        if own._lanes > 1:
            raise MemoryError("no room for two")
        return forward(*args, **kwargs)

    monkeypatch.setattr(own, "_lanes", 2)
    monkeypatch.setattr(own._model, "forward", crowded)
    assert len(own.infer([own.prepare(document(text)) for text in ("word " * 60, "word")])) == 2


def test_a_poisoned_device_is_not_the_documents_fault(
    own: Embed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeviceLost goes through, also for a batch of one."""

    def assert_on_device(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(own._model, "forward", assert_on_device)
    with pytest.raises(DeviceLost):
        own.infer([own.prepare(document("a"))])


def test_text_that_is_no_unicode_fails_its_document(packed: Embed) -> None:
    """A lone surrogate has no UTF-8; it must not stop the others."""
    with pytest.raises(DocumentError) as raised:
        packed.prepare(document("a\ud800b"))
    assert (raised.value.cause, raised.value.final) == ("invalid_text", True)


def test_a_model_that_does_not_load_says_so(folder: Path, tmp_path: Path) -> None:
    """Weights cut short, with the model's name and no page of traceback."""
    copy = copied(folder, tmp_path)
    weights = copy / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    with pytest.raises(BatchqError, match="model encoder does not load"):
        Embed(model=str(copy)).load("cpu")


def test_infer_before_load_is_refused() -> None:
    """A mistake of the caller, said as one."""
    with pytest.raises(BatchqError, match="before load"):
        Embed().infer([Prepared(None, 1)])


def test_real_memory_exhaustion_is_survived() -> None:
    """With address spaces too small for the step, the batch still comes through."""
    # An allocator that keeps what was freed has room of which nobody knows.
    frugal = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "131072"}
    frugal["MALLOC_TRIM_THRESHOLD_"] = "131072"
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.embed_in_little_memory"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **frugal},
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert [report["room_mib"] for report in reports] == ROOMS
    for report in reports:
        assert report["outputs"] == report["documents"]
        assert report["step_after"] < report["step_before"], report
