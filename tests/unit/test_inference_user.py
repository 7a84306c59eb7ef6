"""Users' processors and the registry: what is loaded, what is refused, what identifies code."""

from __future__ import annotations

import importlib
import json
import os
import py_compile
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchq.errors import BatchqError, ExitCode, ProcessingVersionMismatch, UsageError
from batchq.fingerprint import difference, processing_version
from batchq.inference.base import Document, Processor
from batchq.inference.registry import build_processor, full_manifest, rebuild_processor
from batchq.inference.user import code_version, load_processor
from tests.unit.model_folders import write_model

SHOUT = """
from batchq.inference.base import Output, Prepared

class Shout:
    def __init__(self, mark="!", times=1):
        if times < 1:
            raise ValueError("times must be 1 or more")
        self.mark = mark * times
    def manifest(self):
        return {"mark": self.mark}
    def load(self, device):
        self.device = device
    def prepare(self, document):
        return Prepared(document.text, 1)
    def infer(self, batch):
        return [Output(one.payload.upper() + self.mark, 1, 1) for one in batch]

class Whisper:
    def manifest(self):
        return {}
    def load(self, device): ...

class Needy(Shout):
    def __init__(self, *, key):
        super().__init__()

class Greedy(Shout):
    def __init__(self, options):
        super().__init__()
        self.mode = options.pop("mode")

class Odd(Shout):
    def manifest(self):
        return {"when": object()}

class EndsInManifest(Shout):
    def manifest(self):
        raise SystemExit(0)

class EndsInConstructor(Shout):
    def __init__(self):
        raise SystemExit
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder with `shouting.py`, forgotten with all it brought when a test ends."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "shouting.py").write_text(SHOUT)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path, modules = list(sys.path), set(sys.modules)
    yield folder
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if getattr(sys.modules[name], "__file__", None) is None or str(tmp_path) in str(
            sys.modules[name].__file__
        ):
            del sys.modules[name]


def refusal(spec: str, parameters: dict[str, object] | None = None) -> UsageError:
    with pytest.raises(UsageError) as raised:
        build_processor(spec, parameters or {})
    assert raised.value.exit_code is ExitCode.USAGE
    return raised.value


def said(error: BatchqError) -> str:
    return f"{error.message}; {error.hint}"


# -- loading ---------------------------------------------------------------------------


def test_a_class_in_the_current_folder_becomes_a_processor() -> None:
    """It is constructed with the parameters, and does what it does."""
    processor = load_processor("shouting:Shout", {"times": 2})
    assert isinstance(processor, Processor)
    processor.load("cpu")
    prepared = processor.prepare(Document("a", "sha256:0", "text/plain", "hey"))
    assert [output.value for output in processor.infer([prepared])] == ["HEY!!"]


def test_the_manifest_names_class_code_parameters_and_the_classes_own() -> None:
    """Its kind is fit for the name of a processing version."""
    manifest = load_processor("shouting:Shout", {"times": 2}).manifest()
    assert manifest["kind"] == "shouting-shout"
    assert manifest["processor"] == "shouting:Shout"
    assert manifest["parameters"] == {"times": 2}
    assert manifest["user"] == {"mark": "!!"}
    assert len(manifest["code"]) == 64
    assert processing_version(manifest).startswith("shouting-shout-")


def test_what_a_class_does_to_its_parameters_is_not_in_its_manifest() -> None:
    """Else two configurations would be one version, and a worker's not that of its run."""
    manifests = []
    for mode in ("fast", "slow"):
        manifest = load_processor("shouting:Greedy", {"options": {"mode": mode}}).manifest()
        assert manifest["parameters"] == {"options": {"mode": mode}}
        manifests.append(processing_version(manifest))
    assert manifests[0] != manifests[1]


def test_an_installed_module_wins_over_a_stray_file(here: Path) -> None:
    """A file here that happens to be called json.py must not break everything else."""
    (here / "calendar.py").write_text("raise SystemExit('stray')")
    assert "no class Nothing" in refusal("calendar:Nothing").message
    assert sys.path[0] != str(here)


