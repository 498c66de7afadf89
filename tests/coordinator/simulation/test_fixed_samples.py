"""PruneFL's initial pruning on a fixed sample, in a simulation: one device, its steps, the bits of the sample alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from coordinator.cli.simulate import begin
from coordinator.run_file.loading import load_config_text
from coordinator.simulation.assembly import SimulationOptions, open_simulation
from coordinator.simulation.local_training import Trained
from coordinator.simulation.orders import work_of
from edge.contracts.plan import Schedule
from edge.training.fixed_sample import sample_rows
from tests.coordinator.simulation.small_simulation import simulated

TEXT = """
[federation]
name = "sampled"
seed = 5
rounds = 3
[model]
build = "mlp"
input = [64]
classes = 10
options = { hidden = [16] }
[method]
name = "prunefl"
interval = 2
initial-rounds = 1
initial-steps = 7
initial-examples = 20
selected-device = "device-02"
[training]
epochs = 1
batch = 16
lr = 0.05
[data]
source = "digits"
scale = 0.0625
[cohort]
size = 4
[[cohort.local]]
count = 4
"""


def test_initial_pruning_trains_on_the_sample_and_later_rounds_on_all(tmp_path: Path) -> None:
    config = load_config_text(TEXT)
    (tmp_path / "run").mkdir()
    with open_simulation(
        config, tmp_path / "run", begin(config, tmp_path / "run"), SimulationOptions(quiet=True)
    ) as simulation:
        state, workers = simulation.method.init(), simulation.workers
        work = work_of(simulation, state, "device-02", 0, "train")
        sample = work.order.fixed_sample
        assert sample is not None
        assert (sample.size, work.order.schedule) == (20, Schedule(steps=7))
        plain = msgspec.structs.replace(work.order, sample=msgspec.UNSET)
        narrowed = work.indices[sample_rows(len(work.indices), sample)]
        orders = [work, replace(work, order=plain, indices=narrowed), replace(work, order=plain)]
        ours, alone, whole = workers.train(orders)
        assert isinstance(ours, Trained)
        assert isinstance(alone, Trained)
        assert isinstance(whole, Trained)
        assert (ours.num_examples, alone.num_examples, ours.outcome.steps) == (20, 20, 7)
        assert whole.num_examples == len(work.indices)
        names = ours.tensors.keys()
        assert any(name.endswith("#squared_gradient") for name in names)
        assert all(np.array_equal(ours.tensors[name], alone.tensors[name]) for name in names)
        assert not all(np.array_equal(ours.tensors[name], whole.tensors[name]) for name in names)
        later = replace(state, round=1, extra={**state.extra, "prunefl/initial-left": np.array(0)})
        order = work_of(simulation, later, "device-02", 1, "train").order
        assert (order.fixed_sample, order.schedule) == (None, Schedule(epochs=1))


def test_round_of_initial_pruning_counts_one_device_and_its_sample(tmp_path: Path) -> None:
    config = load_config_text(TEXT)
    simulated(config, tmp_path / "run")
    record = begin(config, tmp_path / "run")
    everything = sum(row["examples"] for row in record.devices.values())
    assert [(entry["reports"], entry["examples"]) for entry in record.rounds] == [(1, 20), *[(4, everything)] * 2]
    assert {name: row["rounds"] for name, row in record.devices.items()}["device-02"] == 3
    assert record.rounds[0]["density"] < 1
