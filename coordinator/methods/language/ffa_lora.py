"""FFA-LoRA: v is drawn once and never trained, so that a mean of u is a mean of products, and half is sent back.

Every device holds the first rows of one v. A column of u is averaged over the devices that have it.
Source: Sun et al., Improving LoRA in Privacy-preserving Federated Learning (ICLR 2024), where A is our v, B our u.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from coordinator.aggregation.accumulator import Rule
from coordinator.config.method_options import Options
from coordinator.methods.fedavg import examples
from coordinator.methods.language.language_method import LanguageMethod
from coordinator.submodels.values import NotFinite, State, Tensors, Update
from edge.contracts.errors import ConfigError, PlanError


class FFALoRA(LanguageMethod):
    """Options are those of :class:`LanguageMethod`, but for ``server-rank``: the server keeps the largest level's."""

    name = "ffa_lora"
    needs_each_update = "its devices may have columns that others have not, and each is averaged over those that do"
    has_frozen_rows = True

    def read_own(self, read: Options) -> None:
        """As :meth:`LanguageMethod.read_own`."""
        if self._server_rank:
            raise ConfigError(["$.method.server-rank: ffa_lora keeps the largest level's rank; leave the key out"])

    def init(self) -> State:
        """u zero and v drawn, at the largest level's rank."""
        rank, tensors = self.ladder.largest_rank, dict[str, np.ndarray]()
        for path, (outputs, _) in self._shapes.items():
            tensors |= {f"{path}.u": np.zeros((outputs, rank), np.float32), f"{path}.v": self._drawn(path, rank)}
        return State(tensors)

    def first(self, state: State, path: str, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """As :meth:`LanguageMethod.first`: the first components, trained or not."""
        return state.tensors[f"{path}.u"][:, :rank], state.tensors[f"{path}.v"][:rank]

    def whole_factors(self, state: State, path: str, rank: int, tensors: Tensors) -> Tensors:
        """As :meth:`LanguageMethod.whole_factors`: v is everybody's."""
        return {**tensors, f"{path}.v": state.tensors[f"{path}.v"][:rank]}

    def aggregate(self, state: State, updates: Iterable[Update], rule: Rule | None = None) -> State:
        """The mean of each column of u over the devices that have it, by their examples.

        Raises:
            PlanError, UpdateRejected: as :meth:`LanguageMethod.aggregate`.
        """
        if rule is not None:
            raise PlanError("ffa_lora averages the columns that devices have; $.aggregation.rule must be mean")
        rank = self.ladder.largest_rank
        sums = {path: np.zeros((outputs, rank)) for path, (outputs, _) in self._shapes.items()}
        weights = {path: np.zeros(rank) for path in self._shapes}
        count = 0
        for update in updates:
            number = examples(update)
            for path, u_OR, _ in self._factors(state, update, f"device {update.device}, round {state.round}"):
                held = u_OR.shape[1]
                sums[path][:, :held] += number * u_OR.astype(np.float64)
                weights[path][:held] += number
            count += 1
        if not count:
            raise PlanError(f"round {state.round}: no updates to aggregate; repeat the round")
        tensors = dict(state.tensors)
        for path, total in weights.items():
            before = state.tensors[f"{path}.u"].astype(np.float64)
            mean = np.divide(sums[path], total, out=before, where=np.broadcast_to(total > 0, before.shape))
            if not np.isfinite(mean).all():
                raise NotFinite(f"layer '{path}': the mean of the devices' factors is not finite; lower $.training.lr")
            tensors[f"{path}.u"] = mean.astype(np.float32)
        return State(tensors, state.extra, state.round + 1)

    def _drawn(self, path: str, rank: int) -> np.ndarray:
        return self.rows(path, rank, self._seed, 0)
