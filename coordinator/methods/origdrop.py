"""OrigDrop: every device trains the first channels of every layer, of the original, undecomposed weights.

Source: the baseline of PriSM, section 5, which is HeteroFL's cut with its keep ratios, batch statistics and plain
cross-entropy. Entries are means over the devices that held them, or over all as in its published code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.aggregation.accumulator import Rule
from coordinator.config.method_options import Options
from coordinator.methods.heterofl import HeteroFL
from coordinator.submodels.values import State, Update
from coordinator.submodels.width import lift_tensors
from edge.contracts.errors import PlanError, UpdateRejected

if TYPE_CHECKING:
    from torch import nn

DEFAULTS = {
    "levels": (0.8, 0.6, 0.4, 0.2),
    "rounding": "ceil",
    "scaler": False,
    "loss": "cross_entropy",
    "norm": "batch",
}


class OrigDrop(HeteroFL):
    """Options, in kebab case: HeteroFL's, with PriSM's keep ratios as ``levels``, no scaler and plain cross-entropy
    unless given, and

    - ``divisor`` of an entry's sum: ``holders``, the default: the devices that held it. ``devices``: all of them, as in
      the published code; what few devices hold then shrinks from round to round.
    """

    name = "origdrop"

    def __init__(self, module: nn.Module, options: Mapping[str, Any]) -> None:
        """Raises ConfigError for unknown or impossible options, PlanError for a module that cannot be cut so."""
        super().__init__(module, {**DEFAULTS, **options})
        self._buffers = frozenset(name for name, _ in module.named_buffers())

    def read_own(self, read: Options) -> None:
        """``divisor``, and HeteroFL's own."""
        super().read_own(read)
        self._by_all = read.choice("divisor", ("holders", "devices"), "holders") == "devices"

    def aggregate(self, state: State, updates: Iterable[Update], rule: Rule | None = None) -> State:
        """As HeteroFL's; divided by all devices where ``divisor`` says so."""
        given = (self._with_zeros(state, update) for update in updates) if self._by_all else updates
        return super().aggregate(state, given, rule)

    def _with_zeros(self, state: State, update: Update) -> Update:
        """The update with 0 for parameters that its device did not hold, and the statistics of these as they were."""
        self.ladder.counts(update.level)
        base = {name: v if name in self._buffers else np.zeros_like(v) for name, v in state.tensors.items()}
        try:
            tensors = lift_tensors(update.tensors, self.ladder.slices(update.cut), base)
        except PlanError as error:
            raise UpdateRejected(f"device {update.device}, round {state.round}: {error}") from error
        return replace(update, cut=self.ladder.server_cut, level=self.levels()[0], tensors=tensors)
