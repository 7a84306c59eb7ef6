"""From bytes to text: encodings, and what must not be in a text."""

from __future__ import annotations

import codecs
import contextlib
import re

__all__ = ["clean", "decode_detected", "decode_plain", "is_binary"]

_BOMS = (
    # The UTF-32 mark begins with that of UTF-16.
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)

_SAMPLE = 1 << 16

# Not tab, line feed, form feed, carriage return, escape (colours) and backspace (overstrikes).
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\f\r\x1b\b")) + b"\x7f"

_ASCII = bytes(range(128))
_TOO_FEW = 8
"""Bytes beyond ASCII."""

_UNWRITABLE = re.compile("[\0\ud800-\udfff]")


def decode_plain(data: bytes) -> str | None:
    """Text whose encoding is certain: marked by a BOM, UTF-8, or UTF-16 by its zeros.

    None if the encoding must be guessed. Text in UTF-8 that is broken in a few places is
    still UTF-8; the broken bytes become U+FFFD.
    """
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            return data[len(mark) :].decode(encoding, "replace")
    if (encoding_by_zeros := _utf16_by_zeros(data)) is not None:
        return data.decode(encoding_by_zeros, "replace")
    try:
        return data.decode()
    except UnicodeDecodeError:
        text = data.decode("utf-8", "replace")
    broken = text.count("\ufffd")
    intact = sum(character > "\x7f" for character in text[:_SAMPLE]) - text[:_SAMPLE].count(
        "\ufffd"
    )
    return text if intact > 10 * broken else None


def decode_detected(data: bytes) -> str | None:
    """Text in a guessed encoding, or none if it looks like no text in any."""
    from charset_normalizer import from_bytes

    # Statistics over long stretches of ASCII say nothing; the lines with other bytes do.
    telling = b"\n".join(line for line in data.splitlines() if not line.isascii())[:_SAMPLE]
    if len(telling.translate(None, _ASCII)) < _TOO_FEW:
        # A name or two with an accent: too little for statistics, and nearly always this.
        with contextlib.suppress(UnicodeDecodeError):
            return data.decode("cp1252")
    for sample in (telling, data):
        guess = from_bytes(sample).best()
        if guess is not None:
            with contextlib.suppress(UnicodeDecodeError):
                return data.decode(guess.encoding)
    return None


def is_binary(data: bytes) -> bool:
    """Whether one in 20 bytes at the start is a control character that no text has."""
    if _utf16_by_zeros(data) or data.startswith(tuple(mark for mark, _ in _BOMS)):
        return False
    sample = data[:_SAMPLE]
    return 20 * (len(sample) - len(sample.translate(None, _CONTROLS))) > len(sample)


def clean(text: str) -> str:
    """The text with NUL and lone surrogates, which cannot be written, as U+FFFD."""
    if text.isascii() and "\0" not in text:
        return text
    return _UNWRITABLE.sub("\ufffd", text)


def _utf16_by_zeros(data: bytes) -> str | None:
    """UTF-16 without a mark: in most scripts every second byte is zero, the others not."""
    sample = data[:_SAMPLE]
    if len(sample) < 4 or b"\0" not in sample:
        return None
    even, odd = sample[::2].count(0), sample[1::2].count(0)
    half = len(sample) // 2
    if odd > 0.4 * half and even < 0.05 * half:
        return "utf-16-le"
    if even > 0.4 * half and odd < 0.05 * half:
        return "utf-16-be"
    return None
