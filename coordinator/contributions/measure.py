"""What each layer contributes on given examples, measured on the coordinator with torch.

``gradient``: first order. A step of SGD at rate r lowers the loss by r ||g||^2, so a layer's gain is the squared norm
of its gradient, mean over batches, and a channel's that of its rows. One backward pass per batch.
``accuracy``: MCUNetV3's. The head and one layer are fine-tuned for some steps; the gain is the accuracy on other
examples above that of the head alone, and channels share it by their squared gradients. Twice as many fine-tunings as
layers. Gains below 0 count as none.
In both the head is fine-tuned first, so that a new one's random values do not decide, and norms use their statistics.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coordinator.contributions.record import LayerGain, Measured, block_count
from coordinator.contributions.scheme import Layer, Scheme, head_of, trained_names
from edge.contracts.errors import PlanError
from edge.contracts.streams import permutation, stream_seed

Measure = Literal["gradient", "accuracy"]
SCORED = 256
"""Examples of a batch that is only scored."""


@dataclass(frozen=True)
class Tuning:
    """How layers are fine-tuned to be measured: SGD with momentum 0.9."""

    steps: int = 30
    batch: int = 32
    lr: float = 0.01
    seed: int = 0


def measured(
    module: nn.Module, layers: Collection[Layer], x_N: np.ndarray, y_N: np.ndarray, measure: Measure, tuning: Tuning
) -> Measured:
    """The gains of all layers but the head. ``module`` is not changed.

    Args:
        x_N: inputs as the model takes them; the first half is trained on, the second scored.
        y_N: class numbers.

    Raises:
        PlanError: fewer than two batches of examples, or values that are not finite.
    """
    if len(x_N) < 2 * tuning.batch:
        raise PlanError(
            f"{len(x_N)} examples to measure contributions on, at least two batches of {tuning.batch} expected"
        )
    half = len(x_N) // 2
    x, y = torch.from_numpy(np.ascontiguousarray(x_N)), torch.from_numpy(np.asarray(y_N, np.int64))
    head, weighted = head_of(layers), [layer for layer in layers if layer.weight]
    parts = [layer for layer in weighted if layer.path != head.path]
    tuned = _tuned(module, {name for name in (head.weight, head.bias) if name}, x[:half], y[:half], tuning)
    squares = _squared_gradients(tuned, x[:half], y[:half], tuning)
    blocks = {layer.path: _block_sums(squares[layer.weight], block_count(layer)) for layer in parts}
    above = {layer.path: trained_names(layers, Scheme(layer.path, {head.path: None})) for layer in parts}
    if measure == "gradient":
        gains = {
            layer.path: LayerGain(
                tuple(blocks[layer.path].tolist()),
                sum(float(squares[name].sum()) for name in above[layer.path] - {head.weight, head.bias}),
            )
            for layer in parts
        }
    else:
        held = {name for name in (head.weight, head.bias) if name}

        def score(names: Collection[str]) -> float:
            return _accuracy(_tuned(module, held | set(names), x[:half], y[:half], tuning), x[half:], y[half:])

        base = score(())
        gains = {}
        for layer in parts:
            share = blocks[layer.path] / max(float(blocks[layer.path].sum()), 1e-30)
            weight = score([layer.weight]) - base
            gains[layer.path] = LayerGain(tuple((weight * share).tolist()), score(above[layer.path]) - base)
    if not all(np.isfinite([*gain.blocks, gain.biases]).all() for gain in gains.values()):
        raise PlanError(f"contributions of {type(module).__name__} are not finite; lower the learning rate")
    return Measured(measure=measure, model=type(module).__name__, examples=len(x_N), layers=gains)


def _batches(count: int, tuning: Tuning, steps: int) -> Iterator[Tensor]:
    """Positions of the examples of each step, in an order that the seed draws for each pass."""
    order, passes = np.empty(0, np.int64), 0
    for _ in range(steps):
        if len(order) < tuning.batch:
            drawn = permutation(stream_seed(tuning.seed, "contributions", passes), count)
            order, passes = np.concatenate([order, drawn]), passes + 1
        yield torch.from_numpy(order[: tuning.batch].astype(np.int64))
        order = order[tuning.batch :]


def _tuned(module: nn.Module, names: Collection[str], x: Tensor, y: Tensor, tuning: Tuning) -> nn.Module:
    """A copy of which the parameters ``names`` took the steps."""
    copied = copy.deepcopy(module).eval()
    parameters = dict(copied.named_parameters())
    for name, parameter in parameters.items():
        parameter.requires_grad_(name in names)
    optimizer = torch.optim.SGD([parameters[name] for name in sorted(names)], lr=tuning.lr, momentum=0.9)
    for chosen in _batches(len(x), tuning, tuning.steps):
        optimizer.zero_grad()
        F.cross_entropy(copied(x[chosen]), y[chosen]).backward()
        optimizer.step()
    return copied


def _squared_gradients(module: nn.Module, x: Tensor, y: Tensor, tuning: Tuning) -> dict[str, Tensor]:
    """Squared gradients of every parameter, float64, the mean over the batches of one pass."""
    for parameter in module.parameters():
        parameter.requires_grad_(True)
    sums = {name: torch.zeros(p.shape, dtype=torch.float64) for name, p in module.named_parameters()}
    count = max(1, len(x) // tuning.batch)
    for chosen in _batches(len(x), tuning, count):
        module.zero_grad()
        F.cross_entropy(module(x[chosen]), y[chosen]).backward()
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                sums[name] += parameter.grad.double() ** 2 / count
    return sums


def _block_sums(squares: Tensor, blocks: int) -> np.ndarray:
    """Sums over blocks of neighbouring output channels."""
    rows: np.ndarray = squares.reshape(squares.shape[0], -1).sum(1).numpy()
    return rows.reshape(blocks, -1).sum(1)


def _accuracy(module: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        parts = [(module(x[i : i + SCORED]).argmax(1) == y[i : i + SCORED]).sum() for i in range(0, len(x), SCORED)]
    return float(sum(parts)) / len(x)
