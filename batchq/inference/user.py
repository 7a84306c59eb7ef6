"""A user's own processor, named `module:Class`."""

from __future__ import annotations

import copy
import hashlib
import importlib
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path, PurePosixPath
from traceback import walk_tb
from types import ModuleType
from typing import Any

from batchq.errors import BatchqError, ExitCode, ProcessingVersionMismatch, UsageError
from batchq.inference.base import DEFAULT_BATCH_TOKENS, Document, Output, Prepared, Processor
from batchq.result import canonical_json, slug
from batchq.words import did_you_mean

__all__ = ["UserProcessor", "code_version", "load_processor", "refuse_unknown"]

_VERBS = ("manifest", "load", "prepare", "infer")


class UserProcessor:
    """A user's processor with its identity completed: a kind, and the digest of its code.

    The kind is `module:Class` made fit for a processing version's name; the class's
    own manifest is kept under `user`.
    """

    def __init__(
        self, spec: str, inner: Processor, module: ModuleType, parameters: Mapping[str, Any]
    ) -> None:
        self._spec = spec
        self._inner = inner
        self._module = module
        self._code = code_version(module)
        self._parameters = dict(parameters)

    @property
    def batch_tokens(self) -> int:
        """As the class says it, which may know it only once it is loaded."""
        said = getattr(self._inner, "batch_tokens", None)
        if said is None:
            return DEFAULT_BATCH_TOKENS
        if not isinstance(said, int) or isinstance(said, bool) or said < 1:
            raise UsageError(
                f"batch_tokens of {self._spec} is {said!r}", hint="a whole number, 1 or more"
            )
        return said

    def manifest(self) -> Mapping[str, Any]:
        with _returning(self._spec, "manifest()"):
            own = dict(self._inner.manifest())
        try:
            canonical_json(own)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"the manifest of {self._spec} is not JSON: {error}",
                hint="manifest() returns text, numbers, booleans, lists and dicts of them",
            ) from None
        return {
            "kind": slug(self._spec),
            "processor": self._spec,
            "code": self._code,
            "parameters": self._parameters,
            "user": own,
        }

    def load(self, device: str) -> None:
        """Raises ProcessingVersionMismatch if the code changed since it was digested."""
        # Much is imported only here.
        with _compiled_from_source(self._module.__name__.partition(".")[0]):
            self._inner.load(device)
        if code_version(self._module) != self._code:
            raise ProcessingVersionMismatch(
                f"files of {self._spec} ({_where(self._module)}) changed while it was loaded",
                hint="start the worker again when its code lies there whole; what a processor "
                "writes belongs outside of its own package",
            )

    def prepare(self, document: Document) -> Prepared:
        try:
            return self._inner.prepare(document)
        except Exception as error:
            _note_line(error, self._module)
            raise

    def infer(self, batch: Sequence[Prepared]) -> Sequence[Output]:
        try:
            return self._inner.infer(batch)
        except Exception as error:
            _note_line(error, self._module)
            raise

    def provenance(self) -> Mapping[str, Any]:
        tell = getattr(self._inner, "provenance", None)
        return dict(tell()) if callable(tell) else {}


def load_processor(spec: str, parameters: Mapping[str, Any]) -> Processor:
    """The class that `spec` (`module:Class`) names, constructed with `parameters`.

    The module is looked for on PYTHONPATH and among the installed ones, then in the
    current folder. Raises UsageError where it is not found or fails to import, has no
    such class, the class is no Processor, or its constructor refuses the parameters.
    """
    module_name, _, class_name = spec.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), class_name]):
        raise UsageError(f"{spec!r} names no processor", hint="write module:Class")
    module = _import(spec, module_name)
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        classes = [name for name, value in vars(module).items() if isinstance(value, type)]
        raise UsageError(
            f"module {module_name} ({_where(module)}) has no class {class_name}",
            hint=f"it has {', '.join(sorted(classes))}" if classes else "it has no classes",
        )
    missing = [verb for verb in _VERBS if not callable(getattr(found, verb, None))]
    if missing:
        raise UsageError(
            f"{spec} is no processor: it lacks {', '.join(missing)}",
            hint="see batchq.inference.base.Processor for the four methods",
        )
    refuse_unknown(spec, found, parameters)
    try:
        with _returning(spec, "its constructor"):
            # Its own: what it changes in them would change the manifest, which tells runs apart.
            instance = found(**copy.deepcopy(dict(parameters)))
    except BatchqError:
        raise
    except Exception as error:
        raise UsageError(
            f"{spec} refuses its parameters: {type(error).__name__}: {error}",
            hint="check [processor] in the configuration",
        ) from error
    return UserProcessor(spec, instance, module, parameters)


