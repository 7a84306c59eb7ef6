"""Settings: an option, else the environment, else the file, else the default.

Every setting is declared once, as a field of `Config`. Its name in the file (`lease_ttl`)
and in the environment (`BATCHQ_LEASE_TTL`) follow from the field's. Paths are relative to
the folder in which the command runs.

    lease_ttl = "60s"                # batchq.toml

    [processor]
    kind = "embed"
    model = "all-MiniLM-L6-v2"
    overlap = 32                     # the rest goes to the processor by name
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from batchq.config.file import Given, read_file
from batchq.config.kinds import Kind, count, duration, or_word, seconds, switch, text
from batchq.errors import UsageError
from batchq.redact import HIDDEN, is_secret_name, redact

__all__ = ["SETTINGS", "Config", "Loaded", "Setting", "load", "seconds"]

ENVIRONMENT = "BATCHQ_"

T = TypeVar("T")


def _setting(default: T, kind: Kind, *, unset: str = "auto") -> T:
    metadata = {"kind": kind, "unset": unset}
    declared: T = field(default=default, metadata=metadata)
    return declared


@dataclass(frozen=True, slots=True)
class Config:
    """Every setting, checked. Durations are in seconds; None stands for `auto` or none.

    `parameters` is what `[processor]` holds besides `kind` and `model`; it reaches the
    processor as keyword arguments.
    """

    run: str = _setting(
        "default",
        text("1 to 100 characters other than control characters", r"[^\x00-\x1f\x7f]{1,100}"),
    )
    """The run: a named set of items with one processing version."""

    ledger: str = _setting(
        "sqlite:///batchq-data/ledger.db",
        text(
            "sqlite:///FILE, postgresql://HOST/DATABASE (with %20 for a blank) or "
            "dynamodb://TABLE?region=REGION",
            r"sqlite:///\S.*|(postgres(ql)?|dynamodb)://\S+",
        ),
    )
    """The ledger: sqlite:///FILE, postgresql://… or dynamodb://TABLE?region=…."""

    results: str = _setting(
        "batchq-data/results",
        text("a folder or s3://BUCKET/PREFIX", r"s3://[^/\s][^\x00]*|(?![a-z0-9+]+://)[^\x00]+"),
    )
    """Where results lie: a folder, or s3://bucket/prefix."""

    processor: str = _setting(
        "embed", text("a kind such as embed or stats, or module:Class", r"[\w.-]+(:\w+)?")
    )
    """What is done to each document: embed, stats, or module:Class."""

    model: str | None = _setting(
        None, text("a name, an id or a folder", r"[^\x00-\x1f\x7f]+"), unset="the processor's own"
    )
    """The model: a folder, or a name known to the processor."""

    layout: str = _setting("item", text("`item` or `shard`", "item|shard"))
    """Layout of the results, fixed when the run is created: item or shard."""

    device: str = _setting(
        "auto", text("auto, cpu, cuda, cuda:N or mps", r"auto|cpu|mps|cuda(:\d+)?")
    )
    """Where the model runs: auto, cpu, cuda, cuda:1, mps."""

    lease_ttl: float = _setting(60.0, duration(0.5, 3600))
    """How long a worker may give no sign of life before others take over."""

    claim: int | None = _setting(None, or_word("auto", count(1)))
    """Items a claim; auto follows their cost."""

    notice: str = _setting(
        "auto",
        text(
            "auto, none, or some of ec2, sqs, gcp, azure with commas between",
            r"auto|none|(ec2|sqs|gcp|azure)(,(ec2|sqs|gcp|azure))*",
        ),
    )
    """Interruption notices to watch for: auto, none, or ec2,sqs,gcp,azure."""

    notice_window: float | None = _setting(None, or_word("auto", duration(0.5, 3600)))
    """Time assumed between a notice that names no deadline and the end."""

    notice_interval: float | None = _setting(None, or_word("auto", duration(0.5, 300)))
    """How often a platform's metadata is asked; auto is each platform's own."""

    notice_queue: str | None = _setting(
        None, text("the URL of an SQS queue", r"https?://\S+"), unset="none"
    )
    """The SQS queue that EventBridge puts this account's spot notices into."""

    azure_metadata_endpoint: str | None = _setting(
        None,
        text("an address such as http://169.254.169.254", r"http://\S+"),
        unset="the usual address",
    )
    """Where Azure's instance metadata answers, if not at its usual address."""

    drain_on_rebalance: bool = _setting(False, switch())
    """Whether EC2's recommendation to rebalance stops a worker."""

    expected_uptime: float = _setting(5 * 3600.0, duration(60, 30 * 86400))
    """Mean time to an interruption; the rarer they are, the seldomer results are flushed."""

    max_failures: int = _setting(3, count(1))
    """Charged failures after which an item is given up."""

    max_losses: int = _setting(3, count(1))
    """Workers that an item may take down alone before it is given up."""

    stall_timeout: float = _setting(600.0, duration(1, 86400))
    """How long the pipeline may stand still before its process ends."""

    flush_items: int | None = _setting(None, or_word("auto", count(1)))
    """Results a commit; auto follows what one was measured to cost."""

    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Setting:
    """A declared setting: what it may be, and what is shown where it is not set."""

    name: str
    kind: Kind
    default: Any
    unset: str

    @property
    def variable(self) -> str:
        return ENVIRONMENT + self.name.upper()

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")


