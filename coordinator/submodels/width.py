"""Cuts in width: which channels of every group a device holds, what that leaves of each tensor, and the way back.

Cutting copies entries and lifting puts them back where they were, so both are exact and entries outside a cut keep
their bits. Which layers share channels is :mod:`coordinator.submodels.channel_groups`'s; what a narrower layer looks
like is :mod:`coordinator.submodels.narrowed`'s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
from torch import nn

from coordinator.submodels.build import apply_cut
from coordinator.submodels.channel_groups import ChannelGroup, ChannelMap
from coordinator.submodels.module_paths import named_part
from coordinator.submodels.narrowed import Slice, layer_slices, selected_positions
from coordinator.submodels.read_columns import read_positions
from coordinator.submodels.record import Cut, Factor, LayerCut
from edge.contracts.errors import PlanError
from edge.contracts.streams import permutation, stream_seed

if TYPE_CHECKING:
    from coordinator.submodels.values import Tensors
    from edge.contracts.manifest import InputSpec

Rounding = Literal["ceil", "round", "floor"]
Kept = dict[str, tuple[int, ...]]
"""Channel group -> channels kept, ascending."""

_DIGITS = 9
"""Ratio times channels is rounded to so many digits first: 0.1 x 30 is 3, not 3.0000000000000004."""


def kept_count(size: int, ratio: float, rounding: Rounding) -> int:
    """Channels left of ``size`` at ``ratio``, at least one.

    Source: ``ceil`` as HeteroFL and FedRolex, ``round`` as FedHM's tables, ``floor`` as SLT.
    """
    exact = round(size * ratio, _DIGITS)
    rules: dict[str, Callable[[float], int]] = {"ceil": math.ceil, "round": round, "floor": math.floor}
    return min(size, max(1, rules[rounding](exact)))


def group_counts(channels: ChannelMap, ratio: float, rounding: Rounding, *, cumulative: bool = False) -> dict[str, int]:
    """Channel group -> channels left of it.

    Args:
        cumulative: groups that are concatenated share out what is left of their sum, so that a layer behind the
            concatenation keeps exactly the rounded share of its inputs. Source: SLT, whose DenseNet growth of a layer
            is floor((in + g) s) - floor(in s).
    """
    before = _channels_before(channels) if cumulative else {}
    counts = {}
    for group in channels.groups:
        start = before.get(group.name, 0)
        if start:
            upper, lower = (kept_count(start + part, ratio, rounding) for part in (group.size, 0))
            counts[group.name] = min(group.size, max(1, upper - lower))
        else:
            counts[group.name] = kept_count(group.size, ratio, rounding)
    return counts


def first_channels(counts: Mapping[str, int]) -> Kept:
    """The first channels of every group: HeteroFL, FjORD, the small model, SLT's head."""
    return {name: tuple(range(count)) for name, count in counts.items()}


def window(channels: ChannelMap, counts: Mapping[str, int], start: Callable[[ChannelGroup], int]) -> Kept:
    """Of every group of M channels those from ``start(group) mod M`` on, wrapping: FedRolex, the atoms of Split-Mix."""
    kept = {}
    for group in channels.groups:
        first = start(group) % group.size
        kept[group.name] = tuple(sorted((first + i) % group.size for i in range(counts[group.name])))
    return kept


def random_channels(
    channels: ChannelMap, counts: Mapping[str, int], *, seed: int, round_index: int, device: str
) -> Kept:
    """Channels drawn without replacement per group from the stream of (seed, round, device): Federated Dropout."""
    kept = {}
    for group in channels.groups:
        order = permutation(stream_seed(seed, f"width/{group.name}", round_index, device), group.size)
        kept[group.name] = tuple(sorted(order[: counts[group.name]].tolist()))
    return kept


def tensor_slices(module: nn.Module, cut: Cut) -> dict[str, Slice]:
    """Names of the dense tensors that ``cut`` narrows -> the entries kept along each dimension.

    Raises:
        PlanError: a layer the module does not have, or one that cannot be narrowed so.
    """
    slices: dict[str, Slice] = {}
    for path in sorted(cut):
        record = cut[path]
        if not record.is_narrow:
            continue
        layer = named_part(module, path)
        for name, kept in layer_slices(path, layer, record).items():
            if any(indices is not None for indices in kept):
                slices[f"{path}.{name}" if name else path] = kept
    return slices


def cut_tensors(tensors: Tensors, slices: Mapping[str, Slice]) -> dict[str, np.ndarray]:
    """The tensors with what ``slices`` keeps of each; others are passed on."""
    return {
        name: np.ascontiguousarray(value[mesh(slices[name], value.shape)]) if name in slices else value
        for name, value in tensors.items()
    }


def lift_tensors(tensors: Tensors, slices: Mapping[str, Slice], base: Tensors) -> dict[str, np.ndarray]:
    """``base`` with ``tensors`` put where they were cut from; every other entry keeps its bits.

    Raises:
        PlanError: a tensor ``base`` does not have, or of another shape than its slice.
    """
    lifted = dict(base)
    for name, value in tensors.items():
        if name not in base:
            raise PlanError(f"tensor '{name}' is not in the model that is lifted to; cut this model anew")
        if name not in slices:
            lifted[name] = value
            continue
        whole = np.array(base[name])
        place = mesh(slices[name], whole.shape)
        if whole[place].shape != value.shape:
            raise PlanError(f"'{name}' has shape {value.shape}, its cut {whole[place].shape}; re-plan the device")
        whole[place] = value
        lifted[name] = whole
    return lifted


