"""A simulated device and a real one, given the same order and data, send the same update."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from coordinator.exporting.cut_exporter import CutExporter, class_names, dense_module
from coordinator.ledger.records import RecordedUpdate
from coordinator.run_file.loading import load_config_text
from coordinator.simulation.assembly import SimulationOptions, open_simulation, simulate
from coordinator.simulation.local_training import SimulatedData
from coordinator.simulation.orders import Simulation, work_of
from coordinator.simulation.record import Record
from coordinator.simulation.torch_session import TorchArtifact
from coordinator.simulation.workers import Work
from coordinator.submodels.build import apply_cut
from coordinator.submodels.record import cut_from_json
from coordinator.submodels.values import State
from edge.contracts.errors import ConfigError, PlanError
from edge.contracts.plan import WorkOrder, read_order
from edge.contracts.tensor_file import encode_tensors, read_tensor_file
from edge.training.batches import Examples
from edge.training.local_data import LocalData
from edge.training.steps import train as train_on_session
from tests.conformance.float64_session import Float64Session
from tests.coordinator.simulation.small_simulation import trained_updates
from tests.federation import tiny_convnet
from tests.federation.in_process import InProcessFederation

pytestmark = pytest.mark.slow

DEVICES = ("device-00", "device-01")

WITHOUT_NORM = """
[model]
build = "mlp"
input = [64]
classes = 10
options = { hidden = [48, 32] }
"""
WITH_NORM = """
[model]
build = "tests.federation.tiny_convnet:build"
input = [1, 8, 8]
classes = 10
options = { width = 8 }
"""
METHODS = {
    "fedavg": 'name = "fedavg"',
    "fedhm": 'name = "fedhm"\nlevels = [1, 4]\nloss = "label_masked_cross_entropy"',
}
SMALLER = {"fedavg": "full", "fedhm": "rank 1/4"}
"""What the second device holds."""


def run_file(model: str, method: str) -> str:
    """Three steps of SGD with everything that a run file can ask of them, on two devices."""
    source, augment = "digits", ""
    if model is WITH_NORM:
        source, augment = "tests.federation.tiny_convnet:digit_images", 'augment = ["flip", "crop4"]'
    return f"""
[federation]
name = "conformance"
seed = 11
rounds = 1
{model}
[method]
{METHODS[method]}
[training]
steps = 3
batch = 16
last-batch = "wrap"
lr = 0.05
momentum = 0.9
nesterov = true
weight-decay = 0.001
clip-norm = 1.0
[data]
source = "{source}"
partition = "dirichlet"
alpha = 0.05
scale = 0.0625
{augment}
[evaluation]
every = 0
norm = "running"
[[cohort.local]]
count = 1
[[cohort.local]]
count = 1
level = "{SMALLER[method]}"
"""


@dataclass(frozen=True)
class Pair:
    """What one device was given and gave, really and simulated."""

    real: RecordedUpdate
    update: Mapping[str, np.ndarray]
    work: Work
    simulated: Mapping[str, np.ndarray]


def real_updates(text: str, folder: Path, exports: Path) -> dict[str, tuple[RecordedUpdate, Mapping[str, np.ndarray]]]:
    """Device -> its update in round 0 and the tensors in it, from agents that train with ONNX Runtime."""
    with InProcessFederation(folder, exports, text) as federation:
        if federation.config.data.source != "digits":
            federation.dataset = tiny_convnet.digit_images(None, federation.config.federation.seed)
        for share, device in enumerate(DEVICES):
            federation.write_data(device, share)
            federation.agent(device)
        federation.run()
        blobs = federation.federation.blobs
        return {
            u.assignment.device: (u, read_tensor_file(blobs.path(u.update_digest), where=u.assignment.device))
            for u in federation.ledger.updates.of_attempt(0, 0)
        }


def pairs(text: str, folder: Path, exports: Path) -> tuple[list[Pair], Simulation]:
    """Both devices' rounds, and the simulation they are from."""
    real = real_updates(text, folder, exports)
    config = load_config_text(text)
    with open_simulation(config, folder, Record(), SimulationOptions(quiet=True)) as simulation:
        state: State = simulation.method.init()
        devices = list(simulation.shares)
        work = [work_of(simulation, state, device, 0, "train") for device in devices]
        updates = trained_updates(simulation, state)
    assert tuple(devices) == tuple(sorted(real)) == DEVICES
    found = [Pair(*real[u.device], item, u.tensors) for item, u in zip(work, updates, strict=True)]
    return found, simulation


