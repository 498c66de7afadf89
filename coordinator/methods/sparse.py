"""What all methods with one mask for everybody share: the masked model, its program, the mean of values and scores.

A method keeps its masks in the state's ``extra``; devices get them beside the weights and train only what they keep.
Channels that a mask has killed are not sent: devices get a narrower network, with masks inside it. What is masked is 0
on every side and stays so; the kept weights, biases and norm parameters of a channel that is not sent keep their bits,
where a device that held them would let weight decay shrink them, without any effect on what the model computes.
Source: PruneFL, Algorithm 1; the baselines of its section VI differ only in when and how masks are made.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from coordinator.aggregation.accumulator import Rule
from coordinator.aggregation.weighted_mean import WeightedMean
from coordinator.config.method_options import LOSSES, NORMS, Options
from coordinator.methods.fedavg import FULL, examples
from coordinator.pruning.compaction import LIVE, Compaction, mask_records
from coordinator.pruning.masks import MASK, Masks, masked, prunable_weights
from coordinator.submodels.build import module_tensors
from coordinator.submodels.record import Cut
from coordinator.submodels.values import DeviceProgram, Level, State, Submodel, Update, require_level
from coordinator.submodels.width import cut_tensors, lift_tensors, tensor_slices
from edge.contracts.errors import PlanError

if TYPE_CHECKING:
    from torch import nn

SQUARED = "#squared_gradient"
"""``<weight>#squared_gradient`` is the sum of squared gradients a device reports."""


