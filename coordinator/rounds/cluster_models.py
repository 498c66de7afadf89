"""The model of a cluster of devices: the global one, with the layers that the cluster has for itself."""

from __future__ import annotations

from dataclasses import replace

from coordinator.rounds.stage_tensors import apart
from coordinator.submodels.values import State

KEPT = "clusters"
"""Under which the clusters' layers are in a state, each as ``<cluster>/<name>``."""


def cluster_state(state: State, cluster: str) -> State:
    """``state`` with the layers of ``cluster``; itself where it has none, or ``cluster`` is empty."""
    start = f"{cluster}/"
    own = {} if not cluster else apart(state)[1].get(KEPT, {})
    layers = {name.removeprefix(start): value for name, value in own.items() if name.startswith(start)}
    return replace(state, tensors={**state.tensors, **layers}) if layers else state
