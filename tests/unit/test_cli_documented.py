"""What people read about the commands says what the commands do."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from batchq.cli import app, main
from batchq.config import Config, load
from batchq.errors import ExitCode
from batchq.inference.embed import Embed
from batchq.item import Document
from batchq.lease import ReleaseReason
from batchq.ledger.refusals import WORKER_LOST

ROOT = Path(__file__).parents[2]
COMMANDS = (ROOT / "docs" / "commands.md").read_text()


def commands() -> Iterator[tuple[str, Any]]:
    """Every command by its full name."""
    pending: list[tuple[str, Any]] = [("batchq", get_command(app))]
    while pending:
        name, command = pending.pop()
        inner = getattr(command, "commands", {})
        pending += [(f"{name} {word}", each) for word, each in inner.items()]
        if not inner:
            yield name, command


ALL = dict(commands())


def test_the_commands_are_those_of_the_page() -> None:
    """None is missing there, and none is there that does not exist."""
    assert set(re.findall(r"^## (batchq .*)$", COMMANDS, re.MULTILINE)) == set(ALL)


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_command_has_examples_that_name_it(name: str) -> None:
    """`--help` is where people look first."""
    text = ALL[name].help

    assert f"\n  {name}" in text.split("Examples:")[1]


@pytest.mark.parametrize("arguments", [[], ["config"]])
def test_no_summary_of_a_command_is_cut_short(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    """In a terminal as narrow as they come, an end in dots says nothing."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*arguments, "--help"]) == 0
    lists = capsys.readouterr().out.split("Commands:")[1]
    assert "..." not in lists


@pytest.mark.parametrize("name", sorted({*ALL} - {"batchq init"}))
def test_one_set_of_common_options_fits_every_command(name: str) -> None:
    """A script names run, ledger, store and settings once, for whatever it calls."""
    options = {option for parameter in ALL[name].params for option in parameter.opts}
    assert {"--run", "--ledger", "--results", "--config", "--json"} <= options


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_option_is_explained_twice(name: str) -> None:
    """In `--help`, and on the page: in the command's section or among the common ones."""
    common, *sections = re.split(r"^## ", COMMANDS, flags=re.MULTILINE)
    (section,) = [each for each in sections if each.startswith(f"{name}\n")]
    for option in ALL[name].params:
        for spelling in option.opts:
            if spelling.startswith("--"):
                assert option.help, spelling
                assert spelling in section + common, spelling


@pytest.mark.parametrize("page", ["README.md", "docs/commands.md"])
def test_every_exit_code_is_listed(page: str) -> None:
    """None is missing, and none is there that no command ends with."""
    listed = re.findall(r"^\| (\d+) \|", (ROOT / page).read_text(), re.MULTILINE)

    assert {int(code) for code in listed} == set(ExitCode)


def test_the_example_configuration_holds_the_defaults() -> None:
    """Whoever copies a line changes nothing by it."""
    config = load({"config": "configs/batchq.toml"}, {}, ROOT).config

    for field in fields(Config):
        if field.name not in ("model", "parameters"):
            assert getattr(config, field.name) == field.default, field.name


def test_the_example_configuration_names_every_setting() -> None:
    """One without a value as a comment, those of the processor's table as the table has them."""
    text = (ROOT / "configs" / "batchq.toml").read_text()
    named = set(re.findall(r"^(?:# )?(\w+) = ", text, re.MULTILINE))

    settings = {field.name for field in fields(Config)} - {"processor", "parameters"}
    assert settings | {"kind"} <= named


def test_the_processor_of_the_example_is_the_default_one() -> None:
    """Its parameters are the defaults too, so the processing version is the same."""
    from batchq import wiring

    example = load({"config": "configs/batchq.toml"}, {}, ROOT).config

    expected = wiring.full_manifest(wiring.new_processor(Config()))
    assert wiring.full_manifest(wiring.new_processor(example)) == expected


def test_the_processor_of_the_readme_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copied as it stands, and named with --processor."""
    from batchq import wiring

    (source,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "of_the_readme.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    processor = wiring.new_processor(Config(processor="of_the_readme:Shout"))

    prepared = processor.prepare(Document("docs/a.md", "sha256:0", "text/plain", "some words"))
    (output,) = processor.infer([prepared])

    assert output.value == "SOME WORDS"
    assert output.tokens_used == 2


def test_every_parameter_of_embed_is_explained() -> None:
    """In its table of docs/processors.md, and none that it does not take."""
    page = (ROOT / "docs" / "processors.md").read_text()
    table = page[page.index("## embed") : page.index("## stats")]

    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(
        inspect.signature(Embed).parameters
    )


def test_the_wheel_ships_the_migrations(tmp_path: Path) -> None:
    """Without them an installed batchq could not create a ledger."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        check=True,
        timeout=240,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())

    revisions = [f"batchq/{path.relative_to(ROOT)}" for path in ROOT.glob("migrations/**/*.py")]
    assert {"batchq/migrations/script.py.mako", *revisions} <= names
    assert not [name for name in names if name.startswith(("tests", "docs", "migrations"))]


CAUSE = re.compile(r"(?:DocumentError|ProcessorFault|\bfailed)\(\s*(?:work, )?\"([a-z_]+)\"")


def test_every_cause_of_a_dead_letter_is_explained_to_operators() -> None:
    """In the table of docs/operations.md, by its name or by what it begins with."""
    operations = (ROOT / "docs" / "operations.md").read_text()
    table = operations[operations.index("| cause |") :].split("\n\n", 1)[0]
    first_cells = [line.split("|")[1] for line in table.splitlines()]
    explained = {name for cell in first_cells for name in re.findall(r"`(\w+)", cell)}
    causes = {
        cause
        for path in (ROOT / "batchq").rglob("*.py")
        for cause in CAUSE.findall(path.read_text())
    }
    causes |= {ReleaseReason.CANCELLED.value, ReleaseReason.STORE.value, WORKER_LOST}
    assert {"output_invalid", "extract_memory"} <= causes
    assert {cause for cause in causes if not cause.startswith(tuple(explained))} == set()
