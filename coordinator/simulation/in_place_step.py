"""The end of a simulated step in place: torch's own fused SGD, and large linear layers without a gradient tensor.

Loss and gradients are the exported step's (:mod:`export.programs`). What follows is the same rule, but written over
parameters and slots instead of into new tensors, so results differ from the written-out step in the last bits of
float32: an SGD step of 4.3 million parameters takes half the time.

A large linear layer's weight gradient is never made: of its two factors, output gradients and inputs of the batch,
:mod:`coordinator.simulation.large_weights` makes what moves the weight.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd
from torch.utils._python_dispatch import TorchDispatchMode

from coordinator.simulation.large_weights import LargeWeights
from coordinator.submodels.precision import multiplying_in
from export.parameter_groups import rates
from export.program_inputs import mask_name, square_name
from export.programs import GradientFunction, ProgramFunction
from export.step_functions import add_correction, add_penalty, add_proximal, clipped
from export.training_step import StepSpec

LARGE = 1 << 18
"""Entries of a weight whose gradient is not made. Measured on x86-64: below it the products are no faster."""


def in_place_step(function: ProgramFunction, spec: StepSpec) -> InPlaceStep | None:
    """The step of program ``function`` in place; None where only the written-out one is known."""
    if function.gradients is None or spec.optimizer.kind != "sgd" or spec.accumulates or spec.sparse:
        return None
    rate = rates(spec, [n for n, _ in function.module.named_parameters()])
    if any(rate[name].weight_decay for name in spec.masked if name in rate):
        return None  # what a mask drops does not decay, and the fused rule knows no masks
    return InPlaceStep(function.module, function.gradients, spec)


class InPlaceStep:
    """Steps on tensors that it writes to.

    Args:
        module: what ``gradients`` calls; the forward of its large linear layers is replaced.

    Attributes:
        large: weights whose gradient is not made.
    """

    def __init__(self, module: nn.Module, gradients: GradientFunction, spec: StepSpec) -> None:
        self._gradients, self._spec = gradients, spec
        self._trained = [n for n, _ in module.named_parameters() if n not in spec.frozen]
        self._rates = rates(spec, self._trained)
        self._products: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        layers = {n: v for n, v in _large_layers(module, spec).items() if not self._rates[n].weight_decay}
        self.large = tuple(layers)
        self._weights: LargeWeights | None = None
        self._read_elsewhere: frozenset[str] | None = None
        for name, layer in layers.items():
            layer.forward = partial(self._linear, name, layer)

    def keeps(self) -> tuple[str, ...]:
        """Large weights whose factors may be kept: only the layer itself reads them."""
        return tuple(name for name in self.large if name not in (self._read_elsewhere or ()))

    def __call__(self, values: dict[str, Tensor], weights: LargeWeights) -> dict[str, Tensor]:
        """One step; loss and metrics.

        Args:
            values: named; parameters, slots, sums and running statistics are written to, large weights by ``weights``.
        """
        spec = self._spec
        self._products.clear()
        self._weights = weights
        try:
            reported, reached = self._reached(values)
        finally:
            self._weights = None
        with torch.no_grad():
            products = {n: self._products[n] for n in self.large if self._products[n]}
            gradients = {
                n: torch.zeros_like(values[n]) if g is None else g for n, g in reached.items() if n not in products
            }
            for name in self.large:
                if name not in products or (rest := reached[name]) is None:
                    continue
                products.pop(name)  # the weight is used elsewhere, too
                gradients[name] = rest + sum(d.t() @ x for d, x in self._products[name])
            self._penalise(gradients, values)
            for name in spec.squared_gradient:
                if name in gradients:
                    values[square_name(name)].addcmul_(gradients[name], gradients[name])
            for name in spec.masked:
                if name in gradients:
                    gradients[name] = _masked(gradients[name], values[mask_name(name)])
            if spec.clip_norm:
                gradients = clipped(gradients, values["clip_norm"])
            decay = float(values["momentum"]) if spec.optimizer.momentum else None
            for name, factors in products.items():
                weights.step(name, factors, float(self._rates[name].lr(values)), decay)
            self._update(gradients, values, weights)
        return reported

    def _reached(self, values: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor | None]]:
        """As the gradient function; the first time it is seen what else reads large weights, before they move."""
        assert self._weights is not None
        with multiplying_in(self._weights.dtype, next(iter(values.values())).device.type):
            if self._read_elsewhere is not None or not self.large:
                return self._gradients(values)
            with _Reads(self._weights, {name: values[name] for name in self.large}) as reads:
                found = self._gradients(values)
        # Once it is made a leaf of autograd's.
        self._read_elsewhere = frozenset(name for name, count in reads.counts.items() if count > 1)
        for name in self._read_elsewhere:
            self._weights.settle_in(name, values)
        return found

    def _linear(self, name: str, layer: nn.Linear, x: Tensor) -> Tensor:
        """The forward of a large layer; outside of a step its own."""
        if self._weights is None:
            return nn.functional.linear(x, layer.weight, layer.bias)

        def take(d_BO: Tensor, x_BI: Tensor) -> None:
            self._products[name].append((d_BO, x_BI))

        result: Tensor = _Product.apply(x, layer.weight, layer.bias, name, self._weights, take)
        return result

    def _penalise(self, gradients: dict[str, Tensor], values: dict[str, Tensor]) -> None:
        spec = self._spec
        if spec.frobenius:
            add_penalty(gradients, values, spec, values["frobenius_lambda"])
        if spec.proximal:
            add_proximal(gradients, values, values["proximal_mu"])
        if spec.corrected:
            add_correction(gradients, values)

    def _update(self, gradients: dict[str, Tensor], values: dict[str, Tensor], weights: LargeWeights) -> None:
        """torch's SGD of all other parameters, those of one rate together."""
        groups: dict[tuple[float, float], list[str]] = defaultdict(list)
        for name in gradients:
            rate = self._rates[name]
            decay = float(values[rate.weight_decay]) if rate.weight_decay else 0.0
            groups[float(rate.lr(values)), decay].append(name)
            if name in self.large:
                weights.settle_in(name, values)
        rule = self._spec.optimizer
        for (lr, decay), names in groups.items():
            sgd(
                [values[n] for n in names],
                [_laid_out_as(values[n], gradients[n]) for n in names],
                [values[f"{n}#momentum"] if rule.momentum else None for n in names],
                fused=True,
                weight_decay=decay,
                momentum=float(values["momentum"]) if rule.momentum else 0.0,
                lr=lr,
                dampening=0.0,
                nesterov=rule.nesterov,
                maximize=False,
            )