@pytest.mark.parametrize(
    ("spec", "parameters", "words"),
    [
        ("absent:Shout", {}, ["module absent", "not found", "PYTHONPATH"]),
        ("shouting.inner:Shout", {}, ["shouting.inner", "not found"]),
        ("shouting:Shot", {}, ["no class Shot", "Shout", "Whisper"]),
        ("shouting:Whisper", {}, ["lacks prepare, infer"]),
        ("shouting:", {}, ["module:Class"]),
        ("shouting:Shout:x", {}, ["module:Class"]),
        ("../shouting:Shout", {}, ["module:Class"]),
        ("shouting:Shout", {"tmies": 2}, ["no parameter tmies", "did you mean times?"]),
        ("shouting:Shout", {"qqq": 2}, ["no parameter qqq", "mark, times"]),
        ("shouting:Shout", {"times": 0}, ["times must be 1 or more"]),
        ("shouting:Needy", {}, ["needs the parameter key"]),
        ("json:JSONEncoder", {}, ["no processor", "lacks"]),
        ("sys:Shout", {}, ["no class Shout"]),
    ],
)
def test_what_cannot_be_loaded_says_why(
    spec: str, parameters: dict[str, object], words: list[str]
) -> None:
    """Module, class, protocol and parameters each have their own message."""
    text = said(refusal(spec, parameters))
    for word in words:
        assert word in text


def test_a_missing_dependency_is_not_taken_for_a_missing_module(here: Path) -> None:
    """The module is there; what it imports is not."""
    (here / "leaning.py").write_text("import no_such_dependency\n")
    assert "needs no_such_dependency" in refusal("leaning:X").message


def test_a_module_that_fails_to_import_says_how(here: Path) -> None:
    """With the error it raised, and the command that shows all of it."""
    (here / "broken.py").write_text("def f(:\n")
    text = said(refusal("broken:X"))
    assert "SyntaxError" in text
    assert "import broken" in text


def test_a_manifest_that_is_no_json_is_refused() -> None:
    """Its digest would mean nothing."""
    with pytest.raises(UsageError, match="is not JSON"):
        load_processor("shouting:Odd", {}).manifest()


# -- the code's version ----------------------------------------------------------------


def package(here: Path, name: str) -> Path:
    folder = here / name
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "inner" / "__init__.py").write_text("")
    (folder / "inner" / "words.txt").write_text("one")
    return folder


def version(name: str) -> str:
    # Python remembers what a folder held when its clock last ticked.
    importlib.invalidate_caches()
    return code_version(importlib.import_module(name))


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "__init__.py").write_text("# changed"),
        lambda folder: (folder / "inner" / "words.txt").write_text("two"),
        lambda folder: (folder / "new.py").write_text(""),
        lambda folder: (folder / "inner" / "words.txt").rename(folder / "words.txt"),
    ],
)
def test_any_file_of_the_package_counts(
    here: Path, monkeypatch: pytest.MonkeyPatch, change: object
) -> None:
    """Code or data, its contents or its name, whichever module the class lies in."""
    monkeypatch.syspath_prepend(str(here))
    folder = package(here, "counted")
    before = version("counted.inner")
    assert callable(change)
    change(folder)
    assert before != version("counted.inner")


def test_what_python_and_editors_leave_behind_does_not_count(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or two machines with the same sources would disagree."""
    monkeypatch.syspath_prepend(str(here))
    folder = package(here, "littered")
    before = version("littered")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.cpython-311.pyc").write_bytes(b"x")
    (folder / ".x.py.swp").write_bytes(b"x")
    assert before == version("littered")


def test_what_is_imported_through_a_link_or_without_its_source_counts(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is shared by links, and a vendor's bytecode, are code like any other."""
    monkeypatch.syspath_prepend(str(here))
    folder = package(here, "linked")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "rules.py").write_text("MARK = 1")
    (folder / "shared").symlink_to(tmp_path / "shared")
    (folder / "itself").symlink_to(folder)
    versions = [version("linked")]
    for path, content in (
        (tmp_path / "shared" / "rules.py", b"MARK = 2"),
        (folder / "vendored.pyc", b"1"),
        (folder / "vendored.pyc", b"2"),
    ):
        path.write_bytes(content)
        versions.append(version("linked"))
    assert len(set(versions)) == 4
    (folder / "vendored.py").write_text("")
    before = version("linked")
    (folder / "vendored.pyc").write_bytes(b"left behind")
    assert before == version("linked")


