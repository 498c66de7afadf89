"""Channels that a mask has killed: nothing reads them, or nothing can ever make them other than zero.

A channel is unread when every layer that reads it masks all it would read, and silent when every layer that makes it
masks all it would make it from and has no bias or norm that could shift it. Neither has any influence on what the
model computes, so a network without them is the same function, with the same gradients in all that is left.
Source: PruneFL, section V, leaves the removal of such channels open; the rules here are checked on numbers each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from coordinator.pruning.masks import Masks
from coordinator.submodels.channel_groups import ChannelMap, SideChannels
from coordinator.submodels.record import Cut
from coordinator.submodels.width import cut_tensors, tensor_slices

if TYPE_CHECKING:
    from edge.contracts.manifest import InputSpec

Live = Mapping[str, np.ndarray]
"""Channel group -> boolean array of its channels, True for those that are kept; groups that are whole are left out.

``<layer>#reads`` -> of all inputs of a linear layer those that it reads, where it passes over some that come in.
"""

READS = "#reads"
FEWER = 0.9
"""A linear layer passes inputs over when it reads at most this share of what comes in: gathering costs a little."""

SAME = 1e-9
"""Largest relative difference of logits in double precision; a channel that matters moves them by far more."""


def could_have_dead(masks: Masks) -> bool:
    """Whether some row or column of a masked weight is empty; without one no channel is dead."""
    tables = (_connections(mask) for mask in masks.values())
    return any(not (table.any(0).all() and table.any(1).all()) for table in tables)


def live_channels(
    module: nn.Module, channels: ChannelMap, masks: Masks, *, silent: bool = True
) -> dict[str, np.ndarray]:
    """What is left when dead channels go, and those that die with them, until none is dead; at least one per group.

    Args:
        masks: by weight name.
        silent: whether channels that stay zero go too; operations with f(0) other than 0 would not let them.
    """
    layers = {path: _Masked(module, path, masks[f"{path}.weight"]) for path in _masked_paths(module, masks)}
    live = [np.ones(group.size, bool) for group in channels.groups]
    while True:
        before = sum(int(kept.sum()) for kept in live)
        alive = {side: _positions_alive(entry, live) for side, entry in channels.sides.items()}
        used = _any_per_channel(channels, "in", _reads(module, channels, layers, alive))
        fed = _any_per_channel(channels, "out", _makes(module, channels, layers, alive))
        for index, kept in enumerate(live):
            kept &= used[index] & fed[index] if silent else used[index]
        if sum(int(kept.sum()) for kept in live) == before:
            break
    result = {}
    for group, kept in zip(channels.groups, live, strict=True):
        if not kept.any():
            kept[0] = True  # a layer keeps at least one channel; it is as dead as the others
        if not kept.all():
            result[group.name] = kept
    return result


def columns_read(
    module: nn.Module, channels: ChannelMap, masks: Masks, live: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """``<layer>#reads`` of the masked linear layers that read far fewer inputs than come in, given live channels."""
    groups = [live.get(group.name, np.ones(group.size, bool)) for group in channels.groups]
    alive = {side: _positions_alive(entry, groups) for side, entry in channels.sides.items()}
    found = {}
    for path in _masked_paths(module, masks):
        if not isinstance(module.get_submodule(path), nn.Linear):
            continue
        table = masks[f"{path}.weight"]
        coming = alive.get((path, "in"), np.ones(table.shape[1], bool))
        read = coming & table[alive.get((path, "out"), np.ones(len(table), bool))].any(0)
        if 0 < read.sum() <= FEWER * coming.sum():
            found[path + READS] = read
    return found


def is_same_function(module: nn.Module, cut: Cut, masks: Masks, spec: InputSpec) -> bool:
    """Whether the cut module computes what the whole masked one does: on made-up weights, in double precision."""
    from coordinator.submodels.build import apply_cut, module_tensors

    generator = np.random.default_rng(0)
    tensors = {}
    for name, value in module_tensors(module).items():
        made = generator.standard_normal(value.shape) / max(1.0, float(np.prod(value.shape[1:]))) ** 0.5
        if value.dtype.kind != "f":
            made = value
        elif name.endswith("running_var"):
            made = np.abs(made) + 0.5
        elif name in masks:
            made = made * masks[name]
        tensors[name] = np.asarray(made, value.dtype)
    shape = (2, *spec.shape)
    if spec.dtype == "int64":
        x = torch.from_numpy(generator.integers(0, max(spec.vocabulary, 2), shape))
    else:
        x = torch.from_numpy(generator.standard_normal(shape))
    parts: list[tuple[Mapping[str, np.ndarray], Cut]] = [
        (tensors, {}),
        (cut_tensors(tensors, tensor_slices(module, cut)), cut),
    ]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        logits = []
        for values, records in parts:
            torch.manual_seed(0)
            logits.append(apply_cut(module, records, values).double().train()(x))
    whole, left = logits
    return bool((whole - left).abs().max() <= SAME * whole.abs().max().clamp_min(1.0))


