"""Runs the revisions on the connection that `SqlLedger.initialise` hands over.

The transaction is its caller's: on SQLite too a revision takes effect as a whole.
"""

from alembic import context

from batchq.ledger.schema import metadata
from batchq.ledger.sql.names import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    # Else Alembic, which takes SQLite's for none, would commit after each revision.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
