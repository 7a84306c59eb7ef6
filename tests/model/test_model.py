"""The protocol's models, gone through by Spin: whole, and with each guard taken out.

`make test` searches the models with one fault of any kind, and every mutant; `make model`
(BATCHQ_MODEL=full) also with more faults, workers, items and acts of people.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FULL = os.environ.get("BATCHQ_MODEL") == "full"
MISSING = [tool for tool in ("spin", "gcc") if shutil.which(tool) is None]

# Programs of the system's, which no Python package brings.
needs_spin = pytest.mark.skipif(
    bool(MISSING),
    reason=f"the models need {' and '.join(MISSING)}: `apt-get install spin gcc`, "
    "`brew install spin`, or spinroot.com",
)

PROGRESS = 17
"""The one promise that no single step can break: a search for a cycle finds it."""


@dataclass(frozen=True)
class Search:
    """What of a model is searched: its size, and the kinds of trouble in it, by name or all."""

    model: str = "lease"
    size: str = "FAULTS=1"
    kinds: str = ""
    progress: bool = False

    def __str__(self) -> str:
        words = [self.model, self.size, self.kinds, "progress" if self.progress else ""]
        return "-".join(word.replace(" ", "_") for word in words if word)


class Models:
    """The models' checkers, each compiled once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._compile = cache(self._compiled)

    def search(self, search: Search, without: int = 0) -> str:
        """What the checker says of the model without one of its guards."""
        checker = self._compile(search.model, search.size, search.progress)
        kinds = sum(KINDS[name] for name in search.kinds.split()) or sum(KINDS.values())
        environment = {**os.environ, "WITHOUT": str(without), "KINDS": str(kinds)}
        options = ["-m20000", "-w19", "-n"]
        if search.progress:
            options += ["-a", "-f"]
        said = _run(["./checker", *options], checker, environment)
        assert "max search depth too small" not in said
        if "errors: 0" in said:
            return said
        steps = _run(["./checker", "-r", f"{search.model}.pml.trail"], checker, environment)
        return f"{said}\nthe steps that lead there:\n{steps}"

    def _compiled(self, model: str, size: str, progress: bool) -> Path:
        folder = self._folder / f"{model}-{size.replace(' ', '-')}-{progress}"
        folder.mkdir()
        shutil.copy(HERE / f"{model}.pml", folder)
        defines = [f"-D{word}" for word in size.split()] + ["-DPROGRESS"] * progress
        _run(["spin", *defines, "-a", f"{model}.pml"], folder)
        kind = ["-DNFAIR=3"] if progress else ["-DSAFETY"]
        # For a small search optimising takes longer than it saves.
        large = FULL and (model, size, progress) in {(s.model, s.size, s.progress) for s in LARGE}
        options = ["-Og" if large else "-O0", "-w", "-DMEMLIM=8000", *kind]
        _run(["gcc", *options, "-o", "checker", "pan.c"], folder)
        return folder


