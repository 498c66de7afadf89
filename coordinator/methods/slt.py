"""SLT: layers are trained one after the other at full width, below a head scaled to what memory is left.

Step n freezes layers 1 to n-1, trains layer n whole, and all layers above it at the widest ratio s_n that fits the
constraint; before step 1 the whole network is trained at s_1. Steps are looked up by round. Devices with more memory
train further layers below the head. Every entry is the mean over the devices that trained it.
Source: Pfeiffer et al., "Aggregating capacity in FL through successive layer training" (NeurIPS 2023), Eq. 2, 4, 6, 7.
"""

from __future__ import annotations

import copy
import sys
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from coordinator.aggregation.accumulator import Rule
from coordinator.aggregation.entrywise import EntrywiseMean
from coordinator.config.method_options import LOSSES, NORMS, Options
from coordinator.methods.fedavg import FULL, examples
from coordinator.submodels.build import module_tensors
from coordinator.submodels.layer_steps import Configuration, LayerSteps
from coordinator.submodels.record import Cut, LayerCut
from coordinator.submodels.values import DeviceProgram, Level, State, Submodel, Update, require_level
from coordinator.submodels.width import cut_tensors, tensor_slices
from edge.contracts.errors import ConfigError, PlanError, UpdateRejected

if TYPE_CHECKING:
    from edge.contracts.manifest import InputSpec

SCHEDULES = ("parameters", "reference", "equal", "early-stopping")

STEP, BEST, WAITED, TRAINED = "slt/step", "slt/best", "slt/waited", "slt/trained"
"""State under early stopping: the step, its best accuracy so far, evaluations since without a better one, and the step
of the last round, in which the model was trained."""


