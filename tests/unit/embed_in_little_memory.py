"""Run as a program: embed with an address space that the first step does not fit into."""

from __future__ import annotations

import json
import resource
import sys

from batchq.inference.base import Document
from batchq.inference.embed import Embed

ROOM = 32 * 2**20
"""Bytes left: a step of 4,096 tokens needs more than 50 MB for one layer alone."""


def main() -> int:
    processor = Embed(step_tokens=4_096)
    processor.load("cpu")
    prepared = [
        processor.prepare(Document(f"text/{index}", "sha256:0", "text/plain", "word " * 126))
        for index in range(32)
    ]
    processor.infer(prepared[:2])
    before = processor._step_tokens
    with open("/proc/self/statm", encoding="ascii") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, resource.RLIM_INFINITY))
    outputs = processor.infer(prepared)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    json.dump(
        {
            "documents": len(prepared),
            "outputs": len(outputs),
            "step_before": before,
            "step_after": processor._step_tokens,
        },
        sys.stdout,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
