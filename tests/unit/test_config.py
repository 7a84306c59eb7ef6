"""Settings: who wins, where they come from, and what is said of a wrong one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchq.config import SETTINGS, Config, Loaded, load, seconds
from batchq.errors import ExitCode, UsageError

Load = Callable[..., Loaded]


@pytest.fixture
def loaded(tmp_path: Path) -> Load:
    """Load in a folder of its own, with the given batchq.toml, environment and options."""

    def run(
        toml: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        **options: object,
    ) -> Loaded:
        if toml is not None:
            data = toml if isinstance(toml, bytes) else toml.encode()
            (tmp_path / "batchq.toml").write_bytes(data)
        return load(options, env or {}, tmp_path)

    return run


def refused(loaded: Load, *arguments: object, **options: object) -> tuple[str, str]:
    """The message and the hint of the refusal."""
    with pytest.raises(UsageError) as caught:
        loaded(*arguments, **options)
    assert caught.value.exit_code == ExitCode.USAGE
    return caught.value.message, caught.value.hint or ""


# -- precedence ------------------------------------------------------------------


def test_without_anything_the_defaults_hold(loaded: Load) -> None:
    """One machine needs no configuration."""
    result = loaded()
    assert result.config == Config()
    assert set(result.origin.values()) == {"default"}
    assert (result.config.run, result.config.ledger, result.config.results) == (
        "default",
        "sqlite:///batchq-data/ledger.db",
        "batchq-data/results",
    )


def test_an_option_beats_the_environment_beats_the_file_beats_the_default(loaded: Load) -> None:
    """Each level in turn, with its origin."""
    toml, env = "\nrun = 'file'\n", {"BATCHQ_RUN": "environment"}
    levels: list[tuple[str, dict[str, str], dict[str, object], str, str]] = [
        (toml, env, {"run": "option"}, "option", "option"),
        (toml, env, {"run": None}, "environment", "BATCHQ_RUN"),
        (toml, {"BATCHQ_RUN": ""}, {}, "file", "batchq.toml:2"),
        ("", {}, {}, "default", "default"),
    ]
    for given_toml, given_env, options, value, origin in levels:
        result = loaded(given_toml, given_env, **options)
        assert (result.config.run, result.origin["run"]) == (value, origin)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_can_be_given_on_every_level(loaded: Load, name: str) -> None:
    """Its name in the file and in the environment follow from one declaration."""
    text = {
        "run": "nightly",
        "ledger": "postgresql://db.example/ledger",
        "results": "elsewhere",
        "processor": "stats",
        "model": "some-model",
        "layout": "shard",
        "device": "cpu",
        "lease_ttl": "90s",
        "claim": "50",
        "notice": "ec2,sqs",
        "notice_window": "30s",
        "notice_interval": "2s",
        "notice_queue": "https://queue.example/1/notices",
        "azure_metadata_endpoint": "http://127.0.0.1:1338",
        "drain_on_rebalance": "true",
        "expected_uptime": "3h",
        "max_failures": "7",
        "max_losses": "7",
        "stall_timeout": "2m",
        "flush_items": "32",
    }[name]
    in_file = loaded(f'{name} = "{text}"')
    in_environment = loaded("", {SETTINGS[name].variable: text})
    as_option = loaded("", **{name: text})
    assert in_file.config == in_environment.config == as_option.config
    assert in_file.config != Config()
    assert in_file.origin[name] == "batchq.toml:1"
    assert in_environment.origin[name] == f"BATCHQ_{name.upper()}"
    assert as_option.origin[name] == "option"


def test_every_default_is_allowed(loaded: Load) -> None:
    """A default that its own check refuses could not be written down."""
    for name, setting in SETTINGS.items():
        value = setting.default
        if value is not None:
            assert getattr(loaded(**{name: value}).config, name) == value


def test_a_configuration_cannot_be_changed_afterwards(loaded: Load) -> None:
    """What was checked stays what is used."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        loaded().config.run = "other"  # type: ignore[misc]  # what the test is about


