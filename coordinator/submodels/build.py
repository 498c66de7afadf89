"""From a dense module and a cut to the module a device trains."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from coordinator.submodels.factorize import factorized_layer
from coordinator.submodels.lora import FORM, additive_layer
from coordinator.submodels.record import Cut, LayerCut
from edge.contracts.errors import PlanError

_FROZEN = LayerCut(frozen=True)
"""A record that only freezes, which may also name a parameter that no layer has alone (a transformer's positions)."""


def apply_cut(module: nn.Module, cut: Cut, tensors: Mapping[str, np.ndarray] | None = None) -> nn.Module:
    """A copy of ``module`` in the cut's shapes; frozen layers have ``requires_grad`` off. ``module`` is not changed.

    Args:
        tensors: values in the cut's names and shapes, as a submodel carries them; buffers may be missing. Without
            them factors hold arbitrary values and all else the module's own.

    Raises:
        PlanError: a layer the module does not have, a record no family here can build, tensors that do not fit.
    """
    built = copy.deepcopy(module)
    parameters = dict(built.named_parameters())
    for path in sorted(cut):
        record = cut[path]
        if record == _FROZEN and path in parameters:
            parameters[path].requires_grad_(False)
            continue
        try:
            layer = built.get_submodule(path)
        except AttributeError as error:
            raise PlanError(f"the cut names layer '{path}', which {type(module).__name__} does not have") from error
        _refuse_unbuildable(path, record)
        if record.factor is not None:
            build = additive_layer if record.factor.form == FORM else factorized_layer
            replacement = build(path, layer, record.factor).train(layer.training)
            parent, _, name = path.rpartition(".")
            setattr(built.get_submodule(parent), name, replacement)
            layer = replacement
        if record.frozen:
            layer.requires_grad_(False)
    if tensors is not None:
        load_tensors(built, tensors)
    return built


def load_tensors(module: nn.Module, tensors: Mapping[str, np.ndarray]) -> None:
    """Copy ``tensors`` into the module's parameters and buffers, in place.

    Raises:
        PlanError: a parameter without a tensor, a tensor without a place, a wrong shape.
    """
    state = module.state_dict()
    parameters = {name for name, _ in module.named_parameters()}
    missing, extra = sorted(parameters - tensors.keys()), sorted(tensors.keys() - state.keys())
    if missing or extra:
        raise PlanError(
            f"tensors do not fit the cut: {len(missing)} missing {missing[:3]}, {len(extra)} unknown {extra[:3]}"
        )
    with torch.no_grad():
        for name, value in tensors.items():
            if tuple(state[name].shape) != tuple(value.shape):
                raise PlanError(f"'{name}' has shape {tuple(value.shape)}, the cut has {tuple(state[name].shape)}")
            # A copy: what a checkpoint maps from disk is read-only.
            state[name].copy_(torch.from_numpy(np.array(value)))


def module_tensors(module: nn.Module) -> dict[str, np.ndarray]:
    """Copies of all parameters and buffers by name, in module order."""
    return {name: value.detach().cpu().numpy().copy() for name, value in module.state_dict().items()}


def _refuse_unbuildable(path: str, record: LayerCut) -> None:
    if record.out_idx is not None or record.in_idx is not None:
        raise PlanError(f"layer '{path}': width cuts cannot be built yet; use a factorized or frozen cut")
    if record.mask:
        raise PlanError(f"layer '{path}': masks cannot be built yet; use a factorized or frozen cut")
