"""Names of documents: from the bytes of a path to a source id, and to a locator."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Sequence
from urllib.parse import quote_from_bytes, unquote_to_bytes

from batchq.errors import DocumentError, UsageError

__all__ = [
    "checked_prefix",
    "from_locator",
    "locator_below",
    "root_of",
    "to_locator",
    "to_name",
    "to_names",
    "to_quoted",
    "without_mark",
]

SCHEME = "file://"

_UNQUOTED = (string.ascii_letters + string.digits + "_.-~").encode()

# A per cent sign that could be read back as an escape: of a byte that is no UTF-8, or of itself.
_LOOKS_ESCAPED = re.compile(r"%(?=25|[89A-F][0-9A-F])")


def to_name(raw: bytes) -> str:
    """One component of a path as it appears in a source id: NFC, always valid Unicode.

    Bytes that are no UTF-8 become `%XX`. So that every escape can be told from a name
    that merely looks like one, a literal `%` is written `%25` where it would otherwise
    read as an escape (`a%FF` becomes `a%25FF`; `100%` and `a%20b` stay as they are).
    """
    if raw.isascii() and b"%" not in raw:
        return raw.decode("ascii")
    text = _LOOKS_ESCAPED.sub("%25", raw.decode("utf-8", "surrogateescape"))
    if not text.isascii():
        text = "".join(
            f"%{ord(character) - 0xDC00:02X}" if "\udc80" <= character <= "\udcff" else character
            for character in text
        )
    return unicodedata.normalize("NFC", text)


def to_names(raws: Sequence[bytes]) -> list[str]:
    """`to_name` of each, at once where none of them needs a second look."""
    joined = b"/".join(raws)
    if joined.isascii() and b"%" not in joined:
        return joined.decode("ascii").split("/")
    return [to_name(raw) for raw in raws]


def to_locator(path: bytes) -> str:
    """`file:///...` for an absolute path, percent-encoded byte by byte."""
    return SCHEME + quote_from_bytes(path)


def locator_below(root: bytes, path: bytes) -> str:
    """`file:///root//below/it` for a path below the absolute `root`.

    Two slashes are one to the file system, but for the first, and tell `root_of` where the
    root ends.
    """
    if root == b"/":
        return to_locator(path)
    return f"{to_locator(root)}/{quote_from_bytes(path[len(root) :])}"


def root_of(locator: str) -> bytes | None:
    """The root of a locator that `locator_below` made, but for `/`; none for any other."""
    root, mark, _ = locator.removeprefix(SCHEME).partition("//")
    return unquote_to_bytes(root) if mark else None


def without_mark(locator: str) -> str:
    """A locator as people know it, without the slash that tells where its root ends."""
    return SCHEME + locator.removeprefix(SCHEME).replace("//", "/")


def to_quoted(names: Sequence[bytes]) -> list[str]:
    """Each component of a path as it appears in a locator; at once where none needs quoting."""
    joined = b"/".join(names)
    if joined.translate(None, _UNQUOTED + b"/"):
        return [quote_from_bytes(name, safe="") for name in names]
    return joined.decode("ascii").split("/")


def from_locator(locator: str) -> bytes:
    """The absolute path of a `file:///...` locator. Raises DocumentError for any other."""
    if not locator.startswith("file:///"):
        raise DocumentError("source_unreadable", f"not a local document: {locator}", final=True)
    path = locator[len(SCHEME) :]
    return unquote_to_bytes(path) if "%" in path else path.encode()


def checked_prefix(prefix: str) -> str:
    """`--prefix` as it enters source ids. Raises UsageError if it cannot."""
    name = unicodedata.normalize("NFC", prefix).strip("/")
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or not _is_unicode(name):
        raise UsageError(
            f"--prefix {prefix!r} cannot begin a source id",
            hint="give one or more plain names joined by '/', such as docs or team/docs",
        )
    return name


def _is_unicode(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)