def distance(value: np.ndarray, reference: np.ndarray) -> float:
    """Relative L2."""
    difference = np.linalg.norm(value.astype(np.float64) - reference.astype(np.float64))
    return float(difference / max(np.linalg.norm(reference.astype(np.float64)), 1e-30))


@pytest.mark.runtime
@pytest.mark.parametrize("method", sorted(METHODS))
def test_order_weights_and_update_are_those_of_a_device(method: str, tmp_path: Path, exports: Path) -> None:
    found, _ = pairs(run_file(WITHOUT_NORM, method), tmp_path, exports)
    assert [pair.real.assignment.level for pair in found] == ["full", SMALLER[method]]
    for pair in found:
        entry, ordered, simulated = pair.real.assignment, read_order(pair.real.assignment.order), pair.work.order
        assert cut_from_json(entry.cut) == dict(pair.work.submodel.cut)
        weights = encode_tensors(pair.work.submodel.tensors)
        assert (ordered.weights.size, entry.weights_digest) == (len(weights), _sha256(weights))
        # Not the assignment id: every run has a nonce of its own in it.
        same = ("schedule", "batch", "last_batch", "data_seed", "hyper", "threads", "round")
        assert {name: getattr(ordered, name) for name in same} == {name: getattr(simulated, name) for name in same}
        assert sorted(ordered.upload) == sorted(simulated.upload)
        assert pair.update.keys() == pair.simulated.keys()
        for name, value in pair.update.items():
            assert distance(value, pair.simulated[name]) <= 1e-4, f"{entry.device} {name}"
        moved = [distance(pair.simulated[name], pair.work.submodel.tensors[name]) for name in pair.simulated]
        assert min(moved) > 1e-3  # three steps that moved every tensor: agreement is not that of the start


@pytest.mark.runtime
@pytest.mark.parametrize("method", sorted(METHODS))
def test_update_with_batch_norm_is_as_near_as_float32_allows(method: str, tmp_path: Path, exports: Path) -> None:
    found, simulation = pairs(run_file(WITH_NORM, method), tmp_path, exports)
    for pair in found:
        exact = in_float64(simulation, pair.work)
        assert pair.update.keys() == pair.simulated.keys() == exact.keys()
        assert any(name.endswith("running_var") for name in exact)
        for name, value in pair.update.items():
            own = distance(pair.simulated[name], exact[name])
            assert distance(value, exact[name]) <= max(10 * own, 1e-6), f"{pair.work.order.device} {name}: torch {own}"


def in_float64(simulation: Simulation, work: Work) -> dict[str, np.ndarray]:
    """The same order carried out in float64."""
    config = simulation.config
    exporter = CutExporter(config)
    module = apply_cut(dense_module(config), work.submodel.cut)
    artifact = TorchArtifact(module, exporter.step(work.submodel.program), classes=class_names(config))
    dataset = tiny_convnet.digit_images(None, config.federation.seed)
    data = SimulatedData(dataset.x_train, dataset.y_train, dataset.x_test, dataset.y_test)
    local = LocalData("here", data.x_train[work.indices], data.y_train[work.indices])
    session = Float64Session(artifact, "cpu")
    session.load_state(work.submodel.tensors)
    order: WorkOrder = work.order
    train_on_session(session, artifact.manifest, order, Examples(local, artifact.manifest))
    return {name: session.read(name) for name in order.upload}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("method", ["fedlora", "slora", "adapter", "prefix", "prompt"])
def test_method_that_cannot_cut_the_model_says_so(method: str, tmp_path: Path) -> None:
    """The first two adapt linear layers, of which a ResNet has none, the others add to transformer blocks."""
    text = run_file(WITH_NORM, "fedavg").replace("tests.federation.tiny_convnet:build", "resnet8")
    text = text.replace("options = { width = 8 }", "").replace(METHODS["fedavg"], f'name = "{method}"')
    with pytest.raises((ConfigError, PlanError)):
        simulate(load_config_text(text), tmp_path, Record(), SimulationOptions(quiet=True))