def test_what_is_imported_while_it_loads_is_compiled_from_its_source(here: Path) -> None:
    """Bytecode may be of an older file of the same time and size."""
    folder = here / "late"
    folder.mkdir()
    code = SHOUT.replace("self.device = device", "import late.inner")
    (folder / "__init__.py").write_text(code)
    inner = folder / "inner.py"
    inner.write_text("MARK = 1")
    py_compile.compile(str(inner))
    status = inner.stat()
    inner.write_text("MARK = 2")
    os.utime(inner, ns=(status.st_atime_ns, status.st_mtime_ns))
    processor = load_processor("late:Shout", {})
    processor.load("cpu")
    assert sys.modules["late"].inner.MARK == 2


def test_code_that_changes_while_it_loads_is_refused(here: Path) -> None:
    """What is imported late may be of a newer version than what was digested."""
    folder = here / "pulled"
    folder.mkdir()
    code = SHOUT.replace("self.device = device", "import pulled.inner")
    (folder / "__init__.py").write_text(code)
    (folder / "inner.py").write_text("MARK = 1")
    processor = load_processor("pulled:Shout", {})
    (folder / "inner.py").write_text("MARK = 2")
    with pytest.raises(ProcessingVersionMismatch, match="changed while it was loaded"):
        processor.load("cpu")


