"""How each database says what `statements` leaves open."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["POSTGRESQL", "SQLITE", "Dialect"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """One database's words, and the forms that arrays and rows take as parameters."""

    name: str
    begin_write: str
    words: dict[str, str]

    def render(self, statement: str, *, bound_now: bool) -> str:
        """The statement as the driver takes it; with `bound_now`, the clock is `:ledger_now`."""
        words = self.words | ({"now": ":ledger_now"} if bound_now else {})
        sql = re.sub(r"\$(\w+)", lambda found: words[found[1]], statement)
        return sql if self is SQLITE else re.sub(r":(\w+)", r"%(\1)s", sql)

    def array(self, values: Sequence[Any]) -> Any:
        """An array parameter, of numbers, truth values or text."""
        return json.dumps(values) if self is SQLITE else _literal(values)

    def insert(self, table: str, columns: Sequence[str], *, new_only: bool, number: int) -> str:
        """Insert many rows; with `new_only`, those that are not known yet.

        On SQLite `number` of them, with a parameter for each of their values.
        """
        names = ", ".join(columns)
        if self is SQLITE:
            row = f"({', '.join('?' * len(columns))})"
            source = f"VALUES {', '.join([row] * number)}"
        elif not new_only:
            return f"COPY {table} ({names}) FROM STDIN"
        else:
            arrays = (f"CAST(%s AS {_type_name(table, name)}[])" for name in columns)
            source = f"SELECT * FROM unnest({', '.join(arrays)})"
        known = " ON CONFLICT DO NOTHING" if new_only else ""
        return f"INSERT INTO {table} ({names}) {source}{known}"


def _literal(values: Sequence[Any]) -> str:
    """PostgreSQL's own notation: the driver takes six times as long to write a list."""
    if not values or not isinstance(values[0], str):
        return f"{{{','.join(map(str, values))}}}"
    text = '","'.join(values)
    if "\\" in text or text.count('"') > 2 * (len(values) - 1):
        quoted = [value.replace("\\", "\\\\").replace('"', '\\"') for value in values]
        text = '","'.join(quoted)
    return f'{{"{text}"}}'


def _type_name(table: str, column: str) -> str:
    from batchq.ledger.schema import metadata

    return str(metadata.tables[table].columns[column].type)


SQLITE = Dialect(
    name="sqlite",
    begin_write="BEGIN IMMEDIATE",
    words={
        # unixepoch('subsec') is younger than the SQLite of Python 3.11 on Debian.
        "now": "CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)",
        "in_ids": "IN (SELECT value FROM json_each(:ids))",
        "in_names": "IN (SELECT value FROM json_each(:names))",
        "each_id": "(SELECT value AS id FROM json_each(:ids)) AS one",
        "tables": "SELECT name FROM sqlite_master WHERE type = 'table'",
        "for_update": "",
        "skip_locked": "",
    },
)

POSTGRESQL = Dialect(
    name="postgresql",
    begin_write="BEGIN",
    words={
        # Not now(), which stands still while a transaction waits for a lock.
        "now": "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)",
        # One index scan. As a join with the array, the planner would choose its direction.
        "in_ids": "= ANY (CAST(:ids AS bigint[]))",
        "in_names": "= ANY (CAST(:names AS text[]))",
        "each_id": "unnest(CAST(:ids AS bigint[])) AS one (id)",
        "tables": "SELECT relname FROM pg_class WHERE relkind = 'r' AND pg_table_is_visible(oid)",
        "for_update": "FOR UPDATE",
        "skip_locked": "FOR UPDATE SKIP LOCKED",
    },
)
