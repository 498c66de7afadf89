"""Layers of which each cluster of devices has its own: ``[clusters]``.

The round's mean is taken over all devices, as ever. What of it is a cluster's own is then taken once more, over the
cluster's devices alone, from the cluster's model of the round before; the mean over all stays the global model's. Which
cluster a device worked for its order says, so a tag that changes in mid-round changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from coordinator.config.run_config import RunConfig
from coordinator.ledger.records import Assignment, Round
from coordinator.rounds.cluster_models import KEPT, cluster_state
from coordinator.rounds.federation import Federation, RoundStage
from coordinator.rounds.global_model import write_final
from coordinator.rounds.participants import updates_of
from coordinator.rounds.stage_tensors import apart, joined
from coordinator.submodels.values import State, Tensors, Update
from edge.contracts.plan import read_order


class ClusterModels(RoundStage):
    """In a run with ``[clusters]``."""

    def __init__(self) -> None:
        self._current: Round | None = None
        self._state: State | None = None

    @classmethod
    def is_used(cls, config: RunConfig) -> bool:
        """Whether the run asks for it."""
        return bool(config.clusters.layers)

    def restored(self, federation: Federation, state: State) -> None:
        """Remember the state, for :meth:`ended`."""
        self._state = state

    def updates(
        self, federation: Federation, state: State, current: Round, program: str, updates: Iterator[Update]
    ) -> Iterator[Update]:
        """``updates`` as they are; which round they are of is remembered for :meth:`aggregated`."""
        self._current = current
        return updates

    def aggregated(self, federation: Federation, before: State, mean: State, kept: dict[str, Tensors]) -> State:
        """The mean as it is; the clusters' layers go to ``kept``."""
        assert self._current is not None
        clusters = federation.config.clusters
        recorded = federation.ledger.updates.counted(self._current.round, self._current.attempt)
        whole = joined(before, {KEPT: kept.get(KEPT, {})})
        layers = dict(kept.get(KEPT, {}))
        for cluster in clusters.tags:
            mine = [entry for entry in recorded if cluster_of(federation, entry.assignment) == cluster]
            if not mine:  # nobody of it took part
                continue
            own, _ = apart(cluster_state(whole, cluster))
            new = federation.method.aggregate(own, updates_of(federation, mine))
            layers |= {f"{cluster}/{name}": new.tensors[name] for name in clusters.own(new.tensors)}
        kept[KEPT] = layers
        return mean

    def metrics(self, federation: Federation, current: Round, program: str, state: State) -> Mapping[str, Any]:
        """``clusters``: what each one's model scores on all held-out examples, and how many of its devices count."""
        every, rounds = federation.config.evaluation.every, federation.config.federation.rounds
        if current.round + 1 < rounds and not (every and (current.round + 1) % every == 0):
            return {}
        recorded = federation.ledger.updates.counted(current.round, current.attempt)
        counted = [cluster_of(federation, entry.assignment) for entry in recorded]
        found = {}
        for cluster in federation.config.clusters.tags:
            score = federation.evaluate(cluster_state(state, cluster))["server"]
            found[cluster] = {"accuracy": score.accuracy, "loss": score.loss, "devices": counted.count(cluster)}
        return {"clusters": found}

    def committed(self, federation: Federation, state: State, entry: Mapping[str, Any]) -> None:
        """Remember the state, for :meth:`ended`."""
        self._state = state

    def ended(self, federation: Federation) -> None:
        """Write each cluster's model beside the global one, ``final-<cluster>.safetensors``."""
        if federation.checkpoints is None or self._state is None:
            return
        for cluster in federation.config.clusters.tags:
            write_final(cluster_state(self._state, cluster), federation.checkpoints / f"final-{cluster}.safetensors")


def cluster_of(federation: Federation, assignment: Assignment) -> str:
    """The cluster that an assignment was for; a simulation has no orders, and tags that never change."""
    if assignment.order:
        return read_order(assignment.order).cluster_name
    config = federation.config
    return config.clusters.cluster(config.cohort.local_tags[assignment.device])
