"""The ``stats`` program of a step with static frozen norms: it gathers those of the other norms, behind them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from edge.contracts.manifest import InputSpec
from export.bundle import export_artifact, read_artifact
from export.gate_values import gate_values
from export.graph_session import GraphSession
from export.programs import program_functions
from export.training_step import Optimizer, StepSpec

PREFIX = ("0.weight", "0.bias", "1.weight", "1.bias")
STEP = StepSpec(
    input=InputSpec(layout="chw", shape=(3, 6, 6)),
    classes=4,
    batch=6,
    frozen=PREFIX,
    frozen_norm="static",
    optimizer=Optimizer(momentum=False, weight_decay=False),
)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    head = [nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(20, 4)]
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), *head)


def check_as_torch(got: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray]) -> None:
    """Hold what a ``stats`` step gave at a momentum of 1 to torch's module with its first norm in eval mode."""
    reference = network().train()
    reference[1].eval()
    reference[4].momentum = 1.0
    state = {name: torch.from_numpy(np.array(values[name])) for name in reference.state_dict() if name in values}
    reference.load_state_dict(state, strict=False)
    with torch.no_grad():
        reference(torch.from_numpy(values["input"]))
    assert got.keys() == {"next:4.running_mean", "next:4.running_var"}
    np.testing.assert_allclose(got["next:4.running_mean"], reference[4].running_mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got["next:4.running_var"], reference[4].running_var, rtol=1e-5)


def test_trained_norm_is_moved_behind_the_frozen_one_as_torch_moves_it() -> None:
    program = program_functions(network(), STEP)["stats"]
    values = gate_values(STEP, [item.spec for item in program.inputs])
    values["stats_momentum"] = np.array(1.0, np.float32)
    moved, _ = program.function({name: torch.from_numpy(np.array(value)) for name, value in values.items()})
    check_as_torch({name: value.numpy() for name, value in moved.items()}, values)


@pytest.mark.slow
def test_graph_does_so_too(tmp_path: Path) -> None:
    export_artifact(network(), STEP, tmp_path)
    manifest, files = read_artifact(tmp_path)
    assert [output.tensor for output in manifest.program("stats").outputs] == ["4.running_mean", "4.running_var"]
    values = gate_values(STEP, manifest.tensors)
    values["stats_momentum"] = np.array(1.0, np.float32)
    check_as_torch(GraphSession(files["stats.onnx"]).run(values), values)


def test_there_is_none_where_every_norm_is_frozen_and_static() -> None:
    module = network()
    module[4] = nn.Identity()
    assert program_functions(module, STEP).keys() == {"train", "eval"}
