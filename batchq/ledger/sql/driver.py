"""What `sqlite` and `postgresql` each say of their database, and of what it raises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from batchq.errors import BatchqError
from batchq.ledger.sql.dialect import Dialect

__all__ = ["Driver", "Verdict"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`error` ends the call, unless the transaction succeeds when it is tried again.

    `pause`: after how many seconds to try again; none if that cannot help.
    """

    error: BatchqError
    pause: float | None = None


class Driver(Protocol):
    """What `sqlite` and `postgresql` say of themselves."""

    dialect: Dialect
    engine_url: str
    engine_options: ClassVar[dict[str, Any]]
    error: ClassVar[type[Exception]]
    """The base of the driver's own errors."""
    schema: str | None
    """The namespace of the ledger's tables, where it is not the database's own default."""
    url: str

    def connect(self) -> Any:
        """A new connection of the driver, in autocommit mode."""
        ...

    def is_locked(self, error: BaseException) -> bool:
        """Whether somebody else holds a lock on the whole database, for a moment."""
        ...

    def opening(self, connection: Any, begin: str | None) -> str | None:
        """What opens a transaction on this connection, for which `begin` is the usual word.

        None for a statement that is a transaction in itself.
        """
        ...

    def emptied(self, connection: Any) -> bool:
        """Whether this transaction, which may write, has emptied the log instead.

        Whoever begins next finds it empty, and writes it from its start.
        """
        ...

    def judge(self, error: BaseException) -> Verdict:
        """What an error of the driver means."""
        ...

    def misplaced(self, error: BaseException) -> bool:
        """Whether the error says that another connection may lead to a better server."""
        ...
