"""A copy of the user's module in the form that is traced: norm mode applied, layers without a step refused by name."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from edge.contracts.errors import ExportRefused
from export.language.held_base import shared_values
from export.training_step import StepSpec

RUNNING_STATISTICS = ("running_mean", "running_var")


def prepared_module(module: nn.Module, spec: StepSpec) -> nn.Module:
    """A deep copy in train mode whose batch norms follow ``spec.norm`` and ``spec.frozen_norm``.

    In ``batch`` mode the running statistics are gone from the copy; static frozen norms keep theirs, in eval mode.

    Raises:
        ExportRefused: naming a layer that draws its windows, keeps hooks, or averages cumulatively.
        ValueError: the specification names parameters that the module does not have.
    """
    _check_names(module, spec)
    prepared = copy.deepcopy(module, dict(shared_values(module))).float().train()
    for name, part in prepared.named_modules():
        if isinstance(part, nn.FractionalMaxPool2d | nn.FractionalMaxPool3d):
            raise ExportRefused(name, f"{type(part).__name__} draws its windows at random", instead="MaxPool2d")
        if isinstance(part, _InstanceNorm) and part.track_running_stats:
            raise ExportRefused(name, "InstanceNorm with running statistics", instead="track_running_stats=False")
        if isinstance(part, nn.SyncBatchNorm | nn.LazyBatchNorm1d | nn.LazyBatchNorm2d):
            raise ExportRefused(
                name, f"{type(part).__name__} needs several processes or a first batch", instead="BatchNorm"
            )
        if not isinstance(part, _BatchNorm):
            continue
        part.num_batches_tracked = None  # an int64 counter nothing reads unless momentum is None
        if spec.frozen_norm == "static" and (is_frozen(name, prepared, spec) or f"{name}.weight" in spec.frozen):
            _require_statistics(name, part)
            part.eval()
        elif spec.norm == "batch":
            drop_statistics(part)
        elif part.track_running_stats and part.momentum is None:
            raise ExportRefused(name, "BatchNorm with momentum=None averages cumulatively", instead="a fixed momentum")
    return prepared


def batch_norms(module: nn.Module) -> dict[str, _BatchNorm]:
    """Batch norms by path; their running statistics are what the ``stats`` program fills."""
    return {name: part for name, part in module.named_modules() if isinstance(part, _BatchNorm)}


def moving_norms(module: nn.Module) -> list[str]:
    """Paths of batch norms whose statistics a step, or the ``stats`` pass, may move; static frozen ones keep theirs.

    Args:
        module: as :func:`prepared_module` gives it, in the modes it has there.
    """
    return [name for name, norm in batch_norms(module).items() if norm.training]


def with_statistics(module: nn.Module) -> nn.Module:
    """A float32 copy whose every batch norm has running statistics; what the ``stats`` pass traces and evaluates."""
    copied = copy.deepcopy(module).float()
    for norm in batch_norms(copied).values():
        norm.num_batches_tracked = None
        if norm.running_mean is None:
            norm.track_running_stats = True
            norm.running_mean = torch.zeros(norm.num_features)
            norm.running_var = torch.ones(norm.num_features)
    return copied


def drop_statistics(norm: _BatchNorm) -> None:
    """Make ``norm`` normalise with batch statistics in training and evaluation."""
    norm.track_running_stats = False
    norm.running_mean = norm.running_var = norm.num_batches_tracked = None


def is_frozen(name: str, module: nn.Module, spec: StepSpec) -> bool:
    """Whether the layer ``name`` is frozen: all its parameters are, or all those of its nearest ancestor with any."""
    frozen = set(spec.frozen)
    while frozen:
        path = f"{name}." if name else ""
        inside = [p for p, _ in module.named_parameters() if p.startswith(path)]
        if inside:
            return frozen.issuperset(inside)
        if not name:
            return False
        name = name.rpartition(".")[0]
    return False


def _check_names(module: nn.Module, spec: StepSpec) -> None:
    known = {name for name, _ in module.named_parameters()}
    wanted = {*spec.frozen, *spec.squared_gradient, *spec.factors}
    unknown = sorted(wanted - known)
    if unknown:
        raise ValueError(
            f"the step names parameters {unknown[:3]} that the module does not have; it has {sorted(known)[:5]}..."
        )
    if known <= set(spec.frozen):
        raise ValueError(f"all {len(known)} parameters are frozen, so there is no training step; freeze fewer")
    both = sorted(set(spec.frozen) & set(spec.squared_gradient))
    if both:
        raise ValueError(f"{both[:3]} are frozen and have no gradient to accumulate; drop one of the two")


def _require_statistics(name: str, norm: _BatchNorm) -> None:
    if norm.running_mean is None:
        raise ExportRefused(
            name, "a frozen norm without running statistics cannot be static", instead="frozen_norm='batch'"
        )
