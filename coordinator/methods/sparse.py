"""What all methods with one mask for everybody share: the masked model, its program, the mean of values and scores.

A method keeps its masks in the state's ``extra``; devices get them beside the weights and train only what they keep.
Source: PruneFL, Algorithm 1; the baselines of its section VI differ only in when and how masks are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from coordinator.aggregation.weighted_mean import WeightedMean
from coordinator.methods.fedavg import FULL, examples
from coordinator.methods.method import DeviceProgram, Level, State, Submodel, Update
from coordinator.methods.options import LOSSES, NORMS, Options
from coordinator.pruning.masks import MASK, Masks, masked, prunable_weights
from coordinator.submodels.build import module_tensors
from coordinator.submodels.record import Cut, LayerCut
from edge.contracts.errors import PlanError

if TYPE_CHECKING:
    from torch import nn

SQUARED = "#squared_gradient"
"""``<weight>#squared_gradient`` is the sum of squared gradients a device reports."""


class SparseMethod:
    """A sparse method but for how its masks are made, which a subclass adds.

    Options of every such method: ``loss`` and ``norm``, as FedAvg's.
    """

    name: ClassVar[str]

    def __init__(self, module: nn.Module, options: Mapping[str, Any]) -> None:
        """Raises ConfigError for unknown or impossible options, PlanError for a model without prunable layers."""
        read = Options(self.name, options)
        self.module = module
        self.prunable = prunable_weights(module)
        self.loss = read.choice("loss", LOSSES, "cross_entropy")
        self.norm = read.choice("norm", NORMS, "running")
        self.read_own(read)
        read.finish()

    def read_own(self, read: Options) -> None:
        """Read the options only this method has."""

    def init(self) -> State:
        """The module's own initial weights, everything kept."""
        return self.first_state()

    def cut_shape(self, level: Level, *, round_index: int, device: str, seed: int) -> Cut:
        """A mask on every prunable layer."""
        return self.masked_cut(level, scored=False)

    def cut(self, state: State, level: Level, *, round_index: int, device: str, seed: int) -> Submodel:
        """The masked model with its masks."""
        return self.submodel(state, self.cut_shape(level, round_index=round_index, device=device, seed=seed))

    def aggregate(self, state: State, updates: Iterable[Update]) -> State:
        """The mean of the kept weights; raises as :meth:`mean`."""
        return self.mean(state, updates)[0]

    def refresh(self, state: State) -> State:
        """The state itself."""
        return state

    def levels(self) -> tuple[Level, ...]:
        """One: every device holds the same masked model."""
        return (FULL,)

    def first_state(self) -> State:
        """The module's own initial weights under masks that keep everything."""
        tensors = module_tensors(self.module)
        return State(tensors, {name + MASK: np.ones(tensors[name].shape, bool) for name in self.prunable})

    def masks(self, state: State) -> dict[str, np.ndarray]:
        """The masks of a state by weight name."""
        return {name: state.extra[name + MASK] for name in self.prunable}

    def with_masks(self, state: State, masks: Masks, **extra: np.ndarray) -> State:
        """``state`` under new masks: what they drop is 0, and what comes back starts there."""
        named = {name + MASK: mask for name, mask in masks.items()}
        return replace(state, tensors=masked(state.tensors, masks), extra={**state.extra, **named, **extra})

    def masked_cut(self, level: Level, *, scored: bool) -> Cut:
        """A mask on every prunable layer; ``scored`` ones have their squared gradients summed.

        Raises:
            PlanError: another level than ``full``.
        """
        if level != FULL:
            raise PlanError(f"{self.name} has no level '{level.name}' ({level.value:g}); its only level is 'full'")
        return {name.removesuffix(".weight"): LayerCut(mask=name + MASK, scored=scored) for name in self.prunable}

    def program(self, cut: Cut) -> DeviceProgram:
        """Training of the kept entries, and the squared gradients of scored layers over all of theirs."""
        masked_layers = [path for path in cut if cut[path].mask]
        return DeviceProgram(
            loss=self.loss,
            norm=self.norm,
            masked=tuple(f"{path}.weight" for path in masked_layers),
            accumulators=tuple(f"{path}.weight" for path in masked_layers if cut[path].scored),
        )

    def submodel(self, state: State, cut: Cut) -> Submodel:
        """The masked model with its masks."""
        tensors = dict(state.tensors) | {name + MASK: mask for name, mask in self.masks(state).items()}
        return Submodel(cut, FULL, tensors if cut else state.tensors, self.program(cut))

    def mean(self, state: State, updates: Iterable[Update]) -> tuple[State, dict[str, np.ndarray]]:
        """Means of the kept weights and of the squared gradients, both weighted by ``num_examples``.

        Returns:
            The new state with the same masks, and the scores by weight name; empty when no device sent any.

        Raises:
            PlanError: no update.
            UpdateRejected: an update that does not fit the model, or without examples.
        """
        weights = WeightedMean(state.tensors)
        scores = WeightedMean({name: state.tensors[name] for name in self.prunable})
        count = scored = 0
        for update in updates:
            where, number = f"device {update.device}, round {state.round}", examples(update)
            sent = {n.removesuffix(SQUARED): v for n, v in update.tensors.items() if n.endswith(SQUARED)}
            weights.add({n: v for n, v in update.tensors.items() if "#" not in n}, number, where=where)
            if sent:
                scores.add(sent, number, where=where)
            count, scored = count + 1, scored + bool(sent)
        if not count:
            raise PlanError(f"round {state.round}: no updates to aggregate; repeat the round")
        # Entries outside the mask are 0 on every device; the mask makes sure of it whatever they sent.
        tensors = masked(weights.result(), self.masks(state))
        return State(tensors, state.extra, state.round + 1), scores.result() if scored else {}

    def eval_models(self, state: State) -> Mapping[str, Submodel]:
        """The masked model as ``server``; its zeros are in its weights."""
        return {"server": Submodel({}, FULL, state.tensors, DeviceProgram(loss=self.loss, norm=self.norm))}


class FixedMask(SparseMethod):
    """Training under masks that are given at the start and never change; a subclass sets :attr:`fixed`."""

    fixed: Mapping[str, np.ndarray]

    def init(self) -> State:
        """The module's own initial weights under the masks."""
        return self.with_masks(self.first_state(), self.fixed)
