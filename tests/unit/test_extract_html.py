"""Visible text of HTML."""

from __future__ import annotations

import pytest

from batchq.source.hypertext import decode_html, html_text

GERMAN = "Grüße aus München, schöne Straßen"
RUSSIAN = "Это русский текст, и довольно длинный"
JAPANESE = "これは日本語の文章です"


def test_a_page_reads_as_a_browser_shows_it() -> None:
    """Title first; paragraphs apart, lines under each other, cells behind tabs."""
    page = """<!doctype html><html><head><title>T &amp; t</title><style>p{}</style>
    <script>var x = "<p>no</p>"</script></head><body><h1>Head
    line</h1><p>one <b>bo</b>ld<br>two&nbsp;three</p><!-- no -->
    <ul><li>first<li>second</ul><table><tr><td>a<td>b<tr><td>c<td>d</table>
    <noscript>no</noscript><template><p>no</p></template><svg><text>no</text></svg>
    <p hidden>no</p><p style="color:red;display: none">no</p><textarea>typed</textarea> end
    </body></html>"""
    assert html_text(page.encode()) == (
        "T & t\n\nHead line\n\none bold\ntwo three\n\nfirst\nsecond\n\na\tb\nc\td\n\ntyped end"
    )


def test_preformatted_text_keeps_its_shape() -> None:
    """Code in a page is code."""
    page = b"<p>see:</p><pre>def f():\n    <b>return</b>  1\n</pre><p>done  now</p>"
    assert html_text(page) == "see:\n\ndef f():\n    return  1\n\n\ndone now"


def test_words_are_neither_joined_nor_torn() -> None:
    """Spaces count once, wherever the tags stand between them."""
    assert html_text(b"a <i> b</i>\n<b>c</b> d<b>e</b><span> </span>f") == "a b c de f"


@pytest.mark.parametrize("page", [b"", b"<html></html>", b"<img src=x>", b"<script>x</script>"])
def test_a_page_without_text_is_empty(page: bytes) -> None:
    """Pictures and programs are no text."""
    assert html_text(page) == ""


@pytest.mark.parametrize("page", [b"<p>unclosed <b>tags", b"no <tags <at all", b"</p></p>x"])
def test_broken_markup_still_gives_its_text(page: bytes) -> None:
    """HTML cannot be malformed."""
    assert html_text(page)


def test_deep_nesting_is_no_recursion() -> None:
    """A Python function that called itself would end at a thousand."""
    assert html_text(b"<div>" * 5000 + b"x") == "x"


@pytest.mark.parametrize(
    ("label", "encoding", "text"),
    [
        ("utf-8", "utf-8", GERMAN),
        ("ISO-8859-1", "cp1252", GERMAN + " “quoted” €"),
        ("windows-1251", "cp1251", RUSSIAN),
        ("koi8-r", "koi8-r", RUSSIAN),
        ("Shift_JIS", "cp932", JAPANESE + "①"),
        ("gb2312", "gb18030", "这是中文"),
        # As declared by editors that save in another encoding: the bytes decide.
        ("utf-16", "utf-8", RUSSIAN),
        ("utf-8", "cp1252", GERMAN * 5),
        ("no-such-encoding", "utf-8", RUSSIAN),
        ("hex", "utf-8", RUSSIAN),
    ],
)
@pytest.mark.parametrize(
    "declaration",
    ['<meta charset="{}">', "<META http-equiv=Content-Type content='text/html; charset={}'>"],
)
def test_a_declared_encoding_is_read_as_browsers_do(
    declaration: str, label: str, encoding: str, text: str
) -> None:
    """Unless it is a lie."""
    page = f"<html><head>{declaration.format(label)}</head><body>{text}</body></html>"
    assert text == html_text(page.encode(encoding))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_an_undeclared_encoding_is_found(encoding: str) -> None:
    """By its mark, by being UTF-8, or by statistics."""
    page = f"<p>{GERMAN * 5}</p>"
    assert html_text(page.encode(encoding)) == GERMAN * 5


def test_a_byte_order_mark_overrules_the_declaration() -> None:
    """As the standard says."""
    page = f'<meta charset="windows-1251"><p>{GERMAN}'
    assert GERMAN in decode_html(page.encode("utf-8-sig"))
