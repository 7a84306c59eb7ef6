"""What a sentence-transformers folder says of its model, read without torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchq.errors import BatchqError, UsageError
from batchq.inference.model_files import checkpoint_dtype, read_json

__all__ = ["POOLINGS", "EmbeddingModel", "read_embedding_model"]

POOLINGS = ("mean", "cls", "max", "lasttoken")

# The names that older releases gave the poolings, one switch each.
_SWITCHES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
_MODULES = ("Transformer", "Pooling", "Normalize")
_SENSIBLE_LENGTH = 1_000_000


@dataclass(frozen=True, slots=True)
class EmbeddingModel:
    """Concrete settings. `max_tokens` is a window's length, special tokens included."""

    dtype: str
    max_tokens: int
    pooling: str
    prompt: str
    lower: bool


def read_embedding_model(
    path: Path, *, dtype: str | None, max_tokens: int | None, prompt: str | None
) -> EmbeddingModel:
    """The model in `path`, with what the caller asks for in place of its own settings.

    Raises BatchqError for a model that `embed` cannot run as it was trained, and
    UsageError for windows longer than the model takes.
    """
    _refuse_other_modules(path)
    longest = _longest(path)
    if max_tokens is not None and max_tokens > longest:
        raise UsageError(
            f"max_tokens is {max_tokens}, but the model takes {longest}", hint="lower it"
        )
    return EmbeddingModel(
        dtype=dtype or checkpoint_dtype(path),
        max_tokens=max_tokens or _preferred(path, longest),
        pooling=_pooling(path),
        prompt=_default_prompt(path) if prompt is None else prompt,
        lower=bool(read_json(path, "sentence_bert_config.json").get("do_lower_case")),
    )


def _modules(path: Path) -> list[dict[str, Any]]:
    try:
        modules = json.loads((path / "modules.json").read_bytes())
        return [{"type": str(module["type"]), "path": module["path"]} for module in modules]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise BatchqError(
            f"cannot read {path / 'modules.json'}: {error}", hint="fetch the model again"
        ) from None


def _refuse_other_modules(path: Path) -> None:
    for module in _modules(path):
        package, _, name = module["type"].rpartition(".")
        if name not in _MODULES or package.partition(".")[0] != "sentence_transformers":
            raise BatchqError(
                f"the model in {path} has a module {module['type']}, which embed does not run",
                hint="embed runs Transformer, Pooling and Normalize; write a processor "
                "(module:Class) for other models",
            )


def _pooling(path: Path) -> str:
    for module in _modules(path):
        if module["type"].endswith(".Pooling"):
            folder = str(module["path"])
            if "/" in folder or folder.startswith("."):
                raise BatchqError(
                    f"{path / 'modules.json'} points outside the model: {folder}",
                    hint="fetch the model again",
                )
            return _pooling_of(path, read_json(path / folder, "config.json"))
    return "mean"


def _pooling_of(path: Path, config: dict[str, Any]) -> str:
    wanted = config.get("pooling_mode")
    if wanted is None:
        wanted = [mode for switch, mode in _SWITCHES.items() if config.get(switch)] or ["mean"]
    if isinstance(wanted, str):
        wanted = [wanted]
    if len(wanted) != 1 or wanted[0] not in POOLINGS or config.get("include_prompt") is False:
        raise BatchqError(
            f"the model in {path} pools by {', '.join(map(str, wanted))}"
            + (" without its prompt" if config.get("include_prompt") is False else ""),
            hint=f"embed pools by one of {', '.join(POOLINGS)}; write a processor "
            "(module:Class) for other models",
        )
    return str(wanted[0])


def _longest(path: Path) -> int:
    """The most tokens the model has positions for."""
    config = read_json(path, "config.json")
    positions = config.get("max_position_embeddings")
    if not isinstance(positions, int) or positions <= 0:
        return _SENSIBLE_LENGTH
    # These number their positions from behind the padding token's.
    if config.get("model_type") in {"roberta", "xlm-roberta", "camembert", "mpnet"}:
        positions -= int(config.get("pad_token_id") or 0) + 1
    return positions


def _preferred(path: Path, longest: int) -> int:
    """The length that the model was made for, within what it takes."""
    for file, key in (
        ("sentence_bert_config.json", "max_seq_length"),
        ("tokenizer_config.json", "model_max_length"),
    ):
        length = read_json(path, file).get(key)
        if isinstance(length, int) and 0 < length < _SENSIBLE_LENGTH:
            return min(length, longest)
    return min(longest, 512) if longest == _SENSIBLE_LENGTH else longest


def _default_prompt(path: Path) -> str:
    config = read_json(path, "config_sentence_transformers.json")
    name = config.get("default_prompt_name")
    if name is None:
        return ""
    try:
        return str(config["prompts"][name])
    except (KeyError, TypeError):
        raise BatchqError(
            f"the model in {path} has no prompt named {name!r}", hint="set prompt"
        ) from None
