"""How a model does on the devices' own held-out shares: the mean, and how far devices are from each other.

Made of the sums that devices report. What sums amount to is for a :data:`Measure` to say, of one device's and of all
devices' added up: the mean is that of all held-out examples together, whatever the metric is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge.contracts.evaluation import OPTIONAL, Evaluation

KEY = "device_evaluation"
"""In a round's metrics."""
QUANTILES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
BINS = 10
SHARES = frozenset({"accuracy"})
"""Metrics from 0 to 1, whose histograms have that range."""
Measure = Callable[[Mapping[str, float], int, int], Mapping[str, float]]
"""(sums, examples, targets) -> metrics by name."""


def per_target(sums: Mapping[str, float], examples: int, targets: int) -> dict[str, float]:
    """Each sum over the number of targets; ``correct`` is named ``accuracy``."""
    return {{"correct": "accuracy"}.get(name, name): float(value / max(1, targets)) for name, value in sums.items()}


@dataclass(frozen=True)
class DeviceScore:
    """What one device reported of the model that it was sent."""

    device: str
    level: str
    evaluation: Evaluation


def distribution(scores: Sequence[DeviceScore], measure: Measure = per_target) -> dict[str, Any]:
    """Figures of ``scores``, which are in the order of devices, as JSON values.

    ``metrics`` has for each metric the mean, quantiles over devices, the lowest and the highest device, and a histogram
    of devices; ``levels`` the means by capacity level; ``too_few`` the devices whose share was too small to be scored.
    Who reported other sums than most is in ``other_sums``, and in no figure. Questions are those of the devices that
    have any.
    """
    reported = [score for score in scores if score.evaluation.sums]
    usual = Counter(_common(score.evaluation) for score in reported).most_common(1)
    scored = [score for score in reported if _common(score.evaluation) == usual[0][0]]
    others = [score.device for score in reported if score not in scored]
    values = [(score.device, _value(score.evaluation, measure)) for score in scored]
    return {
        "devices": len(scored),
        "examples": sum(score.evaluation.examples for score in scored),
        "too_few": [score.device for score in scores if not score.evaluation.sums],
        **({"other_sums": others} if others else {}),
        "metrics": {name: _spread(name, mean, values) for name, mean in _mean(scored, measure).items()},
        "levels": {level: _level(level, scored, measure) for level in sorted({score.level for score in scored})},
        **_tuning(scored, measure),
    }


def _common(evaluation: Evaluation) -> tuple[str, ...]:
    """Names of the sums that every device of a run has."""
    return tuple(sorted(evaluation.sums.keys() - set(OPTIONAL)))


def _value(evaluation: Evaluation, measure: Measure) -> dict[str, float]:
    found = measure(evaluation.sums, evaluation.examples, evaluation.targets)
    return {name: float(value) for name, value in sorted(found.items())}


def _mean(scores: Sequence[DeviceScore], measure: Measure) -> dict[str, float]:
    """Metrics of all of ``scores`` together; nothing of nobody."""
    if not scores:
        return {}
    evaluations = [score.evaluation for score in scores]
    names = sorted({name for evaluation in evaluations for name in evaluation.sums})
    sums = {name: sum(evaluation.sums.get(name, 0.0) for evaluation in evaluations) for name in names}
    together = Evaluation(
        examples=sum(evaluation.examples for evaluation in evaluations),
        targets=sum(evaluation.targets for evaluation in evaluations),
        sums=sums,
    )
    return _value(together, measure)


def _spread(name: str, mean: float, devices: Sequence[tuple[str, Mapping[str, float]]]) -> dict[str, Any]:
    devices = [(device, found) for device, found in devices if name in found]
    values = np.array([found[name] for _, found in devices])
    low, high = (0.0, 1.0) if name in SHARES else (float(values.min()), float(values.max()))
    counts, edges = np.histogram(values, bins=BINS, range=(low, high) if high > low else (low - 0.5, low + 0.5))
    lowest, highest = int(values.argmin()), int(values.argmax())
    return {
        "mean": mean,
        "quantiles": {f"{q:g}": float(np.quantile(values, q)) for q in QUANTILES},
        "lowest": {"device": devices[lowest][0], "value": float(values[lowest])},
        "highest": {"device": devices[highest][0], "value": float(values[highest])},
        "histogram": {"edges": [float(edge) for edge in edges], "devices": [int(count) for count in counts]},
    }


def _level(level: str, scores: Sequence[DeviceScore], measure: Measure) -> dict[str, Any]:
    own = [score for score in scores if score.level == level]
    examples = sum(score.evaluation.examples for score in own)
    return {"devices": len(own), "examples": examples, **_mean(own, measure)}


def _tuning(scores: Sequence[DeviceScore], measure: Measure) -> dict[str, Any]:
    """What fine-tuning came to on the devices that did it; nothing where none did.

    ``kept`` devices have a lower loss by it and keep it; ``after`` takes these with it and the others as they were.
    """
    tuned = [score for score in scores if score.evaluation.tuned.keys() == score.evaluation.sums.keys()]
    if not tuned:
        return {}
    after = [_with_sums(score, score.evaluation.tuned) for score in tuned]
    chosen = [new if old.evaluation.kept else old for old, new in zip(tuned, after, strict=True)]
    gains = [
        _gain(_value(old.evaluation, measure), _value(new.evaluation, measure))
        for old, new in zip(tuned, after, strict=True)
        if old.evaluation.kept
    ]
    names = sorted({name for gain in gains for name in gain})
    return {
        "fine_tuning": {
            "devices": len(tuned),
            "kept": len(gains),
            "before": _mean(tuned, measure),
            "always": _mean(after, measure),
            "after": _mean(chosen, measure),
            "gains": {name: _spread_of([gain[name] for gain in gains if name in gain]) for name in names},
        }
    }


def _with_sums(score: DeviceScore, sums: Mapping[str, float]) -> DeviceScore:
    before = score.evaluation
    evaluation = Evaluation(examples=before.examples, targets=before.targets, sums=dict(sums))
    return DeviceScore(score.device, score.level, evaluation)


def _gain(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: after[name] - value for name, value in before.items()}


def _spread_of(values: Sequence[float]) -> dict[str, float]:
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