def _run(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0 or command[0] == "./checker", said
    return said


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


# -- the guards -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Guard:
    """`number` takes it out; without it the invariant `breaks`."""

    model: str
    name: str
    number: int
    breaks: int


def _guards(model: str) -> Iterable[Guard]:
    text = (HERE / f"{model}.pml").read_text()
    for name, number, breaks in re.findall(r"#define (\w+) (\d+) +/\* (\d+) \*/", text):
        yield Guard(model, name, int(number), int(breaks))


def _kinds() -> dict[str, int]:
    text = (HERE / "lease.pml").read_text()
    listed = text[text.index("/* What may go wrong") : text.index("short kinds")]
    return {name: int(bit) for name, bit in re.findall(r"#define ([A-Z_]+) (\d+)\b", listed)}


KINDS = _kinds()
MODELS = {
    "lease": Search(),
    "supersession": Search("supersession", ""),
    "contact": Search("contact", "TTL=12 REAPERS_TTL=3"),
    "dynamodb": Search("dynamodb", "FAULTS=1"),
}
GUARDS = [guard for model in MODELS for guard in _guards(model)]

PEOPLE = "FAULTS=2 OPERATIONS=2 MAX_FAILURES=1"

SOUGHT = {
    "A_LATE_CLAIM_IS_REFUSED": Search(kinds="LATE_ARRIVAL BAD_DOCUMENT"),
    "AN_UNKNOWN_LEASE_GOES_BACK": Search(kinds="LATE_ARRIVAL BAD_DOCUMENT", progress=True),
    "THE_DEAD_ARE_REAPED": Search(kinds="KILL", progress=True),
    "THE_LIVING_ARE_NOT_REAPED": Search(size="FAULTS=2", kinds="STALL"),
    "A_BROKEN_OBJECT_STAYS": Search(size="FAULTS=2", kinds="STALL SPOILT"),
    "A_NEW_NAME_HAS_A_NEW_TOKEN": Search(size="FAULTS=2", kinds="NO_ANSWER STALL"),
    "AN_INTENT_ASKS_WHETHER_ITS_WORKER_LIVES": Search("dynamodb", kinds="KILL", progress=True),
    "AN_IDLE_WORKER_SETTLES_ITS_LEASES": Search("dynamodb", kinds="LATE_ARRIVAL", progress=True),
    "AN_INTENT_NAMES_THE_CLAIM_BEFORE": Search(
        "dynamodb", "FAULTS=1 RELEASES=1", kinds="LATE_ARRIVAL"
    ),
    "WHAT_WAS_NOT_TAKEN_IS_OFFERED_AGAIN": Search("dynamodb", kinds="KILL", progress=True),
    "WHO_ENDS_A_LEASE_COUNTS_ITS_COMMIT": Search("dynamodb", kinds="KILL", progress=True),
    "A_REOPENING_NAMES_ITS_RESULT": Search(size=PEOPLE, kinds="LOSS REPAIR"),
    "AN_ORPHANS_ITEM_IS_AT_AN_END": Search(size=PEOPLE, kinds="KILL REMOVE_ORPHANS"),
    "A_RETRY_IS_A_NEW_GENERATION": Search(
        size=f"{PEOPLE} WORKERS=1", kinds="NOTICE BAD_DOCUMENT RETRY REMOVE_ORPHANS"
    ),
}
"""Where the counterexample is no short one of a single fault of any kind."""


@needs_spin
@pytest.mark.parametrize("guard", GUARDS, ids=[guard.name.lower() for guard in GUARDS])
def test_a_missing_guard_is_found(guard: Guard, models: Models) -> None:
    """Spin finds steps that break the invariant which the guard holds."""
    search = SOUGHT.get(guard.name, MODELS[guard.model])
    said = models.search(search, guard.number)
    if guard.breaks == PROGRESS:
        assert "acceptance cycle" in said
    else:
        broken = re.search(r"assertion violated.*\((\d+)==0\)", said)
        assert broken is not None, said
        assert int(broken[1]) == guard.breaks, said


def test_the_page_names_each_guard_beside_its_invariant() -> None:
    """docs/how-it-works.md says what holds each invariant."""
    page = (HERE.parents[1] / "docs" / "how-it-works.md").read_text()
    rows = re.findall(r"^\| (\d+) \|.*\|([^|]+)\|$", page, re.MULTILINE)
    named = {(guard, int(number)) for number, row in rows for guard in re.findall(r"`(\w+)`", row)}
    assert named == {(guard.name, guard.breaks) for guard in GUARDS}


def test_the_code_that_a_step_stands_for_is_there() -> None:
    """A model that speaks of a function which has moved is read by nobody beside the code."""
    package = HERE.parents[1] / "batchq"
    for model in sorted(HERE.glob("*.pml")):
        named = re.findall(r"((?:[a-z_]+/)+[a-z_0-9]+): (?:_?[A-Z]\w*\.)?(\w+)", model.read_text())
        assert named
        for module, name in named:
            code = (package / f"{module}.py").read_text()
            assert re.search(rf"\b(def|class) {name}\b", code), f"{model.name}: {module}: {name}"


# -- the whole models -----------------------------------------------------------------------

SMALL = [Search(kinds="KILL LATE_ARRIVAL", progress=True)]
LARGE = [
    Search(progress=True),
    Search(size="FAULTS=2"),
    Search(size="FAULTS=1 OPERATIONS=1 MAX_FAILURES=1"),
    Search(
        size="FAULTS=1 OPERATIONS=2 MAX_FAILURES=1", kinds="KILL LOSS RETRY REPAIR REMOVE_ORPHANS"
    ),
    Search(size="FAULTS=1 WORKERS=3", kinds="KILL STALL LATE_ARRIVAL SPOILT"),
    Search(size="FAULTS=1 ITEMS=2", kinds="NO_ANSWER LATE_ARRIVAL KILL STALL NOTICE"),
    Search("supersession", "RELEASES=1", progress=True),
    Search("dynamodb", "FAULTS=1 RELEASES=1"),
    Search("dynamodb", progress=True),
    *(Search("contact", f"TTL={a} REAPERS_TTL={b}") for a, b in ((6, 6), (6, 18), (18, 6))),
]


@needs_spin
@pytest.mark.timeout(900)
@pytest.mark.parametrize("search", [*MODELS.values(), *(LARGE if FULL else SMALL)], ids=str)
def test_no_order_of_events_breaks_an_invariant(search: Search, models: Models) -> None:
    """Every order, to the end."""
    said = models.search(search)
    assert "errors: 0" in said, said
    assert "Search not completed" not in said, said
