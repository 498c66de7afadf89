"""FedLoRA: a frozen model everywhere; each device trains additive factors of the rank it can afford, and the head.

The server keeps, per adapted layer, the dense weight W0 it began with and the full difference learnt since; a level
gets the best approximation of that difference at its rank, and what returns is averaged as products, so that ranks mix.
Source: FedHM, journal version, its section on low-rank adaptation; the published sizes fix one pair of factors on the
fused query-key-value projection, one on the output projection, and alpha / r = 1. It trains with Adam.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.aggregation.accumulator import Rule
from coordinator.aggregation.weighted_mean import WeightedMean
from coordinator.config.method_options import LOSSES, NORMS, Options
from coordinator.methods.fedavg import examples
from coordinator.submodels.build import module_tensors
from coordinator.submodels.frozen_base import classifier
from coordinator.submodels.lora import adapted_layers, additive_cut, additive_factors, learnt_differences
from coordinator.submodels.record import Cut, LayerCut
from coordinator.submodels.spectrum import Spectrum, truncated_svd
from coordinator.submodels.values import DeviceProgram, Level, State, Submodel, Tensors, Update, require_level
from edge.contracts.errors import ConfigError, PlanError, UpdateRejected

if TYPE_CHECKING:
    from torch import nn

    from coordinator.submodels.values import Tensors

DEFAULT_LEVELS = (2, 4, 8, 16)
"""Ranks of the paper's table."""

_FULL = Level("full", math.inf, 1.0)


