"""Which channels of which layers stand or fall together: the channel groups of a module, for cuts in width.

A *group* is one set of channels that several layers share: what a residual stream adds up, what a convolution hands to
a norm and to the next convolution. A cut in width keeps some channels of each group, and every layer that produces or
reads the group then keeps the same ones. Dependencies come from torch-pruning's graph, so the user's own modules work.
Source: Fang et al., "DepGraph: towards any structural pruning" (CVPR 2023). Which channels a method keeps, and what
becomes of the tensors, is :mod:`coordinator.submodels.width`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coordinator.submodels.channel_graph import Side, trace
from coordinator.submodels.record import LayerCut
from edge.contracts.errors import PlanError

if TYPE_CHECKING:
    from torch import nn

    from edge.contracts.manifest import InputSpec


@dataclass(frozen=True)
class ChannelGroup:
    """Channels that all layers touching them keep or drop together.

    Attributes:
        name: the first layer, in execution order, that produces them.
        size: how many there are in the whole model.
        producers, consumers: layers whose outputs or inputs they are, in execution order.
    """

    name: str
    size: int
    producers: tuple[str, ...]
    consumers: tuple[str, ...]


@dataclass(frozen=True)
class SideChannels:
    """What the positions of one side of a layer are.

    Attributes:
        group_P: index of each position's group, -1 where the position is never cut.
        channel_P: the position's channel within its group.
    """

    group_P: np.ndarray
    channel_P: np.ndarray


@dataclass(frozen=True)
class ChannelMap:
    """All channel groups of a module, in execution order, and where their channels lie.

    Attributes:
        sides: what each side of a layer is made of; sides without any group are left out.
        whole: layer -> why its outputs are never cut.
        selections: paths of identity shortcuts that may pass on fewer channels than they get.
    """

    groups: tuple[ChannelGroup, ...]
    sides: Mapping[Side, SideChannels]
    whole: Mapping[str, str]
    selections: frozenset[str] = frozenset()

    def group(self, layer: str) -> ChannelGroup | None:
        """The group that ``layer`` produces, None when its outputs are never cut or come from several groups."""
        side = self.sides.get((layer, "out"))
        found = set() if side is None else set(side.group_P.tolist())
        return self.groups[found.pop()] if len(found) == 1 and -1 not in found else None

    def cut(self, kept: Mapping[str, Sequence[int]]) -> dict[str, LayerCut]:
        """The records of a cut that keeps the channels ``kept`` of the groups named; all of the others.

        Positions keep their order, so that adding and concatenating stay aligned.

        Raises:
            PlanError: an unknown group, a channel it does not have, none or one twice, a shortcut that would have to
                pass on channels it does not get.
        """
        masks: dict[int, np.ndarray] = {}
        index = {group.name: i for i, group in enumerate(self.groups)}
        for name, channels in kept.items():
            if name not in index:
                raise PlanError(f"no channel group '{name}'; there are {', '.join(list(index)[:12])}")
            size = self.groups[index[name]].size
            chosen = np.asarray(sorted(channels), dtype=np.int64)
            if len(chosen) == 0 or chosen[0] < 0 or chosen[-1] >= size or len(set(chosen.tolist())) < len(chosen):
                raise PlanError(
                    f"layer '{name}': channels {list(channels)[:8]} cannot be kept; one or more different ones "
                    f"of 0 to {size - 1} expected"
                )
            mask = np.zeros(size, bool)
            mask[chosen] = True
            masks[index[name]] = mask
        return self._records({side: self._kept(entry, masks) for side, entry in self.sides.items()})

    def _kept(self, side: SideChannels, masks: Mapping[int, np.ndarray]) -> np.ndarray:
        keep_P = np.ones(len(side.group_P), bool)
        for index, mask in masks.items():
            own = side.group_P == index
            keep_P[own] = mask[side.channel_P[own]]
        return keep_P

    def _records(self, kept: Mapping[Side, np.ndarray]) -> dict[str, LayerCut]:
        records = {}
        for path in dict.fromkeys(path for path, _ in kept):
            out, into = kept.get((path, "out")), kept.get((path, "in"))
            if path in self.selections:
                if out is None or into is None or (len(out) == len(into) and (out == into).all()):
                    continue
                if (out & ~into).any():
                    raise PlanError(
                        f"shortcut '{path}': {int(out.sum())} channels wanted of {int(into.sum())} that come in; "
                        "a shortcut selects channels, it makes none"
                    )
            indices = [
                None if mask is None or mask.all() else tuple(np.flatnonzero(mask).tolist()) for mask in (out, into)
            ]
            if indices != [None, None]:
                records[path] = LayerCut(out_idx=indices[0], in_idx=indices[1])
        return records


def channel_map(module: nn.Module, spec: InputSpec | None = None, *, selections: Sequence[str] = ()) -> ChannelMap:
    """The channel groups of ``module``, which is not changed.

    A module may say in ``whole_layers`` which layers (name patterns) keep all their outputs, and any part of it in
    ``equal_blocks`` that the outputs of a child are so many equal blocks of which the same positions are kept (the
    heads of an attention's projection).

    Args:
        spec: one example's shape and dtype; by default the module's own ``input_spec``.
        selections: paths of ``nn.Identity`` shortcuts whose two sides are told apart, so that a cut may narrow what
            passes them. The channels on both sides then are groups of their own.

    Raises:
        PlanError: no example is known, the module cannot be traced, or nothing in it can be cut; names the layers.
    """
    spec = spec or getattr(module, "input_spec", None)
    if spec is None:
        raise PlanError(
            f"cuts in width of {type(module).__name__} need one example's shape; set $.model.input, or give the module "
            "an attribute input_spec"
        )
    traced = trace(module, spec, tuple(selections))
    return _grouped(module, traced.classes, traced.order, dict(traced.whole), frozenset(selections))


def _grouped(
    module: nn.Module,
    classes: Mapping[Side, np.ndarray],
    order: Mapping[str, int],
    whole: dict[str, str],
    selections: frozenset[str],
) -> ChannelMap:
    """Channels that lie on exactly the same sides form one group; ``classes`` numbers the channels, -1 for whole."""
    lying: dict[int, set[Side]] = {}
    sides = sorted(classes, key=lambda side: (order.get(side[0], len(order)), side))
    for side in sides:
        for number in set(classes[side].tolist()) - {-1}:
            lying.setdefault(number, set()).add(side)
    by_sides: dict[frozenset[Side], list[int]] = {}
    first_seen: dict[int, None] = {}
    for side in sides:
        if side[1] == "out":
            first_seen.update(dict.fromkeys(n for n in classes[side].tolist() if n != -1))
    for number in first_seen:
        by_sides.setdefault(frozenset(lying[number]), []).append(number)
    groups, place = [], {}
    for index, (where, numbers) in enumerate(by_sides.items()):
        layers = [side for side in sides if side in where]
        producers = tuple(path for path, end in layers if end == "out")
        groups.append(
            ChannelGroup(producers[0], len(numbers), producers, tuple(path for path, end in layers if end == "in"))
        )
        place.update({number: (index, channel) for channel, number in enumerate(numbers)})
    groups = _with_own_names(groups)
    if not groups:
        reasons = "; ".join(f"'{path}': {reason}" for path, reason in list(whole.items())[:5]) or "no layer has outputs"
        raise PlanError(
            f"nothing in {type(module).__name__} can be cut in width ({reasons}); use a factorized or frozen cut"
        )
    table = {}
    for side in sides:
        pairs = [place.get(number, (-1, 0)) for number in classes[side].tolist()]
        if any(index != -1 for index, _ in pairs):
            table[side] = SideChannels(np.array([i for i, _ in pairs]), np.array([c for _, c in pairs]))
    return ChannelMap(tuple(groups), table, whole, selections)


def _with_own_names(groups: list[ChannelGroup]) -> list[ChannelGroup]:
    """A layer whose outputs fall into several groups gives its name with a number to all but the first."""
    seen: dict[str, int] = {}
    named = []
    for group in groups:
        seen[group.name] = seen.get(group.name, 0) + 1
        count = seen[group.name]
        name = group.name if count == 1 else f"{group.name}#{count}"
        named.append(ChannelGroup(name, group.size, group.producers, group.consumers))
    return named
