"""Models: where they are looked for, what makes one unsafe, what identifies it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from batchq.clock import ManualClock
from batchq.errors import BatchqError, UsageError
from batchq.inference.digests import file_digests
from batchq.inference.model_files import checkpoint_dtype, read_json, shaping_files
from batchq.inference.weights import find_model
from batchq.result import sha256_hex
from tests.unit.model_folders import safetensors, write_model

COMMIT = "c0ffee" + "0" * 34


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No network, nobody's caches, and an empty current folder."""
    for name in ("HF_HOME", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def in_hub_cache(root: Path, repository: str, *, branch: str = "main") -> Path:
    base = root / "hub" / ("models--" + repository.replace("/", "--"))
    (base / "refs").mkdir(parents=True)
    (base / "refs" / branch).write_text(COMMIT)
    return write_model(base / "snapshots" / COMMIT)


# -- places ----------------------------------------------------------------------------


def test_a_local_folder_comes_first(tmp_path: Path) -> None:
    """A folder of the model's name here stands in for the package and the hub cache."""
    in_hub_cache(tmp_path, "sentence-transformers/all-MiniLM-L6-v2")
    write_model(Path("all-MiniLM-L6-v2"))
    found = find_model("all-MiniLM-L6-v2")
    assert (found.place, found.name) == ("folder", "all-MiniLM-L6-v2")


def test_the_installed_package_comes_before_the_hub_cache(tmp_path: Path) -> None:
    """The default model needs no hub where its package is installed, by either name."""
    in_hub_cache(tmp_path, "sentence-transformers/all-MiniLM-L6-v2")
    for name in ("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"):
        found = find_model(name)
        assert (found.place, found.name) == ("package", "all-MiniLM-L6-v2")


def test_a_folder_of_that_name_without_a_model_does_not_hide_the_package() -> None:
    """A folder of results may well be called after the model."""
    Path("all-MiniLM-L6-v2").mkdir()
    assert find_model("all-MiniLM-L6-v2").place == "package"


@pytest.mark.parametrize("name", ["acme/encoder", "encoder"])
def test_the_hub_cache_is_read_without_the_hub(tmp_path: Path, name: str) -> None:
    """The snapshot that `main` points to, also under a name without organisation."""
    in_hub_cache(tmp_path, "acme/encoder" if "/" in name else "sentence-transformers/encoder")
    found = find_model(name)
    assert (found.place, found.path.name, found.name) == ("cache", COMMIT, name)


def test_a_pinned_revision_is_honoured(tmp_path: Path) -> None:
    """By branch or by commit; another one is not found, and the package is not asked."""
    in_hub_cache(tmp_path, "sentence-transformers/all-MiniLM-L6-v2", branch="v2")
    assert find_model("all-MiniLM-L6-v2", revision="v2").place == "cache"
    assert find_model("all-MiniLM-L6-v2", revision=COMMIT).place == "cache"
    with pytest.raises(BatchqError, match="as it has no revisions"):
        find_model("all-MiniLM-L6-v2", revision="v3")


def test_a_path_gives_the_folders_own_name(tmp_path: Path) -> None:
    """Two machines that keep one model in two places call it the same."""
    for place in ("one", "two"):
        write_model(tmp_path / place / "encoder")
        assert find_model(str(tmp_path / place / "encoder")).name == "encoder"
    assert find_model("../one/encoder/").name == "encoder"


def test_the_folder_of_the_run_is_tried_first_but_not_insisted_on(tmp_path: Path) -> None:
    """Where the run's model lay is a hint: elsewhere the name is looked for as usual."""
    folder = write_model(tmp_path / "models" / "encoder")
    in_hub_cache(tmp_path, "sentence-transformers/encoder")
    assert find_model("encoder", folder=str(folder)).path == folder
    assert find_model("encoder", folder=str(tmp_path / "gone")).place == "cache"


def test_a_model_that_is_nowhere_names_each_place(tmp_path: Path) -> None:
    """Folder, cache and hub, each with why it did not do, and how to mend it."""
    with pytest.raises(BatchqError) as raised:
        find_model("acme/encoder", folder="/mnt/gone")
    for words in ("/mnt/gone: no such folder", "acme/encoder", str(tmp_path / "hub"), "OFFLINE"):
        assert words in raised.value.message
    assert ".[minilm]" in (raised.value.hint or "")


def test_a_path_without_a_model_is_not_looked_up_elsewhere(tmp_path: Path) -> None:
    """Whoever gives a path means it."""
    with pytest.raises(BatchqError, match="no such folder"):
        find_model(str(tmp_path / "all-MiniLM-L6-v2"))


@pytest.mark.parametrize("name", ["", "  ", "a b c", "../../etc/x/../y?"])
def test_what_is_no_name_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the hub is asked for it."""
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with pytest.raises(BatchqError):
        find_model(name)


@pytest.mark.parametrize("revision", ["../../main", "", "-x", "a//b"])
def test_what_is_no_revision_is_refused(revision: str) -> None:
    """A revision becomes part of a path."""
    with pytest.raises(UsageError, match="not a revision"):
        find_model("acme/encoder", revision=revision)


# -- safety ----------------------------------------------------------------------------


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    """Loading them runs what they say."""
    folder = write_model(tmp_path / "encoder", pytorch_model__bin=b"\x80\x04")
    assert find_model(str(folder)).path == folder
    (folder / "model.safetensors").unlink()
    with pytest.raises(BatchqError, match=r"only pickled weights \(pytorch_model\.bin\)"):
        find_model(str(folder))


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    """A download that broke off says so now, not when the model is loaded."""
    folder = write_model(tmp_path / "encoder")
    (folder / "model.safetensors").unlink()
    with pytest.raises(BatchqError, match="holds no weights"):
        find_model(str(folder))


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", {"auto_map": {"AutoModel": "modeling.Custom"}}),
        ("config.json", {"custom_pipelines": {"x": {"impl": "x.X"}}}),
        ("config.json", {"trust_remote_code": True}),
        ("config.json", {"text_config": {"layers": [{"auto_map": {"AutoModel": "m.C"}}]}}),
        ("config.json", {"_attn_implementation_internal": "acme/kernels"}),
        ("config.json", {"attn_implementation": "acme/kernels:attention"}),
        ("config.json", {"_attn_implementation": {"text": "acme/kernels"}}),
        ("config.json", {"_experts_implementation": "acme/kernels"}),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["t.T", None]}}),
        ("generation_config.json", {"custom_generate": "acme/decoding"}),
    ],
)
def test_a_model_that_brings_code_is_refused(
    tmp_path: Path, file: str, content: dict[str, Any]
) -> None:
    """Whatever key would have code fetched and run, in whatever file and at any depth."""
    folder = write_model(tmp_path / "encoder")
    (folder / file).write_text(json.dumps(read_json(folder, file) | content))
    with pytest.raises(BatchqError, match="asks for code to be fetched and run") as raised:
        find_model(str(folder))
    assert str(folder / file) in raised.value.message


def test_harmless_settings_of_the_same_kind_pass(tmp_path: Path) -> None:
    """A known attention kernel, or remote code switched off, is no code."""
    folder = write_model(
        tmp_path / "encoder",
        config={
            "trust_remote_code": False,
            "_attn_implementation_autoset": True,
            "attn_implementation": "sdpa",
            "_attn_implementation": {"text": "eager", "": None},
        },
    )
    assert find_model(str(folder)).path == folder


def test_an_adapter_is_refused(tmp_path: Path) -> None:
    """Its base model would be loaded too, and is in no manifest."""
    folder = write_model(tmp_path / "encoder", adapter_config__json={"peft_type": "LORA"})
    with pytest.raises(BatchqError, match="adapter"):
        find_model(str(folder))


@pytest.mark.parametrize("broken", [b"{", b"\xff\xfe", b"[1]", b"[" * 100_000])
def test_a_broken_configuration_is_refused_by_name(tmp_path: Path, broken: bytes) -> None:
    """Truncated, no UTF-8, no object, nested without end: never a traceback."""
    folder = write_model(tmp_path / "encoder", config__json=broken)
    with pytest.raises(BatchqError, match=r"config\.json"):
        find_model(str(folder))


# -- types -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        ({"w": ("F32", [9]), "position_ids": ("I64", [1])}, "float32"),
        ({"w": ("BF16", [9]), "norm": ("F32", [2])}, "bfloat16"),
        ({"w": ("F16", [3, 3]), "scale": ("F32", [])}, "float16"),
    ],
)
def test_the_type_is_that_of_most_weights(
    tmp_path: Path, tensors: dict[str, tuple[str, list[int]]], expected: str
) -> None:
    """By elements, not by tensors, from the headers alone."""
    folder = write_model(tmp_path, model__safetensors=safetensors(tensors))
    assert expected == checkpoint_dtype(folder)


def test_all_shards_count(tmp_path: Path) -> None:
    """A small first shard does not decide."""
    folder = write_model(tmp_path)
    (folder / "model-00002.safetensors").write_bytes(safetensors({"v": ("BF16", [99])}))
    assert checkpoint_dtype(folder) == "bfloat16"


def test_quantized_weights_need_a_type(tmp_path: Path) -> None:
    """There is no right one to guess."""
    folder = write_model(tmp_path, model__safetensors=safetensors({"w": ("I8", [9])}))
    with pytest.raises(BatchqError, match="I8"):
        checkpoint_dtype(folder)


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"\xff" * 8,
        (5).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (9).to_bytes(8, "little") + b'{"w": {}}',
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n",
    ],
)
def test_a_broken_weights_file_is_refused_by_name(tmp_path: Path, broken: bytes) -> None:
    """Empty, truncated, or a pointer that was never replaced by its file."""
    folder = write_model(tmp_path, model__safetensors=broken)
    with pytest.raises(BatchqError, match=r"model\.safetensors is no safetensors file"):
        checkpoint_dtype(folder)


# -- identity --------------------------------------------------------------------------


def test_only_what_shapes_an_output_is_digested(tmp_path: Path) -> None:
    """A README, pickles beside safetensors and another runtime's copy don't count."""
    folder = write_model(tmp_path / "encoder", README__md="hello", pytorch_model__bin=b"x")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "config.json").write_text("{}")
    expected = ["1_Pooling/config.json", "config.json", "model.safetensors", "tokenizer.json"]
    assert expected == shaping_files(folder)


def test_two_copies_of_a_model_have_one_manifest(tmp_path: Path) -> None:
    """Names are relative to the folder, so two machines agree."""
    one = write_model(tmp_path / "one")
    two = Path(shutil.copytree(one, tmp_path / "elsewhere" / "two"))
    assert file_digests(one, shaping_files(one)) == file_digests(two, shaping_files(two))
    (two / "tokenizer.json").write_text("{}")
    assert file_digests(one, shaping_files(one)) != file_digests(two, shaping_files(two))


def digest_later(folder: Path, name: str) -> str:
    """The digest as taken a while after the file was written."""
    clock = ManualClock(now=(folder / name).stat().st_mtime + 3_600)
    return file_digests(folder, [name], clock=clock)[name]


def cache_file(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "batchq" / "model-digests.json"


def test_digests_are_remembered_between_processes(tmp_path: Path) -> None:
    """A digest planted in the cache comes back: the file was not read again."""
    folder = write_model(tmp_path / "encoder")
    digest_later(folder, "model.safetensors")
    cache = json.loads(cache_file(tmp_path).read_text())
    (key,) = cache
    cache_file(tmp_path).write_text(json.dumps({key: "f" * 64}))
    assert digest_later(folder, "model.safetensors") == "f" * 64


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    """Also when its size and its time of modification were put back."""
    folder = write_model(tmp_path / "encoder")
    file = folder / "model.safetensors"
    before = digest_later(folder, file.name)
    status = file.stat()
    # Changes within one tick of the file system's clock would have one time.
    other = tmp_path / "other"
    other.touch()
    while other.stat().st_ctime_ns <= status.st_ctime_ns:
        other.touch()
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert before != digest_later(folder, file.name)
    assert sha256_hex(bytes(data)) == digest_later(folder, file.name)


def test_a_file_that_was_just_written_is_not_remembered(tmp_path: Path) -> None:
    """It can change once more within one tick of the file system's clock."""
    folder = write_model(tmp_path / "encoder")
    clock = ManualClock(now=(folder / "model.safetensors").stat().st_mtime + 1)
    file_digests(folder, ["model.safetensors"], clock=clock)
    assert not cache_file(tmp_path).exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"a": 1}', b"\xff", b"[" * 100_000])
def test_a_broken_cache_only_costs_time(tmp_path: Path, content: bytes) -> None:
    """It is computed anew and replaced."""
    folder = write_model(tmp_path / "encoder")
    cache_file(tmp_path).parent.mkdir(parents=True)
    cache_file(tmp_path).write_bytes(content)
    expected = sha256_hex((folder / "config.json").read_bytes())
    assert expected == digest_later(folder, "config.json")
    assert expected in json.loads(cache_file(tmp_path).read_text()).values()


def test_a_cache_that_cannot_be_written_only_costs_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only home is no reason to stop."""
    folder = write_model(tmp_path / "encoder")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    expected = sha256_hex((folder / "config.json").read_bytes())
    assert expected == digest_later(folder, "config.json")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """As when a blob of the hub cache was deleted under its link."""
    folder = write_model(tmp_path / "encoder")
    (folder / "vocab.txt").symlink_to(tmp_path / "gone")
    with pytest.raises(BatchqError, match=r"vocab\.txt"):
        file_digests(folder, ["vocab.txt"])
