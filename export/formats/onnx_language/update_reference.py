"""The update of factors by torch's own optimizers and clipping, from gradients that are given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from export.parameter_groups import rates
from export.step_functions import STEP_SLOT
from export.training_step import StepSpec

_SLOTS = {"momentum_buffer": "momentum", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}


class UpdateReference:
    """Factors and torch's optimizer over them.

    Adam's weight decay is added to the gradient here, by a product and a sum. Torch's own rule does both in one
    rounding where the processor can. Where a gradient and its decay cancel, that one is exact, and Adam divides what is
    left by its size: a graph that rounds twice, as ONNX does, was then 40 times further off than torch float32.

    Args:
        factors: where they start; moved in place.
        values: of the ``hyper`` inputs, by name.
    """

    def __init__(self, spec: StepSpec, factors: Mapping[str, Tensor], values: Mapping[str, np.ndarray]) -> None:
        self._spec = spec
        self._hyper = {name: float(values[name]) for name in spec.hyper}
        self._decay: dict[str, float] = {}
        self._factors = {name: nn.Parameter(value) for name, value in factors.items()}
        own = rates(spec, self._factors)
        if spec.optimizer.kind == "adam":
            self._decay = {n: self._hyper[rate.weight_decay] for n, rate in own.items() if rate.weight_decay}
        groups: list[dict[str, Any]] = [
            {
                "params": [p for n, p in self._factors.items() if own[n] == rate],
                "lr": self._hyper["lr"] * self._hyper.get(rate.lr_factor, 1.0),
                "weight_decay": 0.0 if self._decay else self._hyper.get(rate.weight_decay, 0.0),
            }
            for rate in dict.fromkeys(own.values())
        ]
        rule, lr = spec.optimizer, self._hyper["lr"]
        self._optimizer: torch.optim.Optimizer
        if rule.kind == "sgd":
            momentum = self._hyper.get("momentum", 0.0)
            self._optimizer = torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=rule.nesterov, foreach=False)
        else:
            kind = torch.optim.Adam if rule.kind == "adam" else torch.optim.AdamW
            betas = (self._hyper["beta1"], self._hyper["beta2"])
            self._optimizer = kind(groups, lr=lr, betas=betas, eps=self._hyper["eps"], foreach=False)

    def step(self, gradients: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Move by ``gradients``; every factor and slot as it is then."""
        for name, factor in self._factors.items():
            factor.grad = torch.from_numpy(np.array(gradients[name])).to(factor.dtype)
        if self._spec.clip_norm:
            nn.utils.clip_grad_norm_(list(self._factors.values()), self._hyper["clip_norm"], foreach=False)
        for name, decay in self._decay.items():
            factor = self._factors[name]
            assert factor.grad is not None
            factor.grad = factor.grad + factor.detach() * decay
        self._optimizer.step()
        state = {name: _array(factor) for name, factor in self._factors.items()}
        for name, factor in self._factors.items():
            for key, value in self._optimizer.state[factor].items():
                if key in _SLOTS and value is not None:
                    state[f"{name}#{_SLOTS[key]}"] = _array(value)
                elif key == "step":
                    state[STEP_SLOT] = _array(torch.as_tensor(value))
        return state


def _array(value: Tensor) -> np.ndarray:
    copied: np.ndarray = value.detach().double().clone().numpy()
    return copied