# -- kinds of values -------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("90", 90.0),
        ("90s", 90.0),
        (" 2 m ", 120.0),
        ("1.5h", 5400.0),
        ("1d", 86400.0),
        ("500ms", 0.5),
        (90, 90.0),
        (1.5, 1.5),
    ],
)
def test_durations_are_written_as_people_write_them(text: object, value: float) -> None:
    """With a unit, or in seconds."""
    assert seconds(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s",
        "-5s",
        "1h30m",
        "1e3",
        "ten",
        "٣s",
        "nan",
        float("nan"),
        float("inf"),
        -1,
        True,
        None,
        [1],
    ],
)
def test_what_is_no_duration_is_refused(text: object) -> None:
    """Rather than guessed at."""
    with pytest.raises(ValueError, match="no duration"):
        seconds(text)


@given(st.text(max_size=12))
def test_no_text_makes_a_duration_of_another_kind(text: str) -> None:
    """A finite, positive number of seconds, or ValueError; nothing else."""
    try:
        value = seconds(text)
    except ValueError:
        return
    assert 0 <= value < float("inf")


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("lease_ttl", "0.4s", "from 0.5s to 1h"),
        ("lease_ttl", "2h", "from 0.5s to 1h"),
        ("lease_ttl", 10**400, "from 0.5s to 1h"),
        ("lease_ttl", True, "a duration"),
        ("claim", 0, "`auto` or a whole number, at least 1"),
        ("claim", 1.5, "whole number"),
        ("claim", True, "whole number"),
        ("claim", "many", "whole number"),
        ("flush_items", -1, "`auto` or a whole number"),
        ("max_failures", "auto", "a whole number, at least 1"),
        ("max_losses", 0, "a whole number, at least 1"),
        ("layout", "table", "`item` or `shard`"),
        ("device", "gpu", "auto, cpu, cuda"),
        ("notice", "ec2,aws", "ec2, sqs, gcp, azure"),
        ("notice", "none,ec2", "none, or some of"),
        ("azure_metadata_endpoint", "https://169.254.169.254", "http://169.254.169.254"),
        ("ledger", "mysql://db.example/x", "sqlite:///FILE, postgresql://"),
        ("ledger", "ledger.db", "sqlite:///FILE"),
        ("results", "gs://bucket", "a folder or s3://BUCKET/PREFIX"),
        ("results", "s3://", "a folder or s3://BUCKET/PREFIX"),
        ("run", "", "1 to 100 characters"),
        ("run", "a\nb", "1 to 100 characters"),
        ("run", "bytes of an environment \udcff", "1 to 100 characters"),
        ("results", "bytes of an environment \udcff", "a folder or s3://BUCKET/PREFIX"),
        ("processor", "module:Class:x", "module:Class"),
        ("model", "", "a name, an id or a folder"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(
    loaded: Load, name: str, value: object, allowed: str
) -> None:
    """Type, range and choice, in the words of the setting."""
    message, hint = refused(loaded, **{name: value})
    assert message.startswith(f"--{name.replace('_', '-')}: ")
    assert hint.startswith(f"{name} must be ")
    assert allowed in hint


def test_a_wrong_value_is_named_with_the_place_it_was_given(loaded: Load) -> None:
    """Line of the file, variable or option."""
    message, _ = refused(loaded, "run = 'a'\n\nlease_ttl = 'soon'\n")
    assert message == "batchq.toml:3: lease_ttl = 'soon' is not allowed"
    message, _ = refused(loaded, "", {"BATCHQ_LEASE_TTL": "soon"})
    assert message == "BATCHQ_LEASE_TTL: 'soon' is not allowed"
    message, _ = refused(loaded, "", lease_ttl="soon")
    assert message == "--lease-ttl: 'soon' is not allowed"


def test_auto_is_the_same_as_saying_nothing(loaded: Load) -> None:
    """And can be used to undo what a lower level says."""
    assert loaded("claim = 5", claim="auto").config.claim is None


# -- the file --------------------------------------------------------------------


def test_an_unknown_key_is_named_with_its_line_and_the_nearest_name(loaded: Load) -> None:
    """A misspelt setting must not be without effect in silence."""
    message, hint = refused(loaded, "run = 'a'\nlease_tll = '60s'\n")
    assert message == "batchq.toml:2: there is no setting 'lease_tll'"
    assert hint == "did you mean lease_ttl?"


def test_an_unknown_key_near_to_none_is_told_what_there_is(loaded: Load) -> None:
    """With a word on where parameters of processors go."""
    message, hint = refused(loaded, "[embed]\nbatch = 4\n")
    assert message == "batchq.toml:1: there is no setting 'embed'"
    assert "max_failures" in hint
    assert "[processor]" in hint


@pytest.mark.parametrize(
    ("toml", "place"),
    [
        ("run = default", "batchq.toml:1:7: "),
        ("run = 'a'\nlease_ttl 60", "batchq.toml:2:11: "),
        ("run = 'a'\nrun = 'b'\n", "batchq.toml:2:10: "),
        ("[processor", "batchq.toml:1"),
        ("model = '''never closed\n\n", "batchq.toml:3: "),
        ("x = " + "[" * 5000, "batchq.toml"),
    ],
)
def test_a_broken_file_is_named_with_line_and_column(loaded: Load, toml: str, place: str) -> None:
    """As compilers do, so that editors jump there."""
    message, hint = refused(loaded, toml)
    assert message.startswith(place)
    assert "not valid TOML" in message
    assert "quotes" in hint


def test_a_file_that_is_no_text_is_refused(loaded: Load) -> None:
    """UTF-16 and Latin-1 have been seen; a byte order mark is harmless."""
    message, _ = refused(loaded, "run = 'ä'".encode("latin-1"))
    assert "not UTF-8" in message
    assert loaded(b"\xef\xbb\xbfrun = 'a'\r\n").config.run == "a"


def test_another_file_can_be_named(loaded: Load, tmp_path: Path) -> None:
    """By option or environment, absolute or from here; then batchq.toml is not read."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "other.toml").write_text("run = 'other'")
    ways: list[tuple[dict[str, str], dict[str, object]]] = [
        ({}, {"config": "deep/other.toml"}),
        ({"BATCHQ_CONFIG": "deep/other.toml"}, {}),
        ({"BATCHQ_CONFIG": "absent.toml"}, {"config": tmp_path / "deep" / "other.toml"}),
    ]
    for env, options in ways:
        result = loaded("run = 'default file'\nclaim = 5", env, **options)
        assert (result.config.run, result.config.claim) == ("other", None)
        assert result.origin["run"].endswith("other.toml:1")


def test_a_named_file_must_exist(loaded: Load, tmp_path: Path) -> None:
    """Unlike batchq.toml, which need not."""
    message, _ = refused(loaded, config="absent.toml")
    assert message == "there is no configuration file absent.toml"
    message, _ = refused(loaded, config=str(tmp_path))
    assert "Is a directory" in message


# -- the environment -------------------------------------------------------------


def test_a_misspelt_variable_is_refused(loaded: Load) -> None:
    """It would otherwise be without effect in silence."""
    message, hint = refused(loaded, None, {"BATCHQ_LEASE_TLL": "5"})
    assert "BATCHQ_LEASE_TLL" in message
    assert "BATCHQ_LEASE_TTL" in hint


def test_variables_that_others_own_are_left_alone(loaded: Load) -> None:
    """Kubernetes sets these for a service that is called batchq."""
    env = {"BATCHQ_PORT": "tcp://10.0.0.1:80", "BATCHQ_SERVICE_HOST": "10.0.0.1", "RUN": "x"}
    assert loaded(None, env).config == Config()


# -- the processor ---------------------------------------------------------------

PROCESSOR = """
lease_ttl = 30

[processor]
kind = "embed"
model = "minilm"
overlap = 32
labels = ["a", "b"]
options = { deep = true }
"""


def test_the_processors_table_gives_kind_model_and_parameters(loaded: Load) -> None:
    """What it holds besides reaches the processor by name."""
    result = loaded(PROCESSOR)
    assert (result.config.processor, result.config.model) == ("embed", "minilm")
    assert result.config.parameters == {
        "overlap": 32,
        "labels": ["a", "b"],
        "options": {"deep": True},
    }
    assert result.origin["model"] == "batchq.toml:6"
    assert result.origin["processor.overlap"] == "batchq.toml:7"


def test_what_the_file_says_of_one_processor_is_not_said_of_another(loaded: Load) -> None:
    """`--processor stats` rehearses with the file written for `embed`."""
    result = loaded(PROCESSOR, processor="stats")
    assert (result.config.processor, result.config.model) == ("stats", None)
    assert result.config.parameters == {}
    assert result.config.lease_ttl == 30
    assert loaded(PROCESSOR, {"BATCHQ_PROCESSOR": "embed"}).config.parameters["overlap"] == 32
    assert loaded(PROCESSOR, processor="stats", model="x").config.model == "x"


def test_a_model_named_twice_is_refused(loaded: Load) -> None:
    """Neither of the two can be known to be meant."""
    message, _ = refused(loaded, "model = 'a'\n[processor]\nmodel = 'b'\n")
    assert message.startswith("batchq.toml:3: ")
    assert "batchq.toml:1" in message


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("since = 2025-01-01", "is no JSON value"),
        ("rate = nan", "is no JSON value"),
        ("rates = [1.0, inf]", "is no JSON value"),
        ("nested = { at = 10:00:00 }", "is no JSON value"),
        ("'two words' = 1", "cannot be an argument's name"),
        ("top-k = 1", "cannot be an argument's name"),
    ],
)
def test_a_parameter_that_cannot_enter_the_manifest_is_refused(
    loaded: Load, line: str, why: str
) -> None:
    """Named with its line."""
    message, _ = refused(loaded, f"[processor]\n{line}\n")
    assert message.startswith("batchq.toml:2: ")
    assert why in message


# -- secrets ---------------------------------------------------------------------


def test_what_is_shown_holds_no_secret(loaded: Load) -> None:
    """Every setting as JSON, in order, passwords hidden."""
    result = loaded(
        "ledger = 'postgresql://alice:hunter2@db.example/ledger'\n"
        "[processor]\nkind = 'my.module:Class'\napi_key = 'hunter2'\n"
        "headers = { Authorization = 'Bearer hunter2hunter2' }\nurls = ['https://hunter2@h/']\n"
    )
    shown = result.shown()
    assert "hunter2" not in json.dumps(shown)
    assert shown["ledger"] == "postgresql://alice:***@db.example/ledger"
    assert shown["claim"] == "auto"
    assert shown["expected_uptime"] == 18_000
    written = result.shown(as_written=True)
    assert (written["expected_uptime"], written["lease_ttl"]) == ("5h", "1m")
    assert written["notice_window"] == "auto"
    assert list(shown)[: len(SETTINGS)] == list(SETTINGS)
    assert set(shown) == set(result.origin)
    assert result.config.ledger == "postgresql://alice:hunter2@db.example/ledger"


@pytest.mark.parametrize(
    "ledger",
    [
        "postgrs://alice:hunter2@db.example/ledger",
        "alice:hunter2@db.example/ledger",
        "host=db.example user=alice password=hunter2",
        "jdbc:postgresql://db.example/ledger?user=alice&password=hunter2",
    ],
)
def test_a_refused_ledger_keeps_its_password_to_itself(loaded: Load, ledger: str) -> None:
    """The value that is wrong may still be secret."""
    for arguments in ((f"ledger = '{ledger}'",), ("", {"BATCHQ_LEDGER": ledger})):
        message, hint = refused(loaded, *arguments)
        assert "hunter2" not in message + hint
    with pytest.raises(UsageError) as caught:
        loaded("", ledger=ledger)
    assert "hunter2" not in str(caught.value)
