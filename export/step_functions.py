"""The training step in torch operations: losses, penalty, clipping and the optimizers' formulas, without state.

Written out instead of calling ``torch.optim`` so that it can be traced; :mod:`export.reference` steps with torch's own
optimizers, and the parity gate compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from edge.contracts.tensors import CORRECTION, TEACHER
from export.parameter_groups import rates
from export.training_step import FactorPair, StepSpec

STEP_SLOT = "optimizer#step"
"""Adam's step count, a float32 scalar (exact up to 2**24 steps)."""


def masked_logits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Logits [batch, classes, ...] with those of absent classes set to 0 (not -inf). Source: HeteroFL."""
    if mask is None:
        return logits
    return logits * mask.reshape([1, -1] + [1] * (logits.dim() - 2))


def summed_loss(logits: Tensor, target: Tensor, spec: StepSpec) -> tuple[Tensor, Tensor]:
    """Loss summed over all targets, and the number of correct ones (int64).

    The one-hot form keeps forward and backward elementwise; gather and scatter run far slower in the runtimes.
    """
    classes = torch.arange(spec.classes, device=logits.device).reshape([1, -1] + [1] * (logits.dim() - 2))
    is_target = target.unsqueeze(1) == classes
    one_hot = is_target.to(logits.dtype)
    if spec.loss == "bce_one_hot":
        # Binary cross-entropy on logits in its stable form, mean over classes.
        loss = (F.softplus(logits) - logits * one_hot).sum() / spec.classes
    else:
        loss = -(F.log_softmax(logits, 1) * one_hot).sum()
    correct = (logits.detach().argmax(1) == target).sum()
    return loss, correct


def distillation_loss(logits: Tensor, teacher: Tensor, weight: Tensor, temperature: Tensor) -> Tensor:
    """weight T^2 KL(softmax(teacher / T) || softmax(logits / T)), summed over all targets; classes in dim 1.

    Source: FedHM preprint, self-distillation.
    """
    known = F.log_softmax(teacher / temperature, 1)
    ours = F.log_softmax(logits / temperature, 1)
    return weight * temperature * temperature * (torch.exp(known) * (known - ours)).sum()


def frobenius_gradients(u: Tensor, v: Tensor, weight: Tensor | float) -> tuple[Tensor, Tensor]:
    """Gradients of weight/2 * ||U V||_F^2: weight * U V V^T and weight * U^T U V, through rank x rank Gram matrices.

    Args:
        u: [out, rank, ...]
        v: [rank, in, ...]

    Source: FedHM, Frobenius decay.
    """
    rank = v.shape[0]
    u_R = u.transpose(0, 1).reshape(rank, -1)
    v_R = v.reshape(rank, -1)
    gradient_u = weight * ((v_R @ v_R.t()) @ u_R)
    gradient_v = weight * ((u_R @ u_R.t()) @ v_R)
    swapped = [u.shape[1], u.shape[0], *u.shape[2:]]
    return gradient_u.reshape(swapped).transpose(0, 1), gradient_v.reshape(v.shape)


def add_penalty(gradients: dict[str, Tensor], params: Mapping[str, Tensor], spec: StepSpec, weight: Tensor) -> None:
    """Add the Frobenius penalty of every pair to ``gradients`` in place; a frozen factor gets none."""
    for pair in spec.frobenius:
        check_pair(pair, params)
        for name, extra in zip(
            (pair.u, pair.v), frobenius_gradients(params[pair.u], params[pair.v], weight), strict=True
        ):
            if name in gradients:
                gradients[name] = gradients[name] + extra


def add_proximal(gradients: dict[str, Tensor], values: Mapping[str, Tensor], weight: Tensor) -> None:
    """Add the gradient of weight/2 * ||w - w_received||^2 to those of every parameter, in place.

    Source: FedProx (Li et al., MLSys 2020), equation 2.
    """
    for name, gradient in gradients.items():
        gradients[name] = gradient + weight * (values[name] - values[name + TEACHER])


def add_correction(gradients: dict[str, Tensor], values: Mapping[str, Tensor], share: float = 1.0) -> None:
    """Add ``share`` of each parameter's correction c - c_i to its gradient, in place.

    Source: SCAFFOLD (Karimireddy et al., ICML 2020), equation 3.
    """
    for name, gradient in gradients.items():
        correction = values[name + CORRECTION]
        gradients[name] = gradient + (correction if share == 1.0 else share * correction)


def check_pair(pair: FactorPair, params: Mapping[str, Tensor]) -> None:
    """Check that both factors exist and share their rank.

    Raises:
        ValueError: naming the pair.
    """
    missing = [name for name in (pair.u, pair.v) if name not in params]
    if missing:
        raise ValueError(f"factor pair ({pair.u}, {pair.v}): the module has no parameter {missing}")
    u, v = params[pair.u], params[pair.v]
    if u.dim() < 2 or u.shape[1] != v.shape[0]:
        raise ValueError(f"factor pair: {pair.u} {tuple(u.shape)} and {pair.v} {tuple(v.shape)} do not share a rank")


def clipped(gradients: dict[str, Tensor], clip_norm: Tensor) -> dict[str, Tensor]:
    """Gradients scaled by min(1, clip_norm / (total norm + 1e-6)), as ``torch.nn.utils.clip_grad_norm_``."""
    total = torch.stack([(g * g).sum() for g in gradients.values()]).sum().sqrt()
    coefficient = torch.clamp(clip_norm / (total + 1e-6), max=1.0)
    return {name: g * coefficient for name, g in gradients.items()}


def updated(
    spec: StepSpec,
    params: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    slots: Mapping[str, Tensor],
    hyper: Mapping[str, Tensor],
    masks: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """New values of every parameter with a gradient and of its slots, by name.

    Args:
        gradients: masked already.
        masks: 1.0 for entries that move, by parameter; decay is masked with them.
    """
    decayed = {n: params[n] * masks[n] if n in masks else params[n] for n in gradients}
    rule = _sgd if spec.optimizer.kind == "sgd" else _adam
    return rule(spec, params, gradients, slots, hyper, decayed)


def _sgd(
    spec: StepSpec,
    params: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    slots: Mapping[str, Tensor],
    hyper: Mapping[str, Tensor],
    decayed: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    rule, new = spec.optimizer, {}
    for name, rate in rates(spec, gradients).items():
        direction = gradients[name]
        if rate.weight_decay:
            direction = direction + hyper[rate.weight_decay] * decayed[name]
        if rule.momentum:
            velocity = hyper["momentum"] * slots[f"{name}#momentum"] + direction
            new[f"{name}#momentum"] = velocity
            direction = direction + hyper["momentum"] * velocity if rule.nesterov else velocity
        new[name] = params[name] - rate.lr(hyper) * direction
    return new


def _adam(
    spec: StepSpec,
    params: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    slots: Mapping[str, Tensor],
    hyper: Mapping[str, Tensor],
    decayed: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    rule, beta1, beta2 = spec.optimizer, hyper["beta1"], hyper["beta2"]
    step = slots[STEP_SLOT] + 1.0
    new = {STEP_SLOT: step}
    step_size = hyper["lr"] / (1.0 - torch.pow(beta1, step))
    root_correction = torch.sqrt(1.0 - torch.pow(beta2, step))
    for name, rate in rates(spec, gradients).items():
        value, direction = params[name], gradients[name]
        if rate.weight_decay:
            if rule.kind == "adamw":
                value = value - rate.lr(hyper) * hyper[rate.weight_decay] * decayed[name]
            else:
                direction = direction + hyper[rate.weight_decay] * decayed[name]
        mean = beta1 * slots[f"{name}#exp_avg"] + (1.0 - beta1) * direction
        square = beta2 * slots[f"{name}#exp_avg_sq"] + (1.0 - beta2) * direction * direction
        new[f"{name}#exp_avg"], new[f"{name}#exp_avg_sq"] = mean, square
        size = step_size * hyper[rate.lr_factor] if rate.lr_factor else step_size
        new[name] = value - size * mean / (torch.sqrt(square) / root_correction + hyper["eps"])
    return new
