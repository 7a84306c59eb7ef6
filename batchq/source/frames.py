"""Messages between a worker and its extraction processes, over pipes.

A message is a JSON header and a body of bytes, each behind its length: `>IQ`, header, body.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

__all__ = ["pack", "receive"]

_LENGTHS = struct.Struct(">IQ")

MAX_HEADER = 1 << 16


def pack(header: dict[str, Any], body: bytes) -> tuple[bytes, bytes]:
    """The two buffers to send one after the other."""
    encoded = json.dumps(header).encode()
    return _LENGTHS.pack(len(encoded), len(body)) + encoded, body


def receive(read: Callable[[int], bytes], max_body: int) -> tuple[dict[str, Any], bytes]:
    """One message. `read(n)` returns exactly n bytes, or raises EOFError.

    Raises ValueError for what is no message, or has a body above `max_body` bytes.
    """
    header_length, body_length = _LENGTHS.unpack(read(_LENGTHS.size))
    if header_length > MAX_HEADER or body_length > max_body:
        raise ValueError(f"a message of {header_length} and {body_length} bytes")
    header = json.loads(read(header_length))
    if not isinstance(header, dict):
        raise ValueError("a message without a header")
    return header, read(body_length)
