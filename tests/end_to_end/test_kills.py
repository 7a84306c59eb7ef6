"""Workers killed and stopped at random: one valid result for each document all the same."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchq.clock import random_hex
from tests.dynamodb import TRANSACTION, in_full, local_endpoint, unavailable
from tests.end_to_end.fleet import Fleet, Site
from tests.end_to_end.test_interruptions import wait_until
from tests.faults.checker import audit, tally
from tests.postgres import create_database, drop_database, running_server
from tests.s3 import point_sdk_at

WORKERS = 4
KILLS = 200
STOPS = 20
PORTION = 20
PER_KILL = 10
TTL_S = 1.0


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/ledger.db"
        return
    server = running_server()
    yield create_database(server, "kills")
    drop_database(server, "kills")


@pytest.mark.timeout(900)
def test_two_hundred_kills_and_twenty_stops_lose_and_double_nothing(
    ledger: str, tmp_path: Path
) -> None:
    """2,000 documents, 4 workers, 200 SIGKILLs, 20 SIGSTOPs longer than two TTLs."""
    storm(Site(tmp_path, ledger, seconds=0.02), "item", kills=KILLS, stops=STOPS)
    assert tally(ledger, "default", "lost_leases") > 0


def test_kills_in_the_middle_of_shards_lose_and_double_nothing(tmp_path: Path) -> None:
    """The same in layout `shard`, where what was gathered or put dies uncommitted."""
    ledger = f"sqlite:///{tmp_path}/ledger.db"
    site = Site(tmp_path, ledger, seconds=0.02)
    storm(site, "shard", kills=10, stops=1)
    assert tally(ledger, "default", "lost_leases") > 0
    # Layout `item` would have left its objects here too.
    assert {path.name for path in site.results.rglob("*.json")} == {"run.json"}


# A minute for twenty kills, since each request to the emulator takes milliseconds.
@pytest.mark.skipif(not in_full(), reason="by hand: BATCHQ_DYNAMODB=full")
@pytest.mark.timeout(1800)
def test_kills_on_dynamodb_lose_and_double_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On DynamoDB Local, where no transaction spans a claim. BATCHQ_KILLS says how many."""
    if (reason := unavailable()) is not None:
        # Java and npm are no part of a Python installation.
        pytest.skip(reason)
    point_sdk_at("", monkeypatch)
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", local_endpoint())
    transaction = TRANSACTION["dynamodb-local"]
    ledger = f"dynamodb://kills-{random_hex(32)}?region=us-east-1&transaction={transaction}"
    kills = int(os.environ.get("BATCHQ_KILLS", PORTION))
    storm(Site(tmp_path, ledger, seconds=0.02), "item", kills=kills, stops=kills // 10)
    assert tally(ledger, "default", "lost_leases") > 0


def storm(site: Site, layout: str, *, kills: int, stops: int) -> None:
    """Workers killed and stopped while they work on ten documents a kill; then the audit."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    dice = random.Random(seed)
    # At two kills a second an innocent document can be alone with a worker that is killed
    # more often than the default of three allows; real interruptions are hours apart.
    site.environment["BATCHQ_MAX_LOSSES"] = "1000"
    site.call("init")
    site.call("enqueue", "docs", "--layout", layout)
    # However long they take to start here, somebody holds something at the first kill.
    site.hold(after=0)
    fleet = Fleet(site, WORKERS, dice)
    stops_at = set(dice.sample(range(1, kills), stops))
    for kill in range(kills):
        if kill % PORTION == 0:
            # Portion by portion, so that there is work until the last kill.
            for number in range(kill * PER_KILL, (kill + PORTION) * PER_KILL):
                site.write(f"{number:04}.txt", f"document {number} " + "word " * dice.randrange(60))
            site.call("enqueue", "docs")
        if kill == 0:
            wait_until(lambda: bool(fleet.at_work()))
            fleet.kill_one(fleet.at_work()[0])
            site.let_go()
            continue
        # Real processes have no clock that could be set: moments of the kills are real too.
        time.sleep(dice.uniform(0.05, 0.5))
        fleet.replace_the_dead()
        if kill in stops_at:
            # Longer than two TTLs, so that the others take over what it holds.
            fleet.put_one_to_sleep(TTL_S * 2.2)
        fleet.kill_one()
    fleet.stop()
    # SIGTERM before a worker watches for it ends it like any process: it held nothing yet.
    # With 0 a worker says that it was stopped when nothing was left.
    assert set(fleet.exits) <= {-signal.SIGKILL, 75, 0, -signal.SIGTERM}, fleet.exits
    site.hurry()
    site.call("worker")
    assert audit(site.ledger, site.results, "default", site.documents) == []
    status = site.call("status")
    assert status["items"]["completed"] == len(site.documents)
    assert status["rework"]["attempts"] >= len(site.documents)
