"""Which layers of a module are factorized, and at which rank: the hybrid layout, a function of the dense module alone.

A module may say itself which layers stay dense, in an attribute ``dense_layers`` of name patterns (as the ResNets of
this package do, after FedHM). Without it the first layer, shortcut convolutions and the last linear layer stay dense.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal

from torch import nn
from torch.nn.modules.conv import _ConvNd

from coordinator.submodels.factorize import FORMS
from coordinator.submodels.module_paths import named_part
from coordinator.submodels.record import Factor, Form, LayerCut
from coordinator.submodels.recurrent import gate_matrices, layer_outputs
from edge.contracts.errors import ConfigError

Rounding = Literal["round", "floor"]

SHORTCUTS = ("*downsample*", "*shortcut*")
"""Names of shortcut convolutions."""


def factorizable_layers(module: nn.Module) -> dict[str, nn.Module | nn.Parameter]:
    """Layers with a factorized form, and gate matrices of LSTMs, by path, in module order.

    Left out: grouped convolutions, paddings other than zeros, and weights that two layers share.
    """
    owners: dict[int, int] = {}
    for _, parameter in module.named_parameters(remove_duplicate=False):
        owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    found: dict[str, nn.Module | nn.Parameter] = {}
    for path, layer in module.named_modules():
        found |= {name: weight for name, weight in gate_matrices(path, layer) if owners[id(weight)] == 1}
        if type(layer) not in FORMS or owners[id(layer.weight)] > 1:
            continue
        if isinstance(layer, nn.Conv1d | nn.Conv2d) and (
            layer.groups != 1 or layer.padding_mode != "zeros" or isinstance(layer.padding, str)
        ):
            continue
        found[path] = layer
    return found


def dense_weight(module: nn.Module, path: str) -> nn.Parameter:
    """The parameter that factors at ``path`` take the place of."""
    part = named_part(module, path)
    weight: nn.Parameter = part if isinstance(part, nn.Parameter) else part.weight
    return weight


def form_at(module: nn.Module, path: str) -> Form:
    """The form of the factorizable layer at ``path``."""
    part = named_part(module, path)
    return "recurrent" if isinstance(part, nn.Parameter) else FORMS[type(part)]


def first_layers(module: nn.Module) -> tuple[str, ...]:
    """The first convolution or linear layer, which stays dense; none where a recurrent layer comes before it."""
    kinds = (nn.RNNBase, nn.Linear, _ConvNd)
    weighted = [(path, layer) for path, layer in module.named_modules() if isinstance(layer, kinds)]
    return tuple(path for path, layer in weighted[:1] if not isinstance(layer, nn.RNNBase))


def hybrid_layout(module: nn.Module, patterns: Sequence[str] | None = None) -> tuple[str, ...]:
    """Paths of the layers that levels above 1 factorize, in module order.

    Args:
        patterns: shell-style name patterns of the layers to factorize; ``!pattern`` takes layers out again, the last
            match decides. None takes the module's own layout or the default one.

    Raises:
        ConfigError: patterns that match no factorizable layer; lists what there is.
    """
    candidates = list(factorizable_layers(module))
    if patterns is None:
        dense = _dense_patterns(module)
        return tuple(path for path in candidates if not any(fnmatchcase(path, pattern) for pattern in dense))
    chosen = []
    for path in candidates:
        verdicts = [not p.startswith("!") for p in patterns if fnmatchcase(path, p.removeprefix("!"))]
        if verdicts and verdicts[-1]:
            chosen.append(path)
    if not chosen:
        shown = ", ".join(candidates[:12]) or "none"
        raise ConfigError([f"$.method.layout: {list(patterns)} matches no factorizable layer; there are: {shown}"])
    return tuple(chosen)


def principal_layers(module: nn.Module) -> tuple[str, ...]:
    """Every layer with components but the first one, 1x1 convolutions and the last linear layer.

    Source: PriSM's reference code.
    """
    layers = factorizable_layers(module)
    linear = [path for path, part in layers.items() if isinstance(part, nn.Linear)]
    whole = {*first_layers(module), *linear[-1:]}
    return tuple(path for path, part in layers.items() if path not in whole and not _is_pointwise(part))


def factorized_cut(
    module: nn.Module, layers: Sequence[str], rank_factor: float, *, rounding: Rounding = "round"
) -> dict[str, LayerCut]:
    """The first r components of every layer named, r = max(round(outputs / rank_factor), 1).

    The outputs of an LSTM's gate matrices are its hidden units. Layers that would not become smaller are left dense.
    A rank factor of 1 is the whole model.
    Source: FedHM; the published counts of rank factor 12 mix ``round`` (parameters) and ``floor`` (MACs).
    """
    if rank_factor == 1:
        return {}
    cut = {}
    for path in layers:
        form, weight = form_at(module, path), dense_weight(module, path)
        shape: tuple[int, ...] = tuple(weight.shape)
        rank = layer_rank(layer_outputs(weight) if form == "recurrent" else shape[0], rank_factor, rounding)
        if rank * _elements_per_component(shape, form) < weight.numel():
            cut[path] = LayerCut(factor=Factor(form, tuple(range(rank))))
    return cut


def layer_rank(outputs: int, rank_factor: float, rounding: Rounding = "round") -> int:
    """The rank of a layer with this many outputs: relative to its outputs, not to the rank of its weight."""
    exact = outputs / rank_factor
    return max(round(exact) if rounding == "round" else int(exact), 1)


def largest_ranks(cuts: Sequence[Mapping[str, LayerCut]]) -> dict[str, int]:
    """Layer path -> components that the deepest of ``cuts`` needs."""
    ranks: dict[str, int] = {}
    for cut in cuts:
        for path, entry in cut.items():
            if entry.factor:
                ranks[path] = max(ranks.get(path, 0), max(entry.factor.components) + 1)
    return ranks


def _is_pointwise(layer: nn.Module | nn.Parameter) -> bool:
    """Whether it is a 1x1 convolution, which a decomposition would only make larger."""
    return isinstance(layer, nn.Conv1d | nn.Conv2d) and all(size == 1 for size in layer.kernel_size)


def _dense_patterns(module: nn.Module) -> tuple[str, ...]:
    declared = getattr(module, "dense_layers", None)
    if declared is not None:
        return tuple(declared)
    linear = [path for path, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    return (*first_layers(module), *linear[-1:], *SHORTCUTS)


def _elements_per_component(shape: tuple[int, ...], form: str) -> int:
    if form == "spatial":
        out, inputs, height, width = shape
        return out * height + inputs * width
    count = 1
    for size in shape[1:]:
        count *= size
    return shape[0] + count
