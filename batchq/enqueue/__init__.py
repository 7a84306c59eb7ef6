"""Enqueue: what there is to process, taken up as items of a run."""

from batchq.enqueue.fingerprinting import as_it_lies
from batchq.enqueue.run import check_store, ensure_run, require_layout, require_manifest
from batchq.enqueue.verb import EnqueueReport, Plan, enqueue, plan

__all__ = [
    "EnqueueReport",
    "Plan",
    "as_it_lies",
    "check_store",
    "enqueue",
    "ensure_run",
    "plan",
    "require_layout",
    "require_manifest",
]
