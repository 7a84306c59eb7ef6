"""Notices at random moments of a worker's life, from the metadata service of each platform.

`BATCHQ_MOMENTS` says how many for each platform; a few of them run every day.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from batchq.clock import SystemClock
from batchq.errors import ExitCode
from batchq.lease import Lease, new_token
from batchq.ledger.base import Role
from batchq.notice.detect import build_sources
from batchq.worker.worker import WorkerSettings, run_worker
from tests.faults.metadata_server import MetadataServer
from tests.lateness import lateness
from tests.unit.worker_kit import Kit

MOMENTS = int(os.environ.get("BATCHQ_MOMENTS", "12"))
WINDOW_S = 3.0
RUN_S = 0.6
"""What a run of these documents takes, mostly the pauses of its processor."""

SETTINGS = WorkerSettings(lease_ttl=5.0, claim=20, notice_window=WINDOW_S)
DOCUMENTS = {f"doc-{n:03}": f"text number {n}" for n in range(160)}


def slow(texts: Sequence[str]) -> None:
    threading.Event().wait(0.06)


class Hesitant:
    """A ledger whose claims take a while: a notice may come while one is under way."""

    def __init__(self, ledger: Any, during: Any) -> None:
        self._ledger = ledger
        self._during = during

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def claim(self, *args: Any, **kwargs: Any) -> Lease | None:
        lease: Lease | None = self._ledger.claim(*args, **kwargs)
        self._during()
        return lease


def announce(server: MetadataServer[SystemClock], platform: str) -> None:
    if platform == "ec2":
        server.ec2.interrupt("terminate", ahead=WINDOW_S)
    elif platform == "gcp":
        server.gcp.preempt()
    else:
        server.azure.schedule()


def work(kit: Kit, server: MetadataServer[SystemClock], platform: str, ledger: Any) -> ExitCode:
    sources = build_sources(
        platform,
        clock=kit.clock,
        interval=0.02,
        window=WINDOW_S,
        env=server.environment(),
        azure_endpoint=server.url,
    )
    return run_worker(
        ledger=ledger,
        run=kit.run,
        store=kit.store,
        reader=kit.shelf,
        extractor=kit.shelf,
        processor=kit.processor,
        settings=SETTINGS,
        events=kit.events,
        clock=kit.clock,
        # Signals belong to the main thread of a process, and this is pytest's.
        notices=[source for source in sources if source.name != "signals"],
    )


def assert_drained(kit: Kit, code: ExitCode) -> None:
    """Nothing claimed after the notice was seen, nothing held, nothing charged."""
    kinds = [event.kind for event in kit.events.all()]
    if code == ExitCode.STOPPED:
        assert "claimed" not in kinds[kinds.index("notice") :]
    tallies = kit.tallies
    assert tallies.leased == 0
    assert tallies.completed + tallies.ready == len(DOCUMENTS)
    assert (tallies.failures, tallies.lost_leases, tallies.fenced) == (0, 0, 0)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("platform", ["ec2", "gcp", "azure"])
def test_a_notice_at_any_moment_leaves_nothing_held_and_nothing_lost(platform: str) -> None:
    """Another worker's first claim brings the released; outputs are those of a quiet run."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    dice = random.Random(seed)
    quiet = Kit.of(DOCUMENTS)
    quiet.work(SETTINGS)
    expected = quiet.outputs()
    stopped = 0
    for number in range(MOMENTS):
        kit = Kit.of(DOCUMENTS)
        kit.processor.before_batch = slow
        with MetadataServer(SystemClock()) as server:
            # Spread over a quiet run, so that chance alone does not put them all behind its end.
            moment = RUN_S * (number + dice.random()) / MOMENTS
            deadline = SystemClock().monotonic() + moment + WINDOW_S
            server.at(moment, partial(announce, server, platform))
            with lateness() as late:
                code = work(kit, server, platform, kit.ledger)
            if kit.events_of("notice"):
                assert SystemClock().monotonic() < deadline + late.seconds
        assert_drained(kit, code)
        stopped += code == ExitCode.STOPPED
        kit.processor.before_batch = lambda texts: None
        if kit.tallies.ready:
            # Released items are due at once: a worker that asks once gets some.
            kit.ledger.register(kit.run, "next", 60, Role.WORKER, {})
            assert kit.ledger.claim("next", new_token(), 5, alone=True) is not None
            kit.ledger.stop("next", "has seen enough")
            assert kit.work(SETTINGS) == ExitCode.OK
        assert kit.outputs() == expected
    assert stopped > MOMENTS // 4


@pytest.mark.parametrize("platform", ["ec2", "gcp", "azure"])
def test_what_a_claim_brings_after_the_notice_is_released(platform: str) -> None:
    """The notice comes inside the claim: its items go back at once and are never computed."""
    kit = Kit.of(DOCUMENTS)
    with MetadataServer(SystemClock()) as server:

        def during() -> None:
            announce(server, platform)
            end = SystemClock().monotonic() + 120
            while not kit.events_of("notice") and SystemClock().monotonic() < end:
                threading.Event().wait(0.02)

        code = work(kit, server, platform, Hesitant(kit.ledger, during))
    assert code == ExitCode.STOPPED
    assert kit.events_of("claimed") == []
    assert kit.processor.batches == []
    assert kit.tallies.ready == len(DOCUMENTS)
    assert kit.tallies.interrupted == SETTINGS.claim
