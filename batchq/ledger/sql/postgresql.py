"""PostgreSQL as a ledger: one server for a fleet.

Where a pooler such as pgbouncer lends a server's session to one transaction at a time, no
session can be set up beforehand: each transaction then brings its settings with it, and
statements are not prepared. A pooler shows itself by handing out process numbers that are
not the server's.
"""

from __future__ import annotations

import os
import re
from typing import Any, ClassVar
from urllib.parse import unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from batchq.errors import UsageError
from batchq.ledger.sql.dialect import POSTGRESQL
from batchq.ledger.sql.driver import Verdict
from batchq.ledger.sql.postgresql_refusals import READ_ONLY, judge
from batchq.redact import HIDDEN, redact

__all__ = ["Postgresql"]

_DEFAULTS = {
    "fallback_application_name": "batchq",
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
_DURABLE = "coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on')"

_NAMESPACE = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")


class Postgresql:
    """Opens connections to one database and tells what their errors mean.

    Of the address all but `schema`, the namespace of the ledger's tables, is libpq's.
    """

    dialect = POSTGRESQL
    engine_url = "postgresql+psycopg://"
    engine_options: ClassVar[dict[str, Any]] = {"use_native_hstore": False}
    error: ClassVar[type[Exception]] = psycopg.Error

    def __init__(self, url: str) -> None:
        self.url = _without_password(url)
        address, self.schema = _split_schema(url, self.url)
        self._conninfo = re.sub(r"^postgres(ql)?(\+psycopg)?://", "postgresql://", address)
        try:
            given = conninfo_to_dict(self._conninfo)
        except psycopg.Error:
            # The driver's message quotes the address, password and all.
            raise _not_understood(self.url) from None
        if _is_torn(given):
            raise _not_understood(self.url)
        self._options: dict[str, Any] = {k: v for k, v in _DEFAULTS.items() if k not in given}
        if "PGCONNECT_TIMEOUT" in os.environ:
            self._options.pop("connect_timeout", None)
        if "," in str(given.get("host", "")) and "target_session_attrs" not in given:
            self._options["target_session_attrs"] = "read-write"

    def connect(self) -> psycopg.Connection[Any]:
        """A connection in autocommit mode."""
        connection = psycopg.connect(self._conninfo, autocommit=True, **self._options)
        own = connection.info.backend_pid
        # Behind a pooler the settings end with this statement: the session is not ours.
        said = connection.execute(self._settings(f"pg_backend_pid() <> {own}")).fetchone()
        if said is not None and said[0] != own:
            connection.prepare_threshold = None
        return connection

    def is_locked(self, error: BaseException) -> bool:
        """Never: its locks are on rows, and the server waits for them."""
        return False

    def opening(self, connection: Any, begin: str | None) -> str | None:
        """Behind a pooler every transaction is opened by name, and then set up."""
        if connection.prepare_threshold is not None:
            return begin
        return f"BEGIN ISOLATION LEVEL READ COMMITTED; {self._settings('true')}"

    def judge(self, error: BaseException) -> Verdict:
        """What an error of the driver means."""
        return judge(self.url, error)

    def emptied(self, connection: Any) -> bool:
        """The server does."""
        return False

    def misplaced(self, error: BaseException) -> bool:
        """A server that takes no writes: the address may lead to another one by now."""
        return getattr(error, "sqlstate", None) == READ_ONLY

    def _settings(self, local: str) -> str:
        """A statement that sets up the session; where `local` is true, its transaction."""
        values = {name: f"'{value}'" for name, value in _SETTINGS.items()}
        values["synchronous_commit"] = _DURABLE
        if self.schema is not None:
            values["search_path"] = f"'{self.schema}'"
        settings = (f"set_config('{name}', {value}, {local})" for name, value in values.items())
        return f"SELECT pg_backend_pid(), {', '.join(settings)}"


def _split_schema(url: str, shown: str) -> tuple[str, str | None]:
    """The address without its `schema`, and that."""
    head, mark, query = url.partition("?")
    schema, rest = None, []
    for part in query.split("&"):
        name, _, value = part.partition("=")
        if name == "schema":
            schema = unquote(value)
        else:
            rest.append(part)
    if schema is None:
        return url, None
    if not _NAMESPACE.fullmatch(schema):
        raise UsageError(
            f"the ledger address {shown} names no usable schema",
            hint="write ?schema=NAME with small letters, digits and underscores, not starting "
            "with a digit or pg_",
        )
    return f"{head}{mark if any(rest) else ''}{'&'.join(rest)}", schema


def _is_torn(given: dict[str, Any]) -> bool:
    """Whether a special character in the password has torn the address into wrong parts.

    libpq would take a piece of the password for a host or a port, and quote it.
    """
    ports = str(given.get("port") or "0").split(",")
    if not all(port.strip().isdigit() or not port for port in ports):
        return True
    # One @ in front names a socket that has no file.
    hosts = str(given.get("host") or "").split(",")
    return any("@" in host[1:] for host in hosts) or "@" in str(given.get("dbname") or "")


def _not_understood(url: str) -> UsageError:
    return UsageError(
        f"the ledger address {url} cannot be understood",
        hint="write postgresql://user@host:5432/database, percent-encoding "
        "special characters in the password",
    )


def _without_password(url: str) -> str:
    """`url` with *** for the password, wherever it stands and however it is written."""
    head, mark, query = url.partition("?")
    scheme, separator, rest = head.partition("://")
    # Up to the last @: a raw @, / or blank in a password hides more than it should, never less.
    credentials, at, place = rest.rpartition("@")
    user, _, password = credentials.partition(":")
    hidden = f"{user}:{HIDDEN}" if password else user
    return redact(f"{scheme}{separator}{hidden}{at}{place}{mark}{query}")
