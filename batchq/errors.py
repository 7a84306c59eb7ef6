"""What can go wrong, and the exit code each kind ends a command with.

    BatchqError                      1
    ├── UsageError                   2   a bad option, configuration file or source
    ├── LedgerNotInitialised        10   no schema, or a schema of another version
    ├── LedgerUnreachable           11   the ledger does not answer (may be transient)
    ├── AccessDenied                12   wrong password, missing grant, read-only file
    ├── ProcessingVersionMismatch   13   another model, parameter or code than the run's
    ├── StoreUnusable               14   the result store cannot be written or is another run's
    ├── WaitTimedOut                16   `status --wait` gave up
    ├── DeviceLost                  76   the device or the pipeline hangs; start another process
    ├── WorkerReaped                76   the ledger took back what this worker held
    └── DocumentError                -   one document's failure; never ends a process

Each message says what happened and where; `hint` says how to fix it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar

__all__ = [
    "AccessDenied",
    "BatchqError",
    "DeviceLost",
    "DocumentError",
    "ExitCode",
    "LedgerNotInitialised",
    "LedgerUnreachable",
    "ProcessingVersionMismatch",
    "StoreUnusable",
    "UsageError",
    "WaitTimedOut",
    "WorkerReaped",
]


class ExitCode(IntEnum):
    """Every exit code of every command."""

    OK = 0
    ERROR = 1
    USAGE = 2
    DEAD_LETTERS = 3
    LEDGER_NOT_INITIALISED = 10
    LEDGER_UNREACHABLE = 11
    ACCESS_DENIED = 12
    OTHER_PROCESSING_VERSION = 13
    STORE_UNUSABLE = 14
    DAMAGE_FOUND = 15
    WAIT_TIMED_OUT = 16
    STOPPED = 75
    DEVICE_LOST = 76
    INTERRUPTED_TWICE = 130


class BatchqError(Exception):
    """An error that ends a command, with the way to fix it in `hint`."""

    exit_code: ClassVar[ExitCode] = ExitCode.ERROR

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(BatchqError):
    exit_code = ExitCode.USAGE


class LedgerNotInitialised(BatchqError):
    """`found` is the version of the schema that is there, or none where there is no ledger."""

    exit_code = ExitCode.LEDGER_NOT_INITIALISED

    def __init__(self, message: str, *, hint: str | None = None, found: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.found = found


class LedgerUnreachable(BatchqError):
    """The ledger gave no answer, so what became of the call is unknown.

    Every verb of the ledger may be repeated with the same arguments.
    """

    exit_code = ExitCode.LEDGER_UNREACHABLE


class AccessDenied(BatchqError):
    exit_code = ExitCode.ACCESS_DENIED


class ProcessingVersionMismatch(BatchqError):
    exit_code = ExitCode.OTHER_PROCESSING_VERSION


class StoreUnusable(BatchqError):
    exit_code = ExitCode.STORE_UNUSABLE


class WaitTimedOut(BatchqError):
    exit_code = ExitCode.WAIT_TIMED_OUT


class DeviceLost(BatchqError):
    exit_code = ExitCode.DEVICE_LOST


class WorkerReaped(BatchqError):
    """This worker's beats stopped for longer than its TTL and others took over."""

    exit_code = ExitCode.DEVICE_LOST


class DocumentError(BatchqError):
    """One document cannot be processed.

    `cause` is a short stable word kept in the ledger (`source_missing`,
    `extract_timeout`, ...). With `final`, trying again cannot help and the item
    is dead-lettered at once; otherwise it is retried up to `max_failures`.
    """

    def __init__(
        self, cause: str, message: str, *, final: bool = False, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.cause = cause
        self.final = final
