"""Static statistics of normalisation layers: the mean, over devices, of what their ``stats`` programs gathered.

Source: sBN of HeteroFL (Diao et al., ICLR 2021), gathered on the devices' own data and averaged by num_examples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from coordinator.methods.method import KeepsStatistics, Method
from coordinator.submodels.record import cut_from_json
from coordinator.submodels.values import State, Update
from edge.contracts.errors import ArtifactCorrupt
from export.forms.step_form import form_named

if TYPE_CHECKING:
    from coordinator.ledger.records import RecordedUpdate
    from coordinator.planning.artifacts import Artifact
    from coordinator.rounds.federation import Federation


def state_with_statistics(method: Method, state: State, updates: Iterable[Update]) -> State:
    """The state with the static statistics that devices gathered; a method may keep them in its own way.

    Those of norms that some level has fixed stay as they are.
    """
    if isinstance(method, KeepsStatistics):
        return method.with_statistics(state, updates)
    fixed = fixed_norms(method)
    means = mean_statistics(updates, state.tensors)
    return replace(state, tensors={**state.tensors, **{n: v for n, v in means.items() if _path(n) not in fixed}})


def mean_statistics(updates: Iterable[Update], whole: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
    """Buffer name -> num_examples-weighted mean, float64 sums in the order given; integer buffers from the first.

    Args:
        whole: the server's tensors. A device whose cut narrows a norm holds some channels of its buffers: each channel
            is the mean over the devices that hold it, and one that none holds keeps its value.
    """
    whole = whole or {}
    sums: dict[str, np.ndarray] = {}
    weights: dict[str, np.ndarray] = {}
    first: dict[str, np.ndarray] = {}
    for update in updates:
        for name, value in update.tensors.items():
            first.setdefault(name, np.array(value))
            if value.dtype.kind != "f":
                continue
            record = update.cut.get(name.rpartition(".")[0])
            place = ... if record is None or record.out_idx is None else np.asarray(record.out_idx)
            shape = value.shape if place is ... else whole[name].shape
            if name not in sums:
                sums[name], weights[name] = np.zeros(shape), np.zeros(shape)
            sums[name][place] += value.astype(np.float64) * update.num_examples
            weights[name][place] += update.num_examples
    means = {}
    for name, total in sums.items():
        held = weights[name] > 0
        mean = np.divide(total, weights[name], out=np.zeros(total.shape), where=held).astype(first[name].dtype)
        means[name] = mean if held.all() else np.where(held, mean, whole[name])
    return {name: means.get(name, value) for name, value in first.items()}


def needs_statistics(federation: Federation, state: State) -> bool:
    """Whether ``state``'s model has static statistics that are to be collected now that training is over.

    Frozen norms with ``frozen-norm = "static"`` are not among them: the ``stats`` program leaves theirs as they are.
    """
    fixed = fixed_norms(federation.method)
    is_free = any(name.endswith("running_mean") and _path(name) not in fixed for name in state.tensors)
    if federation.config.evaluation.norm != "static" or (fixed and not is_free):
        return False
    return federation.devices.gathers_statistics(federation, state)


def fixed_norms(method: Method) -> set[str]:
    """Paths of norms that some level has with the model's own statistics: its trained layers lie behind them.

    Were they gathered anew, by devices of another level, what lies below trained weights would change.
    """
    fixed = set[str]()
    for level in method.levels():
        program = method.program(method.cut_shape(level, round_index=0, device="", seed=0))
        if program.frozen_norm == "static":
            fixed |= {_path(name) for name in program.frozen}
    return fixed


def _path(name: str) -> str:
    return name.rpartition(".")[0]


def gathered_by_artifacts(federation: Federation) -> bool:
    """Whether some device of the last training round had a program for statistics, and nothing was committed since."""
    last = federation.ledger.rounds.last_committed()
    if last is None or last.round >= federation.training_rounds:
        return False
    counted = federation.ledger.updates.counted(last.round, last.attempt)
    used = {update.assignment.artifact_digest: update for update in counted}
    return any(_artifact_of(federation, used[digest]).has_program("stats") for digest in sorted(used))


def _artifact_of(federation: Federation, update: RecordedUpdate) -> Artifact:
    """What the update was trained with; exported anew where it was damaged since."""
    assignment = update.assignment
    try:
        return federation.artifacts.load(assignment.artifact_digest)
    except ArtifactCorrupt:
        cut = cut_from_json(assignment.cut)
        form = form_named(assignment.form)
        return federation.artifacts.get(cut, federation.method.program(cut), update.report.runtime, form)
