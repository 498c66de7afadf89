"""How far predicted memory is from measured, by runtime: a scale, an offset, and what would have covered every point.

``measured growth = scale x predicted growth + offset``, growth being the trainer's peak above idle. What a plan takes
of it is the planner's choice. :func:`profiles.memory.fit_correction` is the cautious one-number form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from profiles.fit import FitQuality, fit_line

_OFFSET, _SCALE = "offset", "predicted growth"


@dataclass(frozen=True)
class MemoryFit:
    """One runtime on one kind of device.

    Attributes:
        offset_bytes: negative where the prediction is too large by as much at every size.
        missing_bytes: the most that a measured peak was above what the model says, of the points that were used.
        quality: relative to the measured growth.
    """

    runtime: str
    scale: float
    offset_bytes: float
    missing_bytes: int
    quality: FitQuality

    def growth_bytes(self, predicted_bytes: int) -> int:
        """The growth to expect where a manifest predicts ``predicted_bytes``; never negative."""
        return max(0, round(self.scale * predicted_bytes + self.offset_bytes))

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
    fit = fit_line([({_OFFSET: 1.0, _SCALE: float(predicted)}, float(grown)) for predicted, grown in samples],
                   signed=(_OFFSET,))  # fmt: skip
    found = MemoryFit(runtime, fit.coefficients[_SCALE], fit.coefficients[_OFFSET], 0, fit.quality)
    missing = [
        grown - found.growth_bytes(predicted)
        for predicted, grown in samples
        if grown <= 2 * found.growth_bytes(predicted)
    ]
    return MemoryFit(runtime, found.scale, found.offset_bytes, max(0, math.ceil(max(missing, default=0))), fit.quality)


def fit_memory_by_runtime(samples: Mapping[str, Sequence[tuple[int, int]]]) -> dict[str, MemoryFit]:
    """The model of each runtime.

    Raises:
        FitImpossible: as :func:`fit_memory`.
    """
    return {runtime: fit_memory(runtime, points) for runtime, points in sorted(samples.items())}
