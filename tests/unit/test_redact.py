"""No secret leaves in a text, and no text steers a terminal."""

from __future__ import annotations

import io
import logging
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchq.redact import RedactingFilter, is_secret_name, printable, redact, secret_in

S = "hunter2-SECRET"

TEXTS = [
    f"postgresql://alice:{S}@db.example/ledger?sslmode=require",
    f"cannot connect to postgresql+psycopg://alice:{S}@db.example:5432/ledger: timed out",
    f"postgres://alice:p@ss/{S}@db.example/ledger",
    f"redis://:{S}@cache.example",
    f"'postgresql://alice:it's{S}@db.example/ledger'",
    f"https://{S}@models.example/repo",
    f"host=db.example user=alice password={S} dbname=ledger",
    f"host=db.example user=alice password='my {S}' dbname=ledger",
    rf"password='it\'s {S}' dbname=ledger",
    f"password = '{S} and the closing quote is missing",
    f"postgresql://db.example/ledger?user=alice&password={S}",
    f"PGPASSWORD={S} psql",
    f"sslpassword={S}",
    f'{{"password":"{S}","user":"alice"}}',
    f"{{'db_password': '{S}'}}",
    f"aws_secret_access_key = {S}",
    f"AWS_SECRET_ACCESS_KEY={S}",
    f"AWS_SESSION_TOKEN={S}",
    f"https://b.s3.amazonaws.com/k?X-Amz-Credential={S}%2F20250101&X-Amz-Date=20250101T000000Z",
    f"https://b.s3.amazonaws.com/k?X-Amz-Expires=60&X-Amz-Signature={S}",
    f"https://b.s3.amazonaws.com/k?X-Amz-Security-Token={S}&x=1",
    f"https://b.s3.amazonaws.com/k?AWSAccessKeyId={S}&Expires=1&Signature={S}%3D",
    f"https://account.blob.core.example/c?sv=1&sig={S}",
    f"GET https://models.example/v1?key={S}: 403",
    f"/v1/embed?model=m&token={S}&n=1 timed out",
    f"https://host.example/?auth={S}#top",
    f"https://host.example/?X-Goog-Signature={S}",
    f"https://host.example/?subscription-key={S}",
    f"https://host.example/a?filter%5Btoken%5D={S}",
    f"wss://host.example/socket?jwt={S}",
    f"Authorization: AWS4-HMAC-SHA256 Credential={S}, SignedHeaders=host, Signature={S}",
    f"authorization: Bearer {S}",
    f'{{"Authorization": "Basic {S}"}}',
    f"sent header Bearer {S}",
    f"api_key={S}",
    f"OPENAI-API-KEY: {S}",
    f"client_secret={S}&grant=x",
    f"HF_TOKEN={S}",
    f"AccountKey={S};EndpointSuffix=core",
    f"-----BEGIN RSA PRIVATE KEY-----\n{S}\n-----END RSA PRIVATE KEY-----",
    f"-----BEGIN PRIVATE KEY-----\n{S}\n",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_secret_in_any_dress_is_hidden(text: str) -> None:
    """Connection strings, headers, signed addresses, JSON, keys."""
    assert S not in redact(text)
    assert "***" in redact(text)


@pytest.mark.parametrize(
    "secret",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "ASIAIOSFODNN7EXAMPLE",
        "hf_" + "aB3" * 11 + "x",
        "ghp_" + "a1B2" * 9,
        "sk-" + "a1B2" * 10,
    ],
)
def test_keys_known_by_their_shape_are_hidden_anywhere(secret: str) -> None:
    """Also where no name gives them away."""
    assert secret not in redact(f"refused: {secret} (403)")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "committed 100 items under lease 3f2a",
        "sqlite:///batchq-data/ledger.db",
        "postgresql://alice@db.example:5432/ledger?sslmode=require",
        "http://localhost:8080/path/user@example.com",
        "s3://bucket/prefix/a:b@c.md",
        "docs/mail/alice@example.com: source_missing",
        "tokens_total: 512, tokens_used=512, max_tokens=16",
        "lease token 0123456789abcdef",
        "password authentication failed for user alice",
        "hf_transformers is no module",
        "the design=final signing=off",
        "sha256:" + "a" * 64,
    ],
)
def test_what_is_no_secret_stays_readable(text: str) -> None:
    """Logs are no use if everything is hidden."""
    assert redact(text) == text


def test_what_surrounds_a_secret_stays() -> None:
    """User, host and database are what one needs to mend a connection."""
    assert (
        redact(f"postgresql://alice:{S}@db.example/ledger: refused")
        == "postgresql://alice:***@db.example/ledger: refused"
    )
    assert (
        redact(f"host=db.example password={S} dbname=ledger")
        == "host=db.example password=*** dbname=ledger"
    )


@given(st.text())
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    """What passes through two handlers looks as after one."""
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize(
    "text", ["a" * 200_000, "://a:" * 40_000, "password='" * 20_000, "authorization" * 15_000]
)
def test_long_texts_are_redacted_in_linear_time(text: str) -> None:
    """An error may quote a document, and a document may be made to slow us down."""
    began = time.thread_time()
    redact(text)
    assert time.thread_time() - began < 20


