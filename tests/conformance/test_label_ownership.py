"""Label-masked methods where no device has every class: what each device trains, says, and adds to the global model.

The mask of the loss is the device's own doing and stays there. Which classes it is, it says only when the method asks;
then a row of the classifier is the mean over the devices that have its class, and a row nobody has keeps its bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from coordinator.run_file.loading import load_config_text
from coordinator.simulation.assembly import SimulationOptions, open_simulation
from coordinator.simulation.record import Record
from coordinator.submodels.values import State, Update
from edge.contracts.tensor_file import read_tensor_file
from tests.coordinator.simulation.small_simulation import trained_updates
from tests.federation.in_process import InProcessFederation

pytestmark = [pytest.mark.runtime, pytest.mark.slow]

DEVICES = ("device-00", "device-01")
ROWS = ("fc3.weight", "fc3.bias")
METHODS = {
    "heterofl": 'name = "heterofl"\nlevels = [1, 0.5]',
    "fedhm": 'name = "fedhm"\nlevels = [1, 4]\nloss = "label_masked_cross_entropy"',
}
SMALLER = {"heterofl": "width 0.5", "fedhm": "rank 1/4"}


def run_file(method: str, options: str = "") -> str:
    return f"""
[federation]
name = "labels"
seed = 11
rounds = 1
[model]
build = "mlp"
input = [64]
classes = 10
options = {{ hidden = [48, 32] }}
[method]
{METHODS[method]}
{options}
[training]
steps = 3
batch = 16
last-batch = "wrap"
lr = 0.05
momentum = 0.9
weight-decay = 0.001
[data]
source = "digits"
partition = "dirichlet"
alpha = 0.05
scale = 0.0625
[evaluation]
every = 0
[[cohort.local]]
count = 1
[[cohort.local]]
count = 1
level = "{SMALLER[method]}"
"""


@dataclass(frozen=True)
class Run:
    """One real round: who has which classes, what they said of it, their updates, the models before and after."""

    owned: dict[str, tuple[int, ...]]
    said: dict[str, tuple[int, ...] | None]
    updates: dict[str, Mapping[str, np.ndarray]]
    before: State
    after: State


def real_round(text: str, folder: Path, exports: Path) -> Run:
    with InProcessFederation(folder, exports, text) as stage:
        owned = {}
        for share, device in enumerate(DEVICES):
            stage.write_data(device, share)
            owned[device] = tuple(int(c) for c in np.unique(stage.dataset.y_train[stage.shares[share]]))
            stage.agent(device)
        before = stage.federation.method.init()
        after = stage.run()
        recorded = {u.assignment.device: u for u in stage.ledger.updates.of_attempt(0, 0)}
        blobs = stage.federation.blobs
        updates = {d: read_tensor_file(blobs.path(u.update_digest), where=d) for d, u in recorded.items()}
        return Run(owned, {d: u.report.labels for d, u in recorded.items()}, updates, before, after)


Rounds = Callable[[str], Run]


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory, exports: Path) -> Rounds:
    """The real round of a run file; each is run once."""
    return cache(lambda text: real_round(text, tmp_path_factory.mktemp("round"), exports))


def simulated_updates(text: str, folder: Path) -> list[Update]:
    with open_simulation(load_config_text(text), folder, Record(), SimulationOptions(quiet=True)) as simulation:
        state = simulation.method.init()
        return trained_updates(simulation, state)


@pytest.mark.parametrize("method", METHODS)
def test_classifier_rows_are_those_of_the_devices_with_their_class(method: str, rounds: Rounds) -> None:
    run = rounds(run_file(method))
    assert run.said == run.owned
    owners = {c: [d for d in DEVICES if c in run.owned[d]] for c in range(10)}
    assert {len(found) for found in owners.values()} >= {1}  # the split is uneven enough to show something
    for c, found in owners.items():
        for device in DEVICES:
            if device not in found:
                # Decay alone: the mask took the gradient, so the device has nothing to say of this row.
                ratio = run.updates[device]["fc3.bias"][c] / run.before.tensors["fc3.bias"][c]
                assert 0.999 < ratio < 1
        if len(found) == 1 and method == "fedhm":
            for name in ROWS:
                assert np.array_equal(run.after.tensors[name][c], run.updates[found[0]][name][c])
        if len(found) == 1 and found == [DEVICES[0]] and method == "heterofl":
            for name in ROWS:  # the whole network's row, not drawn towards the narrow one's old values
                assert np.array_equal(run.after.tensors[name][c], run.updates[found[0]][name][c])
        if not found:
            assert all(np.array_equal(run.after.tensors[n][c], run.before.tensors[n][c]) for n in ROWS)


@pytest.mark.parametrize("method", METHODS)
def test_simulated_devices_say_the_same(method: str, rounds: Rounds, tmp_path: Path) -> None:
    real = rounds(run_file(method))
    assert {u.device: u.labels for u in simulated_updates(run_file(method), tmp_path)} == real.said


@pytest.mark.parametrize("method", METHODS)
def test_device_that_is_not_asked_says_nothing_and_masks_all_the_same(method: str, rounds: Rounds) -> None:
    asked = rounds(run_file(method))
    silent = rounds(run_file(method, "report-labels = false"))
    assert silent.said == dict.fromkeys(DEVICES)
    for device in DEVICES:
        assert all(np.array_equal(v, silent.updates[device][n]) for n, v in asked.updates[device].items())
    assert not np.array_equal(asked.after.tensors["fc3.bias"], silent.after.tensors["fc3.bias"])


def test_ordinary_loss_asks_for_no_labels(rounds: Rounds) -> None:
    run = rounds(run_file("heterofl", 'loss = "cross_entropy"'))
    assert run.said == dict.fromkeys(DEVICES)
