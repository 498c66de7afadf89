"""How well memory is predicted for shapes that were never measured: every shape from a fit on all others.

A shape is a model with its cut; its batch sizes are held out together, or one would be predicted from its neighbours.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from profiles.fit import FitImpossible
from profiles.memory_fit import MemoryFit, fit_memory


@dataclass(frozen=True)
class PeakPoint:
    """One measurement.

    Attributes:
        shape: what is held out together.
        idle_bytes: supervisor and idle trainer, measured before the artifact.
        predicted_bytes, grown_bytes: above idle, as the manifest says and as measured.
        graph_bytes: size of the step's graph; 0: not known.
    """

    runtime: str
    shape: str
    idle_bytes: int
    predicted_bytes: int
    grown_bytes: int
    graph_bytes: int = 0


@dataclass(frozen=True)
class PeakErrors:
    """Of predictions against measurements, as shares of the measured value.

    Attributes:
        total_median, total_worst: of idle plus growth.
        growth_median: of the part above idle.
        short_worst: how far the worst prediction was below the measured total; 0 when none was.
    """

    points: int
    total_median: float
    total_worst: float
    growth_median: float
    short_worst: float


def peak_errors(points: Sequence[PeakPoint], growths: Sequence[int]) -> PeakErrors:
    """Errors of ``growths``, predicted for ``points`` one by one.

    Raises:
        FitImpossible: there are no points.
    """
    if not points:
        raise FitImpossible("there are no measured peaks; measure some artifacts")
    totals = [(point.idle_bytes + growth, point.idle_bytes + point.grown_bytes) for point, growth in
              zip(points, growths, strict=True)]  # fmt: skip
    shares = [predicted / measured - 1.0 for predicted, measured in totals]
    above = [abs(growth / point.grown_bytes - 1.0) for point, growth in zip(points, growths, strict=True)]
    return PeakErrors(
        points=len(points),
        total_median=statistics.median(map(abs, shares)),
        total_worst=max(map(abs, shares)),
        growth_median=statistics.median(above),
        short_worst=max(0.0, -min(shares)),
    )


def manifest_errors(points: Sequence[PeakPoint]) -> PeakErrors:
    """Errors of the manifests' own predictions.

    Raises:
        FitImpossible: there are no points.
    """
    return peak_errors(points, [point.predicted_bytes for point in points])


def held_out_errors(points: Sequence[PeakPoint]) -> PeakErrors:
    """Errors where each shape is predicted by a fit of its runtime's other shapes.

    Raises:
        FitImpossible: a runtime has fewer than two other shapes with different predictions; the text names the shape.
    """
    fits: dict[tuple[str, str], MemoryFit] = {}
    for point in points:
        if (point.runtime, point.shape) in fits:
            continue
        others = [other for other in points if other.runtime == point.runtime and other.shape != point.shape]
        samples = [(other.predicted_bytes, other.grown_bytes) for other in others]
        try:
            key = point.runtime, point.shape
            fits[key] = fit_memory(point.runtime, samples, [other.graph_bytes for other in others])
        except FitImpossible as error:
            raise FitImpossible(f"{point.shape} on {point.runtime}, from the other shapes: {error}") from error
    growths = [fits[p.runtime, p.shape].growth_bytes(p.predicted_bytes, p.graph_bytes) for p in points]
    return peak_errors(points, growths)
