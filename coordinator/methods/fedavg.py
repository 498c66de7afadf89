"""FedAvg: every device trains the whole model, the server takes the mean weighted by examples.

Source: McMahan et al., "Communication-efficient learning of deep networks from decentralized data", Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from coordinator.aggregation.accumulator import Rule
from coordinator.aggregation.weighted_mean import WeightedMean
from coordinator.config.method_options import LOSSES, NORMS, Options
from coordinator.submodels.build import module_tensors
from coordinator.submodels.record import Cut
from coordinator.submodels.values import DeviceProgram, Level, State, Submodel, Update, require_level
from edge.contracts.errors import PlanError, UpdateRejected

if TYPE_CHECKING:
    from torch import nn

FULL = Level("full", 1.0, 1.0)
"""The whole model."""


class FedAvg:
    """One level, no cut. Options: ``loss``, ``norm``."""

    name = "fedavg"
    synchronous_only = ""
    needs_each_update = ""

    def __init__(self, module: nn.Module, options: Mapping[str, Any]) -> None:
        """Raises ConfigError for unknown or impossible options."""
        read = Options(self.name, options)
        loss, norm = read.choice("loss", LOSSES, "cross_entropy"), read.choice("norm", NORMS, "running")
        read.finish()
        self._module = module
        self._program = DeviceProgram(loss=loss, norm=norm)

    def init(self) -> State:
        """The module's own initial weights."""
        return State(module_tensors(self._module))

    def levels(self) -> tuple[Level, ...]:
        """The whole model alone."""
        return (FULL,)

    def cut_shape(self, level: Level, *, round_index: int, device: str, seed: int) -> Cut:
        """The empty cut.

        Raises:
            PlanError: another level than ``full``.
        """
        require_level("fedavg", level, (FULL,))
        return {}

    def program(self, cut: Cut) -> DeviceProgram:
        """Plain training."""
        return self._program

    def cut(self, state: State, level: Level, *, round_index: int, device: str, seed: int) -> Submodel:
        """The global model."""
        cut = self.cut_shape(level, round_index=round_index, device=device, seed=seed)
        return Submodel(cut, level, state.tensors, self._program)

    def aggregate(self, state: State, updates: Iterable[Update], rule: Rule | None = None) -> State:
        """The mean weighted by ``num_examples``, buffers included.

        Raises:
            PlanError: no update.
            UpdateRejected: an update that does not fit the model, or without examples.
        """
        mean = (rule or WeightedMean)(state.tensors)
        count = 0
        for update in updates:
            mean.add(update.tensors, examples(update), where=f"device {update.device}, round {state.round}")
            count += 1
        if not count:
            raise PlanError(f"round {state.round}: no updates to aggregate; repeat the round")
        return State(mean.result(), state.extra, state.round + 1)

    def refresh(self, state: State) -> State:
        """The state itself."""
        return state

    def eval_models(self, state: State) -> Mapping[str, Submodel]:
        """The global model as ``server``."""
        return {"server": Submodel({}, FULL, state.tensors, self._program)}


def examples(update: Update) -> int:
    """The update's ``num_examples``.

    Raises:
        UpdateRejected: fewer than one.
    """
    if update.num_examples < 1:
        raise UpdateRejected(
            f"device {update.device}: trained on {update.num_examples} examples, at least 1 expected; check its data"
        )
    return update.num_examples
