"""What PostgreSQL, libpq or a pooler between says when it refuses, in the ledger's own words.

A server may refuse a connection before it sends a code, and libpq's own refusals have none:
for those the words must do.
"""

from __future__ import annotations

import re

import psycopg

from batchq.clock import random_fraction
from batchq.errors import (
    AccessDenied,
    BatchqError,
    LedgerNotInitialised,
    LedgerUnreachable,
    UsageError,
)
from batchq.ledger.sql.driver import Verdict

__all__ = ["READ_ONLY", "judge"]

READ_ONLY = "25006"

_CONFLICT = ("40001", "40P01")
"""A serialization failure, a deadlock."""

_STOOD_STILL = ("25P03", "25P04")
"""The server ended a transaction that waited for its client, or that took too long in all."""

_NO_TABLE = ("42P01", "42703", "3F000")

_NO_DATABASE = re.compile(r"database \"?(.*?)\"? does not exist")

_DENIED = re.compile(
    r"password authentication failed|no password supplied|authentication failed"
    r"|no pg_hba\.conf entry|role .* does not exist|permission denied|is not permitted to log in"
    r"|pg_hba\.conf rejects|no such user"
)

_ADDRESS = re.compile(
    r"invalid (integer )?(value|port number)|invalid \w+ value|definition of service"
    r"|could not match \d+ (port numbers|host names)|service file .* not found"
)

# A connection that breaks may mention SSL too: these are the words of a handshake.
_TLS = re.compile(r"not support SSL|certificate|private key file|SSL error: .*(alert|signature)")

_FULL = re.compile(
    r"too many clients|too many connections|connection slots|no more connections allowed"
)

_STANDBY = re.compile(r"session is read-only|server is in hot standby mode")


def judge(url: str, error: BaseException) -> Verdict:
    """What an error of the driver means for the ledger at `url`, which shows no secret."""
    state = getattr(error, "sqlstate", None) or ""
    said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    final = _final(url, state, said)
    if final is not None:
        return Verdict(final)
    if state in _CONFLICT:
        return Verdict(
            LedgerUnreachable(
                f"the ledger {url} is too busy: each try met another transaction ({said})",
                hint="look in pg_stat_activity for what else writes to its tables",
            ),
            pause=0.01 * random_fraction(),
        )
    if state == READ_ONLY or _STANDBY.search(said):
        # A standby that is being promoted takes writes in a moment.
        error_now: BatchqError = LedgerUnreachable(
            f"the ledger {url} takes no writes: the server is a standby, "
            f"or default_transaction_read_only is on ({said})",
            hint="name the primary; with several hosts in the address, the one that takes "
            "writes is found",
        )
    elif _FULL.search(said) or state == "53300":
        error_now = LedgerUnreachable(
            f"the ledger {url} has no connection free: {said}",
            hint="each worker takes two: raise max_connections, or put pgbouncer in between",
        )
    elif state in _STOOD_STILL:
        error_now = LedgerUnreachable(
            f"the ledger {url} ended a transaction that stood still: {said}",
            hint="see whether this process or the network was stopped for a while",
        )
    elif isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        error_now = LedgerUnreachable(
            f"the ledger {url} gives no answer: {said}",
            hint="check that the server runs and that host, port and network are right",
        )
    else:
        return Verdict(
            BatchqError(
                f"the ledger {url} refused a statement: {said} ({state})",
                hint="this is a statement that the server does not understand: report it",
            )
        )
    return Verdict(error_now, pause=0.5 * random_fraction())


def _final(url: str, state: str, said: str) -> BatchqError | None:
    """The error that another try cannot help, if it is one."""
    if missing := _NO_DATABASE.search(said):
        return LedgerNotInitialised(
            f"the ledger {url} cannot be opened: database {missing[1]} does not exist",
            hint="create the database, then run `batchq init`",
        )
    if state in _NO_TABLE:
        return LedgerNotInitialised(
            f"{url} holds no batchq ledger of this version ({said})", hint="run `batchq init`"
        )
    if state == "42501":
        return AccessDenied(
            f"the ledger {url} refuses access: {said}",
            hint="give this role the grants of batchq_worker in configs/postgresql/roles.sql",
        )
    if state.startswith("28") or _DENIED.search(said):
        return AccessDenied(
            f"the ledger {url} refuses access: {said}",
            hint="check user and password (PGPASSWORD or ~/.pgpass), and pg_hba.conf on the "
            "server, which may ask for sslmode=require",
        )
    if state == "57014":
        return LedgerUnreachable(
            f"the ledger {url} takes too long, or somebody cancelled a statement: {said}",
            hint="look in pg_stat_activity for transactions that were left open",
        )
    if state == "55P03":
        return LedgerUnreachable(
            f"the ledger {url} takes too long: {said}",
            hint="look in pg_stat_activity for transactions that were left open",
        )
    if state == "53100":
        return LedgerUnreachable(
            f"no space is left for the ledger {url}: {said}",
            hint="free some space on the server; nothing that was acknowledged is lost",
        )
    if not state and _ADDRESS.search(said):
        # What libpq says quotes the value, which may be a piece of a password.
        return UsageError(
            f"a parameter in the ledger address {url}, or in libpq's environment, is not valid",
            hint="check port, sslmode and service, and percent-encode special characters in "
            "the password",
        )
    if not state and _TLS.search(said):
        return LedgerUnreachable(
            f"no encrypted connection to the ledger {url}: {said}",
            hint="check sslmode and sslrootcert in the address, or PGSSLMODE and PGSSLROOTCERT",
        )
    return None