class _Masked:
    """A masked layer: which outputs read which inputs, [outputs, inputs]; its positions are those of its sides."""

    def __init__(self, module: nn.Module, path: str, mask: np.ndarray) -> None:
        layer = module.get_submodule(path)
        self.has_bias = getattr(layer, "bias", None) is not None
        table = _connections(mask)
        self.table_OI = table.T if isinstance(layer, _ConvTransposeNd) else table


def _masked_paths(module: nn.Module, masks: Masks) -> list[str]:
    """Masked layers whose weight is one matrix of outputs and inputs; grouped ones count as reading everything."""
    paths = [name.removesuffix(".weight") for name in masks if name.endswith(".weight")]
    return [path for path in paths if getattr(module.get_submodule(path), "groups", 1) == 1]


def _connections(mask: np.ndarray) -> np.ndarray:
    """[first dimension, second dimension]: whether any entry between the two is kept."""
    return np.asarray(mask.reshape(*mask.shape[:2], -1).any(-1))


def _positions_alive(side: SideChannels, live: list[np.ndarray]) -> np.ndarray:
    alive = np.ones(len(side.group_P), bool)
    for index in set(side.group_P.tolist()) - {-1}:
        own = side.group_P == index
        alive[own] = live[index][side.channel_P[own]]
    return alive


def _reads(
    module: nn.Module, channels: ChannelMap, layers: Mapping[str, _Masked], alive: Mapping[tuple[str, str], np.ndarray]
) -> dict[str, np.ndarray]:
    """Layer -> which positions of its input it reads, for live outputs."""
    reads = {}
    for (path, end), entry in channels.sides.items():
        count = len(entry.group_P)
        if _mixes_channels(module, path):
            reads[path] = np.ones(count, bool)
        elif end != "in":
            continue
        elif path in layers:
            table = layers[path].table_OI
            reads[path] = np.asarray(table[alive.get((path, "out"), np.ones(len(table), bool))].any(0))
        elif not _is_depthwise(module, path):  # that one hands each channel on: what reads it afterwards decides
            reads[path] = np.ones(count, bool)
    return reads


def _makes(
    module: nn.Module, channels: ChannelMap, layers: Mapping[str, _Masked], alive: Mapping[tuple[str, str], np.ndarray]
) -> dict[str, np.ndarray]:
    """Layer -> which positions of its output can be other than zero, from live inputs."""
    makes = {}
    for (path, end), entry in channels.sides.items():
        if end != "out":
            continue
        if path in layers and not layers[path].has_bias:
            table = layers[path].table_OI
            makes[path] = np.asarray(table[:, alive.get((path, "in"), np.ones(table.shape[1], bool))].any(1))
        else:
            makes[path] = np.ones(len(entry.group_P), bool)
    return makes


def _any_per_channel(channels: ChannelMap, end: str, flags: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Per group: whether any position of a channel is flagged; all channels of a group that no layer here touches."""
    result = [np.zeros(group.size, bool) for group in channels.groups]
    touched = [False] * len(result)
    for path, flag in flags.items():
        side = channels.sides.get((path, end)) or channels.sides[path, "out"]
        for index in set(side.group_P.tolist()) - {-1}:
            own = side.group_P == index
            np.logical_or.at(result[index], side.channel_P[own], flag[own])
            touched[index] = True
    return [found if known else np.ones(found.shape, bool) for found, known in zip(result, touched, strict=True)]


def _mixes_channels(module: nn.Module, path: str) -> bool:
    """Whether the layer at ``path`` computes a channel from several: a norm over more than one of them."""
    layer = _layer(module, path)
    return isinstance(layer, nn.LayerNorm) or (
        isinstance(layer, nn.GroupNorm) and layer.num_groups < layer.num_channels
    )


def _is_depthwise(module: nn.Module, path: str) -> bool:
    layer = _layer(module, path)
    return isinstance(layer, _ConvNd) and 1 < layer.groups == layer.in_channels


def _layer(module: nn.Module, path: str) -> nn.Module | None:
    """The layer at ``path``; None for a bare parameter."""
    try:
        return module.get_submodule(path)
    except AttributeError:
        return None
