"""An update's difference to the weights it was trained from, no longer than a given norm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

Differences = dict[str, np.ndarray]


def difference(trained: Mapping[str, np.ndarray], sent: Mapping[str, np.ndarray], names: Iterable[str]) -> Differences:
    """Trained minus sent values of ``names``, in float64."""
    return {name: trained[name].astype(np.float64) - sent[name] for name in names}


def norm_of(differences: Mapping[str, np.ndarray]) -> float:
    """Euclidean norm over all entries of all tensors; infinite where it is beyond float64."""
    with np.errstate(over="ignore"):
        return math.sqrt(sum(float(np.vdot(value, value)) for value in differences.values()))


def scale_down(differences: Mapping[str, np.ndarray], limit: float) -> tuple[Differences, float]:
    """``differences`` times min(1, limit / norm), and the norm they had.

    Source: McMahan, Ramage, Talwar and Zhang, "Learning Differentially Private Recurrent Language Models", ICLR 2018,
    FlatClip of Algorithm 1.
    """
    norm = norm_of(differences)
    factor = 1.0 if norm <= limit else limit / norm
    return {name: value * factor for name, value in differences.items()}, norm
