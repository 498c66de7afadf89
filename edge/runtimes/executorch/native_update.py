"""The update rule by the native library: the formulas of ``native/optimizer.cpp`` on NumPy arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edge.contracts.packing import MASK
from edge.runtimes.executorch.library import NativeThreads, library
from edge.runtimes.update_rule import STEP_SLOT, UpdateRule


@dataclass(frozen=True)
class NativeUpdate:
    """Moves parameters, slots and accumulators by gradients.

    Attributes:
        threads: that large tensors are shared out over; None: the caller's own alone.
    """

    rule: UpdateRule
    threads: NativeThreads | None = None

    def apply(
        self, gradients: Mapping[str, np.ndarray], state: Mapping[str, np.ndarray], hyper: Mapping[str, float]
    ) -> None:
        """Move ``state`` (parameters, slots, accumulators) by ``gradients``, which clipping changes in place.

        Entries of a parameter where ``state`` has a mask of it that is False do not move, nor decay; squared gradients
        are those of all entries.
        """
        native = library()
        for name, gradient in gradients.items():
            squares = state.get(f"{name}#squared_gradient")
            if squares is not None:
                native.apportion_add_squares(squares.ctypes.data, gradient.ctypes.data, gradient.size)
        if "clip_norm" in hyper:
            for name, gradient in gradients.items():
                if (mask := state.get(name + MASK)) is not None:
                    native.apportion_keep(gradient.ctypes.data, mask.ctypes.data, gradient.size)
            # torch.nn.utils.clip_grad_norm_
            squares_sum = sum(native.apportion_sum_of_squares(g.ctypes.data, g.size) for g in gradients.values())
            factor = hyper["clip_norm"] / (math.sqrt(squares_sum) + 1e-6)
            if factor < 1.0:
                for gradient in gradients.values():
                    native.apportion_scale(gradient.ctypes.data, factor, gradient.size)
        if self.rule.kind != "sgd":
            state[STEP_SLOT][...] += 1.0
        for name, (lr, decay) in self.rule.rates(gradients, hyper).items():
            self._move(name, gradients[name], state, hyper, lr, decay)

    def _move(
        self,
        name: str,
        gradient: np.ndarray,
        state: Mapping[str, np.ndarray],
        hyper: Mapping[str, float],
        lr: float,
        decay: float,
    ) -> None:
        value, mask, native = state[name], state.get(name + MASK), library()
        kept = None if mask is None else mask.ctypes.data
        threads = self.threads.handle if self.threads else None
        if self.rule.kind == "sgd":
            velocity = state.get(f"{name}#momentum")
            native.apportion_sgd(
                threads,
                value.ctypes.data,
                gradient.ctypes.data,
                None if velocity is None else velocity.ctypes.data,
                kept,
                value.size,
                lr,
                hyper.get("momentum", 0.0),
                decay,
                self.rule.nesterov,
            )
            return
        native.apportion_adam(
            threads,
            value.ctypes.data,
            gradient.ctypes.data,
            state[f"{name}#exp_avg"].ctypes.data,
            state[f"{name}#exp_avg_sq"].ctypes.data,
            kept,
            value.size,
            float(state[STEP_SLOT]),
            lr,
            hyper["beta1"],
            hyper["beta2"],
            hyper["eps"],
            decay,
            self.rule.kind == "adamw",
        )
