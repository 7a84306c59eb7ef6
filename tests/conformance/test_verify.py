"""The audit on every ledger: whatever its ids are, and however it counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchq.ledger.base import State
from batchq.verify import sample
from tests.conformance.backends import Backend
from tests.unit.audit_kit import Audited, flip, truncate


def test_damage_is_found_and_mended_on_every_ledger(backend: Backend, tmp_path: Path) -> None:
    """Found by a sample too, sent back, made again; what was broken becomes an orphan."""
    world = Audited(tmp_path, ledger=backend.client(), clock=backend.clock)
    rows = world.complete(9, each=1)
    expected = sorted(
        (row.source_id, "corrupt" if how else "missing")
        for row, how in zip(rows, (flip, None, truncate), strict=False)
    )
    for row, how in zip(rows, (flip, None, truncate), strict=False):
        world.spoil(row, how)

    assert sorted(world.damaged(world.audit(sample=9))) == expected
    report = world.audit(repair=True)
    assert sorted(world.damaged(report)) == expected
    assert (report.checked, report.repaired, report.tally_drift) == (9, 3, {})
    states = world.ledger.states(world.run, [(row.source_id, row.source_version) for row in rows])
    assert [found and found.state for found in states] == [
        State.DELAYED if number < 3 else State.COMPLETED for number in range(9)
    ]

    lease = world.claim()
    assert {item.generation for item in lease.items} == {2}
    world.ledger.commit("worker", world.put(lease))
    world.ledger.stop("worker", "end")
    clean = world.audit(remove_orphans=True)
    assert (clean.ok, clean.is_sound) == (9, True)
    assert (clean.orphans, clean.removed, clean.unsettled) == (2, 2, 0)


def test_a_sample_is_drawn_on_every_ledger(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By ids that count up, and by digests: as many as asked for, and no page of all rows."""
    monkeypatch.setattr(sample, "WORTH", 0)
    monkeypatch.setattr(sample, "WINDOW", 3)
    # What stands for digests here begins with 1, behind 16 bits of versions.
    monkeypatch.setattr(sample, "COUNTED", 1 << 16)
    monkeypatch.setattr(sample, "_from_all", lambda *_: pytest.fail("all rows are read"))
    world = Audited(tmp_path, ledger=backend.client(), clock=backend.clock)
    rows = world.complete(12)
    # On DynamoDB, what is completed is counted when its lease settles.
    world.ledger.stop("worker", "end")
    for wanted in (1, 5, 12):
        chosen = sample.choose(world.ledger, world.run, wanted, lambda _: None)
        assert len(set(chosen)) == wanted
        assert {*chosen} <= {row.item_id for row in rows}