class SparseMethod:
    """A sparse method but for how its masks are made, which a subclass adds.

    Options of every such method: ``loss`` and ``norm``, as FedAvg's; ``compact``, whether channels that a mask has
    killed are cut out where it pays, true unless a method says otherwise.
    """

    name: ClassVar[str]
    synchronous_only: ClassVar[str] = "its masks change between rounds, and what an update has trained may be masked"
    needs_each_update: ClassVar[str] = ""
    refuses_personal_layers: ClassVar[str] = "its layers travel as the values that one mask for all devices keeps"
    can_compact: ClassVar[bool] = True
    scored_beside: tuple[str, ...] = ()
    """Parameters without masks whose squared gradients are summed where weights are scored."""

    def __init__(self, module: nn.Module, options: Mapping[str, Any]) -> None:
        """Raises ConfigError for unknown or impossible options, PlanError for a model without prunable layers."""
        read = Options(self.name, options)
        self.module = module
        self.prunable = prunable_weights(module)
        self.loss = read.choice("loss", LOSSES, "cross_entropy")
        self.norm = read.choice("norm", NORMS, "running")
        self._compacts = self.can_compact and read.flag("compact", True)
        self._compaction = Compaction(module)
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
        """The masked model with its masks, without dead channels unless it is scored: those could come back."""
        return self.submodel(state, self.shape_after(state, level, round_index=round_index, device=device, seed=seed))

    def shape_after(self, state: State, level: Level, *, round_index: int, device: str, seed: int) -> Cut:
        """The cut of the round after ``state``: masks decide which channels there are."""
        return self.compacted(state, self.cut_shape(level, round_index=round_index, device=device, seed=seed))

    def aggregate(self, state: State, updates: Iterable[Update], rule: Rule | None = None) -> State:
        """The mean of the kept weights; raises as :meth:`mean`."""
        return self.mean(state, updates, rule)[0]

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
        live = self._compaction.live(masks, _live(state)) if self._compacts else {}
        named |= {LIVE + group: kept for group, kept in live.items()}
        held = {name: value for name, value in state.extra.items() if not name.startswith(LIVE)}
        return replace(state, tensors=masked(state.tensors, masks), extra={**held, **named, **extra})

    def compacted(self, state: State, cut: Cut) -> Cut:
        """``cut`` without the channels that are dead in ``state``; ``cut`` itself where squared gradients are asked."""
        is_scored = any(record.scored for record in cut.values())
        return cut if is_scored or not cut else self._compaction.cut(cut, _live(state))

    def masked_cut(self, level: Level, *, scored: bool) -> Cut:
        """A mask on every prunable layer; ``scored`` ones have their squared gradients summed.

        Raises:
            PlanError: another level than ``full``.
        """
        require_level(self.name, level, (FULL,))
        return mask_records(self.prunable, scored=scored)

    def program(self, cut: Cut) -> DeviceProgram:
        """Training of the kept entries, and the squared gradients of scored layers over all of theirs."""
        masked_layers = [path for path in cut if cut[path].mask]
        scored = [f"{path}.weight" for path in masked_layers if cut[path].scored]
        return DeviceProgram(
            loss=self.loss,
            norm=self.norm,
            masked=tuple(f"{path}.weight" for path in masked_layers),
            accumulators=(*scored, *self.scored_beside) if scored else (),
        )

    def submodel(self, state: State, cut: Cut) -> Submodel:
        """The masked model with its masks, both in the cut's shapes."""
        tensors = dict(state.tensors) | {name + MASK: mask for name, mask in self.masks(state).items()}
        slices = tensor_slices(self.module, cut)
        slices |= {name + MASK: slices[name] for name in self.prunable if name in slices}
        return Submodel(cut, FULL, cut_tensors(tensors, slices) if cut else state.tensors, self.program(cut))

    def mean(
        self, state: State, updates: Iterable[Update], rule: Rule | None = None
    ) -> tuple[State, dict[str, np.ndarray]]:
        """Means of the kept weights and of the squared gradients, both weighted by ``num_examples``.

        A rule takes the place of the mean of the weights; squared gradients, sums that differ with the number of
        examples, keep theirs.

        Returns:
            The new state with the same masks, what no device held with its bits, and the scores by weight name; empty
            when no device sent any.

        Raises:
            PlanError: no update, or updates of different cuts.
            UpdateRejected: an update that does not fit the model, or without examples.
        """
        cut: Cut | None = None
        count = scored = 0
        for update in updates:
            where, number = f"device {update.device}, round {state.round}", examples(update)
            if cut is None:
                cut, slices = update.cut, tensor_slices(self.module, update.cut)
                part = cut_tensors(state.tensors, slices)
                weights = (rule or WeightedMean)(part)
                scores = WeightedMean({name: part[name] for name in (*self.prunable, *self.scored_beside)})
            elif update.cut != cut:
                raise PlanError(f"{where}: its cut is not that of the devices before it; repeat the round")
            sent = {n.removesuffix(SQUARED): v for n, v in update.tensors.items() if n.endswith(SQUARED)}
            weights.add({n: v for n, v in update.tensors.items() if "#" not in n}, number, where=where)
            if sent:
                scores.add(sent, number, where=where)
            count, scored = count + 1, scored + bool(sent)
        if not count:
            raise PlanError(f"round {state.round}: no updates to aggregate; repeat the round")
        # Entries outside the mask are 0 on every device; the mask makes sure of it whatever they sent.
        tensors = masked(lift_tensors(weights.result(), slices, state.tensors), self.masks(state))
        return State(tensors, state.extra, state.round + 1), scores.result() if scored else {}

    def eval_models(self, state: State) -> Mapping[str, Submodel]:
        """The masked model as ``server``; its zeros are in its weights."""
        return {"server": Submodel({}, FULL, state.tensors, DeviceProgram(loss=self.loss, norm=self.norm))}


class FixedMask(SparseMethod):
    """Training under masks that are given at the start and never change; a subclass sets :attr:`fixed`."""

    synchronous_only = ""
    fixed: Mapping[str, np.ndarray]

    def init(self) -> State:
        """The module's own initial weights under the masks."""
        return self.with_masks(self.first_state(), self.fixed)

    def cut_shape(self, level: Level, *, round_index: int, device: str, seed: int) -> Cut:
        """A mask on every prunable layer of the network without dead channels, from the first round on."""
        return self.compacted(State({}, self._network), self.masked_cut(level, scored=False))

    @functools.cached_property
    def _network(self) -> dict[str, np.ndarray]:
        """What :meth:`init` says of channels."""
        return {name: value for name, value in self.init().extra.items() if name.startswith(LIVE)}


def _live(state: State) -> dict[str, np.ndarray]:
    return {name.removeprefix(LIVE): kept for name, kept in state.extra.items() if name.startswith(LIVE)}
