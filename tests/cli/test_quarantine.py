"""``apportion quarantine add``: an update is taken out by hand, before its sum or in the middle of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.ledger.ledger import Ledger
from tests.cli.conftest import Command
from tests.coordinator.stored_run import StoredRun


@pytest.fixture
def run(tmp_path: Path) -> StoredRun:
    return StoredRun(tmp_path / "run")


@pytest.mark.parametrize("is_aggregating", [False, True])
def test_update_is_set_aside_by_hand(run: StoredRun, command: Command, is_aggregating: bool) -> None:
    run.report("pi-2", 1)
    if is_aggregating:
        run.ledger.rounds.move(1, 0, "aggregating", participants=["pi-1", "pi-2"])
    outcome = command("quarantine", "add", run.folder, "--device", "pi-2", "--reason", "smells", "--json")
    assert outcome.status == 0
    assert (outcome.line["device"], outcome.line["code"]) == ("pi-2", "by-hand")
    with Ledger.open(run.folder / "ledger.sqlite") as ledger:
        assert [u.assignment.device for u in ledger.updates.counted(1, 0)] == (["pi-1"] if is_aggregating else [])
        current = ledger.rounds.open()
        assert current is not None
        assert current.participants == (("pi-1",) if is_aggregating else ())
        assert [entry.evidence for entry in ledger.quarantine.all()] == [{"reason": "smells"}]
        assert ledger.audit.findings() == []
    assert "by-hand: smells" in command("quarantine", "ls", run.folder).out


def test_last_update_of_a_sum_and_one_that_is_not_there_stay_as_they_are(run: StoredRun, command: Command) -> None:
    run.ledger.rounds.move(1, 0, "aggregating", participants=["pi-1"])
    for device, said in (("pi-1", "not one of several that are being summed"), ("pi-9", "no update of device 'pi-9'")):
        outcome = command("quarantine", "add", run.folder, "--device", device, "--json")
        assert outcome.status == 1
        assert said in outcome.error["message"]
    assert len(run.ledger.updates.counted(1, 0)) == 1
