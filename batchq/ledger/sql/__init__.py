"""The ledger on SQLite and PostgreSQL.

Read `ledger` for the verbs and `statements` for what the database is asked;
`holding`, `enqueueing`, `reaping` and `reading` say what each verb does within a
transaction, `hot` and `fresh` how the common case does with less, `process` how items move and
are counted, `engine` how transactions run, `upgrade` how the schema comes about, and
`dialect`, `sqlite` and `postgresql` what is each database's own.
"""

from batchq.ledger.sql.ledger import SqlLedger

__all__ = ["SqlLedger"]
