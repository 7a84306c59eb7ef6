"""Run as a program: embed in address spaces that the first step does not fit into."""

from __future__ import annotations

import json
import os
import resource
import sys

from batchq.inference.base import Document, Prepared
from batchq.inference.embed import Embed

MIB = 2**20
ROOMS = [24, 12]
"""MiB left, each for a process of its own: a step of 2,048 tokens needs more than 25 for one
layer alone. Several, for what is refused first differs: a tensor, a kernel or its buffer."""


def embed_in(room: int, processor: Embed, prepared: list[Prepared]) -> None:
    """Embed all with `room` MiB more than what is used now, and print how it went."""
    before = processor._step_tokens
    with open("/proc/self/statm", encoding="ascii") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + room * MIB, resource.RLIM_INFINITY))
    outputs = processor.infer(prepared)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    report = {
        "room_mib": room,
        "documents": len(prepared),
        "outputs": len(outputs),
        "step_before": before,
        "step_after": processor._step_tokens,
    }
    print(json.dumps(report), flush=True)


def main() -> int:
    processor = Embed(step_tokens=2_048)
    processor.load("cpu")
    prepared = [
        processor.prepare(Document(f"text/{index}", "sha256:0", "text/plain", "word " * 126))
        for index in range(16)
    ]
    processor.infer(prepared[:2])
    failed = 0
    for room in ROOMS:
        child = os.fork()
        if child == 0:
            embed_in(room, processor, prepared)
            return 0
        failed += os.waitpid(child, 0)[1] != 0
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
