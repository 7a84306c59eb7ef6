"""PDF documents written by hand, so that they can be as wrong as they have to be."""

from __future__ import annotations

import functools
import hashlib
import zlib
from collections.abc import Sequence

__all__ = ["pdf", "pdf_of_objects", "protected_pdf", "text_page"]

_PADDING = bytes.fromhex("28bf4e5e4e758a4164004e56fffa01082e2e00b6d0683e802f0ca9fe6453697a")


def pdf_of_objects(objects: Sequence[bytes], trailer: bytes = b"") -> bytes:
    """A document with these objects, numbered from 1; the first is its catalog."""
    out = b"%PDF-1.7\n"
    offsets = []
    for number, content in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    out += b"trailer<</Size %d/Root 1 0 R%s>>\n" % (len(objects) + 1, trailer)
    return out + b"startxref\n%d\n%%%%EOF\n" % table


def text_page(*lines: str) -> bytes:
    """The content of a page with these lines of ASCII."""
    shown = b"".join(b"(%s) Tj 0 -14 Td " % line.encode("ascii") for line in lines)
    return b"BT /F 12 Tf 50 700 Td %sET" % shown


def pdf(*pages: bytes, count: int | None = None, compress: bool = False) -> bytes:
    """A document with these page contents, claiming `count` pages."""
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"",
        b"<</Type/Font/Subtype/Type1/BaseFont/Courier>>",
    ]
    kids = []
    for content in pages:
        data = _compressed(content) if compress else content
        extra = b"/Filter/FlateDecode" if compress else b""
        objects.append(b"<</Length %d%s>>stream\n%s\nendstream" % (len(data), extra, data))
        objects.append(
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Contents %d 0 R"
            b"/Resources<</Font<</F 3 0 R>>>>>>" % len(objects)
        )
        kids.append(b"%d 0 R" % len(objects))
    total = len(pages) if count is None else count
    objects[1] = b"<</Type/Pages/Kids[%s]/Count %d>>" % (b" ".join(kids), total)
    return pdf_of_objects(objects)


def protected_pdf(line: str, password: bytes) -> bytes:
    """One page under the standard handler (RC4, 40 bits), opened by the user's `password`."""
    owner = b"o" * 32
    permissions = -44
    seed = (password + _PADDING)[:32] + owner + permissions.to_bytes(4, "little", signed=True)
    key = hashlib.md5(seed + b"identity").digest()[:5]
    content = text_page(line)
    stream = _rc4(hashlib.md5(key + b"\x04\0\0\0\0").digest()[:10], content)
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Contents 4 0 R"
        b"/Resources<</Font<</F 5 0 R>>>>>>",
        b"<</Length %d>>stream\n%s\nendstream" % (len(stream), stream),
        b"<</Type/Font/Subtype/Type1/BaseFont/Courier>>",
    ]
    encrypt = b"<</Filter/Standard/V 1/R 2/P %d/O<%s>/U<%s>>>" % (
        permissions,
        owner.hex().encode(),
        _rc4(key, _PADDING).hex().encode(),
    )
    identity = b"identity".hex().encode()
    return pdf_of_objects(objects, b"/Encrypt %s/ID[<%s><%s>]" % (encrypt, identity, identity))


@functools.cache
def _compressed(content: bytes) -> bytes:
    return zlib.compress(content, 9)


def _rc4(key: bytes, data: bytes) -> bytes:
    state = list(range(256))
    j = 0
    for i in range(256):
        j = (j + state[i] + key[i % len(key)]) % 256
        state[i], state[j] = state[j], state[i]
    out = bytearray()
    i = j = 0
    for byte in data:
        i = (i + 1) % 256
        j = (j + state[i]) % 256
        state[i], state[j] = state[j], state[i]
        out.append(byte ^ state[(state[i] + state[j]) % 256])
    return bytes(out)
