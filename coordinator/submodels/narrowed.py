"""Layers with fewer outputs or inputs: which entries of each tensor a record keeps, and the really smaller layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.instancenorm import _InstanceNorm

from coordinator.submodels.read_columns import reading_linear
from coordinator.submodels.record import LayerCut
from edge.contracts.errors import PlanError

Indices = tuple[int, ...] | None
Slice = tuple[np.ndarray | None, ...]
"""One index array per dimension of a tensor, None for all of it."""

GATES = 4
"""Gates of an LSTM, stacked along the first dimension of its weights."""


class ChannelSelection(nn.Module):
    """An identity shortcut that passes on some of its channels (dim 1). Source: SLT, narrower shortcut targets.

    Put together from slices, not gathered: runtimes train slices, and no index tensor becomes part of the model.
    """

    def __init__(self, positions: Sequence[int]) -> None:
        super().__init__()
        self.runs: list[tuple[int, int]] = []
        for position in positions:
            if self.runs and position == self.runs[-1][1]:
                self.runs[-1] = (self.runs[-1][0], position + 1)
            else:
                self.runs.append((position, position + 1))

    def forward(self, x: Tensor) -> Tensor:
        parts = [x[:, first:end] for first, end in self.runs]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def extra_repr(self) -> str:
        return ", ".join(f"{first}:{end}" for first, end in self.runs)


class _Scaled(nn.Module):
    """A layer whose outputs are divided by ``scale`` in training. Source: HeteroFL, the Scaler."""

    scale = 1.0

    def forward(self, input: Tensor) -> Tensor:
        out: Tensor = super().forward(input)
        return out / self.scale if self.training else out

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, scale={self.scale}"


class ScaledConv1d(_Scaled, nn.Conv1d):
    """A convolution over one dimension."""


class ScaledConv2d(_Scaled, nn.Conv2d):
    """A convolution over two."""


class ScaledLinear(_Scaled, nn.Linear):
    """A linear layer."""


SCALED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv1d: ScaledConv1d,
    nn.Conv2d: ScaledConv2d,
    nn.Linear: ScaledLinear,
}


class AtomEnsemble(nn.Module):
    """Several networks of one shape; their mean logits. Source: Split-Mix."""

    def __init__(self, atoms: Sequence[nn.Module]) -> None:
        super().__init__()
        self.atoms = nn.ModuleList(atoms)

    def forward(self, x: Tensor) -> Tensor:
        total = self.atoms[0](x)
        for atom in self.atoms[1:]:
            total = total + atom(x)
        return total / len(self.atoms)


def layer_slices(path: str, layer: nn.Module | nn.Parameter, record: LayerCut) -> dict[str, Slice]:
    """Name of each tensor of ``layer`` that ``record`` cuts -> what is kept of it; "" for a bare parameter.

    Raises:
        PlanError: a layer without a cut in width, indices it does not have, a grouped convolution whose groups would
            differ.
    """
    out, into = _array(record.out_idx), _array(record.in_idx)
    if isinstance(layer, nn.Parameter):
        dim = bare_dimension(layer)
        _check(path, "output", out, layer.shape[dim])
        return {"": tuple(out if d == dim else None for d in range(layer.dim()))}
    if isinstance(layer, nn.Identity):
        return {}
    if isinstance(layer, _ConvNd):
        _check(path, "output", out, layer.out_channels)
        _check(path, "input", into, layer.in_channels)
        first, second = _convolution_dims(path, layer, out, into)
        weight: Slice = (first, second, *[None] * len(layer.kernel_size))
        return {"weight": weight, "bias": (out,)}
    if isinstance(layer, nn.Linear):
        _check(path, "output", out, layer.out_features)
        read = _array(record.read_idx)
        for indices in (into, read):
            _check(path, "input", indices, layer.in_features)
        return {"weight": (out, into if read is None else read), "bias": (out,)}
    if isinstance(layer, nn.LSTM):
        return _lstm_slices(path, layer, out, into)
    if isinstance(layer, nn.Embedding):
        _check(path, "output", out, layer.embedding_dim)
        return {"weight": (None, out)}
    if isinstance(layer, (_BatchNorm, _InstanceNorm, nn.LayerNorm, nn.GroupNorm, nn.PReLU)):
        names = ("weight", "bias", "running_mean", "running_var")
        tensors = {name: getattr(layer, name, None) for name in names}
        kept = {name: value for name, value in tensors.items() if value is not None and value.dim() == 1}
        for value in kept.values():
            _check(path, "output", out, len(value))
        if isinstance(layer, nn.GroupNorm) and out is not None:
            _same_in_blocks(path, out, layer.num_channels, layer.num_groups)
        return {name: (out,) for name in kept}
    raise PlanError(
        f"layer '{path}': a {type(layer).__name__} has no cut in width; name it in the model's whole_layers, "
        "or use a factorized or frozen cut"
    )


def narrowed_layer(path: str, layer: nn.Module, record: LayerCut) -> nn.Module:
    """``layer`` with what ``record`` keeps; ordinary layers are narrowed in place and given back.

    Raises:
        PlanError: as :func:`layer_slices`.
    """
    if isinstance(layer, nn.Identity):
        return ChannelSelection(selected_positions(path, record))
    incoming = layer.in_features if isinstance(layer, nn.Linear) else 0
    for name, kept in layer_slices(path, layer, record).items():
        value = getattr(layer, name, None)
        if value is None:
            continue
        part = taken(value.detach(), kept)
        setattr(layer, name, nn.Parameter(part, value.requires_grad) if isinstance(value, nn.Parameter) else part)
    _fit(layer, record)
    if record.read_idx is not None and isinstance(layer, nn.Linear):
        return reading_linear(path, layer, record, incoming if record.in_idx is None else len(record.in_idx))
    return layer


def scaled_layer(path: str, layer: nn.Module, scale: float) -> nn.Module:
    """``layer`` dividing its outputs by ``scale`` in training, its tensors shared.

    Raises:
        PlanError: a kind of layer that has no such form.
    """
    if type(layer) not in SCALED:
        raise PlanError(f"layer '{path}': the outputs of a {type(layer).__name__} cannot be scaled; set scaler = false")
    scaled: Any = object.__new__(SCALED[type(layer)])
    scaled.__dict__ = dict(layer.__dict__)
    scaled.scale = scale
    return cast(nn.Module, scaled)


def narrowed_parameter(path: str, parameter: nn.Parameter, record: LayerCut) -> nn.Parameter:
    """What ``record`` keeps of a parameter that a module of the user's own holds directly."""
    kept = layer_slices(path, parameter, record)[""]
    return nn.Parameter(taken(parameter.detach(), kept), parameter.requires_grad)


