"""Workers killed and stopped at random: one valid result for each document all the same."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.fleet import Fleet, Site
from tests.faults.checker import audit, tally
from tests.postgres import create_database, drop_database, running_server

DOCUMENTS = 2_000
WORKERS = 4
KILLS = 200
STOPS = 20
PORTION = 20
PER_KILL = DOCUMENTS // KILLS
TTL_S = 1.0


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/ledger.db"
        return
    server = running_server()
    yield create_database(server, "kills")
    drop_database(server, "kills")


@pytest.mark.timeout(400)
def test_two_hundred_kills_and_twenty_stops_lose_and_double_nothing(
    ledger: str, tmp_path: Path
) -> None:
    """2,000 documents, 4 workers, 200 SIGKILLs, 20 SIGSTOPs longer than two TTLs."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    dice = random.Random(seed)
    site = Site(tmp_path, ledger, seconds=0.02)
    # At two kills a second an innocent document can be alone with a worker that is killed
    # more often than the default of three allows; real interruptions are hours apart.
    site.environment["BATCHQ_MAX_LOSSES"] = "12"
    site.call("init")
    site.call("enqueue", "docs")
    fleet = Fleet(site, WORKERS, dice)
    stops_at = set(dice.sample(range(KILLS), STOPS))
    for kill in range(KILLS):
        if kill % PORTION == 0:
            # Portion by portion, so that there is work until the last kill.
            for number in range(kill * PER_KILL, (kill + PORTION) * PER_KILL):
                site.write(f"{number:04}.txt", f"document {number} " + "word " * dice.randrange(60))
            site.call("enqueue", "docs")
        # Real processes have no clock that could be set: moments of the kills are real too.
        time.sleep(dice.uniform(0.05, 0.5))
        fleet.replace_the_dead()
        if kill in stops_at:
            # Longer than two TTLs, so that the others take over what it holds.
            sleeper = fleet.any()
            sleeper.send_signal(signal.SIGSTOP)
            time.sleep(TTL_S * 2.2)
            sleeper.send_signal(signal.SIGCONT)
        fleet.kill_one()
    fleet.stop()
    # SIGTERM before a worker watches for it ends it like any process: it held nothing yet.
    # With 0 a worker says that it was stopped when nothing was left.
    assert set(fleet.exits) <= {-signal.SIGKILL, 75, 0, -signal.SIGTERM}, fleet.exits
    site.call("worker")
    assert audit(ledger, site.results, "default", site.documents) == []
    assert tally(ledger, "default", "lost_leases") > 0
    status = site.call("status")
    assert status["items"]["completed"] == DOCUMENTS
    assert status["rework"]["attempts"] >= DOCUMENTS