SETTINGS: Mapping[str, Setting] = {
    each.name: Setting(each.name, each.metadata["kind"], each.default, each.metadata["unset"])
    for each in fields(Config)
    if each.metadata
}


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings, and where each comes from.

    `origin` by name: `option`, `BATCHQ_RUN`, `batchq.toml:3` or `default`. A parameter
    of the processor is named `processor.overlap`.
    """

    config: Config
    origin: Mapping[str, str]

    def shown(self, *, as_written: bool = False) -> dict[str, Any]:
        """Every setting as JSON, in the order of declaration, without secrets.

        Durations in seconds, or `as_written` by people: 5h.
        """
        values: dict[str, Any] = {}
        for name, setting in SETTINGS.items():
            value = getattr(self.config, name)
            if as_written and value is not None:
                value = setting.kind.write(value)
            values[name] = setting.unset if value is None else _hidden(name, value)
        for name, value in self.config.parameters.items():
            values[f"processor.{name}"] = _hidden(name, value)
        return values


def load(options: Mapping[str, object | None], env: Mapping[str, str], cwd: Path) -> Loaded:
    """Resolve every setting. An option of None and an empty variable are not given.

    `options` are named as in `Config`, and `config` names the file, as does
    BATCHQ_CONFIG; without either it is `batchq.toml` in `cwd`, if it exists. Raises
    UsageError, naming where the offending value was given and what is allowed.
    """
    from_options = {
        name: Given(value, "option") for name, value in options.items() if value is not None
    }
    from_env = _environment(env)
    named = from_env.pop("config", None)
    named = from_options.pop("config", named)
    path = None if named is None else str(named.value)
    from_file, parameters = read_file(cwd, path, [*SETTINGS])

    processor = from_options.get("processor") or from_env.get("processor")
    in_file = from_file.get("processor")
    if processor and in_file and processor.value != in_file.value:
        # What the file says of one kind of processor says nothing of another.
        from_file.pop("model", None)
        parameters = {}

    given = from_file | from_env | from_options
    values = {name: _parsed(SETTINGS[name], each) for name, each in given.items()}
    origin = {name: given[name].origin if name in given else "default" for name in SETTINGS}
    origin |= {f"processor.{name}": each.origin for name, each in parameters.items()}
    values["parameters"] = {name: each.value for name, each in parameters.items()}
    return Loaded(Config(**values), origin)


def _parsed(setting: Setting, given: Given) -> Any:
    try:
        return setting.kind.parse(given.value)
    except (ValueError, OverflowError):
        where = setting.option if given.origin == "option" else given.origin
        name = "" if where in (setting.option, setting.variable) else f"{setting.name} = "
        value = _hidden(setting.name, given.value)
        if isinstance(value, str) and "@" in value and HIDDEN not in value:
            # A connection string in no known form: what it hides cannot be told.
            value = HIDDEN
        raise UsageError(
            f"{where}: {name}{value!r} is not allowed",
            hint=f"{setting.name} must be {setting.kind.expected}",
        ) from None


def _environment(env: Mapping[str, str]) -> dict[str, Given]:
    known = [*SETTINGS, "config"]
    given = {}
    for variable, value in env.items():
        name = variable.removeprefix(ENVIRONMENT).lower()
        if not variable.startswith(ENVIRONMENT) or not value:
            continue
        if name in known:
            given[name] = Given(value, variable)
        # Others may own a name like BATCHQ_PORT (Kubernetes does), but not a misspelt one.
        elif near := difflib.get_close_matches(name, known, n=1, cutoff=0.8):
            raise UsageError(
                f"the environment variable {variable} names no setting",
                hint=f"{ENVIRONMENT}{near[0].upper()} does; unset the other one",
            )
    return given


def _hidden(name: str, value: Any) -> Any:
    """`value` as JSON without what may be a secret in it."""
    if is_secret_name(name):
        return HIDDEN
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {key: _hidden(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_hidden(name, inner) for inner in value]
    return value