def bare_dimension(parameter: Tensor) -> int:
    """The dimension a bare parameter is cut along: the last with more than one entry, as torch-pruning's."""
    return max((d for d, size in enumerate(parameter.shape) if size > 1), default=0)


def selected_positions(path: str, record: LayerCut) -> tuple[int, ...]:
    """Where, among the channels that come in, those lie that a shortcut passes on.

    Raises:
        PlanError: one that does not come in.
    """
    if record.out_idx is None:
        return tuple(range(len(record.in_idx or ())))
    if record.in_idx is None:
        return record.out_idx
    place = {channel: position for position, channel in enumerate(record.in_idx)}
    missing = [channel for channel in record.out_idx if channel not in place]
    if missing:
        raise PlanError(f"shortcut '{path}': channels {missing[:8]} are wanted but do not come in; cut its input wider")
    return tuple(place[channel] for channel in record.out_idx)


def taken(value: Tensor, kept: Slice) -> Tensor:
    """The entries of ``value`` that ``kept`` names, a copy."""
    for dim, indices in enumerate(kept):
        if indices is not None:
            value = value.index_select(dim, torch.from_numpy(indices).to(value.device))
    return value.clone()


def _fit(layer: nn.Module, record: LayerCut) -> None:
    """Make a narrowed layer's own figures agree with its tensors."""
    out = None if record.out_idx is None else len(record.out_idx)
    into = None if record.in_idx is None else len(record.in_idx)
    if isinstance(layer, _ConvNd):
        if layer.groups > 1 and layer.groups == layer.in_channels:
            layer.groups = layer.groups if into is None else into
        layer.out_channels, layer.in_channels = out or layer.out_channels, into or layer.in_channels
    elif isinstance(layer, nn.Linear):
        layer.out_features, layer.in_features = layer.weight.shape
    elif isinstance(layer, nn.LSTM):
        layer.hidden_size, layer.input_size = out or layer.hidden_size, into or layer.input_size
    elif isinstance(layer, nn.Embedding):
        layer.embedding_dim = out or layer.embedding_dim
    elif isinstance(layer, nn.LayerNorm):
        layer.normalized_shape = (out or layer.normalized_shape[0],)
    elif isinstance(layer, nn.GroupNorm):
        if layer.num_groups == layer.num_channels:
            layer.num_groups = out or layer.num_groups
        layer.num_channels = out or layer.num_channels
    elif isinstance(layer, _BatchNorm | _InstanceNorm):
        layer.num_features = out or layer.num_features
    elif isinstance(layer, nn.PReLU) and layer.num_parameters > 1:
        layer.num_parameters = out or layer.num_parameters


