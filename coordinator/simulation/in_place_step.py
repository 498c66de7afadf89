"""The end of a simulated step in place: torch's own fused SGD, and large linear layers without a gradient tensor.

Loss and gradients are the exported step's (:mod:`export.programs`). What follows is the same rule, but written over
parameters and slots instead of into new tensors, so results differ from the written-out step in the last bits of
float32: an SGD step of 4.3 million parameters takes half the time.

A large linear layer's weight gradient is never made: its two factors (output gradients and inputs of the batch) are
multiplied straight into the momentum. Momentum is held divided by its decay since it was last brought up to date, which
is what makes adding a product all there is to do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from export.parameter_groups import rates
from export.program_inputs import mask_name, square_name
from export.programs import GradientFunction, ProgramFunction
from export.step_functions import add_correction, add_penalty, add_proximal, clipped
from export.training_step import StepSpec

LARGE = 1 << 18
"""Entries of a weight whose gradient is not made. Measured on x86-64: below it the products are no faster."""

ROWS = 512
"""Of a weight that are updated at a time, while their momentum is in a core's cache."""

LEAST_SCALE = 1e-3
"""Momentum whose decay since it was brought up to date is less than this is brought up to date."""


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
    """

    def __init__(self, module: nn.Module, gradients: GradientFunction, spec: StepSpec) -> None:
        self._gradients, self._spec = gradients, spec
        self._trained = [n for n, _ in module.named_parameters() if n not in spec.frozen]
        self._rates = rates(spec, self._trained)
        self._products: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        layers = {n: v for n, v in _large_layers(module, spec).items() if not self._rates[n].weight_decay}
        self._large, self._is_stepping = tuple(layers), False
        for name, layer in layers.items():
            layer.forward = partial(self._linear, name, layer)

    def __call__(self, values: dict[str, Tensor], scales: dict[str, float]) -> dict[str, Tensor]:
        """One step; loss and metrics.

        Args:
            values: named; parameters, slots, sums and running statistics are written to.
            scales: large weight -> what its momentum is to be multiplied by; written to, empty before the first step.
        """
        spec = self._spec
        self._products.clear()
        self._is_stepping = True
        try:
            reported, reached = self._gradients(values)
        finally:
            self._is_stepping = False
        with torch.no_grad():
            products = {n: self._products[n] for n in self._large if self._products[n]}
            gradients = {
                n: torch.zeros_like(values[n]) if g is None else g for n, g in reached.items() if n not in products
            }
            for name in list(products):
                if (rest := reached[name]) is not None:  # the weight is used elsewhere, too
                    products.pop(name)
                    gradients[name] = rest + sum(d.t() @ x for d, x in self._products[name])
            self._penalise(gradients, values)
            for name in spec.squared_gradient:
                if name in gradients:
                    values[square_name(name)].addcmul_(gradients[name], gradients[name])
            for name in spec.masked:
                if name in gradients:
                    gradients[name] = gradients[name] * values[mask_name(name)].to(gradients[name].dtype)
            if spec.clip_norm:
                gradients = clipped(gradients, values["clip_norm"])
            for name, factors in products.items():
                self._multiply_in(name, factors, values, scales)
            self._update(gradients, values, scales)
        return reported

    def _linear(self, name: str, layer: nn.Linear, x: Tensor) -> Tensor:
        """The forward of a large layer; outside of a step its own."""
        if not self._is_stepping:
            return nn.functional.linear(x, layer.weight, layer.bias)

        def take(d_BO: Tensor, x_BI: Tensor) -> None:
            self._products[name].append((d_BO, x_BI))

        result: Tensor = _Product.apply(x, layer.weight, layer.bias, take)
        return result

    def _penalise(self, gradients: dict[str, Tensor], values: dict[str, Tensor]) -> None:
        spec = self._spec
        if spec.frobenius:
            add_penalty(gradients, values, spec, values["frobenius_lambda"])
        if spec.proximal:
            add_proximal(gradients, values, values["proximal_mu"])
        if spec.corrected:
            add_correction(gradients, values)

    def _multiply_in(
        self, name: str, factors: list[tuple[Tensor, Tensor]], values: dict[str, Tensor], scales: dict[str, float]
    ) -> None:
        """The rule of one large weight, by rows: momentum += product / scale; weight -= lr scale momentum."""
        weight, lr = values[name], float(self._rates[name].lr(values))
        terms = [(d_BO.t().contiguous(), x_BI) for d_BO, x_BI in factors]
        if not self._spec.optimizer.momentum:
            for d_OB, x_BI in terms:
                weight.addmm_(d_OB, x_BI, alpha=-lr)
            return
        slot, scale = values[f"{name}#momentum"], scales.get(name, 1.0) * float(values["momentum"])
        if scale < LEAST_SCALE:
            slot.mul_(scale)
            scale = 1.0
        for first in range(0, len(weight), ROWS):
            rows = slice(first, first + ROWS)
            for d_OB, x_BI in terms:
                slot[rows].addmm_(d_OB[rows], x_BI, alpha=1.0 / scale)
            weight[rows].add_(slot[rows], alpha=-lr * scale)
        scales[name] = scale

    def _update(self, gradients: dict[str, Tensor], values: dict[str, Tensor], scales: dict[str, float]) -> None:
        """torch's SGD of all other parameters, those of one rate together."""
        groups: dict[tuple[float, float], list[str]] = defaultdict(list)
        for name in gradients:
            rate = self._rates[name]
            decay = float(values[rate.weight_decay]) if rate.weight_decay else 0.0
            groups[float(rate.lr(values)), decay].append(name)
            settle(name, values, scales)
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


def settle(name: str, state: Mapping[str, Tensor], scales: dict[str, float]) -> None:
    """Bring the momentum of the weight ``name`` in ``state`` up to date."""
    if (scale := scales.pop(name, 1.0)) != 1.0:
        state[f"{name}#momentum"].mul_(scale)


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
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, take: Callable[..., None]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.take = take
        if x.dim() != 2:
            return nn.functional.linear(x, weight, bias)
        # The weight first: two thirds of the time of the other order at small batches.
        product = torch.mm(weight, x.t().contiguous()).t()
        return product if bias is None else product + bias

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        (d,) = gradients
        d_BO = d.reshape(-1, d.shape[-1])
        ctx.take(d_BO, x.reshape(-1, x.shape[-1]))
        return (
            d @ weight if ctx.needs_input_grad[0] else None,
            None,
            d_BO.sum(0) if ctx.needs_input_grad[2] else None,
            None,
        )


def _laid_out_as(parameter: Tensor, gradient: Tensor) -> Tensor:
    """``gradient`` in the strides of ``parameter``: the fused rule goes through memory, not through indices."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)
