"""A buffered run killed with SIGKILL at every point: nothing counts twice, nothing recorded is lost, and it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.cli.assembly import resume_run
from coordinator.cli.open_run import RunOptions
from coordinator.ledger.ledger import Ledger
from coordinator.rounds.crash_points import POINTS, point_of
from coordinator.rounds.staleness import staleness_weight
from tests.federation.small_run import config_text, crash

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.runtime]

VERSIONS = 10

# Each kill finds the run where the one before it left it; agents die with it and train again what they had.
KILLS = [
    ("before-plan", 1),
    ("planned", 1),
    ("published", 1),
    ("collecting", 1),
    ("mid-upload", 1),
    ("blob-stored", 1),
    ("recorded", 1),
    ("acknowledged", 1),
    ("aggregating", 1),
    ("aggregated-1", 1),
    ("before-commit", 1),
    ("committed", 1),
    ("before-orders", 1),
    ("ordered", 1),
    ("aggregating", 2),
    ("releasing", 1),
    ("released", 2),
    ("recorded", 4),
]


def run_text() -> str:
    text = config_text(rounds=VERSIONS, min_reports=1).replace('name = "fedhm"\nlevels = [4]', 'name = "fedavg"')
    return text.replace("frobenius-lambda = 0.0001\n", "") + '[aggregation]\nmode = "buffered"\nbuffer = 2\n'


def recorded_and_counted(run_dir: Path) -> tuple[dict[str, str], dict[str, tuple[int, float]]]:
    """Assignment id -> digest of its update; assignment id -> the version that counts it, and its weight."""
    recorded, counted = {}, {}
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        for entry in ledger.rounds.all():
            recorded |= {u.assignment.assignment_id: u.update_digest for u in ledger.updates.of_attempt(entry.round, 0)}
            for found in ledger.updates.weights(entry.round, 0):
                assert found.assignment_id not in counted
                counted[found.assignment_id] = (entry.round, found.weight)
    return recorded, counted


def test_kills_are_at_every_point_of_a_buffered_run() -> None:
    assert {point_of(name).name for name, _ in KILLS} == {p.name for p in POINTS.values() if "buffered" in p.modes}


def test_buffered_run_killed_at_every_point_counts_once_and_loses_nothing(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    recorded: dict[str, str] = {}
    counted: dict[str, tuple[int, float]] = {}
    for number, (point, occurrence) in enumerate(KILLS):
        crash(run_dir, point, occurrence, text="" if number else run_text())
        now, by_version = recorded_and_counted(run_dir)
        assert recorded.items() <= now.items(), f"an update was lost at {point}"
        assert counted.items() <= by_version.items(), f"what was counted changed at {point}"
        recorded, counted = now, by_version
    summary = resume_run(run_dir, RunOptions(quiet=True))
    now, by_version = recorded_and_counted(run_dir)
    assert recorded.items() <= now.items()
    assert counted.items() <= by_version.items()
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        assert [(r.round, r.attempt, r.state) for r in ledger.rounds.all()] == [
            (version, 0, "committed") for version in range(VERSIONS)
        ]
        left = {update.assignment.assignment_id for update in ledger.updates.waiting()}
        assert ledger.assignments.open() == ()
        for version in range(VERSIONS):
            contributions = ledger.updates.counted(version, 0)
            assert len(contributions) >= 2
            for update, found in zip(contributions, ledger.updates.weights(version, 0), strict=True):
                age = version - update.assignment.round
                assert found.weight == update.report.num_examples * staleness_weight(age, 0.5)
    assert now.keys() == by_version.keys() | left, "every recorded update is counted, or came after the last version"
    assert not by_version.keys() & left
    assert summary["committed_rounds"] == VERSIONS
