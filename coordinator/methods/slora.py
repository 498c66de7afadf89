"""SLoRA: sparse fine-tuning first, whose result, decomposed, is where everybody's low-rank factors begin.

Stage one: the devices train the entries of each adapted weight that one random mask keeps, beside the classifier.
Then the server decomposes the difference learnt so far, once; stage two: the devices train additive factors beside the
frozen base, all of one rank, and the server takes the mean of each factor.
Source: Babakniya et al., "SLoRA: Federated parameter efficient fine-tuning of language models"; FedHM, journal version,
for its use as a baseline of FedLoRA. Lengths of the stages and where the mask lies are ours, see the options.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.aggregation.accumulator import Rule
from coordinator.aggregation.weighted_mean import WeightedMean
from coordinator.config.method_options import LOSSES, NORMS, Options
from coordinator.methods.additions import initial_seed, one_size
from coordinator.methods.fedavg import FULL, examples
from coordinator.pruning.masks import MASK
from coordinator.submodels.build import module_tensors
from coordinator.submodels.differences import random_mask
from coordinator.submodels.frozen_base import classifier, frozen_but
from coordinator.submodels.lora import adapted_layers, additive_cut, additive_factors
from coordinator.submodels.record import Added, Cut, LayerCut
from coordinator.submodels.spectrum import one_blas_thread, truncated_svd
from coordinator.submodels.values import DeviceProgram, Level, State, Submodel, Update, require_level
from edge.contracts.errors import ConfigError, PlanError
from edge.contracts.streams import stream_seed

if TYPE_CHECKING:
    from torch import nn

    from coordinator.submodels.values import Tensors


class SLoRA:
    """Options, in kebab case:

    - ``levels``: one number, the rank of all devices; 8.
    - ``stage-one-rounds``: rounds of sparse fine-tuning; 10. With 0 the factors begin as LoRA's own do.
    - ``density``: share of each adapted weight that stage one trains; 0.01, the paper's "~1 %".
    - ``layout``, ``head``: the adapted layers and the one that is trained itself, as FedLoRA's.
    - ``loss``, ``norm``: as FedAvg's. Frozen batch norms normalise with batch statistics.

    The difference beyond the rank is lost between the stages, for the server's model too: the base stays what it was.
    """

    name = "slora"
    synchronous_only = "its second stage trains other tensors than its first"
    needs_each_update = ""

    def __init__(self, module: nn.Module, options: Mapping[str, Any]) -> None:
        """Raises ConfigError for unknown or impossible options, PlanError when no layer can be adapted so."""
        read = Options(self.name, options)
        ranks = read.numbers("levels", (8,), low=1)
        self._rounds = read.integer("stage-one-rounds", 10, low=0)
        density = read.number("density", 0.01, low=0, strict=True)
        patterns, heads = read.names("layout"), read.names("head")
        self._loss, self._norm = read.choice("loss", LOSSES, "cross_entropy"), read.choice("norm", NORMS, "running")
        read.finish()
        self._rank = one_size(self.name, ranks)
        self._density = 0.01 if density is None else density
        if self._density > 1:
            raise ConfigError([f"$.method.density: {self._density:g} given, a share above 0 up to 1 expected"])
        head = classifier(module, heads)
        self._module = module
        self._layers = adapted_layers(module, head, patterns)
        shapes = {path: tuple(module.get_submodule(path).weight.shape) for path in self._layers}
        largest = min(min(shape) for shape in shapes.values())
        if self._rank > largest:
            raise PlanError(f"slora rank {self._rank}: an adapted layer's weight has only {largest}; lower the level")
        self._shapes = shapes
        self._level = Level(f"rank {self._rank}", self._rank, 1.0)
        head_names = {f"{head}.{name}" for name, _ in module.get_submodule(head).named_parameters()}
        self._frozen = tuple(name for name, _ in module.named_parameters() if name not in head_names)
        self._sparse_cut = frozen_but(module, {head})
        for path in self._layers:
            name = f"{path}.difference{MASK}"
            self._sparse_cut[path] = LayerCut(frozen=True, added=Added("difference"), mask=name)
        self._factor_cut = additive_cut(module, self._layers, head, self._rank)
        self._masks: tuple[int, dict[str, np.ndarray]] | None = None

    def init(self) -> State:
        """The module's own initial weights, which stay the base, and a difference of zero."""
        tensors = module_tensors(self._module)
        extra = {_base(path): tensors[f"{path}.weight"] for path in self._layers}
        extra |= {f"{path}.difference": np.zeros_like(tensors[f"{path}.weight"]) for path in self._layers}
        return self.refresh(State(tensors, extra))

    def levels(self) -> tuple[Level, ...]:
        """The one rank."""
        return (self._level,)

    def cut_shape(self, level: Level, *, round_index: int, device: str, seed: int) -> Cut:
        """The round's stage: masked differences, or factors; the same for every device.

        Raises:
            PlanError: another level.
        """
        require_level("slora", level, self.levels())
        return self._sparse_cut if round_index < self._rounds else self._factor_cut

    def program(self, cut: Cut) -> DeviceProgram:
        """Training of the masked differences or of the factors, with the classifier; of the dense model, all of it."""
        masked = tuple(record.mask.removesuffix(MASK) for record in cut.values() if record.mask)
        return DeviceProgram(loss=self._loss, frozen=self._frozen if cut else (), masked=masked, norm=self._norm)

    def cut(self, state: State, level: Level, *, round_index: int, device: str, seed: int) -> Submodel:
        """The base with what is trained in this stage."""
        state = self.refresh(state)  # nothing to do where rounds follow each other
        cut = self.cut_shape(level, round_index=round_index, device=device, seed=seed)
        tensors = {**state.tensors, **{f"{path}.weight": state.extra[_base(path)] for path in self._layers}}
        tensors |= {name: state.extra[name] for name in self._added(state)}
        if round_index < self._rounds:
            tensors |= self._masks_of(seed)
        return Submodel(cut, level, tensors, self.program(cut))

    def aggregate(self, state: State, updates: Iterable[Update], rule: Rule | None = None) -> State:
        """The mean of differences or of each factor, of classifier and running statistics, by ``num_examples``.

        Raises:
            PlanError: no update, or one of another level.
            UpdateRejected: an update that does not fit the round's stage, or without examples.
        """
        mean = (rule or WeightedMean)(self._trained(state))
        count = 0
        for update in updates:
            self.cut_shape(update.level, round_index=state.round, device=update.device, seed=0)  # refuses strangers
            sent = {name: value for name, value in update.tensors.items() if not name.endswith(MASK)}
            mean.add(sent, examples(update), where=f"device {update.device}, round {state.round}")
            count += 1
        if not count:
            raise PlanError(f"round {state.round}: no updates to aggregate; repeat the round")
        new = mean.result()
        extra = {**state.extra, **{name: new.pop(name) for name in self._added(state)}}
        return self._merged(State({**state.tensors, **new}, extra, state.round + 1))

    def refresh(self, state: State) -> State:
        """After the last round of stage one, the factors in place of the difference; otherwise the state itself."""
        if state.round < self._rounds or f"{self._layers[0]}.difference" not in state.extra:
            return state
        extra = {_base(path): state.extra[_base(path)] for path in self._layers}
        for path in self._layers:
            learnt = state.extra[f"{path}.difference"]
            spectrum = truncated_svd(learnt, self._rank) if learnt.any() else None
            # Components that stage one has not learnt begin as LoRA's.
            shape, seed = self._shapes[path], initial_seed(self._module)
            u, v = additive_factors(spectrum, shape, self._rank, path=path, seed=seed, round_index=0)
            extra |= {f"{path}.u": u, f"{path}.v": v}
        return self._merged(State(state.tensors, extra, state.round))

    def eval_models(self, state: State) -> Mapping[str, Submodel]:
        """``server``, the dense model with all that was learnt."""
        return {"server": Submodel({}, FULL, state.tensors, self.program({}))}

    def _added(self, state: State) -> tuple[str, ...]:
        """Names of what is trained beside the classifier in this stage."""
        return tuple(name for name in state.extra if not name.endswith("#base"))

    def _trained(self, state: State) -> Tensors:
        """What updates are averaged into."""
        frozen = {*self._frozen}
        own = {name: value for name, value in state.tensors.items() if name not in frozen}
        return own | {name: state.extra[name] for name in self._added(state)}

    def _merged(self, state: State) -> State:
        """``state`` with the dense weights that base and difference, or base and factors, stand for."""
        tensors = dict(state.tensors)
        for path in self._layers:
            base = state.extra[_base(path)]
            if f"{path}.u" in state.extra:
                u, v = (state.extra[f"{path}.{side}"].astype(np.float64) for side in ("u", "v"))
                with one_blas_thread():
                    tensors[f"{path}.weight"] = (base + u @ v).astype(base.dtype)
            else:
                tensors[f"{path}.weight"] = base + state.extra[f"{path}.difference"]
        return State(tensors, state.extra, state.round)

    def _masks_of(self, seed: int) -> dict[str, np.ndarray]:
        """The run's masks, one draw for all rounds and devices, by tensor name."""
        if self._masks is None or self._masks[0] != seed:
            masks = {
                f"{path}.difference{MASK}": random_mask(stream_seed(seed, f"slora {path}"), shape, self._density)
                for path, shape in self._shapes.items()
            }
            self._masks = seed, masks
        return self._masks[1]


def _base(path: str) -> str:
    return f"{path}.weight#base"
