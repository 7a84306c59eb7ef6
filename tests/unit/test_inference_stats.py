"""Statistics: what is counted, and how."""

from __future__ import annotations

from batchq.inference.stats import Stats
from batchq.result import sha256_hex
from tests.conformance.processors import document, outputs


def test_outputs_are_those_of_code_version_1() -> None:
    """Where this fails, outputs have changed: raise CODE_VERSION together with these."""
    text = "Zwei Wörter\nund\u2028drei Zeilen\n"
    (output,) = outputs(Stats(), [text])
    assert Stats.CODE_VERSION == 1
    assert output.value == {
        "characters": 28,
        "words": 5,
        "lines": 3,
        "sha256": sha256_hex(text.encode()),
    }
    assert output.tokens_total == output.tokens_used == 5


def test_a_text_that_is_no_unicode_is_counted_too() -> None:
    """A rehearsal meets whatever the extractor lets through."""
    (output,) = outputs(Stats(), ["a\ud800b"])
    assert output.value["characters"] == 3


def test_the_cost_is_the_number_of_words() -> None:
    """At least 1, as the ledger of costs wants it."""
    stats = Stats()
    assert [stats.prepare(document(text)).cost for text in ("", "a b", "a\nb c")] == [1, 2, 3]
