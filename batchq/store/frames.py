"""A result as a zstd frame: how layout `shard` packs many into one object.

A frame holds the very line that layout `item` stores, so `zstdcat` of a shard prints
envelopes, and both layouts are checked and exported by one code. Float32 vectors stand in
it as the shortest decimals that restore them. Packed, such a vector of 384 takes 17 % more
than as base64 of its four bytes a number; but it is never formatted again: an export is a
copy, where printing each number would take five times as long.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from batchq.result import InvalidEnvelope

if TYPE_CHECKING:
    import zstandard

__all__ = ["all_unpacked", "packed", "unpacked", "unpacked_together"]

LEVEL = 1
"""Decimals become no smaller on a higher one, and text by a tenth at twice the time."""

TOGETHER = 64 * 1024 * 1024
"""Bytes that are unpacked at once, for what repeats itself takes little room when packed."""

_mine = threading.local()


def packed(line: bytes) -> bytes:
    """One frame, which states its content's size and checksum."""
    return _compressor().compress(line)


def unpacked(frame: bytes) -> bytes:
    """The line in a frame. Raises InvalidEnvelope for anything but one whole frame."""
    import zstandard

    try:
        line = _decompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise InvalidEnvelope(f"not a zstd frame: {error}") from None
    if not line:
        # The library looks no further at a frame that calls itself empty.
        raise InvalidEnvelope("an empty zstd frame")
    return line


def unpacked_together(data: bytes, places: Iterable[tuple[int, int]]) -> list[bytes] | None:
    """The lines in the frames at these (offset, length) of `data`, without Python's lock.

    One by one, each frame takes the lock anew: threads that unpack spend their time waiting.
    None if one of them is no whole frame, or if all are more than TOGETHER: each is then to
    be looked at by itself.
    """
    import zstandard

    if "multi_decompress_to_buffer" not in zstandard.backend_features:
        return None
    view = memoryview(data)
    segments = bytearray()
    room = TOGETHER
    try:
        for offset, length in places:
            room -= _content_of_whole_frame(view[offset : offset + length], length)
            segments += _SEGMENT.pack(offset, length)
        if room < 0:
            return None
        parts = zstandard.BufferWithSegments(data, bytes(segments))
        lines = _decompressor().multi_decompress_to_buffer(parts)
        return [lines[place].tobytes() for place in range(len(lines))]
    except (zstandard.ZstdError, ValueError, struct.error):
        return None


def _content_of_whole_frame(frame: memoryview, length: int) -> int:
    """The bytes in a frame, which must end where its `length` does. Raises ValueError.

    The library looks at nothing behind the frame's end. RFC 8878, section 3.1.1.
    """
    import zstandard

    parameters = zstandard.get_frame_parameters(frame)
    end = zstandard.frame_header_size(frame)
    is_last = False
    while not is_last:
        block = int.from_bytes(frame[end : end + 3], "little")
        is_last, is_repeated = bool(block & 1), block >> 1 & 3 == 1
        end += 3 + (1 if is_repeated else block >> 3)
        if end > length:
            break
    if end + 4 * parameters.has_checksum != length or not parameters.content_size:
        raise ValueError("not one whole frame")
    return int(parameters.content_size)


_SEGMENT = struct.Struct("=QQ")


def all_unpacked(frames: bytes) -> list[bytes]:
    """The lines in all frames of an object. Raises InvalidEnvelope if one is not whole."""
    import zstandard

    lines = []
    while frames:
        reader = _decompressor().decompressobj()
        try:
            lines.append(reader.decompress(frames))
        except zstandard.ZstdError as error:
            raise InvalidEnvelope(f"not a zstd frame: {error}") from None
        if not reader.eof or not lines[-1]:
            raise InvalidEnvelope("not a whole zstd frame")
        frames = reader.unused_data
    return lines


# The library's objects take long to make, and may not be shared between threads.


def _compressor() -> zstandard.ZstdCompressor:
    import zstandard

    found: zstandard.ZstdCompressor | None = getattr(_mine, "compressor", None)
    if found is None:
        found = _mine.compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
    return found


def _decompressor() -> zstandard.ZstdDecompressor:
    import zstandard

    found: zstandard.ZstdDecompressor | None = getattr(_mine, "decompressor", None)
    if found is None:
        found = _mine.decompressor = zstandard.ZstdDecompressor()
    return found
