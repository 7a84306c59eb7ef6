"""Small model folders as their publishers lay them out, good and bad."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "max_position_embeddings": 512,
    "pad_token_id": 0,
}


def safetensors(tensors: dict[str, tuple[str, list[int]]]) -> bytes:
    """A file with `name: (dtype, shape)` and zeros for weights."""
    sizes = {"F64": 8, "F32": 4, "I64": 8, "BF16": 2, "F16": 2, "I8": 1}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        size = sizes[dtype]
        for extent in shape:
            size *= extent
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(end)


def write_model(folder: Path, *, config: dict[str, Any] | None = None, **files: object) -> Path:
    """A model in `folder`; `files` by name with `__` for `.`, as bytes, text or JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | (config or {})))
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    (folder / "model.safetensors").write_bytes(safetensors({"w": ("F32", [2, 3])}))
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder
