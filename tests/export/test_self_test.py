"""The self-test's values: ones on which no kernel's rounding decides a later loss."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from edge.contracts.errors import ParityError
from edge.contracts.manifest import InputSpec, SelfTest
from edge.contracts.tensors import TensorSpec
from export.agreement import PATIENCE, SEEDS
from export.formats.onnx_step.format import OnnxStep
from export.self_test import LEAST_TOLERANCE, STEPS, self_test_of
from export.training_step import StepSpec

STEP = StepSpec(input=InputSpec(layout="features", shape=(12,)), classes=3, batch=4)


class Flipping(OnnxStep):
    """ONNX Runtime with another third loss in some runs, as after a flipped rectifier."""

    def __init__(self, off: Sequence[float]) -> None:
        self.off, self.runs = off, 0

    def self_test_losses(
        self,
        spec: StepSpec,
        files: Mapping[str, bytes],
        tensors: Iterable[TensorSpec],
        values: Mapping[str, np.ndarray],
        *,
        steps: int,
    ) -> tuple[float, ...]:
        losses = super().self_test_losses(spec, files, tensors, values, steps=steps)
        self.runs += 1
        return (*losses[:2], losses[2] * (1 + self.off[self.runs - 1]))


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3))


def made_by(exporter: OnnxStep, net: nn.Module, step: StepSpec = STEP) -> SelfTest:
    return self_test_of(net, step, exporter, exporter.write(net, step))


def test_ordinary_values_serve_where_nothing_flips() -> None:
    made = made_by(OnnxStep(), module())
    assert (made.formula, made.seed, len(made.losses), made.batch) == ("splitmix64-uniform/1", SEEDS[0], STEPS, 4)
    assert made.losses[2] < made.losses[0]
    assert made.rel_tolerance == LEAST_TOLERANCE


def test_tolerance_is_what_float32_loses_here() -> None:
    """An error within ten times torch float32's spread passes, and the manifest's tolerance covers it ten times."""
    made = made_by(Flipping([3e-5]), module())
    assert made.rel_tolerance == pytest.approx(3e-4, rel=0.1)


@pytest.mark.parametrize("wrong", [1, PATIENCE - 1])
def test_values_on_which_the_graphs_run_flips_are_passed_over(wrong: int) -> None:
    exporter = Flipping([1e-2] * wrong + [0.0])
    made = made_by(exporter, module())
    assert exporter.runs == wrong + 1
    assert made.rel_tolerance == LEAST_TOLERANCE


def test_graph_that_leaves_torch_on_three_sets_of_values_is_refused() -> None:
    exporter = Flipping([1e-2] * PATIENCE)
    with pytest.raises(
        ParityError, match=r"3 steps in a row: 1\.0e-02 from torch float64's, where torch float32's are"
    ):
        made_by(exporter, module())


class Chaotic(nn.Module):
    """A deep net of rectifiers under batch norms over four values: torch float32 leaves float64 in a step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [layer for _ in range(24) for layer in (nn.Linear(24, 24), nn.BatchNorm1d(24), nn.ReLU())]
        self.body = nn.Sequential(nn.Linear(12, 24), *layers)
        self.head = nn.Linear(24, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


@pytest.mark.slow
def test_chaotic_network_is_tested_on_calm_values() -> None:
    step = msgspec.structs.replace(STEP, batch=32)
    made = made_by(OnnxStep(), Chaotic(), step)
    assert (made.formula, made.gain < 1, made.bias > 0) == ("splitmix64-uniform/2", True, True)
    assert made.rel_tolerance < 1e-3
    assert abs(made.losses[-1] / made.losses[0] - 1) > 0.01  # and its steps show


def test_steps_from_where_training_diverges_are_left_out() -> None:
    """Such a net has finite gradients and passes the gate; a loss that is no number cannot be written down."""
    torch.manual_seed(0)
    wild = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    for layer in wild:
        layer.register_forward_hook(lambda _module, _inputs, out: out * 300)
    made = made_by(OnnxStep(), wild)
    assert 1 <= len(made.losses) < STEPS
    assert all(math.isfinite(loss) for loss in made.losses)
