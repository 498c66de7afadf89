"""Control variates in a run: the rounds are those of the simulation, and those of a run that was killed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coordinator.cli.assembly import resume_run, start_run
from coordinator.cli.open_run import RunOptions
from coordinator.ledger.ledger import Ledger
from coordinator.run_file.loading import load_config_text
from coordinator.simulation.own_layers import own_tensors
from coordinator.simulation.own_variates import KEPT as OWN
from coordinator.simulation.record import read_record, restored_state
from edge.contracts.plan import read_order
from edge.contracts.tensor_file import read_tensor_file
from tests.coordinator.simulation.small_simulation import simulated
from tests.federation.small_run import DEVICES, config_text, crash

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.runtime]


def text() -> str:
    plain = config_text().replace('name = "fedhm"\nlevels = [4]', 'name = "fedavg"')
    return plain.replace("momentum = 0.9", "scaffold = true\nepochs = 2").replace("epochs = 1\n", "", 1)


def variates(run_dir: Path) -> dict[str, dict[str, np.ndarray]]:
    """Device -> what its last update that counts left."""
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        last = ledger.updates.last_counted()
        devices = {
            name: [
                u
                for r in ledger.rounds.all()
                for u in ledger.updates.of_attempt(r.round, r.attempt)
                if u.assignment.device == name
            ]
            for name in last
        }
    found = {}
    for device, assignment in last.items():
        (path,) = (run_dir / "devices" / device).rglob(f"control/*/{assignment}.safetensors")
        found[device] = {name: np.array(value) for name, value in read_tensor_file(path, where="variates").items()}
        orders = [read_order(update.assignment.order) for update in devices[device]]
        assert orders[0].variates_of == ""
        assert [order.variates_of for order in orders[1:]] == [order.assignment_id for order in orders[:-1]]
        assert not any(name.endswith("#control") for order in orders for name in order.upload)
    return found


def final(run_dir: Path) -> dict[str, np.ndarray]:
    return dict(read_tensor_file(run_dir / "checkpoints" / "final.safetensors", where="final"))


def test_rounds_are_those_of_the_simulation_and_survive_a_kill(tmp_path: Path) -> None:
    config = load_config_text(text())
    start_run(config, tmp_path / "run", RunOptions(quiet=True))
    simulated(config, tmp_path / "simulated")
    record = read_record(tmp_path / "simulated")
    assert record is not None
    state = restored_state(tmp_path / "simulated", record, rounds=config.federation.rounds)
    assert state is not None
    for name, value in final(tmp_path / "run").items():
        np.testing.assert_allclose(value, state.tensors[name], rtol=0, atol=2e-5, err_msg=name)
    mine = variates(tmp_path / "run")
    assert len(mine) == DEVICES
    for device, kept in mine.items():
        for name, value in kept.items():
            np.testing.assert_allclose(value, own_tensors(state, device, OWN)[name], rtol=0, atol=1e-4, err_msg=name)

    crash(tmp_path / "killed", "before-commit", 2, text=text())
    resume_run(tmp_path / "killed", RunOptions(quiet=True))
    whole, killed = final(tmp_path / "run"), final(tmp_path / "killed")
    assert all(np.array_equal(whole[name], killed[name]) for name in whole)
    theirs = variates(tmp_path / "killed")
    assert all(np.array_equal(mine[d][name], theirs[d][name]) for d in mine for name in mine[d])
