"""Control variates against what devices' data differ in: ``[training] scaffold``.

Devices keep theirs (:mod:`edge.training.control_variates`). The server's is in each checkpoint with the model it
belongs to, and goes out with the weights. What a device's variate changed by is not sent: it follows from its update,
the rate and the number of its steps. Which of its updates counted last the next order says, so both sides mean the
same variate after an attempt that was given up, an update that was set aside, or a kill.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from coordinator.config.run_config import RunConfig
from coordinator.config.training import TrainingConfig
from coordinator.exporting.cut_exporter import dense_module
from coordinator.ledger.records import Assignment, RecordedUpdate, Round
from coordinator.rounds.control_variates import KEPT, RoundOfVariates, population
from coordinator.rounds.federation import Federation, RoundStage
from coordinator.rounds.stage_tensors import apart
from coordinator.rounds.work_order import learning_rate
from coordinator.submodels.build import apply_cut
from coordinator.submodels.values import State, Submodel, Tensors, Update
from edge.contracts.codec import encode_msgpack
from edge.contracts.errors import UpdateRejected
from edge.contracts.plan import Schedule, read_order
from edge.training.batches import BatchOrder


class ControlVariates(RoundStage):
    """In a run with ``[training] scaffold``.

    Attributes:
        counted: devices whose updates the round in hand counts.
    """

    def __init__(self) -> None:
        self.counted: list[str] = []
        self._round: RoundOfVariates | None = None
        self._last: dict[str, str] = {}
        self._trained: tuple[str, ...] = ()

    @classmethod
    def is_used(cls, config: RunConfig) -> bool:
        """Whether the run asks for it."""
        return config.training.scaffold

    def restored(self, federation: Federation, state: State) -> None:
        """Read from the ledger which update of each device counted last."""
        self._last = federation.ledger.updates.last_counted()

    def assignments(self, federation: Federation, assignments: list[Assignment]) -> list[Assignment]:
        """The orders, each with the update whose variates its device goes on from."""
        changed = []
        for entry in assignments:
            order = msgspec.structs.replace(read_order(entry.order), variates=self._last.get(entry.device, ""))
            changed.append(msgspec.structs.replace(entry, order=encode_msgpack(order)))
        return changed

    def updates(
        self, federation: Federation, state: State, current: Round, program: str, updates: Iterator[Update]
    ) -> Iterator[Update]:
        """``updates`` as they are; what they say of their devices' gradients is added up on the way."""
        if program != "train":
            return updates
        recorded = federation.ledger.updates.counted(current.round, current.attempt)
        self.counted = []
        self._round = RoundOfVariates(apart(state)[1].get(KEPT, {}), population(federation.config))
        return self._watched(federation, state, self._round, recorded, updates)

    def _watched(
        self,
        federation: Federation,
        state: State,
        variates: RoundOfVariates,
        recorded: tuple[RecordedUpdate, ...],
        updates: Iterator[Update],
    ) -> Iterator[Update]:
        config, sent = federation.config, dict[str, Submodel]()
        lr = learning_rate(config.training, state.round, config.federation.rounds)
        for entry, update in zip(recorded, updates, strict=True):
            level = update.level.name
            if level not in sent:  # devices of a level hold the same part of the model
                sent[level] = federation.method.cut(
                    state, update.level, round_index=state.round, device=update.device, seed=config.federation.seed
                )
            steps = _steps(config.training, entry)
            gone = {
                name: np.subtract(sent[level].tensors[name], update.tensors[name], dtype=np.float64) / (steps * lr)
                for name in self._names(federation, sent[level])
            }
            variates.add(update.device, update.num_examples, gone)
            self.counted.append(update.device)
            yield update

    def aggregated(self, federation: Federation, before: State, mean: State, kept: dict[str, Tensors]) -> State:
        """The mean as it is; the server's variate after the round goes to ``kept``."""
        assert self._round is not None
        kept[KEPT] = self._round.result()
        return mean

    def committed(self, federation: Federation, state: State, entry: Mapping[str, Any]) -> None:
        """The round's updates are their devices' last."""
        counted = federation.ledger.updates.counted(entry["round"], entry["attempt"])
        self._last |= {each.assignment.device: each.assignment.assignment_id for each in counted}

    def _names(self, federation: Federation, submodel: Submodel) -> tuple[str, ...]:
        """The parameters that devices train, which are the same in every round."""
        if not self._trained:
            module = apply_cut(dense_module(federation.config), submodel.cut)
            frozen = submodel.program.frozen
            self._trained = tuple(name for name, _ in module.named_parameters() if name not in frozen)
        return self._trained


def _steps(training: TrainingConfig, entry: RecordedUpdate) -> int:
    """How many steps the device took.

    Raises:
        UpdateRejected: it says another number than its order comes to with its examples.
    """
    report = entry.report
    order = BatchOrder(report.num_examples, training.batch, training.last_batch, 0)
    steps = order.total(Schedule(epochs=training.epochs, steps=training.steps))
    if report.steps != steps:
        raise UpdateRejected(
            f"device {report.device}, round {report.round}: {report.steps} steps reported, {report.num_examples} "
            f"examples in batches of {training.batch} come to {steps}; update its agent"
        )
    return steps
