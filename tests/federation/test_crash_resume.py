"""Coordinator, broker or agents killed with SIGKILL anywhere: the run ends with the bits of one that was left alone.

Every update counts exactly once, and none that was acknowledged is lost. All runs here have the same configuration and
seed, so they must give the same model whatever broker they use and whoever dies.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from coordinator.brokers.mosquitto import find_mosquitto
from coordinator.brokers.opening import BrokerProcess
from coordinator.cli.assembly import resume_run, start_run
from coordinator.cli.open_run import RunOptions
from coordinator.data.datasets import load_dataset
from coordinator.ledger.ledger import Ledger
from coordinator.local_devices.data_folders import local_devices
from coordinator.local_devices.processes import LocalDevices
from coordinator.rounds.crash_points import POINTS, point_of
from coordinator.run_file.loading import load_config_text
from tests.federation.small_run import DEVICES, ROUNDS, config_text, crash

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.runtime]

PASSWORD = "APPORTION_SMALL_RUN_PASSWORD"

# Each kill finds the run where the one before it left it.
KILLS = [
    ("before-plan", 1),
    ("planned", 1),  # round 1, before anything is published
    ("collecting", 1),  # round 1, the first device has answered
    ("mid-upload", 2),  # round 1, a block is on disk and not granted
    ("blob-stored", 1),  # round 1, an update is on disk and does not count
    ("recorded", 1),  # round 1, an update counts and its device does not know
    ("acknowledged", 1),  # round 1, its device may know
    ("aggregated-1", 1),  # round 1, two of three updates are summed
    ("before-commit", 1),  # round 1, the model is on disk and the round does not name it
    ("committed", 1),  # round 1, its blobs are not released
    ("published", 1),  # round 2, orders may be on their way
    ("mid-upload", 3),  # round 2
    ("releasing", 1),  # round 2, files without rows
    ("aggregating", 1),  # round 3, participants are written
    ("released", 1),  # round 3, nothing is left but the final files
]
WITH_ITS_AGENTS = ["planned", "collecting", "mid-upload", "aggregated-1", "before-commit", "committed"]
"""Kills of a coordinator whose agents die with it, and have to train again."""


def final_bytes(run_dir: Path) -> bytes:
    return (run_dir / "checkpoints" / "final.safetensors").read_bytes()


def assert_counted_once(run_dir: Path) -> None:
    """Every round was committed once, at its first attempt, with one update of each device, and no blob is missing."""
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        assert ledger.federation().state == "finished"
        assert [(r.round, r.attempt, r.state) for r in ledger.rounds.all()] == [
            (i, 0, "committed") for i in range(ROUNDS)
        ]
        for entry in ledger.rounds.all():
            devices = [u.assignment.device for u in ledger.updates.of_attempt(entry.round, entry.attempt)]
            assert devices == sorted(set(devices)) == list(entry.participants)
            assert len(devices) == DEVICES
        stored = {path.name for path in (run_dir / "blobs").glob("??/*")}
        assert ledger.blobs.sizes().keys() <= stored
    assert not any((run_dir / "blobs" / "partial").iterdir())


def recorded_updates(run_dir: Path) -> dict[str, str]:
    """Assignment id -> digest of every update in the ledger."""
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        return {
            u.assignment.assignment_id: u.update_digest
            for r in ledger.rounds.all()
            for u in ledger.updates.of_attempt(r.round, r.attempt)
        }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The final model of a run nobody disturbed; resuming it changes nothing."""
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    first = start_run(load_config_text(config_text()), run_dir, RunOptions(quiet=True))
    assert_counted_once(run_dir)
    final = final_bytes(run_dir)
    again = resume_run(run_dir, RunOptions(quiet=True, local_devices=0))
    assert final_bytes(run_dir) == final
    assert (again["device_table"], again["wall_s"]) == (first["device_table"], first["wall_s"])
    return final


@dataclass
class Outside:
    """A broker and agents that no coordinator started, and that outlive it."""

    broker: BrokerProcess
    agents: LocalDevices

    @property
    def text(self) -> str:
        """A run file that uses them."""
        address = self.broker.address
        broker = f'url = "{address.url}"\nuser = "{address.user}"\npassword-env = "{PASSWORD}"'
        return config_text(broker=broker, local=0)

    def run(self, run_dir: Path, on_point: Callable[[str], None]) -> None:
        start_run(load_config_text(self.text), run_dir, RunOptions(quiet=True, on_point=on_point))


@pytest.fixture(params=["mosquitto", "embedded"])
def outside(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Outside]:
    if request.param == "mosquitto" and find_mosquitto() is None:
        pytest.skip("mosquitto is not installed here (Debian: mosquitto)")
    config = load_config_text(config_text())
    devices = local_devices(config, load_dataset("digits", None, config.federation.seed), tmp_path / "outside", None)
    with BrokerProcess(request.param, tmp_path / "broker") as broker:
        monkeypatch.setenv(PASSWORD, broker.address.password)
        with LocalDevices(devices, broker.address, config.federation.name) as agents:
            yield Outside(broker, agents)
            assert agents.exited() == {}


