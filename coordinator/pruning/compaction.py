"""A masked model without its dead channels: which ones go, when a smaller network pays, and the cut that says so.

Removing channels makes a new shape and so a new artifact, which is exported, held against torch and sent to every
device. So a network that is in use stays as long as it holds everything that is alive, until one with a tenth fewer
multiply-accumulates or parameters is possible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from coordinator.pruning.dead_channels import (
    READS,
    Live,
    columns_read,
    could_have_dead,
    is_same_function,
    live_channels,
)
from coordinator.pruning.masks import MASK, Masks
from coordinator.submodels.channel_groups import ChannelMap, channel_map
from coordinator.submodels.record import Cut, LayerCut
from edge.contracts.errors import PlanError

if TYPE_CHECKING:
    from torch import nn

LIVE = "live/"
"""State: ``live/<channel group>`` are the channels of the network in use; groups that are whole are left out."""

WORTH = 0.9
"""A smaller network pays when it has at most this share of the present one's multiply-accumulates or parameters."""


class Compaction:
    """Networks of one module under masks, without dead channels."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._spec = getattr(module, "input_spec", None)
        self._channels: ChannelMap | None = None
        self._known: dict[bytes, tuple[int, int]] = {}

    def live(self, masks: Masks, present: Live) -> dict[str, np.ndarray]:
        """The channels of the network to use under ``masks``; empty for the whole one.

        Args:
            present: those of the network in use.
        """
        if self._spec is None or not could_have_dead(masks) or not self._can_follow():
            return {}
        fitting = present if self._holds_all(present, masks) else {}
        for silent, by_column in ((True, True), (True, False), (False, True), (False, False)):
            found = live_channels(self._module, self._map(), masks, silent=silent)
            if by_column:
                found |= columns_read(self._module, self._map(), masks, found)
            if found and self._is_better(found, fitting, masks):
                return found
        return {name: np.asarray(kept) for name, kept in fitting.items()}

    def cut(self, masked: Cut, live: Live) -> Cut:
        """The cut ``masked``, a mask per layer, without the channels that are not in ``live``."""
        if not live:
            return masked
        kept = {name: np.flatnonzero(flags).tolist() for name, flags in live.items()}
        narrow = self._map().cut({name: indices for name, indices in kept.items() if not name.endswith(READS)})
        for name, indices in kept.items():
            if name.endswith(READS):
                path = name.removesuffix(READS)
                narrow[path] = msgspec.structs.replace(narrow.get(path, LayerCut()), read_idx=tuple(indices))
        cut: dict[str, LayerCut] = dict(narrow)
        for path, record in masked.items():
            thinner = narrow.get(path, LayerCut())
            cut[path] = msgspec.structs.replace(
                record, out_idx=thinner.out_idx, in_idx=thinner.in_idx, read_idx=thinner.read_idx
            )
        return cut

    def _can_follow(self) -> bool:
        """Whether the module's channels can be followed; one that cannot be cut in width trains under its masks."""
        try:
            self._map()
        except PlanError:
            self._spec = None
            return False
        return True

    def _map(self) -> ChannelMap:
        if self._channels is None:
            self._channels = channel_map(self._module, self._spec)
        return self._channels

    def _holds_all(self, present: Live, masks: Masks) -> bool:
        """Whether the network ``present`` is the same function under these masks: what it lacks is dead still."""
        return bool(present) and self._is_same(present, masks)

    def _is_better(self, live: Live, present: Live, masks: Masks) -> bool:
        """Whether the network ``live`` pays, beside ``present``, and is the same function."""
        try:
            return self._pays(live, present) and self._is_same(live, masks)
        except (RuntimeError, ValueError):
            return False  # the module may be anyone's: it may use a layer's weight otherwise than by calling the layer

    def _is_same(self, live: Live, masks: Masks) -> bool:
        assert self._spec is not None
        return is_same_function(self._module, self.cut({}, live), masks, self._spec)

    def _pays(self, live: Live, present: Live) -> bool:
        smaller, larger = self._size(live), self._size(present)
        return any(ours <= WORTH * theirs for ours, theirs in zip(smaller, larger, strict=True))

    def _size(self, live: Live) -> tuple[int, int]:
        """(Multiply-accumulates, parameters)."""
        from coordinator.submodels.costs import cut_costs

        assert self._spec is not None
        key = b"".join(name.encode() + b"\0" + np.packbits(kept).tobytes() for name, kept in sorted(live.items()))
        if key not in self._known:
            costs = cut_costs(self._module, self.cut({}, live), self._spec)
            self._known[key] = costs.macs, costs.params
        return self._known[key]


def mask_records(names: tuple[str, ...], *, scored: bool) -> dict[str, LayerCut]:
    """A mask on each of the weights ``names``; ``scored`` ones have their squared gradients summed."""
    return {name.removesuffix(".weight"): LayerCut(mask=name + MASK, scored=scored) for name in names}
