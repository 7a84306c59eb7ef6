"""A story that tells every verb of the ledger, on every path through it."""

from __future__ import annotations

from batchq.clock import ManualClock
from batchq.item import NewItem
from batchq.lease import Failure, Held, ReleaseReason
from batchq.ledger.base import Ledger, Role, Run
from batchq.result import Result, Stored

__all__ = ["document", "repair", "tell"]


def document(number: int, version: int = 1) -> NewItem:
    return NewItem(f"docs/{number}.md", f"sha256:{version}", 1, f"file:///{number}", "file:///")


def tell(ledger: Ledger, run: Run, clock: ManualClock) -> None:
    """Every verb, on every path through it."""

    def result(item_id: int, token: str) -> Result:
        return Result(item_id, token, Stored(f"run/{item_id}.json", 0, 1, f"{item_id:064x}"))

    for name, role in (("e1", Role.ENQUEUER), ("e2", Role.ENQUEUER), ("w", Role.WORKER)):
        ledger.register(run, name, 60.0, role, {})
    ledger.register(run, "dead", 60.0, Role.WORKER, {})
    ledger.enqueue("e1", 1, [document(n) for n in range(40)])
    held = ledger.claim("w", "t1", 10, alone=True)
    lost = ledger.claim("dead", "t2", 10, alone=True)
    assert held
    assert lost
    ids = [item.id for item in held.items]
    ledger.commit("w", [result(item_id, "t1") for item_id in ids[:5]])
    ledger.commit("w", [result(ids[0], "t1"), result(ids[0], "other")])
    ledger.fail("w", [Failure(Held("t1", ids[5]), "cause", "error", final=True)])
    ledger.fail("w", [Failure(Held("t1", ids[6]), "cause", "error")])
    ledger.release("w", [Held("t1", ids[7])], ReleaseReason.STORE)
    ledger.release("w", [Held("t1", ids[8])], ReleaseReason.DRAIN)
    ledger.enqueue("e2", 1, [document(n, version=n % 2) for n in range(41)])
    ledger.register(run, "e3", 60.0, Role.ENQUEUER, {})
    moved = NewItem("docs/30.md", "sha256:1", 1, "file:///elsewhere", "file:///")
    ledger.enqueue("e3", 1, [moved])
    assert ledger.enqueue("e3", 2, [document(31)]).known == 1
    assert ledger.claim("w", "t3", 5, alone=False)
    assert ledger.claim("w", "t3", 5, alone=False)
    for _ in range(6):
        clock.advance(15.0)
        ledger.beat("w", 60.0)
    assert ledger.reap("w", 100).returned
    ledger.retry("w", run)
    ledger.retry("w", run, source_ids=["docs/1.md"], cause="cause")
    ledger.counts(run)
    ledger.workers(run)
    ledger.duplicates(run)
    ledger.recount(run)
    ledger.states(run, [("docs/0.md", "sha256:0"), ("docs/1.md", "sha256:1")])
    ledger.lookup(run, "docs/0.md")
    ledger.results(run, 0, 100)
    ledger.results(run, 0, 100, current_only=True)
    ledger.dead_letters(run, 0, 100)
    ledger.stop("w", "end")


def repair(ledger: Ledger, run: Run) -> None:
    """Afterwards: results that the store lost."""
    ledger.register(run, "o", 60.0, Role.OPERATOR, {})
    assert ledger.reopen("o", run, ledger.results(run, 0, 2)) == 2
    ledger.stop("o", "end")
