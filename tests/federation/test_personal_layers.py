"""Personal layers in a run: what leaves a device, what it keeps, and that the rounds are those of the simulation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coordinator.cli.assembly import resume_run, start_run
from coordinator.cli.open_run import RunOptions
from coordinator.config.run_config import RunConfig
from coordinator.exporting.cut_exporter import dense_module
from coordinator.ledger.ledger import Ledger
from coordinator.run_file.loading import load_config_text
from coordinator.simulation.own_layers import own_layers
from coordinator.simulation.record import read_record, restored_state
from edge.contracts.plan import read_order
from edge.contracts.tensor_file import read_tensor_file
from tests.coordinator.simulation.small_simulation import simulated
from tests.federation.small_run import DEVICES, config_text, crash

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.runtime]

HEAD = {"fc3.weight", "fc3.bias"}


def text() -> str:
    plain = config_text().replace('name = "fedhm"\nlevels = [4]', 'name = "fedavg"')
    return plain + '\n[personal]\nlayers = ["fc3.*"]\n'


def heads(run_dir: Path) -> dict[str, dict[str, np.ndarray]]:
    """Device -> the layers that lie in its state."""
    found = {}
    for device in sorted((run_dir / "devices").iterdir()):
        (path,) = device.rglob("personal/*.safetensors")
        found[device.name] = {name: np.array(value) for name, value in read_tensor_file(path, where="head").items()}
    return found


def final(run_dir: Path) -> dict[str, np.ndarray]:
    return dict(read_tensor_file(run_dir / "checkpoints" / "final.safetensors", where="final"))


def assert_heads_stayed(run_dir: Path, config: RunConfig) -> None:
    before = {name: value.numpy() for name, value in dense_module(config).state_dict().items()}
    after = final(run_dir)
    assert all(np.array_equal(after[name], before[name]) == (name in HEAD) for name in before)
    kept = heads(run_dir)
    assert len(kept) == DEVICES
    assert all({*mine} == HEAD for mine in kept.values())
    assert (
        len({mine["fc3.weight"].tobytes() for mine in kept.values()} | {before["fc3.weight"].tobytes()}) == DEVICES + 1
    )
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        for entry in ledger.rounds.all():
            for update in ledger.updates.of_attempt(entry.round, entry.attempt):
                order = read_order(update.assignment.order)
                assert {*order.own_layers} == HEAD
                assert not HEAD & {*order.upload}


def test_heads_stay_on_devices_and_rounds_are_those_of_the_simulation(tmp_path: Path) -> None:
    config = load_config_text(text())
    start_run(config, tmp_path / "run", RunOptions(quiet=True))
    assert_heads_stayed(tmp_path / "run", config)
    simulated(config, tmp_path / "simulated")
    record = read_record(tmp_path / "simulated")
    assert record is not None
    state = restored_state(tmp_path / "simulated", record, rounds=config.federation.rounds)
    assert state is not None
    for name, value in final(tmp_path / "run").items():
        np.testing.assert_allclose(value, state.tensors[name], rtol=0, atol=2e-5, err_msg=name)
    for device, mine in heads(tmp_path / "run").items():
        for name, value in mine.items():
            np.testing.assert_allclose(value, own_layers(state, device)[name], rtol=0, atol=2e-5, err_msg=name)


def test_killed_run_ends_with_the_same_body_and_heads(tmp_path: Path) -> None:
    config = load_config_text(text())
    start_run(config, tmp_path / "whole", RunOptions(quiet=True))
    for index, (point, occurrence) in enumerate([("collecting", 1), ("mid-upload", 1), ("before-commit", 1)]):
        crash(tmp_path / "killed", point, occurrence, text="" if index else text())
    resume_run(tmp_path / "killed", RunOptions(quiet=True))
    assert_heads_stayed(tmp_path / "killed", config)
    whole, killed = final(tmp_path / "whole"), final(tmp_path / "killed")
    assert all(np.array_equal(whole[name], killed[name]) for name in whole)
    mine, theirs = heads(tmp_path / "whole"), heads(tmp_path / "killed")
    assert all(np.array_equal(mine[d][name], theirs[d][name]) for d in mine for name in HEAD)