def _large_layers(module: nn.Module, spec: StepSpec) -> dict[str, nn.Linear]:
    """Weight -> the plain linear layer that it is of, of those whose gradient nothing but the rule reads."""
    if spec.proximal or spec.corrected or spec.clip_norm or spec.optimizer.nesterov:
        return {}
    taken = {*spec.frozen, *spec.squared_gradient, *spec.masked, *spec.factors}
    shared = [p for _, p in module.named_parameters(remove_duplicate=False)]
    return {
        f"{path}.weight": layer
        for path, layer in module.named_modules()
        if type(layer) is nn.Linear
        and path
        and layer.weight.numel() >= LARGE
        and f"{path}.weight" not in taken
        and sum(p is layer.weight for p in shared) == 1
        and not (layer._forward_hooks or layer._forward_pre_hooks)
        and "forward" not in vars(layer)
    }


class _Product(torch.autograd.Function):  # type: ignore[misc]
    """x W^T + b, whose backward pass hands the two factors of W's gradient to ``take`` and gives W none."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        name: str,
        weights: LargeWeights,
        take: Callable[..., None],
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.name, ctx.weights, ctx.take = name, weights, take
        product = weights.forward(name, weight, x)
        return product if bias is None else product + bias

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        (d,) = gradients
        d_BO = d.reshape(-1, d.shape[-1])
        ctx.take(d_BO, x.reshape(-1, x.shape[-1]))
        return (
            ctx.weights.backward(ctx.name, weight, d).to(x.dtype) if ctx.needs_input_grad[0] else None,
            None,
            d_BO.sum(0) if ctx.needs_input_grad[2] else None,
            None,
            None,
            None,
        )


class _Reads(TorchDispatchMode):  # type: ignore[misc]
    """How often operations read each of some weights, outside of products of ``weights``."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """As of the mode in :mod:`export.draws`."""
        return False

    def __init__(self, weights: LargeWeights, named: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.counts = dict.fromkeys(named, 0)
        self._weights = weights
        self._names = {value.untyped_storage().data_ptr(): name for name, value in named.items()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in () if self._weights.is_in_product else [*args, *(kwargs or {}).values()]:
            for part in value if isinstance(value, (list, tuple)) else (value,):
                name = self._names.get(part.untyped_storage().data_ptr()) if isinstance(part, Tensor) else None
                if name is not None:
                    self.counts[name] += 1
        return func(*args, **(kwargs or {}))


def _masked(gradient: Tensor, mask: Tensor) -> Tensor:
    """The entries under ``mask``, 0 elsewhere, in a tensor of its own: two weights may share one gradient.

    NumPy reads the mask as it is; torch makes float32 of it first, which takes twice as long (x86-64).
    """
    if gradient.device.type != "cpu" or gradient.dtype != torch.float32:
        return gradient * mask.to(gradient.dtype)
    return torch.from_numpy(np.multiply(gradient.numpy(), mask.numpy()))


def _laid_out_as(parameter: Tensor, gradient: Tensor) -> Tensor:
    """``gradient`` in the strides of ``parameter``: the fused rule goes through memory, not through indices."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)