def refuse_unknown(kind: str, found: type, parameters: Mapping[str, Any]) -> None:
    """Raise UsageError for a parameter that the constructor of `found` does not take."""
    try:
        signature = inspect.signature(found)
    except ValueError:
        return
    accepted = signature.parameters.values()
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in accepted):
        return
    known = [one.name for one in accepted if one.kind is not inspect.Parameter.POSITIONAL_ONLY]
    for name in parameters:
        if name not in known:
            raise UsageError(
                f"{kind} has no parameter {name}",
                hint=did_you_mean(name, known) or f"it takes {', '.join(known) or 'none'}",
            )
    lacking = [
        one.name
        for one in accepted
        if one.default is inspect.Parameter.empty
        and one.kind is not inspect.Parameter.VAR_POSITIONAL
        and one.name not in parameters
    ]
    if lacking:
        raise UsageError(f"{kind} needs the parameter {lacking[0]}", hint="set it in [processor]")


def _import(spec: str, name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        # Last, so that a stray file here never stands in for an installed module.
        sys.path.append(here)
    importlib.invalidate_caches()
    try:
        with _compiled_from_source(name.partition(".")[0]), _returning(spec, "its module"):
            return importlib.import_module(name)
    except UsageError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise UsageError(
                f"module {name} of {spec} was not found",
                hint=f"put it into {here} or on PYTHONPATH",
            ) from None
        raise UsageError(
            f"module {name} needs {error.name}, which is not installed",
            hint=f"install {error.name}",
        ) from error
    except Exception as error:
        raise UsageError(
            f"module {name} does not import: {type(error).__name__}: {error}",
            hint=f"try: python -c 'import {name}'",
        ) from error


@contextmanager
def _returning(spec: str, where: str) -> Iterator[None]:
    """A script without a main guard would end the command with 0, and nothing was done."""
    try:
        yield
    except SystemExit as error:
        if error.code == ExitCode.STOPPED:
            # A signal's, which may come at any time.
            raise
        raise UsageError(
            f"{spec} ends the process in {where}: sys.exit({error.code!r})",
            hint="what a script does belongs below: if __name__ == '__main__'",
        ) from None


class _SourceLoader(SourceFileLoader):
    """Compiles what lies there now: bytecode may be of an older file of the same time and size."""

    def path_stats(self, path: str) -> Mapping[str, Any]:
        # Without them the import system neither reads bytecode nor writes it.
        raise OSError


class _FromSource:
    """Finds the modules below `top` as Python does, and loads them from source."""

    def __init__(self, top: str) -> None:
        self._top = top

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] != self._top:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _SourceLoader(spec.loader.name, spec.loader.path)
        return spec


@contextmanager
def _compiled_from_source(top: str) -> Iterator[None]:
    """What is executed must be what `code_version` digests."""
    finder = _FromSource(top)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def code_version(module: ModuleType) -> str:
    """SHA-256 (hex) over every file of the module's top-level module or package.

    Covers names relative to it and contents, of data files too; not what Python or
    an editor leaves there (`__pycache__`, a `.pyc` beside its source, names that begin with
    a dot), and not what the code imports from elsewhere. Raises UsageError for a module
    without files.
    """
    digest = hashlib.sha256()
    count = 0
    for name, path in sorted(_files(module)):
        digest.update(json.dumps(name).encode())
        try:
            with path.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise UsageError(
                f"cannot read {path}: {error.strerror}",
                hint="make it readable, or move it: every file of the package is digested",
            ) from None
        count += 1
    if not count:
        raise UsageError(
            f"module {module.__name__} has no files to take a version from",
            hint="a processor must lie in a file of its own",
        )
    return digest.hexdigest()


def _files(module: ModuleType) -> Iterator[tuple[str, Path]]:
    top = module.__name__.partition(".")[0]
    spec = importlib.util.find_spec(top)
    if spec is None:
        return
    folders = spec.submodule_search_locations
    if folders is None:
        if spec.has_location and spec.origin:
            yield Path(spec.origin).name, Path(spec.origin)
        return
    for folder in folders:
        yield from _below(Path(folder), PurePosixPath(top), ())


def _below(folder: Path, name: PurePosixPath, above: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    """Files also behind links to folders, as Python imports them; no folder within itself."""
    real = os.path.realpath(folder)
    if real in above or not folder.is_dir():
        return
    inside = {path.name: path for path in folder.iterdir()}
    for each, path in inside.items():
        if each.startswith(".") or each == "__pycache__":
            continue
        # Beside its source bytecode is never imported; without it, it is the code.
        if path.suffix in (".pyc", ".pyo") and f"{path.stem}.py" in inside:
            continue
        if path.is_dir():
            yield from _below(path, name / each, (*above, real))
        elif path.is_file():
            yield (name / each).as_posix(), path


def _note_line(error: Exception, module: ModuleType) -> None:
    """Add to the error's notes which line of the processor's code it last passed."""
    top = module.__name__.partition(".")[0]
    passed = ""
    for frame, line in walk_tb(error.__traceback__):
        if str(frame.f_globals.get("__name__")).partition(".")[0] == top:
            passed = f"{Path(frame.f_code.co_filename).name}:{line}"
    # One error may be raised again and again, and what a class does with notes is its own.
    with suppress(Exception):
        if passed and passed not in getattr(error, "__notes__", ()):
            error.add_note(passed)


def _where(module: ModuleType) -> str:
    return str(getattr(module, "__file__", None) or "built in")