def test_the_place_of_a_module_is_no_part_of_its_version(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two machines keep it in two folders."""
    before = load_processor("shouting:Shout", {}).manifest()
    del sys.modules["shouting"]
    (tmp_path / "elsewhere").mkdir()
    (here / "shouting.py").rename(tmp_path / "elsewhere" / "shouting.py")
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    assert before == load_processor("shouting:Shout", {}).manifest()


def test_a_module_without_files_has_no_version() -> None:
    """A processor must lie in a file."""
    with pytest.raises(UsageError, match="no files"):
        code_version(sys)


# -- the registry ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "words"),
    [("embd", "did you mean embed?"), ("quux", "one of embed, stats, or module:Class")],
)
def test_an_unknown_kind_names_the_known(kind: str, words: str) -> None:
    """The nearest, or all of them."""
    assert words in said(refusal(kind))


@pytest.mark.parametrize(
    ("kind", "parameters", "words"),
    [
        ("embed", {"modle": "x"}, "did you mean model?"),
        ("stats", {"model": "x"}, "it takes none"),
        ("embed", {"batching": "fxied"}, "one of packed, fixed"),
        ("embed", {"dtype": "int8"}, "one of float32"),
        ("embed", {"overlap": "32"}, "a whole number, 0 or more"),
        ("embed", {"normalise": "false"}, "true or false"),
        ("embed", {"prompt": 5}, "text"),
        ("embed", {"revision": 5}, "text"),
        ("embed", {"model": ["a"]}, "text"),
        ("embed", {"overlap": True}, "a whole number, 0 or more"),
        ("embed", {"overlap": -1}, "a whole number, 0 or more"),
        ("embed", {"max_tokens": 4}, "a whole number, 8 or more"),
        ("embed", {"step_tokens": 0}, "a whole number, 1 or more"),
    ],
)
def test_bad_parameters_are_refused_before_anything_is_loaded(
    kind: str, parameters: dict[str, object], words: str
) -> None:
    """Unknown names and values out of range, each with what would do."""
    assert words in said(refusal(kind, parameters))


def test_a_processor_is_rebuilt_from_its_manifest(tmp_path: Path) -> None:
    """Through JSON and the ledger, for every kind: same manifest, same version."""
    folder = write_model(tmp_path / "models" / "encoder")
    for kind, parameters in (
        ("stats", {}),
        ("shouting:Shout", {"mark": "?"}),
        ("embed", {"model": str(folder), "overlap": 8, "batching": "fixed", "step_tokens": 512}),
    ):
        manifest = full_manifest(build_processor(kind, parameters), {"html": "selectolax 1"})
        kept = json.loads(json.dumps(manifest))
        again = full_manifest(rebuild_processor(kept), {"html": "selectolax 1"})
        assert difference(again, kept) == []
        assert processing_version(manifest) == processing_version(again)


def test_the_extractor_is_part_of_the_identity() -> None:
    """The same processor over another extractor's text is another processing version."""
    one, two = (full_manifest(build_processor("stats", {}), {"v": v}) for v in (1, 2))
    assert processing_version(one) != processing_version(two)
    assert difference(one, two) == ["extractor.v: 1 here, 2 in the run"]


def test_where_a_model_lies_is_no_part_of_the_identity(tmp_path: Path) -> None:
    """Only a hint to find it by: two machines with two folders have one version."""
    one, two = (
        build_processor("embed", {"model": str(write_model(tmp_path / place / "encoder"))})
        for place in ("one", "two")
    )
    assert one.manifest()["hints"] != two.manifest()["hints"]
    assert processing_version(one.manifest()) == processing_version(two.manifest())
    assert difference(one.manifest(), two.manifest()) == []
    assert str(tmp_path) not in json.dumps({**one.manifest(), "hints": None})


def test_a_manifest_of_another_release_is_refused() -> None:
    """By name, not with a KeyError."""
    with pytest.raises(UsageError, match="names no processor"):
        rebuild_processor({"kind": "embed"})


def test_stale_bytecode_of_the_same_size_and_time_is_not_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs is what was digested, also after an edit within one second."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "stale_example.py"
    module.write_text(SHOUT.replace('"!"', '"?"'))
    os.utime(module, (1_700_000_000, 1_700_000_000))
    py_compile.compile(str(module))
    module.write_text(SHOUT)
    os.utime(module, (1_700_000_000, 1_700_000_000))
    processor = load_processor("stale_example:Shout", {})
    monkeypatch.delitem(sys.modules, "stale_example")
    prepared = processor.prepare(Document("a", "sha256:0", "text/plain", "hey"))
    assert processor.infer([prepared])[0].value == "HEY!"


def test_an_error_names_the_line_of_the_processors_own_code(here: Path) -> None:
    """The last that it passed, not one of a library; and once, however often it is raised."""
    (here / "failing.py").write_text(
        "import json\n"
        'AGAIN = ValueError("again")\n'
        + SHOUT.replace("return Prepared", "json.loads(document.text)  # in a library").replace(
            "return [Output", "raise AGAIN  # the same one\n        return [Output"
        )
    )
    lines = (here / "failing.py").read_text().split("\n")
    library = next(n for n, line in enumerate(lines, 1) if "in a library" in line)
    again = next(n for n, line in enumerate(lines, 1) if "the same one" in line)
    processor = load_processor("failing:Shout", {})
    with pytest.raises(ValueError, match="Expecting value") as raised:
        processor.prepare(Document("a", "sha256:0", "text/plain", "no JSON"))
    assert raised.value.__notes__ == [f"failing.py:{library}"]
    for _ in range(2):
        with pytest.raises(ValueError, match="again") as raised:
            processor.infer([])
        assert raised.value.__notes__ == [f"failing.py:{again}"]


def test_how_much_a_class_likes_at_once_may_be_known_when_it_is_loaded(here: Path) -> None:
    """It depends on the device; and what is no number of tokens is a usage error."""
    (here / "sized.py").write_text(
        SHOUT.replace("self.device = device", "self.batch_tokens = device")
    )
    processor = load_processor("sized:Shout", {})
    assert processor.batch_tokens == 16_384  # type: ignore[attr-defined]
    for said, allowed in ((7, True), (0, False), ("many", False), (True, False)):
        processor.load(said)  # type: ignore[arg-type]
        if allowed:
            assert processor.batch_tokens == said  # type: ignore[attr-defined]
            continue
        with pytest.raises(UsageError, match="batch_tokens of sized:Shout"):
            _ = processor.batch_tokens  # type: ignore[attr-defined]


@pytest.mark.parametrize("where", ["module", "constructor", "manifest"])
def test_a_processor_that_ends_the_process_is_a_usage_error(here: Path, where: str) -> None:
    """A script without a main guard would end `enqueue` with 0, and nothing was enqueued."""
    (here / "script.py").write_text(f"{SHOUT}\nraise SystemExit(0)")
    spec = "script:Shout" if where == "module" else f"shouting:EndsIn{where.capitalize()}"
    with pytest.raises(UsageError, match=where) as raised:
        build_processor(spec, {}).manifest()
    assert "__main__" in said(raised.value)


def test_a_signal_while_a_processor_is_imported_is_none_of_its_doing(here: Path) -> None:
    """A worker that is stopped so early ends with 75: another one should be started."""
    (here / "slow.py").write_text(f"{SHOUT}\nraise SystemExit({int(ExitCode.STOPPED)})")
    with pytest.raises(SystemExit):
        build_processor("slow:Shout", {})
