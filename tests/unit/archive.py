"""A finished run with committed results in either layout, made without a worker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from batchq.clock import ManualClock
from batchq.item import Item, NewItem
from batchq.lease import new_token
from batchq.ledger.base import CommittedResult, Ledger, Role, Run
from batchq.ledger.memory import MemoryLedger
from batchq.result import Envelope, Result
from batchq.results import Destination, Exported, LocalFile, export
from batchq.store.base import Store
from batchq.store.layout import Layout, layout_named
from batchq.store.local import LocalStore

__all__ = ["VERSION", "Archive"]

VERSION = "stats-0123456789ab"


class Archive:
    """A run whose documents all have a committed result, by default in a folder."""

    def __init__(
        self,
        folder: Path,
        outputs: int | Sequence[Any],
        layout: str = "item",
        *,
        store: Store | None = None,
        ledger: Ledger | None = None,
        manifest: dict[str, Any] | None = None,
        together: int = 7,
    ) -> None:
        if isinstance(outputs, int):
            outputs = [{"words": 3}] * outputs
        self.folder = folder / "store"
        self.ledger = ledger or MemoryLedger()
        self.store = store or LocalStore(self.folder)
        self.store.probe()
        self.run: Run = self.ledger.create_run("default", VERSION, manifest or {}, layout)
        self.ledger.register(self.run, "worker", 60, Role.WORKER, {})
        self._layout: Layout = layout_named(
            layout,
            self.store,
            prefix=self.run.prefix,
            processing_version=VERSION,
            clock=ManualClock(),
        )
        self._together = together if self._layout.gathers else 1
        self._batches = 0
        self.add({f"docs/{number}.md": output for number, output in enumerate(outputs)})

    def add(self, outputs: dict[str, Any], version: int = 1) -> None:
        """Enqueue documents and commit their results."""
        if not outputs:
            return
        self.enqueue(list(outputs), version)
        lease = self.ledger.claim("worker", new_token(), len(outputs), alone=True)
        assert lease is not None
        assert len(lease.items) == len(outputs)
        for start in range(0, len(lease.items), self._together):
            items = lease.items[start : start + self._together]
            made = [
                self._layout.make(item, self._envelope(item, outputs[item.source_id]))
                for item in items
            ]
            results = [
                Result(item.id, lease.token, written.stored, empty=written.empty)
                for item, written in zip(items, self._layout.write(made), strict=True)
            ]
            assert not self.ledger.commit("worker", results).fenced

    def enqueue(self, names: Sequence[str], version: int = 1) -> None:
        self._batches += 1
        enqueuer = f"enqueuer-{self._batches}"
        self.ledger.register(self.run, enqueuer, 60, Role.ENQUEUER, {})
        items = [NewItem(n, f"sha256:{version}-{n}", 1, f"file:///{n}", "file:///") for n in names]
        self.ledger.enqueue(enqueuer, 1, items)
        self.ledger.stop(enqueuer, "done")

    def _envelope(self, item: Item, output: Any) -> Envelope:
        return Envelope(
            item.source_id, item.source_version, VERSION, output, 3, 2, {"attempt": item.attempt}
        )

    def row_of(self, source_id: str) -> CommittedResult:
        state = self.ledger.lookup(self.run, source_id)
        assert state is not None
        assert state.result is not None
        return state.result

    def object_of(self, source_id: str) -> Path:
        return self.folder / self.row_of(source_id).stored.key

    def export(self, output: Path | Destination, **options: Any) -> Exported:
        destination = LocalFile(output) if isinstance(output, Path) else output
        return export(self.ledger, self.run, self.store, destination, **options)
