"""What a model's folder holds: its identity, its type, and anything unsafe. Needs no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from batchq.errors import BatchqError

__all__ = ["checkpoint_dtype", "is_complete", "read_json", "refuse_unsafe", "shaping_files"]

_WEIGHTS = (".safetensors", ".gguf")
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
_SHAPING_NAMES = frozenset(
    {
        "config.json",
        "generation_config.json",
        "modules.json",
        "sentence_bert_config.json",
        "config_sentence_transformers.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "vocab.txt",
        "merges.txt",
        "chat_template.json",
        "chat_template.jinja",
        "model.safetensors.index.json",
    }
)
_TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", ".model", ".tiktoken")
_SHAPING_SUFFIXES = (*_WEIGHTS, ".model", ".tiktoken")

# Keys by which a model's files name code to fetch and run. transformers ignores them
# unless told otherwise, but has been talked round before (CVE-2026-4372, CVE-2026-5241).
_CODE_KEYS = frozenset(
    {"auto_map", "custom_generate", "custom_pipeline", "custom_pipelines", "trust_remote_code"}
)
_CODE_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
)
_IMPLEMENTATIONS = frozenset(
    {"eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention", "grouped_mm"}
)

_HEADER_LIMIT = 100_000_000
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def read_json(path: Path, name: str) -> dict[str, Any]:
    """The JSON object in `path`/`name`, empty if there is no such file.

    Raises BatchqError for anything but an object.
    """
    value = _parse(path / name)
    if not isinstance(value, dict):
        raise BatchqError(f"{path / name} holds no JSON object", hint="fetch the model again")
    return value


def shaping_files(path: Path) -> list[str]:
    """Names, relative to `path`, of the files that shape an output, sorted.

    Weights, tokenizer and configuration, at the top and in the folders of
    sentence-transformers' modules (`1_Pooling`). A README or another runtime's copy of
    the weights is no part of a model's identity.
    """
    names = []
    for entry in path.iterdir():
        if _shapes(entry.name) and entry.is_file():
            names.append(entry.name)
        elif re.match(r"\d+_", entry.name) and entry.is_dir():
            inner = (child for child in entry.iterdir() if _shapes(child.name))
            names += [f"{entry.name}/{child.name}" for child in inner if child.is_file()]
    return sorted(names)


def checkpoint_dtype(path: Path) -> str:
    """The type most of the weights are kept in: `float32`, `bfloat16`, ...

    Read from the headers of the safetensors files. Raises BatchqError for a broken
    file, and for weights that are mostly quantized.
    """
    elements: dict[str, int] = {}
    for file in sorted(path.glob("*.safetensors")):
        for dtype, count in _tensors(file):
            elements[dtype] = elements.get(dtype, 0) + count
    if not elements:
        raise BatchqError(f"no safetensors weights in {path}", hint="fetch the model again")
    most = max(sorted(elements), key=lambda dtype: elements[dtype])
    if most not in _DTYPES:
        raise BatchqError(
            f"the weights in {path} are kept as {most}, which has no type to compute in",
            hint="set dtype to float32, bfloat16 or float16",
        )
    return _DTYPES[most]


def is_complete(path: Path) -> bool:
    """Whether weights, all of their shards, and a tokenizer are there."""
    names = {entry.name for entry in path.iterdir() if entry.exists()}

    def some(*endings: str) -> bool:
        return any(name.endswith(endings) for name in names)

    if some(".gguf"):
        return True
    if not some(".safetensors"):
        # Pickles alone are refused elsewhere, by name.
        return some(*_PICKLES)
    shards = read_json(path, "model.safetensors.index.json").get("weight_map", {})
    return names.issuperset(shards.values()) and some(*_TOKENIZERS)


def refuse_unsafe(path: Path) -> None:
    """Raise BatchqError for a folder without safe weights, or with anything that brings code."""
    names = sorted(entry.name for entry in path.iterdir())
    if not any(name.endswith(_WEIGHTS) for name in names):
        pickles = [name for name in names if name.endswith(_PICKLES)]
        if pickles:
            raise BatchqError(
                f"{path} holds only pickled weights ({', '.join(pickles[:3])}), which run code "
                "when loaded",
                hint="use a revision with *.safetensors, or convert the weights on a machine "
                "that you can afford to lose",
            )
        raise BatchqError(f"{path} holds no weights", hint="it needs *.safetensors or *.gguf")
    if "adapter_config.json" in names:
        raise BatchqError(
            f"{path} holds an adapter, whose base model is named but not part of it",
            hint="merge the adapter into its base model and save that",
        )
    for name in _CODE_FILES:
        for key in _code_keys(read_json(path, name)):
            raise BatchqError(
                f"{path / name} asks for code to be fetched and run: {key}",
                hint="batchq never runs a model's own code; use a model that transformers "
                "supports by itself, or write a processor (module:Class)",
            )


def _tensors(file: Path) -> Iterator[tuple[str, int]]:
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if not 0 < length <= min(_HEADER_LIMIT, file.stat().st_size - 8):
                raise ValueError("its header does not fit the file")
            header = json.loads(stream.read(length))
        for name, tensor in header.items():
            if name != "__metadata__":
                count = 1
                for extent in tensor["shape"]:
                    count *= extent
                yield tensor["dtype"], count
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BatchqError(
            f"{file} is no safetensors file: {error}", hint="fetch the model again"
        ) from None


def _shapes(name: str) -> bool:
    return name in _SHAPING_NAMES or name.endswith(_SHAPING_SUFFIXES)


def _parse(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise BatchqError(f"cannot read {file}: {error}", hint="fetch the model again") from None


def _code_keys(value: Any) -> Iterator[str]:
    """Keys, at any depth, that name code."""
    if isinstance(value, list):
        for inner in value:
            yield from _code_keys(inner)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if (key in _CODE_KEYS and inner) or (
                "_implementation" in key and not _known_implementation(inner)
            ):
                yield f"{key} = {json.dumps(inner)[:80]}"
            else:
                yield from _code_keys(inner)


def _known_implementation(value: Any) -> bool:
    """Whether transformers has this kernel itself; any other name is one to download."""
    if isinstance(value, dict):
        return all(_known_implementation(inner) for inner in value.values())
    return value is None or isinstance(value, bool) or value in _IMPLEMENTATIONS
