"""The values that the parity gate and the self-test run on: a documented formula, a small batch, telling hypers.

Ordinary values come first. On them many networks are chaotic: with batch norms over few values, and with a million
rectifiers of which one is always within rounding of 0, torch float32 is itself 0.1 from float64 and a comparison says
nothing. So there are calmer ones: biases above 0 keep most rectifiers, though not all, on one side, and small weights
keep every channel's variance away from 0. On public networks (benchmarks/public_models.py) torch float32's worst
gradient is up to 0.3 off on ordinary values, and 1e-5 to 9e-4 on calm ones in all but two.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from edge.contracts.manifest import SelfTest
from edge.contracts.streams import self_test_value
from edge.contracts.tensors import TensorSpec
from export.program_inputs import LABEL_MASK
from export.training_step import StepSpec, symbols_of


@dataclass(frozen=True)
class Setting:
    """How values are drawn.

    Attributes:
        batch: examples per step, unless the step is made for fewer.
        bias: added to the formula's biases.
        gain: multiplies the formula's weights.
        pace: multiplies the learning rate.
    """

    batch: int
    bias: float = 0.0
    gain: float = 1.0
    pace: float = 1.0


ORDINARY = Setting(batch=4)
"""In a small batch few ReLU inputs are so close to 0 that two roundings disagree on their sign; and the graph runs at
another batch size than it was traced with."""
SETTINGS = (
    ORDINARY,
    Setting(batch=4, bias=1.0, gain=0.3, pace=0.1),
    Setting(batch=4, bias=2.0, gain=0.3, pace=0.1),
    Setting(batch=16, bias=2.0, gain=0.3, pace=0.1),
    Setting(batch=16, bias=4.0, gain=0.1, pace=0.01),
)
"""From ordinary to calm: the calmer, the fewer rectifiers are 0 and the less of a batch norm's own terms is left."""

HYPER = {
    "lr": 0.05,
    "momentum": 0.9,
    "weight_decay": 0.01,
    "frobenius_lambda": 0.01,
    "proximal_mu": 0.2,
    "clip_norm": 0.5,
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "distillation_weight": 0.3,
    "distillation_temperature": 2.0,
}
"""Values of the ``hyper`` inputs: large enough that a term left out shows."""
ADAM_LR = 0.002


def gate_hyper(spec: StepSpec, setting: Setting = ORDINARY) -> dict[str, float]:
    """Values of the step's ``hyper`` inputs in the gate and the self-test."""
    lr = HYPER["lr"] if spec.optimizer.kind == "sgd" else ADAM_LR
    values = HYPER | {"lr": lr * setting.pace}
    for number, _ in enumerate(spec.groups, 1):
        values |= {f"lr_factor_{number}": 1 / (1 + number), f"weight_decay_{number}": 0.03 * number}
    return {name: values[name] for name in spec.hyper}


def gate_batch(spec: StepSpec, setting: Setting = ORDINARY) -> int:
    """Examples per step in the gate and the self-test; as many in each micro-batch."""
    parts = spec.micro_batches
    return parts * min(spec.batch // parts, max(1, setting.batch // parts))


def gate_values(
    spec: StepSpec, tensors: Iterable[TensorSpec], *, seed: int = 1, masked: bool = True, setting: Setting = ORDINARY
) -> dict[str, np.ndarray]:
    """Every input of every program by name: the self-test formula, a label mask without the last class, and gradient
    masks without every third entry; where its mask drops a sparse weight it is 0.

    Args:
        masked: False for the self-test itself, whose masks are all ones.
    """
    hyper = gate_hyper(spec, setting)
    batch, symbols = gate_batch(spec, setting), symbols_of(spec)
    values: dict[str, np.ndarray] = {}
    for tensor in tensors:
        if tensor.role in ("loss", "metric", "rows"):
            continue
        if tensor.role == "hyper":
            values[tensor.name] = np.array(hyper.get(tensor.name, 0.5), np.float32)
            continue
        high = spec.classes if tensor.role == "target" else max(spec.input.vocabulary, 2)
        high = symbols.get(tensor.name, high)
        values[tensor.name] = self_test_value(tensor, seed, batch, high=high, bias=setting.bias, gain=setting.gain)
        if masked and tensor.role == "grad_mask":
            values[tensor.name].reshape(-1)[::3] = False
    for name in spec.capacities:
        if name in values:
            values[name] = values[name] * values[f"{name}#mask"]
    if masked and LABEL_MASK in values and spec.classes > 2:
        values[LABEL_MASK][-1] = 0.0
    return values


def self_test_on(
    spec: StepSpec, seed: int, setting: Setting, losses: tuple[float, ...], rel_tolerance: float
) -> SelfTest:
    """The manifest's self-test on the values of ``seed`` and ``setting``; ordinary ones under the formula's first name,
    which every agent knows."""
    plain = (setting.bias, setting.gain) == (ORDINARY.bias, ORDINARY.gain)
    return SelfTest(
        formula="splitmix64-uniform/1" if plain else "splitmix64-uniform/2",
        seed=seed,
        batch=gate_batch(spec, setting),
        hyper=gate_hyper(spec, setting),
        losses=losses,
        rel_tolerance=rel_tolerance,
        bias=setting.bias,
        gain=setting.gain,
    )
