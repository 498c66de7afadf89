"""The control variates of simulated devices: where a state has them, what they correct steps by, and the next ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.rounds.control_variates import corrected_names, with_variates
from coordinator.simulation.own_layers import own_tensors
from coordinator.submodels.values import State, Submodel, Tensors
from edge.contracts.tensors import CONTROL, CORRECTION
from edge.training.control_variates import next_variate

if TYPE_CHECKING:
    import numpy as np

    from coordinator.simulation.local_training import Trained
    from edge.contracts.manifest import ArtifactManifest
    from edge.contracts.plan import WorkOrder

KEPT = "own-control-variates"


def corrections(state: State, device: str, submodel: Submodel, manifest: ArtifactManifest) -> dict[str, np.ndarray]:
    """``<name>#correction`` of every parameter whose gradients the step corrects: c - c_i, or c of a new device."""
    sent, own = with_variates(state, submodel, manifest).tensors, own_tensors(state, device, KEPT)
    names = corrected_names(manifest)
    return {n + CORRECTION: sent[n + CONTROL] - own[n] if n in own else sent[n + CONTROL] for n in names}


def next_variates(submodel: Submodel, order: WorkOrder, trained: Trained) -> Tensors:
    """c_i after the round, by parameter.

    Args:
        submodel: what the device began with, its corrections included.
    """
    sent, steps, lr = submodel.tensors, trained.outcome.steps, order.hyper["lr"]
    names = [name.removesuffix(CORRECTION) for name in sent if name.endswith(CORRECTION)]
    return {n: next_variate(sent[n], trained.tensors[n], sent[n + CORRECTION], steps=steps, lr=lr) for n in names}