def kill_and_resume(run_dir: Path, text: str, kills: list[tuple[str, int]], environment: dict[str, str]) -> None:
    """Start, die and resume at each of ``kills``, then resume to the end; nothing recorded is ever lost."""
    counted: dict[str, str] = {}
    for index, (point, occurrence) in enumerate(kills):
        crash(run_dir, point, occurrence, text="" if index else text, environment=environment)
        assert not (run_dir / "checkpoints" / "final.safetensors").exists()
        now = recorded_updates(run_dir)
        assert counted.items() <= now.items(), f"an update was lost at {point}"
        counted = now
    resume_run(run_dir, RunOptions(quiet=True))
    assert counted.items() <= recorded_updates(run_dir).items()
    assert_counted_once(run_dir)


def test_kills_are_at_every_point_of_a_synchronous_round() -> None:
    points = {point.name for point in POINTS.values() if "synchronous" in point.modes}
    assert {point_of(name).name for name, _ in KILLS} == points


def test_coordinator_killed_with_its_agents_ends_bit_identical(undisturbed: bytes, tmp_path: Path) -> None:
    kills = [kill for kill in KILLS if kill[0] in WITH_ITS_AGENTS]
    kill_and_resume(tmp_path / "run", config_text(), kills[: len(WITH_ITS_AGENTS)], {})
    assert final_bytes(tmp_path / "run") == undisturbed


@pytest.mark.parametrize("outside", ["mosquitto"], indirect=True)
def test_coordinator_killed_and_agents_left_behind_ends_bit_identical(
    undisturbed: bytes, outside: Outside, tmp_path: Path
) -> None:
    pids = [outside.agents.pid(device.device) for device in outside.agents.devices]
    kill_and_resume(tmp_path / "run", outside.text, KILLS, dict(os.environ))
    assert final_bytes(tmp_path / "run") == undisturbed
    assert pids == [outside.agents.pid(device.device) for device in outside.agents.devices]


def test_broker_killed_in_the_middle_of_rounds_ends_bit_identical(
    undisturbed: bytes, outside: Outside, tmp_path: Path
) -> None:
    """Once when orders were just sent, once while devices train and upload."""
    passed: list[str] = []

    def restart(point: str) -> None:
        passed.append(point)
        if (point, passed.count(point)) in (("published", 1), ("collecting", 4)):
            outside.broker.restart(kill=True)

    outside.run(tmp_path / "run", restart)
    assert passed.count("collecting") >= 4
    assert final_bytes(tmp_path / "run") == undisturbed
    assert_counted_once(tmp_path / "run")


@pytest.mark.parametrize("outside", ["mosquitto"], indirect=True)
def test_agent_killed_while_training_and_while_uploading_ends_bit_identical(
    undisturbed: bytes, outside: Outside, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    first, _, last = outside.agents.devices
    trainer: list[psutil.Process] = []
    killed: dict[str, str] = {}

    def end(device: str, state: str) -> None:
        os.kill(outside.agents.pid(device), signal.SIGKILL)
        killed[device] = state

    def on_point(point: str) -> None:
        with Ledger.open(run_dir / "ledger.sqlite") as ledger:
            entry = ledger.rounds.open()
            work = (
                {}
                if entry is None
                else {a.device: a for a in ledger.assignments.of_attempt(entry.round, entry.attempt)}
            )
        if point == "published" and entry.round == 0 and not trainer:
            # A trainer that stands still keeps its agent training for as long as this test wants.
            trainer.extend(psutil.Process(outside.agents.pid(first.device)).children())
            assert len(trainer) == 1
            trainer[0].suspend()
        if point == "collecting" and first.device not in killed and work[first.device].state == "accepted":
            end(first.device, "training")
            trainer[0].resume()
            outside.agents.start(first)
        if point == "mid-upload" and entry.round == 1 and last.device not in killed:
            partial = run_dir / "blobs" / "partial"
            if any(path.name.startswith(work[last.device].assignment_id) for path in partial.iterdir()):
                end(last.device, "uploading")
        if point == "collecting" and killed.get(last.device) == "uploading":
            killed[last.device] = "started again"
            outside.agents.start(last)

    outside.run(run_dir, on_point)
    assert killed == {first.device: "training", last.device: "started again"}
    assert final_bytes(run_dir) == undisturbed
    assert_counted_once(run_dir)
    _, alive = psutil.wait_procs(trainer, timeout=5.0)
    assert alive == [], "a trainer outlives its agent"
    assert "its report not acknowledged yet" in (last.folder / "agent.log").read_text()
