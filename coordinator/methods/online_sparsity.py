"""Online gradient sparsity: how many weights are kept is learned round by round, from what keeping fewer would cost.

Every layer keeps the same share, its largest weights, and the mask is made anew each round; what is dropped resumes
from its last value when it comes back. Devices compare, on the first batch of a round and before they train, the loss
of the weights they received with that of the round before and with that of fewer weights; no example leaves them.
The comparison is of the model that a round begins with, so the size it leads to holds from the next round on.
Source: Han et al., "Adaptive gradient sparsification for efficient federated learning: an online learning approach"
(ICDCS 2020), as the baseline of PruneFL, section VI.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from coordinator.aggregation.accumulator import Rule
from coordinator.config.method_options import Options
from coordinator.methods.sparse import SparseMethod
from coordinator.pruning.masks import MASK, largest
from coordinator.pruning.size_control import SizeControl
from coordinator.pruning.time_model import read_time_model
from coordinator.submodels.record import Cut
from coordinator.submodels.values import DeviceProgram, Level, State, Submodel, Update
from edge.contracts.streams import stream_seed, uniform
from export.loss_probe import LOSSES, PREVIOUS, THRESHOLD

CONTROL = "online/control"
DENSE, BEFORE, LEAST = "online/dense/", "online/previous/", "online/threshold/"
"""State: last values of all prunable weights; the parameters of the round before; smallest magnitude kept at k'."""


class OnlineSparsity(SparseMethod):
    """Options, in kebab case:

    - ``time-model``, ``iterations``, or ``constant-s`` and ``layer-s``: as
      :func:`coordinator.pruning.time_model.read_time_model`.
    - ``rounding-seed``: of the draws that round sizes to whole numbers; 0.
    - ``loss``, ``norm``: as FedAvg's. The losses compared are those of batch statistics whatever ``norm`` is.

    Masks change every round, so dead channels are not cut out: each would be another artifact.
    """

    name = "online_sparsity"
    needs_each_update = "devices send scores or losses of their data beside the weights, and it prunes by them"
    can_compact = False

    def read_own(self, read: Options) -> None:
        """All but ``loss`` and ``norm``; raises ConfigError for a time model of another number of layers."""
        sizes = {name: p.numel() for name, p in self.module.named_parameters()}
        self._parameters = tuple(sizes)
        self._sizes = {name: sizes[name] for name in self.prunable}
        self._seed = read.integer("rounding-seed", 0, low=0)
        self._times = read_time_model(read, self._sizes)

    def init(self) -> State:
        """The module's own initial weights, everything kept; they are their own predecessors."""
        state = self.first_state()
        control = SizeControl.first(sum(self._sizes.values()))
        dense = {name: state.tensors[name] for name in self.prunable}
        return self._controlled(state, control, dense, previous=state)

    def program(self, cut: Cut) -> DeviceProgram:
        """Training of the kept entries, and the comparison of losses before it."""
        return replace(super().program(cut), probe=True)

    def cut(self, state: State, level: Level, *, round_index: int, device: str, seed: int) -> Submodel:
        """The masked model, the one before it, and the magnitudes below which k' keeps nothing."""
        submodel = super().cut(state, level, round_index=round_index, device=device, seed=seed)
        before = {name: state.extra[BEFORE + name] for name in self._parameters}
        beside = {name + PREVIOUS: value for name, value in before.items()}
        # Zeros need not travel, so the earlier weights have a mask for the way.
        beside |= {name + PREVIOUS + MASK: before[name] != 0 for name in self.prunable}
        beside |= {name + THRESHOLD: state.extra[LEAST + name] for name in self.prunable}
        return replace(submodel, tensors={**submodel.tensors, **beside})

    def aggregate(self, state: State, updates: Iterable[Update], rule: Rule | None = None) -> State:
        """The mean of the kept weights, the next size, and masks of that size over the last values of all weights.

        Raises:
            PlanError: no update.
            UpdateRejected: an update that does not fit the model, or without examples.
        """
        losses = _Losses()
        new, _ = self.mean(state, losses.of(updates), rule)
        masks = self.masks(state)
        dense = {n: np.where(masks[n], new.tensors[n], state.extra[DENSE + n]) for n in self.prunable}
        control = SizeControl.from_array(state.extra[CONTROL])
        if state.round and losses.weight:  # before the first round there is nothing to compare with
            control = self._next(control, losses.means(), state.round)
        return self._controlled(new, control, dense, previous=state)

    def round_seconds(self, state: State) -> float:
        """Seconds of a round under the state's masks, by the time model."""
        return self._times.round_s(self.masks(state))

    def _next(self, control: SizeControl, losses: tuple[float, float, float], round_index: int) -> SizeControl:
        """The controller after a comparison of the losses (at k, of the round before, at k')."""
        present, previous, lesser = losses
        cost, lesser_cost = self._seconds(control.size), None
        if previous > present and previous > lesser:
            lesser_cost = self._seconds(control.lesser) * (previous - present) / (previous - lesser)
        first, second = uniform(stream_seed(self._seed, "online-sparsity/rounding", round_index), 2).tolist()
        return control.after(cost, lesser_cost, (first, second))

    def _seconds(self, size: int) -> float:
        return self._times.even_round_s(self._sizes, size / sum(self._sizes.values()))

    def _controlled(
        self, state: State, control: SizeControl, dense: Mapping[str, np.ndarray], *, previous: State
    ) -> State:
        """``state`` under masks of the controller's size, ready to be compared with ``previous``."""
        kept, lesser = (size / control.total for size in (control.size, control.lesser))
        masks = {name: largest(dense[name], kept) for name in self.prunable}
        extra = {CONTROL: control.to_array()}
        for name in self.prunable:
            extra[DENSE + name] = dense[name]
            magnitudes = np.abs(dense[name][largest(dense[name], lesser)])
            extra[LEAST + name] = np.array(magnitudes.min(), np.float32)
        extra |= {BEFORE + name: previous.tensors[name] for name in self._parameters}
        return self.with_masks(replace(state, tensors={**state.tensors, **dense}), masks, **extra)


class _Losses:
    """Sums of the devices' losses, weighted by examples, gathered while their updates pass by."""

    def __init__(self) -> None:
        self.weight = 0.0
        self._sums = np.zeros(3)

    def of(self, updates: Iterable[Update]) -> Iterator[Update]:
        for update in updates:
            found = update.tensors.get(LOSSES)
            if found is not None and found[0] == 1:  # a device that did not compare has nothing to say
                self.weight += update.num_examples
                self._sums += found[1:].astype(np.float64) * update.num_examples
            yield update

    def means(self) -> tuple[float, float, float]:
        """At k, of the round before, at k'."""
        present, previous, lesser = (self._sums / self.weight).tolist()
        return present, previous, lesser