class FedLoRA:
    """Options, in kebab case:

    - ``levels``: ranks; by default those of 2, 4, 8 and 16 that every adapted layer has.
    - ``layout``: name patterns of the linear layers to adapt; by default the module's own, or all but the head.
    - ``head``: path of the linear layer that is trained itself; by default the module's last one.
    - ``temperature``: tau of the weights softmax(gamma / tau), as FedHM's, gamma the rank relative to the largest; 1.
    - ``weight-by-examples``: multiply the weights with ``num_examples``; false, as in the paper.
    - ``loss``, ``norm``: as FedAvg's. Frozen batch norms normalise with batch statistics.
    """

    name = "fedlora"
    synchronous_only = ""
    refuses_server_optimizer = (
        "a device's factors lack what its rank cuts away, and a server optimizer would take that for a step"
    )
    needs_each_update = (
        "its aggregate is a mean of products of factors, which the mean of the factors does not determine"
    )

    def __init__(self, module: nn.Module, options: Mapping[str, Any]) -> None:
        """Raises ConfigError for unknown or impossible options, PlanError when no layer can be adapted."""
        read = Options(self.name, options)
        ranks = sorted(read.numbers("levels", DEFAULT_LEVELS, low=1), reverse=True)
        patterns = read.names("layout")
        heads = read.names("head")
        temperature = read.number("temperature", 1.0, low=0, strict=True)
        self._temperature = 1.0 if temperature is None else temperature
        self._by_examples = read.flag("weight-by-examples", False)
        self._loss, self._norm = read.choice("loss", LOSSES, "cross_entropy"), read.choice("norm", NORMS, "running")
        read.finish()
        if any(rank != int(rank) for rank in ranks):
            raise ConfigError([f"$.method.levels: {list(ranks)} given, fedlora's levels are ranks, whole numbers"])
        head = classifier(module, heads)
        self._module = module
        self._layers = adapted_layers(module, head, patterns)
        self._head = tuple(f"{head}.{name}" for name, _ in module.get_submodule(head).named_parameters())
        self._buffers = {name for name, _ in module.named_buffers()}
        self._frozen = tuple(name for name, _ in module.named_parameters() if name not in self._head)
        largest = min(min(module.get_submodule(path).weight.shape) for path in self._layers)
        if "levels" not in options:
            ranks = [rank for rank in ranks if rank <= largest] or [largest]
        if ranks[0] > largest:
            raise PlanError(f"fedlora rank {ranks[0]:g}: an adapted layer's weight has only {largest}; lower the level")
        self._cuts: dict[Level, dict[str, LayerCut]] = {
            Level(f"rank {rank:g}", rank, rank / ranks[0]): additive_cut(module, self._layers, head, int(rank))
            for rank in ranks
        }
        self._spectra: tuple[State, dict[str, Spectrum | None]] | None = None

    def init(self) -> State:
        """The module's own initial weights, which stay W0, and a difference of zero."""
        tensors = module_tensors(self._module)
        extra: dict[str, np.ndarray] = {}
        for path in self._layers:
            weight = tensors[f"{path}.weight"]
            extra |= {_base(path): weight, _learnt(path): np.zeros_like(weight)}
        return State(tensors, extra)

    def levels(self) -> tuple[Level, ...]:
        """One level per rank, largest first."""
        return tuple(self._cuts)

    def cut_shape(self, level: Level, *, round_index: int, device: str, seed: int) -> Cut:
        """Factors of the level's rank on every adapted layer; the same for every round and device.

        Raises:
            PlanError: a level this ladder does not have.
        """
        require_level("fedlora", level, self._cuts)
        return self._cuts[level]

    def program(self, cut: Cut) -> DeviceProgram:
        """Training of the factors and the head alone; of the dense model, plain training."""
        return DeviceProgram(loss=self._loss, frozen=self._frozen if cut else (), norm=self._norm)

    def cut(self, state: State, level: Level, *, round_index: int, device: str, seed: int) -> Submodel:
        """W0 with the level's factors of the difference learnt, everything else as it is in the global model."""
        cut = self.cut_shape(level, round_index=round_index, device=device, seed=seed)
        tensors, spectra, rank = dict(state.tensors), self._spectra_of(state), int(level.value)
        for path in self._layers:
            base = state.extra[_base(path)]
            u, v = additive_factors(spectra[path], base.shape, rank, path=path, seed=seed, round_index=round_index)
            tensors |= {f"{path}.weight": base, f"{path}.u": u, f"{path}.v": v}
        return Submodel(cut, level, tensors, self.program(cut))

    def aggregate(self, state: State, updates: Iterable[Update], rule: Rule | None = None) -> State:
        """The mean of the devices' products and heads; running statistics weighted by ``num_examples``.

        Raises:
            PlanError: no update.
            UpdateRejected: an update that does not fit its cut or the model, or without examples.
        """
        mean = (rule or WeightedMean)(self.whole(state))
        count = 0
        for update in updates:
            where = f"device {update.device}, round {state.round}"
            number = examples(update)
            self.cut_shape(update.level, round_index=state.round, device=update.device, seed=0)  # refuses strangers
            weight = self._weight(update.level) * (number if self._by_examples else 1)
            try:
                trained = self.products(update.tensors, update.cut)
            except PlanError as error:
                raise UpdateRejected(f"{where}: {error}; re-plan the device") from error
            mean.add(trained, {name: number if name in self._buffers else weight for name in trained}, where=where)
            count += 1
        if not count:
            raise PlanError(f"round {state.round}: no updates to aggregate; repeat the round")
        new = mean.result()
        tensors, extra = {**state.tensors, **new}, dict(state.extra)
        for path in self._layers:
            extra[_learnt(path)] = new[f"{path}.weight"]
            tensors[f"{path}.weight"] = extra[_base(path)] + extra[_learnt(path)]
        return State(tensors, extra, state.round + 1)

    def products(self, tensors: Tensors, cut: Cut) -> dict[str, np.ndarray]:
        """What the cut's factors add to the dense weights; see :class:`coordinator.methods.method.MovesProducts`."""
        return learnt_differences(tensors, cut)

    def whole(self, state: State) -> Tensors:
        """The differences learnt, under their weights' names, the head and the buffers."""
        differences = {f"{path}.weight": state.extra[_learnt(path)] for path in self._layers}
        return {n: differences.get(n, v) for n, v in state.tensors.items() if n not in self._frozen or n in differences}

    def refresh(self, state: State) -> State:
        """The state itself: the decomposition is part of the cut."""
        return state

    def eval_models(self, state: State) -> Mapping[str, Submodel]:
        """``server``, the dense model with all that was learnt, and every level by its name."""
        whole = Submodel({}, _FULL, state.tensors, self.program({}))
        levels = {lv.name: self.cut(state, lv, round_index=state.round, device="", seed=0) for lv in self._cuts}
        return {"server": whole, **levels}

    def _weight(self, level: Level) -> float:
        """Numerator of the softmax over participants, scaled to 1 for the largest rank; the mean divides by the sum."""
        return math.exp((level.capacity - 1) / self._temperature)

    def _spectra_of(self, state: State) -> dict[str, Spectrum | None]:
        """One decomposition per layer and state at the largest rank, shared by all levels and devices of a round."""
        if self._spectra is None or self._spectra[0] is not state:
            rank = int(max(level.value for level in self._cuts))
            learnt = {path: state.extra[_learnt(path)] for path in self._layers}
            self._spectra = state, {p: truncated_svd(d, rank) if d.any() else None for p, d in learnt.items()}
        return self._spectra[1]


def _base(path: str) -> str:
    return f"{path}.weight#base"


def _learnt(path: str) -> str:
    return f"{path}.weight#learnt"
