"""Sparse updates: of a trained model, devices train some biases, the head, and the weights that contribute most.

A level is a share of what a full step holds beside the model. For each the coordinator chooses from which layer on
biases are trained, and which layers' weights, whole or some of their output channels, by their measured contributions.
All else is frozen: no gradient, no optimizer state, nothing kept for it, nothing sent. Frozen norms use fixed
statistics; those from the first trained layer on are trained as in full training, unless the run says otherwise.
Source: Lin et al., "On-device training under 256KB memory" (MCUNetV3, NeurIPS 2022), sections 3.2 and 3.3; Cai et al.,
"TinyTL" (NeurIPS 2020) for biases; Zhu et al., "PockEngine" (MICRO 2023) for backward graphs pruned when compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.aggregation.accumulator import Rule
from coordinator.aggregation.entrywise import EntrywiseMean
from coordinator.config.method_options import LOSSES, Options
from coordinator.contributions.operations import forward_operations
from coordinator.contributions.record import read_contributions
from coordinator.contributions.scheme import Scheme, frozen_names, ordered_layers, scheme_cut
from coordinator.contributions.search import Cost, best_scheme, full_cost
from coordinator.methods.fedavg import FULL, examples
from coordinator.submodels.build import module_tensors
from coordinator.submodels.record import Cut
from coordinator.submodels.trained_rows import ROWS
from coordinator.submodels.values import DeviceProgram, Level, State, Submodel, Tensors, Update, require_level
from edge.contracts.errors import ConfigError, PlanError, UpdateRejected

if TYPE_CHECKING:
    from torch import nn

    from coordinator.submodels.narrowed import Slice


_NORMS = ("trained", "static")
_FEATURES = ("computed", "kept")


class SparseUpdate:
    """Options, in kebab case:

    - ``levels``: shares of the bytes that a full step keeps for its backward pass and for trained weights, counted at
      batch 32; (0.3). 1 is the whole model, trained as FedAvg does. Devices get the largest that fits.
    - ``compute``: share of a full step's multiply-accumulates that a level below 1 may have; 1, no bound.
    - ``features``: ``kept`` where devices keep what frozen layers give (``[training] cached-features``), so that
      ``compute`` is of a step without these layers; (``computed``).
    - ``contributions``: a file that ``apportion contributions`` wrote, or a table of gains by layer; needed.
    - ``norms``: (``trained``), those from the first trained layer on have the batch's statistics, as in full training,
      and are trained whole; ``static``, as MCUNetV3's, all have the model's statistics and frozen scales.
    - ``loss``: as FedAvg's. Norms have running statistics.

    The head, the last layer, is trained whole in every level. Layers that are neither convolutions, linear nor norms
    are frozen below level 1.
    """

    name = "sparse_update"
    path_options = ("contributions",)
    synchronous_only = ""
    needs_each_update = "its devices train different parts of the model and every entry has its own count"

    def __init__(self, module: nn.Module, options: Mapping[str, Any]) -> None:
        """Raises ConfigError for unknown or impossible options, PlanError for a model or a budget without a scheme."""
        read = Options(self.name, options)
        shares = sorted(read.ratios("levels", (0.3,)), reverse=True)
        compute = read.number("compute", 1.0, low=0, strict=True) or 1.0
        given = read.text_or_numbers("contributions")
        self._trains_norms = read.choice("norms", _NORMS, _NORMS[0]) == "trained"
        self.counts_on_features = read.choice("features", _FEATURES, _FEATURES[0]) == "kept"
        self._loss = read.choice("loss", LOSSES, "cross_entropy")
        read.finish()
        if compute > 1:
            raise ConfigError([f"$.method.compute: {compute:g} given, a share above 0 up to 1 expected"])
        if given is None and shares[-1] < 1:
            raise ConfigError(
                [
                    "$.method.contributions: none given; `apportion contributions RUN.toml --out FILE` measures them, "
                    'or write a table of gains by layer, such as contributions = { "layer3.2.conv2" = 1 }'
                ]
            )
        self._module = module
        self._buffers = {name for name, _ in module.named_buffers()}
        self._schemes: dict[Level, Scheme] = {}
        self._cuts: dict[Level, Cut] = {FULL if share == 1 else _level(share): {} for share in shares}
        if given is not None:
            self._choose(given, compute)

    def _choose(self, given: str | Mapping[str, float], compute: float) -> None:
        """Find every level's scheme."""
        spec = getattr(self._module, "input_spec", None)
        if spec is None:
            raise PlanError(
                f"{self.name} counts the step of {type(self._module).__name__}, which takes one example's shape; set "
                "$.model.input, or give the module an attribute input_spec"
            )
        operations = forward_operations(self._module, spec)
        layers = ordered_layers(self._module, operations)
        contributions = read_contributions(given, layers)
        sizes = {name: p.numel() for name, p in self._module.named_parameters()}
        full = full_cost(operations, sizes)
        for level in self._cuts:
            if level == FULL:
                continue
            limit = Cost(int(full.memory * level.value), int(full.macs * compute))
            scheme = best_scheme(
                operations,
                layers,
                sizes,
                contributions,
                limit,
                trains_norms=self._trains_norms,
                keeps_features=self.counts_on_features,
            )
            if scheme is None:
                raise PlanError(
                    f"{self.name} {level.name}: training the last layer alone takes more than {limit.memory:,} bytes "
                    f"or {limit.macs:,} multiply-accumulates; raise $.method.levels or compute"
                )
            self._schemes[level] = scheme
            self._cuts[level] = scheme_cut(self._module, layers, scheme)

    def init(self) -> State:
        """The module's own initial weights: those of ``[model] weights``, since what is frozen stays as it is."""
        return State(module_tensors(self._module))

    def levels(self) -> tuple[Level, ...]:
        """One level per share, largest first."""
        return tuple(self._cuts)

    def scheme(self, level: Level) -> Scheme | None:
        """What a level trains; None of the whole model."""
        require_level(self.name, level, self._cuts)
        return self._schemes.get(level)

    def cut_shape(self, level: Level, *, round_index: int, device: str, seed: int) -> Cut:
        """What the level's scheme freezes; the same for every round and device.

        Raises:
            PlanError: a level this ladder does not have.
        """
        require_level(self.name, level, self._cuts)
        return self._cuts[level]

    def program(self, cut: Cut) -> DeviceProgram:
        """Training of what the cut does not freeze."""
        frozen = frozen_names(self._module, cut)
        return DeviceProgram(loss=self._loss, frozen=frozen, frozen_norm="static" if cut else "")

    def cut(self, state: State, level: Level, *, round_index: int, device: str, seed: int) -> Submodel:
        """The whole model, its partly trained weights in two tensors."""
        cut = self.cut_shape(level, round_index=round_index, device=device, seed=seed)
        return Submodel(cut, level, divided(state.tensors, cut), self.program(cut))

    def aggregate(self, state: State, updates: Iterable[Update], rule: Rule | None = None) -> State:
        """Every entry the mean, by ``num_examples``, over the devices that trained it; others keep their bits.

        Raises:
            PlanError: no update.
            UpdateRejected: an update that does not fit its cut or the model, or without examples.
        """
        mean = (rule or EntrywiseMean)(state.tensors)
        count = 0
        for update in updates:
            tensors, slices = _joined(update.tensors, update.cut, state.tensors)
            where = f"device {update.device}, round {state.round}"
            frozen = sorted(set(frozen_names(self._module, update.cut)) & update.tensors.keys())
            if frozen:
                raise UpdateRejected(f"{where}: sent {frozen[:3]}, which its cut freezes; re-plan the device")
            kept = self._kept_statistics(update.cut)
            tensors = {name: value for name, value in tensors.items() if name not in kept}
            mean.add(tensors, examples(update), where=where, slices=slices)
            count += 1
        if not count:
            raise PlanError(f"round {state.round}: no updates to aggregate; repeat the round")
        return State(mean.result(), state.extra, state.round + 1)

    def _kept_statistics(self, cut: Cut) -> set[str]:
        """Buffers that a device with this cut does not move: those of norms whose scale is frozen."""
        frozen = {name.rpartition(".")[0] for name in frozen_names(self._module, cut)}
        return {name for name in self._buffers if name.rpartition(".")[0] in frozen}

    def refresh(self, state: State) -> State:
        """The state itself: schemes hold for the whole run."""
        return state

    def eval_models(self, state: State) -> Mapping[str, Submodel]:
        """The global model as ``server``."""
        return {"server": Submodel({}, FULL, state.tensors, self.program({}))}


def divided(tensors: Tensors, cut: Cut) -> dict[str, np.ndarray]:
    """The dense tensors with every partly trained weight as ``rows``, trained, and ``weight``, the others."""
    result = dict(tensors)
    for path, record in cut.items():
        if record.trained_rows is not None:
            whole = tensors[f"{path}.weight"]
            is_trained = np.zeros(len(whole), bool)
            is_trained[list(record.trained_rows)] = True
            result |= {f"{path}.weight": whole[~is_trained], f"{path}.{ROWS}": whole[is_trained]}
    return result


def _joined(tensors: Tensors, cut: Cut, whole: Tensors) -> tuple[dict[str, np.ndarray], dict[str, Slice]]:
    """An update under the dense names, and where its rows lie in them."""
    result, slices = dict(tensors), dict[str, "Slice"]()
    for path, record in cut.items():
        if record.trained_rows is not None and (rows := result.pop(f"{path}.{ROWS}", None)) is not None:
            name = f"{path}.weight"
            result[name] = rows
            slices[name] = (np.array(record.trained_rows), *[None] * (whole[name].ndim - 1))
    return result, slices


def _level(share: float) -> Level:
    return Level(f"memory {share:g}", share, share)
