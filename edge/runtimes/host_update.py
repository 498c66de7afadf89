"""The part of a step that follows the gradients, in NumPy and in place, for runtimes without an optimizer of ours.

The same formulas as the C++ of another runtime, by the same rule file. Large tensors are moved a piece at a time:
the scratch space stays in the processor's cache, and there is no copy of a whole tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from edge.runtimes.update_rule import STEP_SLOT, UpdateRule

_PIECE = 1 << 15
"""Elements moved at a time: 128 KB of each array, twice that of scratch; shorter pieces cost a tenth (measured)."""


@dataclass
class HostUpdate:
    """Moves parameters, slots and accumulators by gradients."""

    rule: UpdateRule
    _scratch: np.ndarray = field(default_factory=lambda: np.empty((2, _PIECE), np.float32))

    def apply(
        self,
        gradients: Mapping[str, np.ndarray],
        state: Mapping[str, np.ndarray],
        hyper: Mapping[str, float],
        masks: Mapping[str, np.ndarray],
    ) -> None:
        """Move ``state`` in place by ``gradients`` (C-contiguous float32), which clipping and masks change in place.

        Args:
            masks: booleans by parameter; entries where one is False do not move, nor decay.
        """
        for name, gradient in gradients.items():
            squares = state.get(f"{name}#squared_gradient")
            if squares is not None:
                for g, s in _pieces(gradient, squares):
                    part = self._scratch[0, : g.size]
                    np.multiply(g, g, out=part)
                    s += part
            if name in masks:
                gradient *= masks[name]
        if "clip_norm" in hyper:
            _clip(gradients, hyper["clip_norm"])
        if self.rule.kind != "sgd":
            state[STEP_SLOT][...] += 1.0
        for name, (lr, decay) in self.rule.rates(gradients, hyper).items():
            gradient = gradients[name]
            mask = masks.get(name)
            held = None if mask is None or decay == 0.0 else np.where(mask, 0, state[name])
            if self.rule.kind == "sgd":
                self._sgd(name, gradient, state, hyper, lr, decay)
            else:
                self._adam(name, gradient, state, hyper, lr, decay)
            if held is not None and mask is not None:
                _hold_still(name, mask, held, state)

    def _sgd(
        self,
        name: str,
        gradient: np.ndarray,
        state: Mapping[str, np.ndarray],
        hyper: Mapping[str, float],
        lr: float,
        decay: float,
    ) -> None:
        velocity, momentum = state.get(f"{name}#momentum"), hyper.get("momentum", 0.0)
        arrays = (gradient, state[name]) if velocity is None else (gradient, state[name], velocity)
        for g, value, *slots in _pieces(*arrays):
            step, other = self._scratch[0, : g.size], self._scratch[1, : g.size]
            direction = g
            if decay:
                np.multiply(value, decay, out=step)
                step += g
                direction = step
            if slots:
                (v,) = slots
                v *= momentum
                v += direction
                if self.rule.nesterov:
                    np.multiply(v, momentum, out=other)
                    other += direction
                    direction = other
                else:
                    direction = v
            np.multiply(direction, lr, out=step)
            value -= step

    def _adam(
        self,
        name: str,
        gradient: np.ndarray,
        state: Mapping[str, np.ndarray],
        hyper: Mapping[str, float],
        lr: float,
        decay: float,
    ) -> None:
        count, beta1, beta2 = float(state[STEP_SLOT]), hyper["beta1"], hyper["beta2"]
        step_size = lr / (1.0 - beta1**count)
        root_correction = math.sqrt(1.0 - beta2**count)
        decoupled = self.rule.kind == "adamw"
        # mean / (sqrt(square) / root + eps) x step size, with the constants folded into two.
        is_moving = step_size != 0.0
        factor = 1.0 / (root_correction * step_size) if is_moving else 0.0
        offset = hyper["eps"] / step_size if is_moving else 0.0
        for g, value, mean, square in _pieces(
            gradient, state[name], state[f"{name}#exp_avg"], state[f"{name}#exp_avg_sq"]
        ):
            step, other = self._scratch[0, : g.size], self._scratch[1, : g.size]
            direction = g
            if decay and decoupled:
                value *= 1.0 - lr * decay
            elif decay:
                np.multiply(value, decay, out=other)
                other += g
                direction = other
            mean *= beta1
            np.multiply(direction, 1.0 - beta1, out=step)
            mean += step
            square *= beta2
            np.multiply(direction, direction, out=step)
            step *= 1.0 - beta2
            square += step
            if is_moving:
                np.sqrt(square, out=step)
                step *= factor
                step += offset
                np.divide(mean, step, out=step)
                value -= step


def _pieces(*arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """The arrays, all of one size, a piece at a time."""
    flat = [array.reshape(-1) for array in arrays]
    for start in range(0, flat[0].size, _PIECE):
        yield tuple(array[start : start + _PIECE] for array in flat)


def _clip(gradients: Mapping[str, np.ndarray], clip_norm: float) -> None:
    """As ``torch.nn.utils.clip_grad_norm_``."""
    squares = 0.0
    for gradient in gradients.values():
        for (g,) in _pieces(gradient):
            squares += float(np.dot(g, g))
    factor = clip_norm / (math.sqrt(squares) + 1e-6)
    if factor < 1.0:
        for gradient in gradients.values():
            gradient *= np.float32(factor)


def _hold_still(name: str, mask: np.ndarray, held: np.ndarray, state: Mapping[str, np.ndarray]) -> None:
    """Undo what decay did to masked entries, in the value (``held`` where masked) and in the slots."""
    value = state[name]
    value *= mask
    value += held
    for suffix in ("momentum", "exp_avg", "exp_avg_sq"):
        slot = state.get(f"{name}#{suffix}")
        if slot is not None:
            slot *= mask
