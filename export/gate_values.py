"""The values that the parity gate and the self-test run on: a documented formula, a small batch, telling hypers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from edge.contracts.streams import self_test_value
from edge.contracts.tensors import TensorSpec
from export.program_inputs import LABEL_MASK
from export.training_step import StepSpec

BATCH = 4
"""Batch size, unless the step is made for a smaller one: few ReLU inputs are then so close to 0 that two
roundings disagree on their sign, and the graph runs at another batch size than it was traced with."""
HYPER = {
    "lr": 0.05,
    "momentum": 0.9,
    "weight_decay": 0.01,
    "frobenius_lambda": 0.01,
    "clip_norm": 0.5,
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "distillation_weight": 0.3,
    "distillation_temperature": 2.0,
}
"""Values of the ``hyper`` inputs: large enough that a term left out shows."""
ADAM_LR = 0.002


def gate_hyper(spec: StepSpec) -> dict[str, float]:
    """Values of the step's ``hyper`` inputs in the gate and the self-test."""
    values = HYPER | ({} if spec.optimizer.kind == "sgd" else {"lr": ADAM_LR})
    return {name: values[name] for name in spec.hyper}


def gate_batch(spec: StepSpec) -> int:
    """Examples per step in the gate and the self-test; as many in each micro-batch."""
    parts = spec.micro_batches
    return parts * min(spec.batch // parts, max(1, BATCH // parts))


def gate_values(
    spec: StepSpec, tensors: Iterable[TensorSpec], *, seed: int = 1, masked: bool = True
) -> dict[str, np.ndarray]:
    """Every input of every program by name: the self-test formula, a label mask without the last class, and gradient
    masks without every third entry; where its mask drops a sparse weight it is 0.

    Args:
        masked: False for the self-test itself, whose masks are all ones.
    """
    hyper = gate_hyper(spec)
    values: dict[str, np.ndarray] = {}
    for tensor in tensors:
        if tensor.role in ("loss", "metric"):
            continue
        if tensor.role == "hyper":
            values[tensor.name] = np.array(hyper.get(tensor.name, 0.5), np.float32)
            continue
        high = spec.classes if tensor.role == "target" else max(spec.input.vocabulary, 2)
        values[tensor.name] = self_test_value(tensor, seed, gate_batch(spec), high=high)
        if masked and tensor.role == "grad_mask":
            values[tensor.name].reshape(-1)[::3] = False
    for name in spec.capacities:
        if name in values:
            values[name] = values[name] * values[f"{name}#mask"]
    if masked and LABEL_MASK in values and spec.classes > 2:
        values[LABEL_MASK][-1] = 0.0
    return values
