"""PostgreSQL as a ledger: one server for a fleet."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

from batchq.clock import random_fraction
from batchq.errors import (
    AccessDenied,
    BatchqError,
    LedgerNotInitialised,
    LedgerUnreachable,
    UsageError,
)
from batchq.ledger.sql.dialect import POSTGRESQL
from batchq.ledger.sql.verdict import Verdict
from batchq.redact import HIDDEN, redact

__all__ = ["Postgresql"]

_DEFAULTS = {
    "application_name": "batchq",
    "connect_timeout": "10",
    # A server that vanished without a word is noticed in half a minute.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}

_SETTINGS = {
    "default_transaction_isolation": "read committed",
    "statement_timeout": "60s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "60s",
    # A hot statement has one right plan, by index and row by row. Statistics of tables
    # whose rows all come and go mislead the planner into any other, so it gets no choice.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "plan_cache_mode": "force_generic_plan",
    # With sequential scans off, cost estimates pass its threshold for a single row.
    "jit": "off",
}

# What was acknowledged must survive a crash of the server; a stronger setting stays.
_DURABLE = """
SELECT set_config('synchronous_commit', 'on', false)
WHERE current_setting('synchronous_commit') = 'off'
"""

_SET = "SELECT " + ", ".join(f"set_config('{k}', '{v}', false)" for k, v in _SETTINGS.items())

# The server may refuse a connection before it sends a code, so its words must do.
_DENIED = re.compile(
    r"password authentication failed|no password supplied|authentication failed"
    r"|no pg_hba\.conf entry|role .* does not exist|permission denied|is not permitted to log in"
)
_NO_DATABASE = re.compile(r"database \"?(.*?)\"? does not exist")

_CONFLICT = ("40001", "40P01")
"""A serialization failure, a deadlock."""

_TOO_LONG = ("57014", "55P03")
"""A statement, or the wait for a lock, took longer than the session allows."""

_DISK_FULL = "53100"


class Postgresql:
    """Opens connections to one database and tells what their errors mean."""

    dialect = POSTGRESQL
    engine_url = "postgresql+psycopg://"
    engine_options: ClassVar[dict[str, Any]] = {"use_native_hstore": False}
    error: ClassVar[type[Exception]] = psycopg.Error

    def __init__(self, url: str) -> None:
        self.url = _without_password(url)
        self._conninfo = re.sub(r"^postgres(ql)?(\+psycopg)?://", "postgresql://", url)
        try:
            given = conninfo_to_dict(self._conninfo)
        except psycopg.Error:
            # The driver's message quotes the address, password and all.
            raise UsageError(
                f"the ledger address {self.url} cannot be understood",
                hint="write postgresql://user@host:5432/database, percent-encoding "
                "special characters in the password",
            ) from None
        self._options: dict[str, Any] = {k: v for k, v in _DEFAULTS.items() if k not in given}

    def connect(self) -> psycopg.Connection[Any]:
        """A connection in autocommit mode."""
        connection = psycopg.connect(self._conninfo, autocommit=True, **self._options)
        connection.execute(_SET)
        connection.execute(_DURABLE)
        return connection

    def is_locked(self, error: BaseException) -> bool:
        """Never: its locks are on rows, and the server waits for them."""
        return False

    def judge(self, error: BaseException) -> Verdict:
        """What an error of the driver means."""
        state = getattr(error, "sqlstate", None) or ""
        said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        known = self._explain(state, said)
        if known is not None:
            return Verdict(known)
        if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            return Verdict(
                BatchqError(f"the ledger {self.url} refused a statement: {said} ({state or '-'})")
            )
        if state in _TOO_LONG:
            return Verdict(
                LedgerUnreachable(
                    f"the ledger {self.url} takes too long: {said}",
                    hint="look in pg_stat_activity for transactions that were left open",
                )
            )
        if state == _DISK_FULL:
            return Verdict(
                LedgerUnreachable(
                    f"no space is left for the ledger {self.url}: {said}",
                    hint="free some space on the server; nothing that was acknowledged is lost",
                )
            )
        return Verdict(
            LedgerUnreachable(
                f"the ledger {self.url} gives no answer: {said}",
                hint="check that the server runs and that host, port and network are right",
            ),
            pause=(0.01 if state in _CONFLICT else 0.5) * random_fraction(),
        )

    def _explain(self, state: str, said: str) -> BatchqError | None:
        if missing := _NO_DATABASE.search(said):
            return LedgerNotInitialised(
                f"the ledger {self.url} cannot be opened: database {missing[1]} does not exist",
                hint="create the database, then run `batchq init`",
            )
        if state in ("42501", "25006") or state.startswith("28") or _DENIED.search(said):
            return AccessDenied(
                f"the ledger {self.url} refuses access: {said}",
                hint="check user, password (PGPASSWORD or ~/.pgpass) and grants",
            )
        if state in ("42P01", "42703", "3F000"):
            return LedgerNotInitialised(
                f"{self.url} holds no batchq ledger of this version ({said})",
                hint="run `batchq init`",
            )
        return None


def _without_password(url: str) -> str:
    """`url` with *** for the password, wherever it stands and however it is written."""
    head, mark, query = url.partition("?")
    scheme, separator, rest = head.partition("://")
    # Up to the last @: a raw @, / or blank in a password hides more than it should, never less.
    credentials, at, place = rest.rpartition("@")
    user, _, password = credentials.partition(":")
    hidden = f"{user}:{HIDDEN}" if password else user
    return redact(f"{scheme}{separator}{hidden}{at}{place}{mark}{query}")
