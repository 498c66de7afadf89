"""PruneFL: the model shrinks and grows during training, by importance per second of training time.

First one device alone prunes, then all of them train what is kept. In reconfiguration rounds the devices also sum the
squared gradients of every prunable coordinate, pruned ones too, and Algorithm 2 chooses anew; weights that come back
start at 0. Source: Jiang et al., "Model pruning enables efficient federated learning on edge devices", Algorithms 1, 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from coordinator.aggregation.accumulator import Rule
from coordinator.config.method_options import Options
from coordinator.methods.sparse import SparseMethod
from coordinator.pruning.masks import density
from coordinator.pruning.reconfigure import PRUNABLE_SHARE, largest_density, prunable_share, reconfigure
from coordinator.pruning.time_model import read_time_model
from coordinator.submodels.record import Cut
from coordinator.submodels.values import Level, State, Update

SETTLED_CHANGE, SETTLED_COUNT = 0.1, 5
"""Initial pruning ends when the density changed by at most a tenth in five reconfigurations in a row."""

INITIAL_LEFT, SETTLED = "prunefl/initial-left", "prunefl/settled"
"""State: rounds of initial pruning still to come (0 once it has ended), and small changes in a row."""


class PruneFL(SparseMethod):
    """Options, in kebab case:

    - ``interval``: rounds between reconfigurations; 50.
    - ``initial-rounds``: most rounds in which the selected device prunes alone; 0 = none.
    - ``initial-interval``: rounds between its reconfigurations; 1.
    - ``selected-device``: who prunes alone; by default the first of those there, by name.
    - ``time-model``, ``iterations``, or ``constant-s`` and ``layer-s``: as
      :func:`coordinator.pruning.time_model.read_time_model`.
    - ``first-density``, ``last-density``: limit of the density, from the first to the last of ``limit-rounds`` rounds;
      without them there is none.
    - ``loss``, ``norm``, ``compact``: as every sparse method's; the paper's own loss is ``bce_one_hot``.

    The importance of a reconfiguration is the mean over that round's iterations: squared gradients of every round would
    cost a dense upload each, and what a device keeps to itself is lost with it.
    """

    name = "prunefl"
    needs_each_update = "devices send scores or losses of their data beside the weights, and it prunes by them"

    def read_own(self, read: Options) -> None:
        """All but ``loss`` and ``norm``; raises ConfigError for a time model of another number of layers."""
        self._interval = read.integer("interval", 50, low=1)
        self._initial_rounds = read.integer("initial-rounds", 0, low=0)
        self._initial_interval = read.integer("initial-interval", 1, low=1)
        chosen = read.names("selected-device")
        self._selected = chosen[0] if chosen else ""
        self._first = read.number("first-density", None, low=0, strict=True)
        self._last = read.number("last-density", self._first, low=0, strict=True)
        self._limit_rounds = read.integer("limit-rounds", 1000, low=1)
        sizes = {name: p.numel() for name, p in self.module.named_parameters()}
        self._sizes = {name: sizes[name] for name in self.prunable}
        self._times = read_time_model(read, self._sizes)

    def init(self) -> State:
        """The module's own initial weights, everything kept."""
        state = self.first_state()
        counters = {INITIAL_LEFT: np.array(self._initial_rounds), SETTLED: np.array(0)}
        return replace(state, extra={**state.extra, **counters})

    def select(self, state: State, devices: Sequence[str]) -> Sequence[str]:
        """The selected device alone during initial pruning, then everybody."""
        if int(state.extra[INITIAL_LEFT]) == 0 or not devices:
            return devices
        return [self._selected] if self._selected in devices else sorted(devices)[:1]

    def cut_shape(self, level: Level, *, round_index: int, device: str, seed: int) -> Cut:
        """A mask on every prunable layer; scored in the rounds that may end with a reconfiguration."""
        return self.masked_cut(level, scored=self._may_reconfigure(round_index))

    def shape_after(self, state: State, level: Level, *, round_index: int, device: str, seed: int) -> Cut:
        """As ``cut_shape``; once initial pruning has settled, rounds that were left for it are not scored."""
        is_initial = int(state.extra[INITIAL_LEFT]) > 0
        scored = self._may_reconfigure(round_index) if is_initial else (round_index + 1) % self._interval == 0
        return self.compacted(state, self.masked_cut(level, scored=scored))

    def aggregate(self, state: State, updates: Iterable[Update], rule: Rule | None = None) -> State:
        """The mean of the kept weights; then, when the round was scored and it is time, Algorithm 2.

        Raises:
            PlanError: no update.
            UpdateRejected: an update that does not fit the model, or without examples.
        """
        new, scores = self.mean(state, updates, rule)
        left = int(state.extra[INITIAL_LEFT])
        if left:
            return self._initial(new, scores, left - 1)
        due = (state.round + 1) % self._interval == 0
        return self._reconfigured(new, scores, prunable_share(state.round)) if due and scores else new

    def round_seconds(self, state: State) -> float:
        """Seconds of a round under the state's masks, by the time model."""
        return self._times.round_s(self.masks(state))

    def _may_reconfigure(self, round_index: int) -> bool:
        if round_index < self._initial_rounds and (round_index + 1) % self._initial_interval == 0:
            return True
        return (round_index + 1) % self._interval == 0

    def _initial(self, state: State, scores: Mapping[str, np.ndarray], left: int) -> State:
        """After a round of the selected device: reconfigure when due, and see whether the density has settled."""
        settled = int(state.extra[SETTLED])
        if scores and state.round % self._initial_interval == 0:
            before = density(self.masks(state))
            state = self._reconfigured(state, scores, PRUNABLE_SHARE)
            change = abs(density(self.masks(state)) / before - 1)
            settled = settled + 1 if change <= SETTLED_CHANGE else 0
        if settled >= SETTLED_COUNT:
            left = 0
        counters = {INITIAL_LEFT: np.array(left), SETTLED: np.array(settled)}
        return replace(state, extra={**state.extra, **counters})

    def _reconfigured(self, state: State, scores: Mapping[str, np.ndarray], share: float) -> State:
        cap = None
        if self._first is not None and self._last is not None:
            allowed = largest_density(state.round, rounds=self._limit_rounds, first=self._first, last=self._last)
            cap = int(allowed * sum(self._sizes.values()))
        weights = {name: state.tensors[name] for name in self.prunable}
        masks = reconfigure(weights, self.masks(state), scores, self._times, share=share, cap=cap)
        return self.with_masks(state, masks)
