"""Text on its way out: without secrets for logs, without tricks for terminals."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

__all__ = ["HIDDEN", "RedactingFilter", "is_secret_name", "printable", "redact", "secret_in"]

HIDDEN = "***"

# Names whose values are secrets, in URLs, libpq strings, JSON, headers and settings files.
# No bare "token": a lease token is no secret, and logs are read by it.
_SECRET_NAME = (
    r"(?:[a-z0-9_.-]*(?:password|passwd|passphrase|secret|api[_-]?key|account[_-]?key)"
    r"|[a-z0-9_.-]*(?:access|auth|session|security|refresh|id|hf|bearer)[_-]?token"
    r"|[a-z0-9_-]*secret[_-]?(?:access[_-]?)?key|private[_-]?key|pwd"
    r"|aws[_-]?access[_-]?key[_-]?id|(?:x-amz-)?signature|x-amz-credential|sig)"
)

# A value in quotes may hold blanks; one whose closing quote was cut off runs to the end.
_VALUE = r"""(?:'(?:[^'\\]|\\.)*(?:'|\Z)|"(?:[^"\\]|\\.)*(?:"|\Z)|[^\s&]+)"""

# What a text must hold, in lower case, for the rule to be tried: most texts hold none.
_RULES = [
    (needles.split(), re.compile(pattern, re.IGNORECASE | re.DOTALL), replacement)
    for needles, pattern, replacement in (
        (
            "-----begin",
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
            HIDDEN,
        ),
        ("authorization", r"(\bauthorization[\"']?\s*[:=]\s*)[^\r\n]+", rf"\1{HIDDEN}"),
        # user:password@, up to the last "@": an unescaped password may hold "@" and "/".
        # A port is not a password.
        (
            "://",
            r"(://[^\s:/@?#]{0,256}):(?!\d{1,5}(?:[/?#\s]|$))\S{1,2048}@",
            rf"\1:{HIDDEN}@",
        ),
        ("://", r"(\bhttps?://)[^\s:/@?#]{1,2048}@", rf"\1{HIDDEN}@"),
        (
            "passw passph pwd secret key token sig x-amz-c",
            rf"(?<![a-z0-9_.-])({_SECRET_NAME}[\"']?\s*[=:]\s*){_VALUE}",
            rf"\1{HIDDEN}",
        ),
        # In a query shorter names are in use, and they are nobody else's there.
        (
            "? &",
            r"([?&](?:[a-z0-9_.~-]|%5b|%5d)*"
            r"(?:key|token|sig|sign|signature|auth|credentials?|secret|jwt|sas|pass|pw|code)"
            r"(?:%5b|%5d)*=)[^\s&#;\"'<>]+",
            rf"\1{HIDDEN}",
        ),
        ("bearer basic", r"\b(bearer|basic)\s+[a-z0-9+/_.~=-]{8,}", rf"\1 {HIDDEN}"),
        ("akia asia", r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b", HIDDEN),
        ("hf_", r"\bhf_[a-z0-9]{20,}", f"hf_{HIDDEN}"),
        ("gho_ ghp_ ghs_ ghu_ ghr_", r"\bgh[opsur]_[a-z0-9]{20,}", HIDDEN),
        ("sk-", r"\bsk-[a-z0-9_-]{20,}", HIDDEN),
    )
]

_NAME = re.compile(rf"(?:{_SECRET_NAME}|token)\Z", re.IGNORECASE)


def redact(text: str) -> str:
    """`text` with every credential it can recognise replaced by `***`.

    Passwords in URLs and connection strings, AWS keys and signatures, bearer tokens,
    access tokens of model hubs, `password=...` and its like. In doubt it hides more.
    """
    lowered = text.lower()
    for needles, pattern, replacement in _RULES:
        if any(needle in lowered for needle in needles):
            text = pattern.sub(replacement, text)
    return text


def is_secret_name(name: str) -> bool:
    """Whether a setting of this name holds a secret, whatever its value looks like."""
    return _NAME.match(name) is not None


def secret_in(value: Any, name: str = "") -> str | None:
    """Where JSON that is to be kept holds a secret, as `options.api_key`; none if nowhere.

    By the names of settings, and by values that hold nothing else: of a prompt, which may
    speak of passwords, nothing is said.
    """
    if isinstance(value, Mapping):
        for key, inner in value.items():
            below = f"{name}.{key}" if name else str(key)
            if isinstance(inner, str) and inner and is_secret_name(str(key)):
                return below
            if found := secret_in(inner, below):
                return found
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            if found := secret_in(inner, f"{name}[{number}]"):
                return found
    elif isinstance(value, str) and redact(value) != value:
        words = value.split()
        if len(words) <= 2 or all("=" in word for word in words):
            return name
    return None


class RedactingFilter(logging.Filter):
    """Redacts a log record: message, arguments, traceback and stack.

    Belongs on handlers: a filter on a logger does not see what its children log.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            message = record.getMessage()
        except Exception:
            # Logging would print the arguments as they are, next to its complaint.
            message = f"{record.msg} (arguments that do not fit this message)"
        record.msg, record.args = redact(message), None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        # Formatters print exc_text; with exc_info some would format the error again.
        record.exc_info = None
        if record.exc_text:
            record.exc_text = redact(record.exc_text)
        if record.stack_info:
            record.stack_info = redact(record.stack_info)
        return True


_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

# Without these two, Persian and emoji fall apart; alone they change nothing.
_JOINERS = "\u200c\u200d"


def printable(text: str) -> str:
    r"""`text` on one line, with what could steer a terminal or its reader's eye escaped.

    Control characters (hence ANSI sequences), characters that reverse the direction of
    writing or are invisible, line separators and lone surrogates become `\n`, `\x1b`,
    `\u202e`.
    """
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    category = unicodedata.category(character)
    if category not in ("Cc", "Cf", "Cs", "Zl", "Zp") or character in _JOINERS:
        return character
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
