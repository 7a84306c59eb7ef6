"""What a pipeline is made of."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from batchq.clock import Clock
from batchq.event import Events
from batchq.inference.base import Processor
from batchq.ledger.base import Ledger, Run
from batchq.source.base import Extractor, Reader
from batchq.store.layout import Layout
from batchq.worker.drain import Drain
from batchq.worker.heartbeat import Registration
from batchq.worker.pace import Pace

__all__ = ["Parts"]


@dataclass(frozen=True, slots=True)
class Parts:
    """Adapters and settings of one worker.

    `follow`: wait for more items instead of ending with the run. `loaders`, `putters`:
    threads that load and prepare documents, and that store results through `layout`.
    `remote`: its store is reached over a network.
    `provenance` goes into every result.
    """

    ledger: Ledger
    run: Run
    layout: Layout
    reader: Reader
    extractor: Extractor
    processor: Processor
    registration: Registration
    events: Events
    clock: Clock
    drain: Drain
    pace: Pace
    device: str
    putters: int
    remote: bool = False
    provenance: Mapping[str, Any] = field(default_factory=dict)
    follow: bool = False
    loaders: int = max(2, min(8, os.cpu_count() or 2))
