"""A scheme of a sparse update: the biases from one layer up, some layers' weights whole or in part, the head.

With it, unless norms stay static, those from that layer up, scales and statistics too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from coordinator.contributions.operations import Operation
from coordinator.submodels.record import LayerCut
from coordinator.submodels.trained_rows import takes_rows
from edge.contracts.errors import PlanError

_NORMS = (_BatchNorm, nn.GroupNorm, nn.LayerNorm)
_WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d)
SHARES = (0.125, 0.25, 0.5, 1.0)
"""Of a layer's output channels that are trained. Source: MCUNetV3, section 3.2."""
BLOCKS = 8
"""Channels are chosen in so many blocks of neighbours, so that what is trained are few slices."""


@dataclass(frozen=True)
class Layer:
    """A layer in the order of execution.

    Attributes:
        path: of the module.
        weight: name of the parameter whose training is chosen, empty of a norm.
        scale: name of a norm's scale, empty of any other layer and where it has none.
        bias: name of its bias, empty where it has none.
        channels: of its output.
        size: elements of the weight.
        has_rows: whether some of its channels can be trained.
    """

    path: str
    weight: str
    scale: str
    bias: str
    channels: int
    size: int
    has_rows: bool

    @property
    def shares(self) -> tuple[float, ...]:
        """Shares of its channels that can be trained, ascending."""
        return SHARES if self.has_rows and self.channels % BLOCKS == 0 else SHARES[-1:]


@dataclass(frozen=True)
class Scheme:
    """What is trained.

    Attributes:
        first: path of the layer from which on biases are trained.
        rows: trained output channels by path of the layer, None for all of them; the head is among them.
        trains_norms: whether norms from ``first`` on are trained whole, behind the batch's statistics.
    """

    first: str
    rows: Mapping[str, tuple[int, ...] | None]
    trains_norms: bool = False


def ordered_layers(module: nn.Module, operations: Collection[Operation]) -> tuple[Layer, ...]:
    """Convolutions, linear layers and norms in the order in which a forward pass comes to them; the last is the head.

    Raises:
        PlanError: no linear layer or convolution, or the last of them shares its weight or is not last.
    """
    names = dict.fromkeys(name for operation in operations for name in operation.parameters.values())
    found = []
    for path in dict.fromkeys(name.rpartition(".")[0] for name in names):
        part = module.get_submodule(path)
        if not isinstance(part, (*_NORMS, *_WEIGHTED)):
            continue
        bias = f"{path}.bias".lstrip(".") if part.bias is not None else ""
        if isinstance(part, _NORMS):
            scale = f"{path}.weight".lstrip(".") if part.weight is not None else ""
            found.append(Layer(path, "", scale, bias, 0, 0, False))
        else:
            weight = f"{path}.weight".lstrip(".")
            found.append(Layer(path, weight, "", bias, part.weight.shape[0], part.weight.numel(), takes_rows(part)))
    weighted = [layer for layer in found if layer.weight]
    if len(weighted) < 2:
        raise PlanError(
            f"{type(module).__name__} has {len(weighted)} convolutions and linear layers, at least two expected of a "
            "model of which a part is trained; use fedavg"
        )
    return tuple(found)


def head_of(layers: Collection[Layer]) -> Layer:
    """The last layer with a weight: it is trained whole in every scheme."""
    return [layer for layer in layers if layer.weight][-1]


def trained_names(layers: Collection[Layer], scheme: Scheme) -> set[str]:
    """Names of the whole module's parameters of which something is trained."""
    names: set[str] = set()
    is_above = False
    for layer in layers:
        is_above = is_above or layer.path == scheme.first
        if is_above and layer.bias:
            names.add(layer.bias)
        if is_above and layer.scale and scheme.trains_norms:
            names.add(layer.scale)
        if layer.path in scheme.rows:
            names.add(layer.weight)
    return names


def scheme_cut(module: nn.Module, layers: Collection[Layer], scheme: Scheme) -> dict[str, LayerCut]:
    """The records of a scheme: what is frozen, by layer where all of a layer is, and which rows are trained."""
    trained = trained_names(layers, scheme)
    partly = {path: rows for path, rows in scheme.rows.items() if rows is not None}
    cut = {path: LayerCut(trained_rows=rows) for path, rows in partly.items()}
    for path, part in module.named_modules():
        own = [f"{path}.{name}".lstrip(".") for name, _ in part.named_parameters(recurse=False)]
        frozen = [name for name in own if name not in trained]
        if not own or not frozen:
            continue
        is_leaf = len(own) == sum(1 for _ in part.parameters())
        for name in [path] if path and is_leaf and frozen == own else frozen:
            cut[name] = LayerCut(frozen=True)
    return cut


def frozen_names(module: nn.Module, cut: Mapping[str, LayerCut]) -> tuple[str, ...]:
    """Names of the cut module's parameters that are not trained, in the dense module's order."""
    frozen = []
    for name, _ in module.named_parameters():
        path, _, own = name.rpartition(".")
        divided = cut.get(path)
        is_rest = divided is not None and divided.trained_rows is not None and own == "weight"
        records = (cut.get(name), divided)
        if is_rest or any(record is not None and record.frozen for record in records):
            frozen.append(name)
    return tuple(frozen)
