"""How far predicted memory is from measured, by runtime: a scale, an offset, a floor, and what covered every point.

``measured growth = max(floor, scale x predicted growth + offset)``, growth being the trainer's peak above idle. The
floor is what loading a small artifact takes: its steps never need as much. What a plan takes of it is the planner's
choice. :func:`profiles.memory.fit_correction` is the cautious one-number form.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from profiles.fit import FitImpossible, FitQuality, fit_line

_OFFSET, _SCALE = "offset", "predicted growth"

FLOOR_WORTH = 0.9
"""A floor is one parameter more: it is taken only where it leaves less than this of the line's mean error."""

MOST_BOUNDS = 8
"""Every one costs a fit, which takes a small device a tenth of a second."""

_FAR = 0.5
"""Errors beyond it count as this much when fits are compared: one wrong point must not choose between them."""


@dataclass(frozen=True)
class MemoryFit:
    """One runtime on one kind of device.

    Attributes:
        offset_bytes: negative where the prediction is too large by as much at every size.
        missing_bytes: the most that a measured peak was above what the model says, of the points that were used.
        quality: relative to the measured growth.
        floor_bytes: the growth of artifacts whose steps need less than loading them; 0: no such were measured.
    """

    runtime: str
    scale: float
    offset_bytes: float
    missing_bytes: int
    quality: FitQuality
    floor_bytes: int = 0

    def growth_bytes(self, predicted_bytes: int) -> int:
        """The growth to expect where a manifest predicts ``predicted_bytes``; never negative."""
        return max(0, self.floor_bytes, round(self.scale * predicted_bytes + self.offset_bytes))

    def covering_bytes(self, predicted_bytes: int) -> int:
        """As :meth:`growth_bytes`, and as much more as the worst measured point needed."""
        return self.growth_bytes(predicted_bytes) + self.missing_bytes


def fit_memory(runtime: str, samples: Sequence[tuple[int, int]]) -> MemoryFit:
    """The model of ``runtime`` from (predicted growth, measured growth), bytes; repeats become their median.

    ``missing_bytes`` counts every sample within twice the model, repeats on their own: a peak that came once can come
    again. What is beyond that was another program's, or another graph's.

    Raises:
        FitImpossible: fewer than two different predictions, or a growth that is not above 0.
    """
    found = _line(runtime, samples)
    least = (round(FLOOR_WORTH * _mean_error(found, samples), 6), 0)
    for bound in _bounds(samples):
        lower = [sample for sample in samples if sample[0] < bound]
        try:
            line = _line(runtime, [sample for sample in samples if sample[0] >= bound])
        except FitImpossible:
            break
        floor = round(statistics.median(grown for _, grown in lower))
        with_floor = replace(line, floor_bytes=floor)
        rank = (round(_mean_error(with_floor, samples), 6), line.quality.left_out)
        if rank < least:
            found, least = replace(with_floor, quality=_quality(with_floor, line.quality, lower)), rank
    missing = [
        grown - found.growth_bytes(predicted)
        for predicted, grown in samples
        if grown <= 2 * found.growth_bytes(predicted)
    ]
    return replace(found, missing_bytes=max(0, math.ceil(max(missing, default=0))))


def _bounds(samples: Sequence[tuple[int, int]]) -> list[int]:
    """Predictions below which a floor may lie, two at least; some of them, however many were measured."""
    sizes = sorted({predicted for predicted, _ in samples})[2:]
    step = max(1, -(-len(sizes) // MOST_BOUNDS))
    return sizes[::step]


def _line(runtime: str, samples: Sequence[tuple[int, int]]) -> MemoryFit:
    fit = fit_line([({_OFFSET: 1.0, _SCALE: float(predicted)}, float(grown)) for predicted, grown in samples],
                   signed=(_OFFSET,))  # fmt: skip
    return MemoryFit(runtime, fit.coefficients[_SCALE], fit.coefficients[_OFFSET], 0, fit.quality)


def _mean_error(fit: MemoryFit, samples: Sequence[tuple[int, int]]) -> float:
    return statistics.fmean(min(_FAR, abs(fit.growth_bytes(predicted) / grown - 1.0)) for predicted, grown in samples)


def _quality(fit: MemoryFit, above: FitQuality, lower: Sequence[tuple[int, int]]) -> FitQuality:
    """Of the line above and the floor below; the line's median stands for its points."""
    errors = [abs(fit.growth_bytes(predicted) / grown - 1.0) for predicted, grown in lower]
    return FitQuality(
        points=above.points + len({predicted for predicted, _ in lower}),
        left_out=above.left_out,
        median_error=statistics.median(errors + [above.median_error] * above.points),
        worst_error=max(*errors, above.worst_error),
        freedom=above.freedom + len({predicted for predicted, _ in lower}) - 1,
    )


def fit_memory_by_runtime(samples: Mapping[str, Sequence[tuple[int, int]]]) -> dict[str, MemoryFit]:
    """The model of each runtime.

    Raises:
        FitImpossible: as :func:`fit_memory`.
    """
    return {runtime: fit_memory(runtime, points) for runtime, points in sorted(samples.items())}