@pytest.mark.parametrize("name", ["password", "db_password", "api_key", "hf_token", "token"])
def test_names_of_secrets_are_known(name: str) -> None:
    """Whatever the value looks like."""
    assert is_secret_name(name)
    assert is_secret_name(name.upper())


@pytest.mark.parametrize("name", ["max_tokens", "tokenizer", "pad_token", "key", "model"])
def test_other_names_are_no_secrets(name: str) -> None:
    """Parameters of models have such names."""
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("kept", "where"),
    [
        ({"options": {"api_key": S}}, "options.api_key"),
        ({"each": [{"model": "m"}, {"password": S}]}, "each[1].password"),
        ({"endpoint": f"https://alice:{S}@host/v1"}, "endpoint"),
        ({"endpoint": f"https://host/v1?api_key={S}"}, "endpoint"),
        ({"dsn": f"host=db password={S} dbname=x"}, "dsn"),
        ({"headers": {"x-auth": f"Bearer {S}"}}, "headers.x-auth"),
        ({"token": S}, "token"),
    ],
)
def test_a_secret_in_what_is_to_be_kept_is_named(kept: object, where: str) -> None:
    """At any depth, by its name or by its looks."""
    assert secret_in(kept) == where


@pytest.mark.parametrize(
    "kept",
    [
        {"prompt": "Does the text name a password: yes or no? Answer with password=yes."},
        {"max_tokens": 5, "tokenizer": "wordpiece", "pad_token": "[PAD]", "password": None},
        {"endpoint": "https://host:8000/v1", "files": {"model.safetensors": "a" * 64}},
        [],
    ],
)
def test_what_is_no_secret_may_be_kept(kept: object) -> None:
    """A prompt may speak of secrets, and a processor need not have one."""
    assert secret_in(kept) is None


# -- logging ---------------------------------------------------------------------


@pytest.fixture
def logged() -> tuple[logging.Logger, io.StringIO]:
    """A logger whose handler redacts, and what it printed."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(RedactingFilter())
    logger = logging.Logger("test")
    logger.addHandler(handler)
    return logger, stream


def test_messages_and_their_arguments_are_redacted(
    logged: tuple[logging.Logger, io.StringIO],
) -> None:
    """The secret may be in either, or come together only in both."""
    logger, stream = logged
    logger.warning("password=%s for %s", S, "alice")
    logger.warning(f"postgresql://alice:{S}@db.example")
    assert S not in stream.getvalue()
    assert "for alice" in stream.getvalue()


def test_tracebacks_are_redacted_through_their_whole_chain(
    logged: tuple[logging.Logger, io.StringIO],
) -> None:
    """Drivers put the address into the error, and others are raised from it."""
    logger, stream = logged
    try:
        try:
            raise ConnectionError(f"postgresql://alice:{S}@db.example is down")
        except ConnectionError as error:
            raise RuntimeError(f"no ledger at postgresql://alice:{S}@db.example") from error
    except RuntimeError:
        logger.exception("gave up", stack_info=True)
    said = stream.getvalue()
    assert S not in said
    assert said.count("alice:***@db.example") >= 2
    assert "Traceback" in said
    assert "Stack" in said


def test_a_message_that_does_not_fit_its_arguments_is_redacted_too(
    logged: tuple[logging.Logger, io.StringIO], capsys: pytest.CaptureFixture[str]
) -> None:
    """Logging would otherwise print the arguments in its complaint."""
    logger, stream = logged
    logger.warning("password=%s %d", S, "no number")
    assert S not in stream.getvalue() + capsys.readouterr().err
    assert "arguments that do not fit" in stream.getvalue()


# -- terminals -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("docs/a b.md", "docs/a b.md"),
        ("Füße 文書 \U0001f600 \u00a0", "Füße 文書 \U0001f600 \u00a0"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\x1b[31mred\x1b]0;title\x07", "\\x1b[31mred\\x1b]0;title\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("\x7f\0", "\\x7f\\x00"),
        ("cod\u202egpj.exe", "cod\\u202egpj.exe"),
        ("\u2066\u2069\u200e\u061c", "\\u2066\\u2069\\u200e\\u061c"),
        ("\u2028\u2029\ufeff\u200b", "\\u2028\\u2029\\ufeff\\u200b"),
        ("\udcff", "\\udcff"),
        ("\U000e0041", "\\U000e0041"),
        ("\u0645\u06cc\u200c\u062e", "\u0645\u06cc\u200c\u062e"),
    ],
)
def test_what_could_steer_a_terminal_is_escaped(text: str, shown: str) -> None:
    """Control and direction characters become visible; scripts and emoji stay whole."""
    assert printable(text) == shown


@given(st.text())
def test_printable_text_is_one_line_that_can_be_encoded(text: str) -> None:
    """Whatever the text was, lone surrogates included."""
    shown = printable(text)
    shown.encode()
    assert len(shown.splitlines()) <= 1
    assert not any(ord(character) < 32 for character in shown)
