"""Clusters in a run over a broker: models are those of the simulation, and those of a run that was killed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from coordinator.cli.assembly import resume_run, start_run
from coordinator.cli.open_run import RunOptions
from coordinator.ledger.ledger import Ledger
from coordinator.run_file.loading import load_config_text
from edge.contracts.plan import read_order
from edge.contracts.tensor_file import read_tensor_file
from tests.coordinator.simulation.small_simulation import simulated
from tests.federation.small_run import config_text, crash

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.runtime]

CLUSTER = {"device-00": "north", "device-01": "south", "device-02": "south"}


def text() -> str:
    """Three devices with a cluster, and one without, which does not take part."""
    plain = (
        config_text(local=0, rounds=2)
        .replace('name = "fedhm"\nlevels = [4]', 'name = "fedavg"')
        .replace("devices = 3", "")
    )
    groups = "".join(f'[[cohort.local]]\ncount = 1\ntags = ["{tag}"]\n' for tag in (*CLUSTER.values(), "west"))
    clusters = '[clusters]\ntags = ["north", "south"]\nlayers = ["fc3.*"]\n'
    return plain.replace("[runtime]", f"{groups}\n{clusters}\n[runtime]")


def models(run_dir: Path) -> dict[str, np.ndarray]:
    return {
        f"{path.stem} {name}": np.array(value)
        for path in sorted((run_dir / "checkpoints").glob("final*.safetensors"))
        for name, value in read_tensor_file(path, where=path.name).items()
    }


def test_models_are_those_of_the_simulation_and_survive_a_kill(tmp_path: Path) -> None:
    config = load_config_text(text())
    start_run(config, tmp_path / "run", RunOptions(quiet=True))
    simulated(config, tmp_path / "simulated")
    found, expected = models(tmp_path / "run"), models(tmp_path / "simulated")
    assert {name.split()[0] for name in found} == {"final", "final-north", "final-south"}
    assert found.keys() == expected.keys()
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=2e-5, err_msg=name)
    assert not np.array_equal(found["final-north fc3.weight"], found["final-south fc3.weight"])
    with Ledger.open(tmp_path / "run" / "ledger.sqlite") as ledger:
        updates = [u for r in ledger.rounds.all() for u in ledger.updates.of_attempt(r.round, r.attempt)]
    assert {u.assignment.device: read_order(u.assignment.order).cluster_name for u in updates} == CLUSTER
    rounds = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    (last,) = [entry["clusters"] for entry in rounds if entry.get("clusters")]
    assert {tag: values["devices"] for tag, values in last.items()} == {"north": 1, "south": 2}

    crash(tmp_path / "killed", "before-commit", 2, text=text())
    resume_run(tmp_path / "killed", RunOptions(quiet=True))
    again = models(tmp_path / "killed")
    assert all(np.array_equal(found[name], again[name]) for name in found)
