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
from coordinator.submodels.values import AS_THE_RUN_SAYS, Level, LocalWork, State, Update

SETTLED_CHANGE, SETTLED_COUNT = 0.1, 5
"""Initial pruning ends when the density changed by at most a tenth in five reconfigurations in a row."""

INITIAL_LEFT, SETTLED = "prunefl/initial-left", "prunefl/settled"
"""State: rounds of initial pruning still to come (0 once it has ended), and small changes in a row."""

SUMMED = "prunefl/summed/"
"""State: squared gradients since the last reconfiguration, by weight; with ``importance = "interval"``."""


class PruneFL(SparseMethod):
    """Options, in kebab case:

    - ``interval``: rounds between reconfigurations; 50.
    - ``initial-rounds``: most rounds in which the selected device prunes alone; 0 = none.
    - ``initial-interval``: rounds between its reconfigurations; 1.
    - ``initial-steps``: batches of each of these rounds; 0, the default: as ``[training]`` says. In the authors' code
      500 pass between reconfigurations. A published time model charges as many; ``constant-s`` and ``layer-s`` are
      seconds of any round.
    - ``initial-examples``: size of the fixed sample of its examples that the device trains on in these rounds; 0, the
      default: all of them. In the authors' code 200.
    - ``selected-device``: who prunes alone; by default the first of those there, by name.
    - ``time-model``, ``iterations``, or ``constant-s`` and ``layer-s``: as
      :func:`coordinator.pruning.time_model.read_time_model`.
    - ``first-density``, ``last-density``: limit of the density, from the first to the last of ``limit-rounds`` rounds;
      without them there is none.
    - ``importance``: ``round``, the default: the mean over the iterations of the round that reconfigures. ``interval``:
      over all iterations since the last reconfiguration, as in the paper; devices send their sums with every update, a
      dense upload each, and no channel is cut out. Sums of rounds are added: Algorithm 2 reads ratios alone.
    - ``bias-importance``: whether the biases of prunable layers, which are never pruned, count as kept importance, as
      in the authors' code; false.
    - ``loss``, ``norm``, ``compact``: as every sparse method's; the paper's own loss is ``bce_one_hot``.
    """

    name = "prunefl"
    needs_each_update = "devices send scores or losses of their data beside the weights, and it prunes by them"

    def read_own(self, read: Options) -> None:
        """All but ``loss`` and ``norm``; raises ConfigError for a time model of another number of layers."""
        self._interval = read.integer("interval", 50, low=1)
        self._initial_rounds = read.integer("initial-rounds", 0, low=0)
        self._initial_interval = read.integer("initial-interval", 1, low=1)
        self._initial_work = LocalWork(
            steps=read.integer("initial-steps", 0, low=0), examples=read.integer("initial-examples", 0, low=0)
        )
        if self._initial_work != AS_THE_RUN_SAYS and not self._initial_rounds:
            read.problem("initial-rounds", "0 rounds, and initial-steps or initial-examples is of them; give some")
        chosen = read.names("selected-device")
        self._selected = chosen[0] if chosen else ""
        self._first = read.number("first-density", None, low=0, strict=True)
        self._last = read.number("last-density", self._first, low=0, strict=True)
        self._limit_rounds = read.integer("limit-rounds", 1000, low=1)
        sizes = {name: p.numel() for name, p in self.module.named_parameters()}
        self._sizes = {name: sizes[name] for name in self.prunable}
        self._times = read_time_model(read, self._sizes)
        steps = self._initial_work.steps
        self._initial_times = read_time_model(read, self._sizes, steps) if steps else self._times
        self._is_summed = read.choice("importance", ("round", "interval"), "round") == "interval"
        biases = [name.removesuffix("weight") + "bias" for name in self.prunable]
        self.scored_beside = tuple(n for n in biases if n in sizes) if read.flag("bias-importance", False) else ()

    def init(self) -> State:
        """The module's own initial weights, everything kept."""
        state = self.first_state()
        counters = {INITIAL_LEFT: np.array(self._initial_rounds), SETTLED: np.array(0)}
        return replace(state, extra={**state.extra, **counters, **self._no_sums(state)})

    def select(self, state: State, devices: Sequence[str]) -> Sequence[str]:
        """The selected device alone during initial pruning, then everybody."""
        if int(state.extra[INITIAL_LEFT]) == 0 or not devices:
            return devices
        return [self._selected] if self._selected in devices else sorted(devices)[:1]

    def local_work(self, state: State) -> LocalWork:
        """In initial pruning as many batches, of a sample of so many examples, as the options say."""
        return self._initial_work if int(state.extra[INITIAL_LEFT]) else AS_THE_RUN_SAYS

    def cut_shape(self, level: Level, *, round_index: int, device: str, seed: int) -> Cut:
        """A mask on every prunable layer; scored in the rounds that may end with a reconfiguration."""
        return self.masked_cut(level, scored=self._may_reconfigure(round_index))

    def shape_after(self, state: State, level: Level, *, round_index: int, device: str, seed: int) -> Cut:
        """As ``cut_shape``; once initial pruning has settled, rounds that were left for it are not scored."""
        is_initial = int(state.extra[INITIAL_LEFT]) > 0
        scored = self._may_reconfigure(round_index) if is_initial else self._is_due(round_index)
        return self.compacted(state, self.masked_cut(level, scored=scored))

    def aggregate(self, state: State, updates: Iterable[Update], rule: Rule | None = None) -> State:
        """The mean of the kept weights; then, when the round was scored and it is time, Algorithm 2.

        Raises:
            PlanError: no update.
            UpdateRejected: an update that does not fit the model, or without examples.
        """
        new, scores = self._added(*self.mean(state, updates, rule))
        left = int(state.extra[INITIAL_LEFT])
        if left:
            return self._initial(new, scores, left - 1)
        due = (state.round + 1) % self._interval == 0
        return self._reconfigured(new, scores, prunable_share(state.round)) if due and scores else new

    def round_seconds(self, state: State) -> float:
        """Seconds of a round under the state's masks, by the time model."""
        times = self._initial_times if int(state.extra[INITIAL_LEFT]) else self._times
        return times.round_s(self.masks(state))

    def _may_reconfigure(self, round_index: int) -> bool:
        if round_index < self._initial_rounds and (round_index + 1) % self._initial_interval == 0:
            return True
        return self._is_due(round_index)

    def _is_due(self, round_index: int) -> bool:
        """Whether devices send squared gradients in a round of all of them."""
        return self._is_summed or (round_index + 1) % self._interval == 0

    def _no_sums(self, state: State) -> dict[str, np.ndarray]:
        names = (*self.prunable, *self.scored_beside) if self._is_summed else ()
        return {SUMMED + name: np.zeros(state.tensors[name].shape, np.float32) for name in names}

    def _added(self, state: State, scores: Mapping[str, np.ndarray]) -> tuple[State, Mapping[str, np.ndarray]]:
        """The sums since the last reconfiguration with those of this round, in the state, too."""
        if not (self._is_summed and scores):
            return state, scores
        sums = {name: state.extra[SUMMED + name] + value for name, value in scores.items()}
        return replace(state, extra={**state.extra, **{SUMMED + name: value for name, value in sums.items()}}), sums

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
        beside = sum(float(scores[name].sum(dtype=np.float64)) for name in self.scored_beside)
        before = self.masks(state)
        masks = reconfigure(weights, before, scores, self._times, share=share, fixed_importance=beside, cap=cap)
        return self.with_masks(state, masks, **self._no_sums(state))
