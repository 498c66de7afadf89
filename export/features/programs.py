"""The programs of an artifact whose steps read features: program ``features`` beside a step that begins at them."""

from __future__ import annotations

from collections.abc import Mapping

from edge.contracts.tensors import FEATURES
from edge.runtimes.micro_batches import ACCUMULATE, TRAIN
from export.capture import Capture
from export.features.split import split
from export.training_step import StepSpec


def with_features(programs: Mapping[str, Capture], spec: StepSpec) -> dict[str, Capture]:
    """``programs`` with ``features``, where the step asks for it and frozen layers come before all trained ones.

    A cut that trains its first layer has nothing to keep, and its programs are those that they were.
    """
    made = dict(programs)
    stepped = ACCUMULATE if spec.accumulates else TRAIN
    parts = split(programs[stepped]) if spec.cached_features else None
    if parts is None:
        return made
    made[stepped] = parts[1]
    return {n: p for n, p in made.items() if n in (ACCUMULATE, TRAIN)} | {FEATURES: parts[0]} | made
