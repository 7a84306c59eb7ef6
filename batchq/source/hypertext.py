"""Visible text of HTML. Runs in an extraction process."""

from __future__ import annotations

import codecs
import re

from batchq.source.text import decode_detected, decode_plain

__all__ = ["html_text"]

# fmt: off
_UNSEEN = frozenset((
    "audio", "canvas", "datalist", "embed", "head", "iframe", "math", "noscript", "object",
    "script", "style", "svg", "template", "video",
))
_PARAGRAPHS = frozenset((
    "article", "aside", "blockquote", "details", "dl", "fieldset", "figure", "footer", "form",
    "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "main", "nav", "ol", "p", "pre",
    "section", "table", "ul",
))
_LINES = frozenset((
    "address", "br", "caption", "dd", "div", "dt", "figcaption", "legend", "li", "option",
    "summary", "tr",
))
# fmt: on
_CELLS = frozenset(("td", "th"))
_HIDDEN = '[hidden], [style*="display:none"], [style*="display: none"]'

_DECLARED = re.compile(
    rb"""<meta[^>]{1,512}?charset\s*=\s*["']?\s*([a-zA-Z0-9_:.-]{1,40})""", re.IGNORECASE
)
_DECLARED_WITHIN = 4096

# As browsers read them: https://encoding.spec.whatwg.org/#names-and-labels
_READ_AS = {
    "ascii": "cp1252",
    "us-ascii": "cp1252",
    "iso-8859-1": "cp1252",
    "latin1": "cp1252",
    "iso8859-1": "cp1252",
    "iso-8859-9": "cp1254",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "ks_c_5601-1987": "cp949",
    "euc-kr": "cp949",
    "shift_jis": "cp932",
    "x-sjis": "cp932",
    "big5": "big5hkscs",
    # Whoever could read the declaration had bytes of ASCII before it.
    "utf-16": "utf-8",
    "utf-16le": "utf-8",
    "utf-16be": "utf-8",
}


def html_text(data: bytes) -> str:
    """The title and the visible text; paragraphs apart, table cells behind tabs."""
    from selectolax.lexbor import LexborHTMLParser, SelectolaxError

    try:
        parser = LexborHTMLParser(decode_html(data))
    except SelectolaxError:
        # HTML cannot be malformed: to be refused memory is all that makes the parser give up.
        raise MemoryError from None
    writer = _Writer()
    title = parser.css_first("head > title")
    if title is not None:
        writer.text(title.text())
        writer.gap("p")
    hidden = {node.mem_id for node in parser.css(_HIDDEN)}
    verbatim = 0
    node = parser.root
    # Without recursion, however deep the tree.
    while node is not None:
        tag = node.tag or ""
        if tag == "-text":
            writer.text(node.text_content or "", verbatim=verbatim > 0)
        writer.gap(tag)
        unseen = tag in _UNSEEN or (bool(hidden) and node.mem_id in hidden)
        child = None if unseen else node.first_child
        if child is not None:
            verbatim += tag == "pre"
            node = child
            continue
        while node is not None and node.next is None:
            node = node.parent
            if node is not None:
                writer.gap(node.tag or "")
                verbatim -= node.tag == "pre"
        node = node.next if node is not None else None
    return writer.result()


def decode_html(data: bytes) -> str:
    """Text of an HTML document: by its BOM, its declaration, UTF-8, or statistics."""
    declared = _DECLARED.search(data[:_DECLARED_WITHIN])
    if declared is not None and not data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        label = declared[1].decode("ascii").lower()
        try:
            codec = codecs.lookup(_READ_AS.get(label, label))
            return data.decode(codec.name)
        except (LookupError, UnicodeError):
            # Declared wrongly, as a good part of the web is: the bytes decide.
            pass
    text = decode_plain(data)
    if text is None:
        text = decode_detected(data)
    return data.decode("cp1252", "replace") if text is None else text


class _Writer:
    """Puts text together as a browser would show it: white space collapsed, blocks apart."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._break = ""
        self._space = False

    def text(self, text: str, *, verbatim: bool = False) -> None:
        words = text if verbatim else " ".join(text.split())
        if not words:
            self._space = self._space or bool(text)
            return
        if self._break:
            if self._parts:
                self._parts.append(self._break)
        elif self._space or (not verbatim and text[0].isspace()):
            self._parts.append(" ")
        self._parts.append(words)
        self._break = ""
        self._space = not verbatim and text[-1].isspace()

    def gap(self, tag: str) -> None:
        """Where an element begins or ends: what must stand before the next text."""
        if tag in _PARAGRAPHS:
            self._break = "\n\n"
        elif tag in _LINES:
            self._break = self._break if self._break == "\n\n" else "\n"
        elif tag in _CELLS:
            self._break = self._break or "\t"

    def result(self) -> str:
        return "".join(self._parts)
