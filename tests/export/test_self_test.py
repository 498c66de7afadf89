"""The self-test's values: ones on which no kernel's rounding decides a later loss."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import pytest
import torch
from torch import nn

from edge.contracts.manifest import InputSpec
from edge.contracts.tensors import TensorSpec
from export.agreement import SEEDS
from export.formats import format_for
from export.formats.onnx_step.format import OnnxStep
from export.self_test import CALM, STEPS, self_test_of
from export.training_step import StepSpec

STEP = StepSpec(input=InputSpec(layout="features", shape=(12,)), classes=3, batch=4)


class Flipping(OnnxStep):
    """ONNX Runtime with another third loss on some values, as after a flipped rectifier."""

    def __init__(self, off: Mapping[int, float]) -> None:
        self.off = off

    def self_test_losses(
        self, spec: StepSpec, files: Mapping[str, bytes], tensors: Iterable[TensorSpec], *, seed: int, steps: int
    ) -> tuple[float, ...]:
        losses = super().self_test_losses(spec, files, tensors, seed=seed, steps=steps)
        return (*losses[:2], losses[2] * (1 + self.off.get(seed, 0.0)))


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3))


def test_first_values_serve_where_nothing_flips() -> None:
    exporter = format_for("onnxruntime")
    made = self_test_of(module(), STEP, exporter, exporter.write(module(), STEP))
    assert (made.seed, len(made.losses), made.batch) == (SEEDS[0], STEPS, 4)
    assert made.losses[2] < made.losses[0]


@pytest.mark.parametrize(
    ("off", "seed"),
    [
        ({SEEDS[0]: 1e-2, SEEDS[1]: 1e-4}, SEEDS[2]),
        ({s: 1e-2 if s != SEEDS[3] else 2 * CALM for s in SEEDS}, SEEDS[3]),
    ],
    ids=["the first calm ones", "the closest of none calm"],
)
def test_values_on_which_a_rectifier_flips_are_passed_over(off: dict[int, float], seed: int) -> None:
    exporter = Flipping(off)
    written = exporter.write(module(), STEP)
    made = self_test_of(module(), STEP, exporter, written)
    assert made.seed == seed
    expected = exporter.self_test_losses(STEP, written.files, written.tensors, seed=seed, steps=STEPS)
    assert made.losses == expected


def test_steps_from_where_training_diverges_are_left_out() -> None:
    """Such a net has finite gradients and passes the gate; a loss that is no number cannot be written down."""
    torch.manual_seed(0)
    wild = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    for layer in wild:
        layer.register_forward_hook(lambda _module, _inputs, out: out * 30)
    exporter = format_for("onnxruntime")
    made = self_test_of(wild, STEP, exporter, exporter.write(wild, STEP))
    assert 1 <= len(made.losses) < STEPS
    assert all(math.isfinite(loss) for loss in made.losses)
