"""DS-FL: every device keeps a model of its own; what the devices agree on about an open set teaches all of them.

A round: devices train their own models; their class probabilities for the open set are averaged and sharpened (entropy
reduction aggregation); every device's model, and the server's, is distilled from the sharpened labels. No weights are
averaged.
Source: Itahara et al., "Distillation-based semi-supervised federated learning for communication-efficient collaborative
training with non-IID private data" (IEEE Transactions on Mobile Computing 2021), temperature 0.1.

What deviates, and what it costs. In the paper each device holds the open set, sends its probabilities for it and
distils by itself. A device here trains an artifact's step on its own examples and knows no second dataset, so the
coordinator does both for it: the device sends its weights, the coordinator computes their probabilities and the
distillation step, keeps the result and sends it to that device in its next round. The models are those of the paper;
the bytes are not: weights each way, as FedAvg's, where the paper sends 4 N C each way (N examples of the open set in C
classes; :meth:`DSFL.paper_bytes`). And a device that a round does not select is not distilled in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coordinator.aggregation.accumulator import Rule
from coordinator.config.method_options import Options
from coordinator.distillation.ensembles import Mean, SoftTargets, sharpened, softmax
from coordinator.distillation.student import Distillation
from coordinator.methods.fedavg import examples
from coordinator.methods.level_models import owned, under
from coordinator.methods.proxy_method import ProxyMethod
from coordinator.submodels.values import Level, State, Submodel, Tensors, Update
from edge.contracts.errors import PlanError

_PERSONAL = "personal/"


class DSFL(ProxyMethod):
    """Options, in kebab case:

    - ``era-temperature``: of the sharpening; 0.1, as in the paper.
    - ``personal``: every device keeps a model of its own; true, as in the paper. False: devices start every round from
      their level's model, distilled at the coordinator, and the state stays as small as a ladder of models.
    - ``proxy``, ``proxy-path``, ``proxy-examples``: the open set, as
      :class:`~coordinator.distillation.proxy.ProxySet` says; there is no default.
    - ``distillation-steps``, 100, and ``-batch``, 100, ``-lr``, 0.1, ``-optimizer``, ``sgd``, ``-momentum``,
      ``-schedule``, ``constant``: how every student is trained in every round.
    - ``levels``, ``rounding`` (``round``), ``concatenation``, ``loss``, ``norm``: as FedDF's.
    - ``weight-by-examples`` has no effect: probabilities weigh alike, as in the paper.

    The server's model is the largest level's. Every level has one, from which a device starts that has none of its own
    at that level. Memory, on disk too: with ``personal``, O(devices x model), in every checkpoint; while aggregating,
    the round's updates and float64 probabilities of the open set, once. Without, O(levels x model).
    """

    name = "ds_fl"
    refuses_rules = "averages probabilities for an open set and no weights, so there is nothing for a rule to do"
    distillation = Distillation(steps=100, batch=100, lr=0.1, optimizer="sgd", schedule="constant")

    def read_own(self, read: Options) -> None:
        """``era-temperature`` and ``personal``."""
        super().read_own(read)
        self._temperature = read.number("era-temperature", 0.1, low=0, strict=True) or 0.1
        self._is_personal = read.flag("personal", True)

    def cut(self, state: State, level: Level, *, round_index: int, device: str, seed: int) -> Submodel:
        """The device's own model; its level's where it has none."""
        cut = self.cut_shape(level, round_index=round_index, device=device, seed=seed)
        own = owned(state.extra, _owner(device, level)) if device else {}
        return Submodel(cut, level, own or self.models.of(state, level), self.program(cut))

    def aggregate(self, state: State, updates: Iterable[Update], rule: Rule | None = None) -> State:
        """Every level's model and every device's own, distilled from the sharpened mean probabilities.

        Raises:
            PlanError: no update, a rule for means of weights, or a student whose values are no longer finite.
            UpdateRejected: an update that does not fit its level, or without examples.
            ConfigError, DataError: the proxy set cannot be opened.
        """
        if rule is not None:
            raise PlanError(f"ds_fl {self.refuses_rules}; give $.aggregation.rule = 'mean'")
        ensemble = Mean()
        trained: dict[str, tuple[Level, Tensors]] = {}
        count = 0
        for update in updates:
            where = f"device {update.device}, round {state.round}"
            examples(update)  # refuses those without
            tensors = self.models.held(state, update, where=where)
            if self.settings.steps:
                ensemble.add(softmax(self.predictions(update.level, tensors, where=where)))
            if self._is_personal:
                trained[update.device] = (update.level, tensors)
            count += 1
        if not count:
            raise PlanError(f"round {state.round}: no updates to aggregate; repeat the round")
        extra = dict(state.extra)
        models: Mapping[Level, Tensors] = {}
        if self.settings.steps:
            targets = SoftTargets(sharpened(ensemble.result(), self._temperature))
            models = self.all_learnt(state, {}, targets)
            trained = {
                device: (level, self._own(level, tensors, targets, device=device, round_index=state.round))
                for device, (level, tensors) in trained.items()
            }
        for device, (level, own) in trained.items():
            extra = {name: value for name, value in extra.items() if not name.startswith(f"{_PERSONAL}{device}/")}
            extra.update(under(_owner(device, level), own))
        after = self.models.replaced(State(state.tensors, extra, state.round), models)
        return State(after.tensors, after.extra, state.round + 1)

    def with_statistics(self, state: State, updates: Iterable[Update]) -> State:
        """Static statistics of every device's own model; without such, of every level from its devices.

        Levels' models keep those of the open set where devices gathered theirs with other weights.
        """
        if not self._is_personal:
            return super().with_statistics(state, updates)
        extra = dict(state.extra)
        for update in updates:
            owner = _owner(update.device, update.level)
            if owned(extra, owner):
                self.models.held(state, update, where=f"device {update.device}, statistics")
                extra.update(under(owner, update.tensors))
        return State(state.tensors, extra, state.round)

    @staticmethod
    def paper_bytes(examples: int, classes: int) -> int:
        """Bytes that the paper's protocol would send each way per device and round: float32 probabilities."""
        return 4 * examples * classes

    def _own(self, level: Level, tensors: Tensors, targets: SoftTargets, *, device: str, round_index: int) -> Tensors:
        module = self.models.module(level)
        return self.learnt(module, tensors, targets, round_index=round_index, student=f"{_PERSONAL}{device}")


def _owner(device: str, level: Level) -> str:
    return f"{_PERSONAL}{device}/{level.name}/"
