"""The same training step in plain torch: autograd, torch's own losses, clipping and optimizers, in any float type.

It shares nothing with the traced step but the prepared module (norm modes); the parity gate compares the two.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from export.draws import Draws, draws_of, fed, has_draws, without_draws
from export.forms.kept_activations import keeping_activations
from export.model_call import ModelCall
from export.parameter_groups import rates
from export.prepared_module import prepared_module
from export.step_functions import check_pair
from export.task_steps import evaluation_sums
from export.tasks.resolved import task_of
from export.training_step import StepSpec


@dataclass
class Trace:
    """What one reference run gave, as arrays of the run's float type.

    Attributes:
        losses: one per step.
        gradients: of the first step, by parameter.
        states: per step, every tensor the step writes: parameters, slots, accumulators, buffers.
    """

    losses: list[float]
    gradients: dict[str, np.ndarray]
    states: list[dict[str, np.ndarray]]


class ReferenceStep:
    """A module and torch's own optimizer, loaded with named values and stepped."""

    def __init__(self, module: nn.Module, spec: StepSpec, values: Mapping[str, np.ndarray], dtype: torch.dtype) -> None:
        self.spec, self.dtype = spec, dtype
        prepared = prepared_module(module, spec)
        self.draws = _draws(module, prepared, spec) if has_draws(values) else ()
        self.drawn = {d.spec.name: torch.from_numpy(np.array(values[d.spec.name])) for d in self.draws}
        self.module = prepared.to(dtype)
        self.hyper = {n: float(values[n]) for n in spec.hyper}
        with torch.no_grad():
            for name, tensor in [*self.module.named_parameters(), *self.module.named_buffers()]:
                if name in values:
                    tensor.copy_(torch.from_numpy(np.array(values[name])))
        for name, parameter in self.module.named_parameters():
            parameter.requires_grad_(name not in spec.frozen)
        self.trained = {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        for pair in spec.frobenius:
            check_pair(pair, dict(self.module.named_parameters()))
        self.optimizer = self._optimizer()
        self.squares = {n: torch.zeros_like(self.trained[n]) for n in spec.squared_gradient}
        self.masks = {n: torch.from_numpy(np.array(values[f"{n}#mask"])) for n in spec.masked if n in self.trained}
        self.teacher = self._teacher(values) if spec.distillation else None
        self.received = {
            n: torch.from_numpy(np.array(values[f"{n}#teacher"])).to(dtype) for n in self.trained if spec.proximal
        }
        self.corrections = {
            n: torch.from_numpy(np.array(values[f"{n}#correction"])).to(dtype) for n in self.trained if spec.corrected
        }
        mask = values.get("label_mask")
        self.mask = None if mask is None else torch.from_numpy(np.array(mask)).to(dtype)
        self.x = _fed(values, "input", dtype)
        if spec.task:
            self.task = task_of(spec, self.module)
            self.batch = _batch(spec, values, dtype)
        else:
            self.target = _fed(values, "target", dtype)

    def run(self, steps: int, trace: Trace | None = None, *, states: bool = True) -> Trace:
        """Step ``steps`` times on the one batch; goes on with ``trace`` where one is given.

        Args:
            states: whether the trace gets every step's state, a model each.
        """
        trace = Trace([], {}, []) if trace is None else trace
        for _ in range(steps):
            self.optimizer.zero_grad(set_to_none=True)
            with fed(self.draws, self.drawn):
                with keeping_activations(self.spec, self._there()):
                    loss = self._objective()
                (loss + self._penalty()).backward()
            for parameter in self.trained.values():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            if not trace.losses:
                trace.gradients = {n: _array(p.grad) for n, p in self.trained.items()}
            for name in self.squares:
                self.squares[name] += self.trained[name].grad.detach() ** 2
            for name, mask in self.masks.items():
                self.trained[name].grad *= mask
            if self.spec.clip_norm:
                nn.utils.clip_grad_norm_(list(self.trained.values()), self.hyper["clip_norm"], foreach=False)
            before = {n: self.trained[n].detach().clone() for n in self.masks}
            self.optimizer.step()
            for name, mask in self.masks.items():
                self._hold_still(self.trained[name], mask, before[name])
            trace.losses.append(float(loss.detach()))
            if states:
                trace.states.append(self.state())
        return trace

    def start_from(self, other: ReferenceStep) -> None:
        """Take the present state of ``other`` (or one's own), rounded to float32 as a graph is given it."""
        with torch.no_grad():
            for mine, theirs in zip(self._held(), other._held(), strict=True):
                mine.copy_(theirs.float())

    def _held(self) -> list[Tensor]:
        slots = [self.optimizer.state[p] for p in self.trained.values()]
        values = [v for slot in slots for _, v in sorted(slot.items()) if isinstance(v, Tensor)]
        return [*self.module.parameters(), *self.module.buffers(), *values, *self.squares.values()]

    def _there(self) -> list[Tensor]:
        """Parameters, buffers and batch."""
        batch = [self.x, *self.drawn.values(), *(self.batch.values() if self.spec.task else [self.target])]
        return [*self.module.parameters(), *self.module.buffers(), *batch]

    def _objective(self) -> Tensor:
        """The loss without penalties."""
        if self.spec.task:
            return self.task.training_step(ModelCall(self.module), self.batch)
        logits = self.masked(self.module(self.x))
        return self.loss(logits) + self._distillation(logits)

    def masked(self, logits: Tensor) -> Tensor:
        """Logits with those of absent classes set to 0."""
        return logits if self.mask is None else logits * self.mask.reshape([1, -1] + [1] * (logits.dim() - 2))

    def loss(self, logits: Tensor) -> Tensor:
        """Mean loss of masked logits."""
        if self.spec.loss == "bce_one_hot":
            one_hot = F.one_hot(self.target, self.spec.classes).movedim(-1, 1).to(logits.dtype)
            return F.binary_cross_entropy_with_logits(logits, one_hot)
        return F.cross_entropy(logits, self.target)

    def _distillation(self, logits: Tensor) -> Tensor:
        """weight T^2 KL(teacher || student), mean over targets."""
        if self.teacher is None:
            return torch.zeros((), dtype=self.dtype)
        temperature = self.hyper["distillation_temperature"]
        with torch.no_grad():
            known = F.softmax(self.masked(self.teacher(self.x)) / temperature, 1)
        ours = F.log_softmax(logits / temperature, 1)
        divergence = F.kl_div(ours, known, reduction="sum") / self.target.numel()
        return self.hyper["distillation_weight"] * temperature**2 * divergence

    def _teacher(self, values: Mapping[str, np.ndarray]) -> nn.Module:
        """The module with its ``#teacher`` values, normalising as the student does, without its draws."""
        teacher = without_draws(self.module) if self.draws else copy.deepcopy(self.module)
        with torch.no_grad():
            for name, tensor in [*teacher.named_parameters(), *teacher.named_buffers()]:
                if f"{name}#teacher" in values:
                    tensor.copy_(torch.from_numpy(np.array(values[f"{name}#teacher"])))
        return teacher

    def _hold_still(self, parameter: Tensor, mask: Tensor, before: Tensor) -> None:
        """Undo what decay did to masked entries, in the value and in the optimizer's slots."""
        with torch.no_grad():
            parameter.copy_(torch.where(mask, parameter, before))
            for key, value in self.optimizer.state[parameter].items():
                if key != "step" and value is not None:
                    value *= mask

    def _penalty(self) -> Tensor:
        """lambda/2 * sum of ||U V||_F^2, with the product formed as the dense layer it stands for; and mu/2 * sum of
        ||w - w_received||^2; and the sum of <correction, w>."""
        total = torch.zeros((), dtype=self.dtype)
        named = dict(self.module.named_parameters())
        for pair in self.spec.frobenius:
            u, v = named[pair.u], named[pair.v]
            total = total + torch.tensordot(u, v, dims=([1], [0])).square().sum()
        total = 0.5 * self.hyper["frobenius_lambda"] * total if self.spec.frobenius else total
        for name, received in self.received.items():
            total = total + 0.5 * self.hyper["proximal_mu"] * (named[name] - received).square().sum()
        for name, correction in self.corrections.items():
            total = total + (correction * named[name]).sum()
        return total

    def _optimizer(self) -> torch.optim.Optimizer:
        rule, hyper = self.spec.optimizer, self.hyper
        own = rates(self.spec, self.trained)
        groups: list[dict[str, Any]] = [
            {
                "params": [p for n, p in self.trained.items() if own[n] == rate],
                "lr": hyper["lr"] * hyper.get(rate.lr_factor, 1.0),
                "weight_decay": hyper.get(rate.weight_decay, 0.0),
            }
            for rate in dict.fromkeys(own.values())
        ]
        if rule.kind == "sgd":
            momentum = hyper.get("momentum", 0.0)
            return torch.optim.SGD(groups, lr=hyper["lr"], momentum=momentum, nesterov=rule.nesterov, foreach=False)
        kind = torch.optim.Adam if rule.kind == "adam" else torch.optim.AdamW
        betas = (hyper["beta1"], hyper["beta2"])
        return kind(groups, lr=hyper["lr"], betas=betas, eps=hyper["eps"], foreach=False)

    def state(self) -> dict[str, np.ndarray]:
        """Every tensor that a step writes, as it is now."""
        state = {n: _array(p) for n, p in self.trained.items()}
        names = {id(p): n for n, p in self.trained.items()}
        for parameter, slots in self.optimizer.state.items():
            for key, value in slots.items():
                if key in ("momentum_buffer", "exp_avg", "exp_avg_sq") and value is not None:
                    state[f"{names[id(parameter)]}#{key.removesuffix('_buffer')}"] = _array(value)
                elif key == "step":
                    state["optimizer#step"] = _array(torch.as_tensor(value))
        state |= {f"{n}#squared_gradient": _array(v) for n, v in self.squares.items()}
        return state | {n: _array(b) for n, b in self.module.named_buffers() if b.is_floating_point()}


_DRAWS: WeakKeyDictionary[nn.Module, dict[str, Draws]] = WeakKeyDictionary()
"""Module -> where it draws, in a step and set up as it is. A gate makes dozens of reference steps of one module, and to
run it under observation took 40 % of the export of a network with dropout (measured, mobilebert)."""


def _draws(module: nn.Module, prepared: nn.Module, spec: StepSpec) -> Draws:
    known = _DRAWS.setdefault(module, {})
    key = f"{spec} {module}"
    if key not in known:
        known[key] = draws_of(prepared, spec)
    return known[key]


def evaluated(
    module: nn.Module, spec: StepSpec, values: Mapping[str, np.ndarray], dtype: torch.dtype
) -> dict[str, np.ndarray]:
    """Summed loss, logits and a task's sums of the values in evaluation mode, as program ``eval`` names them."""
    step = ReferenceStep(module, spec, values, dtype)
    part = step.module.eval()
    with torch.no_grad():
        if spec.task:
            return {n: _array(v) for n, v in evaluation_sums(step.task, ModelCall(part), step.batch, spec.task).items()}
        logits = step.masked(part(step.x))
        loss = step.loss(logits) * step.target.numel()
    return {"loss": _array(loss), "logits": _array(logits)}


def forward_once(module: nn.Module, spec: StepSpec, values: Mapping[str, np.ndarray], dtype: torch.dtype) -> None:
    """One forward pass of ``module`` as it is, for what it moves."""
    if spec.task:
        task_of(spec, module).training_step(ModelCall(module), _batch(spec, values, dtype))
    else:
        module(_fed(values, "input", dtype))


def module_with(module: nn.Module, values: Mapping[str, np.ndarray]) -> nn.Module:
    """A copy of ``module`` holding the named values."""
    copied = copy.deepcopy(module)
    with torch.no_grad():
        for name, tensor in [*copied.named_parameters(), *copied.named_buffers()]:
            if name in values:
                tensor.copy_(torch.from_numpy(np.array(values[name])))
    return copied


def _batch(spec: StepSpec, values: Mapping[str, np.ndarray], dtype: torch.dtype) -> dict[str, Tensor]:
    return {"x": _fed(values, "input", dtype), **{t.name: _fed(values, t.tensor, dtype) for t in spec.tensors}}


def _fed(values: Mapping[str, np.ndarray], name: str, dtype: torch.dtype) -> Tensor:
    value = torch.from_numpy(np.array(values[name]))
    return value.to(dtype) if value.is_floating_point() else value


def _array(value: Tensor | None) -> np.ndarray:
    """A copy in row order."""
    assert value is not None
    copied: np.ndarray = value.detach().clone(memory_format=torch.contiguous_format).numpy()
    return copied
