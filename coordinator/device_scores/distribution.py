"""How a model does on the devices' own held-out shares: the mean, and how far devices are from each other.

Made of the sums that devices report. A value of a device is its sum over the number of its targets; ``correct`` is
named ``accuracy``. The mean is weighted by targets: it is that of all held-out examples together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge.contracts.evaluation import Evaluation

KEY = "device_evaluation"
"""In a round's metrics."""
QUANTILES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
BINS = 10
_NAMES = {"correct": "accuracy"}


@dataclass(frozen=True)
class DeviceScore:
    """What one device reported of the model that it was sent."""

    device: str
    level: str
    evaluation: Evaluation


def distribution(scores: Sequence[DeviceScore]) -> dict[str, Any]:
    """Figures of ``scores``, which are in the order of devices, as JSON values.

    ``metrics`` has for each metric the mean, quantiles over devices, the lowest and the highest device, and a histogram
    of devices; ``levels`` the means by capacity level; ``too_few`` the devices whose share was too small to be scored.
    """
    scored = [score for score in scores if score.evaluation.sums]
    return {
        "devices": len(scored),
        "examples": sum(score.evaluation.examples for score in scored),
        "too_few": [score.device for score in scores if not score.evaluation.sums],
        "metrics": {_NAMES.get(name, name): _spread(name, scored) for name in _names(scored)},
        "levels": {level: _level(level, scored) for level in sorted({score.level for score in scored})},
        **_tuning(scored),
    }


def _names(scores: Sequence[DeviceScore]) -> list[str]:
    return sorted({name for score in scores for name in score.evaluation.sums})


def _mean(name: str, scores: Sequence[DeviceScore], sums: str = "sums") -> float:
    """Of metric ``name`` over all targets of those that have it; ``sums`` is the field with a device's sums."""
    having = [score.evaluation for score in scores if name in getattr(score.evaluation, sums)]
    total = sum(getattr(evaluation, sums)[name] for evaluation in having)
    return float(total / max(1, sum(evaluation.targets for evaluation in having)))


def _spread(name: str, scores: Sequence[DeviceScore]) -> dict[str, Any]:
    having = [score for score in scores if name in score.evaluation.sums]
    values = np.array([score.evaluation.sums[name] / max(1, score.evaluation.targets) for score in having])
    low, high = (0.0, 1.0) if name in _NAMES else (float(values.min()), float(values.max()))
    counts, edges = np.histogram(values, bins=BINS, range=(low, high) if high > low else (low - 0.5, low + 0.5))
    lowest, highest = int(values.argmin()), int(values.argmax())
    return {
        "mean": _mean(name, having),
        "quantiles": {f"{q:g}": float(np.quantile(values, q)) for q in QUANTILES},
        "lowest": {"device": having[lowest].device, "value": float(values[lowest])},
        "highest": {"device": having[highest].device, "value": float(values[highest])},
        "histogram": {"edges": [float(edge) for edge in edges], "devices": [int(count) for count in counts]},
    }


def _level(level: str, scores: Sequence[DeviceScore]) -> dict[str, Any]:
    own = [score for score in scores if score.level == level]
    means = {_NAMES.get(name, name): _mean(name, own) for name in _names(own)}
    return {"devices": len(own), "examples": sum(score.evaluation.examples for score in own), **means}


def _tuning(scores: Sequence[DeviceScore]) -> dict[str, Any]:
    """What fine-tuning came to on the devices that did it; nothing where none did.

    ``kept`` devices have a lower loss by it and keep it; ``after`` takes these with it and the others as they were.
    """
    tuned = [score for score in scores if score.evaluation.tuned]
    if not tuned:
        return {}
    chosen = [DeviceScore(score.device, score.level, _chosen(score.evaluation)) for score in tuned]
    gains = [_gain(score.evaluation) for score in tuned if score.evaluation.kept]
    return {
        "fine_tuning": {
            "devices": len(tuned),
            "kept": len(gains),
            "before": {_NAMES.get(name, name): _mean(name, tuned) for name in _names(tuned)},
            "always": {_NAMES.get(name, name): _mean(name, tuned, "tuned") for name in _names(tuned)},
            "after": {_NAMES.get(name, name): _mean(name, chosen) for name in _names(chosen)},
            "gains": {name: _gains([gain[name] for gain in gains if name in gain]) for name in _gain_names(gains)},
        }
    }


def _chosen(evaluation: Evaluation) -> Evaluation:
    sums = evaluation.tuned if evaluation.kept else evaluation.sums
    return Evaluation(examples=evaluation.examples, targets=evaluation.targets, sums=sums)


def _gain(evaluation: Evaluation) -> dict[str, float]:
    """Metric -> what fine-tuning added to it."""
    targets = max(1, evaluation.targets)
    return {
        _NAMES.get(name, name): (evaluation.tuned[name] - value) / targets
        for name, value in evaluation.sums.items()
        if name in evaluation.tuned
    }


def _gain_names(gains: Sequence[Mapping[str, float]]) -> list[str]:
    return sorted({name for gain in gains for name in gain})


def _gains(values: Sequence[float]) -> dict[str, float]:
    return {"mean": float(np.mean(values)), "lowest": float(min(values)), "highest": float(max(values))}


def scores_summary(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What ``summary.json`` says: the last distribution of the metrics of ``rounds``; nothing where there is none."""
    found = next((entry[KEY] for entry in reversed(rounds) if KEY in entry), None)
    return {} if found is None else {KEY: found}


def in_words(found: Mapping[str, Any]) -> str:
    """A clause for people: ``on 7 devices 0.8912 (0.7100 to 0.9600)``."""
    if not found["devices"]:
        return f"on no device: {len(found['too_few'])} with too few held-out examples"
    name = "accuracy" if "accuracy" in found["metrics"] else "loss"
    spread = found["metrics"][name]
    low, high = spread["lowest"]["value"], spread["highest"]["value"]
    told = f"{name} on {found['devices']} devices {spread['mean']:.4f} ({low:.4f} to {high:.4f})"
    if tuning := found.get("fine_tuning"):
        told += f", fine-tuned {tuning['after'][name]:.4f}, kept by {tuning['kept']}"
    return told