def _convolution_dims(
    path: str, layer: _ConvNd, out: np.ndarray | None, into: np.ndarray | None
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """What is kept along the first two dimensions of a convolution's weight."""
    is_transposed = isinstance(layer, _ConvTransposeNd)
    if layer.groups == 1:
        return (into, out) if is_transposed else (out, into)
    if layer.groups == layer.in_channels:
        # One input per group: a group stays with its outputs or goes.
        multiple = layer.out_channels // layer.groups
        inputs = np.arange(layer.in_channels) if into is None else into
        outputs = np.arange(layer.out_channels) if out is None else out
        if (
            len(inputs) == layer.in_channels
            and multiple > 1
            and len(outputs) < layer.out_channels
            and not is_transposed
        ):
            # All groups stay, each with some of its outputs.
            _same_in_blocks(path, outputs, layer.out_channels, layer.groups)
            return outputs, None
        if not np.array_equal(outputs, (inputs[:, None] * multiple + np.arange(multiple)).reshape(-1)):
            raise PlanError(f"layer '{path}': the outputs kept are not those of the inputs kept; cut both alike")
        return (into, None) if is_transposed else (out, None)
    if is_transposed:
        raise PlanError(f"layer '{path}': a grouped transposed convolution has no cut in width; use a frozen cut")
    if into is not None:
        into = _same_in_blocks(path, into, layer.in_channels, layer.groups)
    if out is not None:
        _same_in_blocks(path, out, layer.out_channels, layer.groups)
    return out, into


def _same_in_blocks(path: str, kept: np.ndarray, count: int, blocks: int) -> np.ndarray:
    """Positions kept within each of ``blocks`` equal blocks.

    Raises:
        PlanError: they differ between blocks.
    """
    size = count // blocks
    if blocks == count:
        return kept
    first = kept[kept < size]
    expected = (np.arange(blocks)[:, None] * size + first).reshape(-1)
    if len(first) == 0 or not np.array_equal(kept, expected):
        raise PlanError(f"layer '{path}': {blocks} groups must keep the same channels each; cut them alike")
    return first


def _lstm_slices(path: str, layer: nn.LSTM, out: np.ndarray | None, into: np.ndarray | None) -> dict[str, Slice]:
    if layer.bidirectional or layer.proj_size:
        raise PlanError(f"layer '{path}': an LSTM of two directions or with a projection has no cut in width")
    _check(path, "output", out, layer.hidden_size)
    _check(path, "input", into, layer.input_size)
    rows = None if out is None else (np.arange(GATES)[:, None] * layer.hidden_size + out).reshape(-1)
    slices: dict[str, Slice] = {}
    for depth in range(layer.num_layers):
        slices[f"weight_ih_l{depth}"] = (rows, into if depth == 0 else out)
        slices[f"weight_hh_l{depth}"] = (rows, out)
        if layer.bias:
            slices[f"bias_ih_l{depth}"] = slices[f"bias_hh_l{depth}"] = (rows,)
    return slices


def _array(indices: Indices) -> np.ndarray | None:
    return None if indices is None else np.asarray(indices, dtype=np.int64)


def _check(path: str, what: str, indices: np.ndarray | None, count: int) -> None:
    if indices is None:
        return
    is_whole = len(indices) > 0 and indices.min() >= 0 and indices.max() < count
    if not is_whole or len(np.unique(indices)) < len(indices):
        raise PlanError(
            f"layer '{path}': {len(indices)} {what}s {indices[:8].tolist()} cannot be kept; one or more different "
            f"ones of 0 to {count - 1} expected"
        )
