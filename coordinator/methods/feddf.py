"""FedDF: the devices' models, averaged inside each group, are distilled from the ensemble of all of them.

A group's student starts as the mean of its devices' models and learns, on inputs without labels, the softmax of the
mean logits of every device of the round, of all groups.
Source: Lin et al., "Ensemble distillation for robust model fusion in federated learning" (NeurIPS 2020), Algorithm 1
for one group and Algorithm 3 for several prototypes; its reference code for Adam, 1e-3, cosine and batch 128.

This project's reading: prototypes are the networks of a ladder of width ratios, each with a model of its own that
shares nothing with the others after the first round. A level without devices in a round is distilled from its previous
model, so the largest one learns even where no device can hold it; name the levels that are in use, for each costs the
coordinator its steps. The paper stops early by a labelled validation set, which the coordinator is not assumed to have:
the number of steps is fixed (the reference code's is 10,000 at most, stopping 2,000 after the best). Its dropping of
the worst teachers needs labels too and is left out.
"""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.aggregation.accumulator import Rule
from coordinator.distillation.ensembles import Mean, SoftTargets, softmax
from coordinator.methods.level_models import GroupMeans
from coordinator.methods.proxy_method import ProxyMethod
from coordinator.submodels.values import Level, State, Tensors, Update
from edge.contracts.errors import PlanError


class FedDF(ProxyMethod):
    """Options, in kebab case:

    - ``proxy``, ``proxy-path``, ``proxy-examples``: the inputs to distil on, as
      :class:`~coordinator.distillation.proxy.ProxySet` says; there is no default.
    - ``distillation-steps``, 1000, and ``-batch``, 128, ``-lr``, 0.001, ``-optimizer``, ``adam``, ``-momentum``,
      ``-schedule``, ``cosine``: how every student is trained in every round.
    - ``levels``, ``rounding`` (``round``), ``concatenation``: as HeteroFL's; ``levels = [1]`` is the paper's FedDF of
      one architecture. The server's model is the largest level's.
    - ``weight-by-examples``: of the means inside the groups; true, as in the paper. The teachers' logits weigh alike.
    - ``loss``, ``norm``: as FedAvg's. With ``norm = "batch"`` teachers see batches of 256.

    Memory while aggregating: a float64 copy and a torch module of each level's model, and float64 logits of the proxy
    set, once.
    Devices send and get weights, as in the paper; the proxy set never leaves the coordinator.
    """

    name = "feddf"
    by_examples = True

    def aggregate(self, state: State, updates: Iterable[Update], rule: Rule | None = None) -> State:
        """The groups' means, each distilled from the mean logits of all devices.

        A rule takes the place of the groups' means; the teachers' logits keep theirs.

        Raises:
            PlanError: no update, or a student whose values are no longer finite.
            UpdateRejected: an update that does not fit its level, or without examples.
            ConfigError, DataError: the proxy set cannot be opened.
        """
        groups, ensemble = GroupMeans(self.models, state, rule), Mean()
        count = 0
        for update in updates:
            where = f"device {update.device}, round {state.round}"
            tensors = self.models.held(state, update, where=where)
            groups.add(update, self.ladder.weight(update), where=where)
            if self.settings.steps:
                ensemble.add(self.predictions(update.level, tensors, where=where))
            count += 1
        if not count:
            raise PlanError(f"round {state.round}: no updates to aggregate; repeat the round")
        models: dict[Level, Tensors] = {**groups.result()}
        if self.settings.steps:
            models = self.all_learnt(state, models, SoftTargets(softmax(ensemble.result())))
        after = self.models.replaced(state, models)
        return State(after.tensors, after.extra, state.round + 1)
