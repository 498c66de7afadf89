"""Fed-ET: small models on the devices, of several shapes; a large one at the server learns from all of them.

A round: devices train the small model of their group. The server's representation layers become the mean of the
devices'; the server's model is then trained, on inputs without labels, on the class of the weighted consensus (a device
weighs by the variance of its logits) and, with weight lambda, on those who name another class. The representation
layers go back to the small models, whose other layers are the means of their groups.
Source: Cho et al., "Heterogeneous ensemble knowledge transfer for training large models in federated learning"
(IJCAI 2022), section 3.2; a public re-implementation of it for lambda 0.05, plain means and how the server is trained.

This project's reading: the small models are the networks of a ladder of width ratios of the server's model, each with
values of its own after the first round. The paper's representation layers have one shape in all models; widths have
none such, so entries are shared where networks overlap: the server takes the mean of each entry over the devices that
hold it, and a small model takes back those it has. By default it is the layer that gives the logits. The diverse
target's weights are made to sum to one, and examples on which all agree have none. The number of steps is fixed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from coordinator.aggregation.accumulator import Rule
from coordinator.aggregation.entrywise import EntrywiseMean
from coordinator.config.method_options import Options
from coordinator.distillation.ensembles import consensus
from coordinator.distillation.student import Distillation
from coordinator.methods.level_models import GroupMeans
from coordinator.methods.proxy_method import ProxyMethod
from coordinator.submodels.build import apply_cut
from coordinator.submodels.values import Level, State, Tensors, Update
from coordinator.submodels.width import cut_tensors
from edge.contracts.errors import ConfigError, PlanError

if TYPE_CHECKING:
    import numpy as np
    from torch import nn


class FedET(ProxyMethod):
    """Options, in kebab case:

    - ``diversity``: lambda; 0.05.
    - ``representation``: name patterns of the layers that server and devices share; the classifier unless given.
      ``transfer``: whether they do; true.
    - ``proxy``, ``proxy-path``, ``proxy-examples``: the inputs to distil on, as
      :class:`~coordinator.distillation.proxy.ProxySet` says; there is no default.
    - ``distillation-steps``, 128, and ``-batch``, 64, ``-lr``, 0.005, ``-optimizer``, ``sgd``, ``-momentum``, 0.9,
      ``-schedule``, ``constant``: how the server's model is trained in every round.
    - ``levels``: width ratios of the small models, by default 1/2, 1/4, 1/8 and 1/16. The server's model is always the
      whole one, and no device's, even where a ratio is 1.
    - ``rounding`` (``round``), ``concatenation``, ``loss``, ``norm``: as FedDF's.
    - ``weight-by-examples``: of the means, of groups and of the representation; false.

    Running statistics of the server's batch norms are those of the proxy set: no device holds its model.
    Memory while aggregating: a float64 copy and a torch module of each level's model, and the logits of every device
    of the round, for who disagrees is known only when all have spoken: float32 and, while the targets are made,
    several float64 copies.
    Devices send and get the weights of their small models, as in the paper.
    """

    name = "fed_et"
    default_levels = (0.5, 0.25, 0.125, 0.0625)
    distillation = Distillation(steps=128, batch=64, lr=0.005, optimizer="sgd", momentum=0.9, schedule="constant")
    shrinks = False

    def __init__(self, module: nn.Module, options: Mapping[str, Any]) -> None:
        """Raises ConfigError for unknown or impossible options, PlanError for a module that cannot be cut so."""
        super().__init__(module, options)
        self._server = apply_cut(module, {})
        self._shared = self._representation() if self._has_transfer else ()

    def read_own(self, read: Options) -> None:
        """``diversity``, ``representation`` and ``transfer``."""
        super().read_own(read)
        self._diversity = read.number("diversity", 0.05, low=0) or 0.0
        self._patterns = read.names("representation")
        self._has_transfer = read.flag("transfer", True)

    def aggregate(self, state: State, updates: Iterable[Update], rule: Rule | None = None) -> State:
        """The server's model, trained on the devices' consensus, and the small models with its representation.

        A rule takes the place of the means of groups and representation; the consensus is as it is.

        Raises:
            PlanError: no update, or values of the server's model that are no longer finite.
            UpdateRejected: an update that does not fit its level, or without examples.
            ConfigError, DataError: the proxy set cannot be opened.
        """
        groups = GroupMeans(self.models, state, rule)
        shared = (rule or EntrywiseMean)({name: state.tensors[name] for name in self._shared})
        teachers: list[np.ndarray] = []
        count = 0
        for update in updates:
            where = f"device {update.device}, round {state.round}"
            tensors = self.models.held(state, update, where=where)
            weight = self.ladder.weight(update)
            groups.add(update, weight, where=where)
            representation = {name: tensors[name] for name in self._shared}
            shared.add(representation, weight, where=where, slices=self.ladder.slices(update.cut))
            if self.settings.steps:
                teachers.append(self.predictions(update.level, tensors, where=where))
            count += 1
        if not count:
            raise PlanError(f"round {state.round}: no updates to aggregate; repeat the round")
        server: Tensors = {**state.tensors, **shared.result()}
        if self.settings.steps:
            targets = consensus(teachers, self._diversity)
            server = self.learnt(self._server, server, targets, round_index=state.round, student="server")
        after = self.models.replaced(state, self._transferred(state, groups.result(), server), server=server)
        return State(after.tensors, after.extra, state.round + 1)

    def _transferred(self, state: State, means: Mapping[Level, Tensors], server: Tensors) -> dict[Level, Tensors]:
        """Every level's model, the mean of its group or the state's, with the server's representation."""
        models: dict[Level, Tensors] = {}
        for level in self.levels():
            own = means.get(level, self.models.of(state, level))
            part = {name: server[name] for name in self._shared}
            models[level] = {**own, **cut_tensors(part, self.ladder.slices(self.ladder.first(level)))}
        return models

    def _representation(self) -> tuple[str, ...]:
        """Names of the shared parameters.

        Raises:
            ConfigError: a pattern that no layer's path matches.
        """
        layers = {name.rpartition(".")[0]: None for name, _ in self.ladder.module.named_parameters()}
        if self._patterns is None:
            chosen = set(self.ladder.classifier)
        else:
            problems = [
                f"$.method.representation: '{pattern}' matches no layer; this module's are {', '.join(layers)}"
                for pattern in self._patterns
                if not any(fnmatchcase(layer, pattern) for layer in layers)
            ]
            if problems:
                raise ConfigError(problems)
            chosen = {layer for layer in layers if any(fnmatchcase(layer, pattern) for pattern in self._patterns)}
        return tuple(name for name, _ in self.ladder.module.named_parameters() if name.rpartition(".")[0] in chosen)