def mesh(kept: Slice, shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """What indexes the kept entries of an array of ``shape``."""
    return np.ix_(*(np.arange(size) if indices is None else indices for indices, size in zip(kept, shape, strict=True)))


def within(cut: Cut, smaller: Cut) -> dict[str, LayerCut]:
    """``smaller``, a cut of the same module inside ``cut``, in the positions of what ``cut`` keeps.

    Cutting by ``cut`` and then by the result is cutting by ``smaller``.

    Raises:
        PlanError: ``smaller`` keeps something that ``cut`` does not.
    """
    nested = {}
    for path in sorted({*cut, *smaller}):
        outer, inner = cut.get(path, LayerCut()), smaller.get(path, LayerCut())
        nested[path] = msgspec.structs.replace(
            inner,
            out_idx=_positions(path, outer.out_idx, inner.out_idx),
            in_idx=_positions(path, outer.in_idx, inner.in_idx),
        )
    return {path: record for path, record in nested.items() if record != LayerCut()}


def shape_of_cut(module: nn.Module, cut: Cut) -> dict[str, LayerCut]:
    """A cut of the same shapes and the same graph that keeps first channels: what an export depends on.

    Methods that move their windows every round, or draw per device, so share one artifact per level.
    """
    shaped = {}
    for path, record in cut.items():
        out, into = record.out_idx, record.in_idx
        layer = named_part(module, path) if record.is_narrow else None
        if isinstance(layer, nn.Identity):
            places = selected_positions(path, record)
            into = None if into is None else tuple(range(len(into)))
            record = msgspec.structs.replace(record, out_idx=places, in_idx=into)
        elif layer is not None:
            groups = _equal_blocks(layer)
            read = None if record.read_idx is None else read_positions(path, record)
            record = msgspec.structs.replace(
                record,
                out_idx=_first_of_blocks(out, _size(layer, "out"), groups),
                in_idx=_first_of_blocks(into, _size(layer, "in"), groups),
                read_idx=read,
            )
        if record.factor is not None:
            factor = Factor(record.factor.form, tuple(range(record.factor.rank)))
            record = msgspec.structs.replace(record, factor=factor)
        if record.atoms:
            record = msgspec.structs.replace(record, atoms=tuple(range(len(record.atoms))))
        shaped[path] = record
    return shaped


def check_runs(module: nn.Module, cut: Cut, spec: InputSpec) -> None:
    """Check that the cut module runs on a batch of ``spec`` and gives what the whole one gives, in shape.

    Raises:
        PlanError: naming the layer that does not, and what to do.
    """
    import torch

    dtype = torch.int64 if spec.dtype == "int64" else torch.float32
    x = torch.zeros(2, *spec.shape, dtype=dtype, device="meta")
    path: list[str] = []
    built = apply_cut(module, cut).to("meta").train()
    handles = [
        part.register_forward_pre_hook(lambda _part, _args, name=name: path.append(name))
        for name, part in built.named_modules()
    ]
    try:
        shape = built(x).shape
    except Exception as error:  # the module may be anyone's
        where = f"layer '{path[-1]}'" if path and path[-1] else "its forward"
        raise PlanError(
            f"{type(module).__name__} cut in width does not run: {where} fails ({type(error).__name__}: {error}); "
            "write sizes as flatten(1) or -1 in its forward, or name the layers before it in an attribute whole_layers"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    whole = copy_to_meta(module)(x).shape
    if shape != whole:
        raise PlanError(
            f"{type(module).__name__} cut in width gives {tuple(shape)}, the whole model {tuple(whole)}; "
            "name its last layer in an attribute whole_layers"
        )


def copy_to_meta(module: nn.Module) -> nn.Module:
    """A copy that computes shapes only."""
    import copy

    return copy.deepcopy(module).to("meta").train()


def _positions(path: str, outer: tuple[int, ...] | None, inner: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if outer is None:
        return inner
    if inner is None:
        raise PlanError(f"layer '{path}': the smaller cut keeps all of it, the larger one {len(outer)}")
    place = {index: position for position, index in enumerate(outer)}
    missing = [index for index in inner if index not in place]
    if missing:
        raise PlanError(f"layer '{path}': the smaller cut keeps {missing[:8]}, which the larger one does not")
    positions = tuple(place[index] for index in inner)
    return None if positions == tuple(range(len(outer))) else positions


def _channels_before(channels: ChannelMap) -> dict[str, int]:
    """Group -> channels of the groups it is concatenated behind where it first is, in order of execution."""
    before: dict[str, int] = {}
    smallest: dict[str, int] = {}
    for side in channels.sides.values():
        members = sorted(set(side.group_P.tolist()) - {-1})
        total = sum(channels.groups[i].size for i in members)
        for position, index in enumerate(members):
            name = channels.groups[index].name
            if len(members) > 1 and total < smallest.get(name, total + 1):
                smallest[name] = total
                before[name] = sum(channels.groups[i].size for i in members[:position])
    return before


def _first_of_blocks(indices: tuple[int, ...] | None, size: int, blocks: int) -> tuple[int, ...] | None:
    if indices is None:
        return None
    if blocks in (1, size):
        return tuple(range(len(indices)))
    block, kept = size // blocks, len(indices) // blocks
    return tuple(b * block + i for b in range(blocks) for i in range(kept))


def _equal_blocks(layer: nn.Module | nn.Parameter) -> int:
    """Blocks of which the same positions are kept; 1 where single channels go, or a group of them with its input."""
    if isinstance(layer, nn.modules.conv._ConvNd):
        return 1 if layer.groups == layer.in_channels else layer.groups
    return layer.num_groups if isinstance(layer, nn.GroupNorm) else 1


def _size(layer: nn.Module | nn.Parameter, end: str) -> int:
    if isinstance(layer, nn.modules.conv._ConvNd):
        return layer.out_channels if end == "out" else layer.in_channels
    return int(getattr(layer, "num_channels", 0))
