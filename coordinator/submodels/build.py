"""From a dense module and a cut to the module a device trains."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from coordinator.submodels.additions import with_addition
from coordinator.submodels.factorize import factorized_layer
from coordinator.submodels.lora import FORM, additive_layer
from coordinator.submodels.module_paths import named_part
from coordinator.submodels.narrowed import AtomEnsemble, narrowed_layer, narrowed_parameter, scaled_layer
from coordinator.submodels.record import Cut, LayerCut
from coordinator.submodels.recurrent import factorized_lstm
from coordinator.submodels.trained_rows import PartlyTrained
from edge.contracts.errors import PlanError
from export.language.held_base import shared_values


def apply_cut(module: nn.Module, cut: Cut, tensors: Mapping[str, np.ndarray] | None = None) -> nn.Module:
    """A copy of ``module`` in the cut's shapes; frozen layers have ``requires_grad`` off. ``module`` is not changed.

    Args:
        tensors: values in the cut's names and shapes, as a submodel carries them; buffers may be missing. Without
            them factors hold arbitrary values and all else the module's own.

    Raises:
        PlanError: a layer the module does not have, a record no family here can build, tensors that do not fit.
    """
    built = copy.deepcopy(module, dict(shared_values(module)))
    # Width first: factors and freezing are of the narrowed layer. Additions last: they are trained.
    for step in (_narrow, _factorize, _freeze, _add, _divide):
        for path in sorted(cut):
            step(built, path, cut[path])
    whole = cut.get("")
    if whole is not None and whole.atoms:
        built = AtomEnsemble([copy.deepcopy(built) for _ in whole.atoms]).train(built.training)
    if tensors is not None:
        load_tensors(built, tensors)
    return built


def load_tensors(module: nn.Module, tensors: Mapping[str, np.ndarray]) -> None:
    """Copy ``tensors`` into the module's parameters and buffers, in place.

    Raises:
        PlanError: a parameter without a tensor, a tensor without a place, a wrong shape.
    """
    state = module.state_dict()
    tensors = {name: value for name, value in tensors.items() if "#" not in name}  # masks are not the module's
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


def _narrow(built: nn.Module, path: str, record: LayerCut) -> None:
    part = named_part(built, path)  # refuses what is not there, whatever the record says
    if record.is_narrow:
        if isinstance(part, nn.Parameter):
            _replace(built, path, narrowed_parameter(path, part, record))
        else:
            _replace(built, path, narrowed_layer(path, part, record))
    if record.scale != 1.0:
        _replace(built, path, scaled_layer(path, built.get_submodule(path), record.scale))


def _factorize(built: nn.Module, path: str, record: LayerCut) -> None:
    if record.factor is not None and record.factor.form == "recurrent":
        parent, _, name = path.rpartition(".")
        _replace(built, parent, factorized_lstm(path, built.get_submodule(parent), name, record.factor))
    elif record.factor is not None:
        layer = built.get_submodule(path)
        if record.factor.form == FORM:
            made = additive_layer(path, layer, record.factor)
        else:
            made = factorized_layer(path, layer, record.factor, record.spread)
        _replace(built, path, made.train(layer.training))


def _freeze(built: nn.Module, path: str, record: LayerCut) -> None:
    if record.frozen:
        named_part(built, path).requires_grad_(False)


def _add(built: nn.Module, path: str, record: LayerCut) -> None:
    if record.added is not None:
        part = built.get_submodule(path)
        extended = with_addition(path, part, record.added)
        if extended is not part:
            _replace(built, path, extended.train(part.training))


def _divide(built: nn.Module, path: str, record: LayerCut) -> None:
    if record.trained_rows is not None:
        layer = built.get_submodule(path)
        _replace(built, path, PartlyTrained(path, layer, record.trained_rows).train(layer.training))


def _replace(built: nn.Module, path: str, part: nn.Module | nn.Parameter) -> None:
    parent, _, name = path.rpartition(".")
    setattr(built.get_submodule(parent), name, part)
