"""A method that distils at the coordinator: a model for every level, teachers from the devices, a proxy set.

A subclass says how teachers are put together and who learns from them, in :meth:`aggregate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from coordinator.config.method_options import Options
from coordinator.distillation.predictions import proxy_logits, torch_threads
from coordinator.distillation.proxy import ProxySet
from coordinator.distillation.student import Distillation, distilled, read_distillation
from coordinator.methods.level_models import LevelModels
from coordinator.methods.width_method import WidthMethod
from coordinator.submodels.values import Level, State, Submodel, Tensors, Update
from edge.contracts.streams import stream_seed

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from coordinator.distillation.ensembles import Targets


class ProxyMethod(WidthMethod):
    """Options: those of :class:`~coordinator.methods.width_method.WidthMethod`, of
    :class:`~coordinator.distillation.proxy.ProxySet` and of :class:`~coordinator.distillation.student.Distillation`.

    The ladder of width ratios gives the groups of devices: each has a network of its own shape, and a model of its own.
    The coordinator computes with as many threads as ``[runtime] threads`` says, so that a run repeats to the bit.

    Attributes:
        distillation: defaults of the options.
        proxy, without_distillation: see :class:`~coordinator.distillation.proxy.DistilsOnProxy`.
    """

    synchronous_only = "its teachers are the devices' own models of one round, not steps that could be added up"
    needs_each_update = "it distils from the devices' models one by one"
    path_options = ("proxy-path",)
    distillation: ClassVar[Distillation] = Distillation()
    without_distillation: ClassVar[Mapping[str, Any]] = {"distillation-steps": 0}
    rounding = "round"
    shrinks = True

    def __init__(self, module: nn.Module, options: Mapping[str, Any]) -> None:
        """Raises ConfigError for unknown or impossible options, PlanError for a module that cannot be cut so."""
        super().__init__(module, options)
        self.models = LevelModels(self.ladder, server_apart=not self.shrinks)

    def read_own(self, read: Options) -> None:
        """The proxy set and how students are trained."""
        self.proxy = ProxySet(self.name, read)
        self.settings = read_distillation(read, self.distillation)

    def init(self) -> State:
        """The module's own initial weights, and every level's part of them."""
        return self.models.init()

    def cut(self, state: State, level: Level, *, round_index: int, device: str, seed: int) -> Submodel:
        """The level's own model."""
        cut = self.cut_shape(level, round_index=round_index, device=device, seed=seed)
        return Submodel(cut, level, self.models.of(state, level), self.program(cut))

    def with_statistics(self, state: State, updates: Iterable[Update]) -> State:
        """Static statistics of every level from its own devices."""
        return self.models.with_statistics(state, updates)

    def eval_models(self, state: State) -> Mapping[str, Submodel]:
        """``server`` and every level's own model."""
        return {"server": self.ladder.server(state, self.plain), **self.level_models(state)}

    def predictions(self, level: Level, tensors: Tensors, *, where: str) -> np.ndarray:
        """Logits [N, classes, ...] of a model of ``level`` on the proxy set.

        Raises:
            UpdateRejected: they are not finite.
            ConfigError, DataError: the proxy set cannot be opened.
        """
        with torch_threads(self.proxy.threads):
            return proxy_logits(
                self.models.module(level),
                tensors,
                self.proxy_inputs(),
                norm=self.plain.norm,
                device=self.proxy.device,
                where=where,
            )

    def learnt(
        self, module: nn.Module, tensors: Tensors, targets: Targets, *, round_index: int, student: str
    ) -> dict[str, np.ndarray]:
        """``tensors`` after distillation; ``student`` names the stream its batches are drawn from.

        Raises:
            PlanError: the student's values are no longer finite.
        """
        with torch_threads(self.proxy.threads):
            return distilled(
                module,
                tensors,
                self.proxy_inputs(),
                targets,
                self.settings,
                seed=stream_seed(self.proxy.seed, "distillation", round_index, student),
                device=self.proxy.device,
                where=f"round {round_index}, {student}",
            )

    def all_learnt(self, state: State, models: Mapping[Level, Tensors], targets: Targets) -> dict[Level, Tensors]:
        """Every level's model after distillation: that of ``models``, or the state's where a level had no devices."""
        return {
            level: self.learnt(
                self.models.module(level),
                models.get(level, self.models.of(state, level)),
                targets,
                round_index=state.round,
                student=level.name,
            )
            for level in self.levels()
        }

    def proxy_inputs(self) -> np.ndarray:
        """The proxy set's inputs [N, ...]."""
        return self.proxy.inputs(self.ladder.module.input_spec)
