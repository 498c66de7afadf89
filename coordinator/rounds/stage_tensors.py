"""What stages keep from round to round beside a method's state: further tensors in ``State.extra``, under one prefix.

They are in every checkpoint, so a run that goes on has them with the model they belong to. A method that makes the next
state is given its own tensors alone, and cannot lose them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from coordinator.methods.method import ObservesScores
from coordinator.submodels.values import State, Tensors

PREFIX = "stages/"


def apart(state: State) -> tuple[State, dict[str, Tensors]]:
    """The state of the method alone, and stage -> its tensors."""
    kept: dict[str, dict[str, np.ndarray]] = {}
    own = {name: value for name, value in state.extra.items() if not name.startswith(PREFIX)}
    for name, value in state.extra.items():
        if name.startswith(PREFIX):
            stage, _, tensor = name[len(PREFIX) :].partition("/")
            kept.setdefault(stage, {})[tensor] = value
    return (replace(state, extra=own) if kept else state), {**kept}


def joined(state: State, kept: dict[str, Tensors]) -> State:
    """``state`` with the tensors of the stages."""
    if not kept:
        return state
    more = {f"{PREFIX}{stage}/{name}": value for stage, tensors in kept.items() for name, value in tensors.items()}
    return replace(state, extra={**state.extra, **more})


def observed(method: ObservesScores, state: State, accuracies: Mapping[str, float]) -> State:
    """What ``method`` makes of the scores, and the tensors of the stages with it."""
    own, kept = apart(state)
    return joined(method.observe(own, accuracies), kept)