class SLT:
    """Options, in kebab case:

    - ``levels``: memory constraints, as the width ratio whose whole network takes as much; (0.125). The smallest one
      fixes the steps for everybody, larger ones train more layers below the head. 1 is the whole network.
    - ``rounds``: over which the steps are spread; 2500.
    - ``schedule``: ``parameters``, rounds in proportion to the weights a step has newly trained, as the paper's text;
      ``reference``, as its code: int(s_1 R) rounds of pre-training, then every step in proportion to all that it
      trains; ``equal``; or ``early-stopping``: on to the next step once the present one has not become better for
      ``patience`` evaluations.
    - ``patience``: 15; evaluations are rounds with ``[evaluation] every = 1``.
    - ``steps``: your own s_1, s_2, ..., 1 instead of those computed (Eq. 4).
    - ``ablation``: share of every s_n; the memory it frees goes to more whole layers. 1.
    - ``norm``: of training and evaluation; ``batch``, as in the paper. ``loss``: as FedAvg's.

    The paper's Eq. 6 as printed is not monotone; ``parameters`` takes K_F = 0 in it, so that r_N = R as its text says.
    """

    name = "slt"
    synchronous_only = "its steps train other layers, at other widths, one after the other"
    needs_each_update = "its devices hold different parts of the model and every entry has its own count"

    def __init__(self, module: nn.Module, options: Mapping[str, Any]) -> None:
        """Raises ConfigError for unknown or impossible options, PlanError for a model that cannot be cut so."""
        read = Options(self.name, options)
        ratios = sorted(read.numbers("levels", (0.125,), low=0.001), reverse=True)
        rounds = read.integer("rounds", 2500, low=1)
        schedule = read.choice("schedule", SCHEDULES, "parameters")
        self._is_stopping = schedule == "early-stopping"
        self._patience = read.integer("patience", 15, low=1)
        given = read.sequence("steps", low=0.001)
        ablation = read.number("ablation", 1.0, low=0, strict=True) or 1.0
        self._loss, self._norm = read.choice("loss", LOSSES, "cross_entropy"), read.choice("norm", NORMS, "batch")
        read.finish()
        if max(ratios) > 1 or ablation > 1:
            raise ConfigError([f"$.method.levels: {ratios} with ablation {ablation:g}; ratios are at most 1"])
        self._module, self._ablation = module, ablation
        self._steps = LayerSteps(counted_form(module, self._norm), _input_spec(module))
        self._limits = {_level(ratio): self._steps.scaled_memory(ratio) for ratio in ratios}
        weakest = self._limits[_level(ratios[-1])]
        table = given or (self._steps.table(weakest) if ratios[-1] < 1 else (1.0,))
        if max(table) > 1 or list(table) != sorted(table) or len(table) > len(self._steps.layers):
            raise ConfigError(
                [f"$.method.steps: {list(table)}; rising ratios up to 1, at most one per layer, expected"]
            )
        self.table = tuple(s if s == 1 else s * ablation for s in table)
        self.switches = self._switches(rounds, schedule)
        self._configurations: dict[tuple[Level, int], Configuration] = {}
        self._cuts: dict[tuple[Level, int], Cut] = {}

    def init(self) -> State:
        """The module's own initial weights."""
        observed = _observed(0, -1.0, 0) if self._is_stopping else {}
        return State(module_tensors(self._module), observed)

    def levels(self) -> tuple[Level, ...]:
        """One level per constraint, largest first."""
        return tuple(self._limits)

    def step(self, round_index: int) -> int:
        """0 while the whole network is trained at s_1, then the number of the layer being trained, at most N.

        Under early stopping rounds say nothing of it, and this is step 0.
        """
        return min(bisect_right(self.switches, round_index), len(self.table))

    def configuration(self, level: Level, step: int) -> Configuration:
        """What a device of ``level`` trains in ``step``.

        Raises:
            PlanError: a level this ladder does not have.
        """
        require_level("slt", level, self._limits)
        if (level, step) not in self._configurations:
            self._configurations[level, step] = self._configured(level, step)
        return self._configurations[level, step]

    def cut_shape(self, level: Level, *, round_index: int, device: str, seed: int) -> Cut:
        """The round's frozen prefix, whole layers and scaled head; the same for every device of a level."""
        return self._step_cut(level, self.step(round_index))

    def shape_after(self, state: State, level: Level, *, round_index: int, device: str, seed: int) -> Cut:
        """The cut of the step that ``state`` is in, or was trained in, or of the round's where rounds decide."""
        return self._step_cut(level, self._step_in(state, round_index))

    def observe(self, state: State, accuracies: Mapping[str, float]) -> State:
        """Under early stopping: the next step, where the present one no longer gets better."""
        if not self._is_stopping:
            return state
        step, best, waited = int(state.extra[STEP]), float(state.extra[BEST]), int(state.extra[WAITED])
        accuracy = float(np.float32(accuracies["step"]))
        best, waited = (accuracy, 0) if accuracy > best else (best, waited + 1)
        if waited >= self._patience and step < len(self.table):
            step, best, waited = step + 1, -1.0, 0
        return replace(state, extra={**state.extra, **_observed(step, best, waited)})

    def _step_in(self, state: State, round_index: int) -> int:
        if not self._is_stopping:
            return self.step(round_index)
        # A round before the state's own is asked for after the last one, which may have been the last of its step.
        step = state.extra.get(TRAINED, state.extra[STEP]) if round_index < state.round else state.extra[STEP]
        return int(step)

    def _step_cut(self, level: Level, step: int) -> Cut:
        key = (level, step)
        if key not in self._cuts:
            self._cuts[key] = self._steps.cut(self.configuration(*key))
        return self._cuts[key]

    def program(self, cut: Cut) -> DeviceProgram:
        """Training of what is not frozen."""
        frozen = [path for path, record in cut.items() if record.frozen]
        names = [
            f"{path}.{name}" if path else name
            for path in sorted(frozen)
            for name, _ in self._module.get_submodule(path).named_parameters(recurse=False)
        ]
        return DeviceProgram(loss=self._loss, norm=self._norm, frozen=tuple(names))

    def cut(self, state: State, level: Level, *, round_index: int, device: str, seed: int) -> Submodel:
        """The configuration's part of the global model."""
        cut = self.shape_after(state, level, round_index=round_index, device=device, seed=seed)
        return Submodel(cut, level, self._tensors(state, cut), self.program(cut))

    def aggregate(self, state: State, updates: Iterable[Update], rule: Rule | None = None) -> State:
        """Every entry the mean over the devices that trained it; others keep their bits.

        Raises:
            PlanError: no update.
            UpdateRejected: an update that does not fit its cut or the model, or without examples.
        """
        mean = (rule or EntrywiseMean)(state.tensors)
        count = 0
        for update in updates:
            where = f"device {update.device}, round {state.round}"
            examples(update)
            try:
                slices = tensor_slices(self._module, update.cut)
            except PlanError as error:
                raise UpdateRejected(f"{where}: {error}; re-plan the device") from error
            mean.add(update.tensors, 1.0, where=where, slices=slices)
            count += 1
        if not count:
            raise PlanError(f"round {state.round}: no updates to aggregate; repeat the round")
        trained = {TRAINED: state.extra[STEP]} if self._is_stopping else {}
        return State(mean.result(), {**state.extra, **trained}, state.round + 1)

    def refresh(self, state: State) -> State:
        """The state itself: channels that come in with the next step still hold their first values."""
        return state

    def eval_models(self, state: State) -> Mapping[str, Submodel]:
        """``server``, the whole network, and ``step``, the one trained at present, which the paper evaluates."""
        program = DeviceProgram(loss=self._loss, norm=self._norm)
        whole = Submodel({}, FULL, state.tensors, program)
        weakest = self.levels()[-1]
        at_present = self._step_cut(weakest, self._step_in(state, max(0, state.round - 1)))
        cut = {path: LayerCut(out_idx=r.out_idx, in_idx=r.in_idx) for path, r in at_present.items()}
        cut = {path: record for path, record in cut.items() if record != LayerCut()}
        return {"server": whole, "step": Submodel(cut, weakest, self._tensors(state, cut), program)}

    def _tensors(self, state: State, cut: Cut) -> Mapping[str, Any]:
        return cut_tensors(state.tensors, tensor_slices(self._module, cut)) if cut else state.tensors

    def _configured(self, level: Level, step: int) -> Configuration:
        # Step N trains everything above layer N-1; without one of width 1 there is no such step.
        last = len(self.table) if self.table[-1] == 1 else len(self.table) + 1
        if step == 0:
            return Configuration(0, 0, self.table[0])
        ratio = self.table[step - 1]
        trained = step if step < last else len(self._steps.layers)
        weakest = self.levels()[-1]
        below = step - 1
        if level != weakest or (self._ablation < 1 and step < last):
            depth = self._steps.depth(trained, ratio, self._limits[level])
            below = min(below, trained - depth)
        return Configuration(below, trained, ratio)

    def _switches(self, rounds: int, schedule: str) -> tuple[int, ...]:
        """Rounds at which steps 1, 2, ..., N begin."""
        count = len(self.table)
        if schedule == "early-stopping":
            return (sys.maxsize,) * count
        if schedule == "equal":
            return tuple(rounds * n // (count + 1) for n in range(1, count + 1))
        if schedule == "reference":
            trained = [self._steps.trained_parameters(self._configured(self.levels()[-1], n + 1)) for n in range(count)]
            before_first = int(self.table[0] * rounds)
            shares = [(rounds - before_first) * sum(trained[:n]) / sum(trained) for n in range(count)]
            return tuple(before_first + int(share) for share in shares)
        whole = self._steps.quantity(Configuration(0, 0, 1.0))
        before = [Configuration(0, 0, self.table[0])]
        before += [Configuration(0, n, self.table[n - 1]) for n in range(1, count)]
        return tuple(round(rounds * self._steps.quantity(c) / whole) for c in before)


def counted_form(module: nn.Module, norm: str) -> nn.Module:
    """``module`` as its memory is counted: with batch statistics a norm has no running ones."""
    if norm != "batch":
        return module
    counted = copy.deepcopy(module)
    for part in counted.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.track_running_stats = False
            part.running_mean = part.running_var = part.num_batches_tracked = None
    return counted


def _observed(step: int, best: float, waited: int) -> dict[str, np.ndarray]:
    return {STEP: np.array(step), BEST: np.array(best, np.float32), WAITED: np.array(waited)}


def _level(ratio: float) -> Level:
    return FULL if ratio == 1 else Level(f"memory {ratio:g}", ratio, ratio)


def _input_spec(module: nn.Module) -> InputSpec:
    spec: InputSpec | None = getattr(module, "input_spec", None)
    if spec is None:
        raise PlanError(
            f"slt counts the memory of {type(module).__name__}, which takes one example's shape; set $.model.input, or "
            "give the module an attribute input_spec"
        )
    return spec
