"""`batchq doctor` as a user types it."""

from __future__ import annotations

from pathlib import Path

from tests.end_to_end.test_commands import Desk


def test_doctor_names_what_fails_and_ends_with_its_code(tmp_path: Path) -> None:
    """A line for each check; what is sound stays sound beside what is not."""
    desk = Desk(tmp_path)
    desk.environment |= {"BATCHQ_PROCESSOR": "stats", "BATCHQ_NOTICE": "none"}
    said = desk.run("doctor", "--results", "docs/a.md/results")
    assert said.code == 14
    lines = {line.split()[1]: line.split()[0] for line in said.out.splitlines() if line.strip()}
    assert (lines["ledger"], lines["model"], lines["notices"]) == ("ok", "ok", "ok")
    below = said.out[said.out.index("fail  store") :].splitlines()[1]
    assert below.startswith(" ")
    assert "move it away" in below
    assert said.err == ""
    assert not (tmp_path / "batchq-data" / "ledger.db").exists()
