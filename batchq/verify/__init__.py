"""Verify: the store read back against the ledger, and what was lost sent back.

Read `verb` for the order of things, `rule` for what makes an object an orphan.
"""

from batchq.verify.journal import Journal
from batchq.verify.verb import Report, audit

__all__ = ["Journal", "Report", "audit"]
