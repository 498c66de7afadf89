"""How far predicted memory is from measured, by runtime: a scale, an offset, a floor, and what covered every point.

``measured growth = max(floor, scale x predicted growth + offset)``, growth being the trainer's peak above idle. The
floor is what loading a small artifact takes: its steps never need as much. It rises with the size of the graph, where
sizes are known: ``floor = base + graph scale x graph bytes``. What a plan takes of it is the planner's choice.
:func:`profiles.memory.fit_correction` is the cautious one-number form.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from profiles.device import MemoryLine
from profiles.fit import FitImpossible, FitQuality, fit_line

_OFFSET, _SCALE, _BASE, _GRAPH = "offset", "predicted growth", "loading", "graph size"

FLOOR_WORTH = 0.9
"""A floor is one parameter more: it is taken only where it leaves less than this of the line's mean error."""

MOST_BOUNDS = 5
"""Every one costs a fit, which takes a small device a tenth of a second."""

_FAR = 0.5
"""Errors beyond it count as this much when fits are compared: one wrong point must not choose between them."""


ROUNDS = 2
"""A floor by graph size moves a few points from the line to the floor or back; then they stay."""


class Point(NamedTuple):
    """One sample; ``graph`` is 0 where its size is not known."""

    predicted: int
    grown: int
    graph: int


@dataclass(frozen=True)
class MemoryFit:
    """One runtime on one kind of device.

    Attributes:
        offset_bytes: negative where the prediction is too large by as much at every size.
        missing_bytes: the most that a measured peak was above what the model says, of the points that were used.
        quality: relative to the measured growth.
        floor_bytes: the growth of artifacts whose steps need less than loading them; 0: no such were measured. Where it
            rises with the graph's size, that of the median graph.
        floor_base_bytes, floor_graph_scale: the floor of a graph whose size is known; 0 and 0: ``floor_bytes``.
    """

    runtime: str
    scale: float
    offset_bytes: float
    missing_bytes: int
    quality: FitQuality
    floor_bytes: int = 0
    floor_base_bytes: int = 0
    floor_graph_scale: float = 0.0

    def growth_bytes(self, predicted_bytes: int, graph_bytes: int = 0) -> int:
        """The growth to expect where a manifest says so, the graph's size 0 if not known; never negative."""
        return self.line().growth_bytes(predicted_bytes, graph_bytes)

    def covering_bytes(self, predicted_bytes: int, graph_bytes: int = 0) -> int:
        """As :meth:`growth_bytes`, and as much more as the worst measured point needed."""
        return self.growth_bytes(predicted_bytes, graph_bytes) + self.missing_bytes

    def line(self, *, measured_at: float = 0.0) -> MemoryLine:
        """The model as a profile holds it."""
        return MemoryLine(
            scale=self.scale,
            offset_bytes=round(self.offset_bytes),
            missing_bytes=self.missing_bytes,
            points=self.quality.points,
            measured_at=measured_at,
            floor_bytes=self.floor_bytes,
            floor_base_bytes=self.floor_base_bytes,
            floor_graph_scale=self.floor_graph_scale,
        )


def fit_memory(runtime: str, samples: Sequence[tuple[int, int]], graphs: Sequence[int] = ()) -> MemoryFit:
    """The model of ``runtime`` from (predicted growth, measured growth), bytes; repeats become their median.

    Args:
        graphs: size of each sample's graph; empty, or 0 among them: the floor is the same for all.

    ``missing_bytes`` counts every sample within twice the model, repeats on their own: a peak that came once can come
    again. What is beyond that was another program's, or another graph's.

    Raises:
        FitImpossible: fewer than two different predictions, or a growth that is not above 0.
    """
    sizes = tuple(graphs) if graphs and all(graphs) else (0,) * len(samples)
    points = [Point(predicted, grown, size) for (predicted, grown), size in zip(samples, sizes, strict=True)]
    found = _line(runtime, points)
    least = (round(FLOOR_WORTH * _mean_error(found, points), 6), 0)
    for bound in _bounds(samples):
        lower = [point for point in points if point.predicted < bound]
        floor = round(statistics.median(point.grown for point in lower))
        try:
            line = _line(runtime, [point for point in points if point.predicted >= bound])
        except FitImpossible:
            break
        for candidate in (replace(line, floor_bytes=floor), _with_graphs(line, lower, points)):
            if candidate is None:
                continue
            rank = (round(_mean_error(candidate, points), 6), candidate.quality.left_out)
            if rank < least:
                found, least = replace(candidate, quality=_quality(candidate, points)), rank
    missing = [
        point.grown - found.growth_bytes(point.predicted, point.graph)
        for point in points
        if point.grown <= 2 * found.growth_bytes(point.predicted, point.graph)
    ]
    return replace(found, missing_bytes=max(0, math.ceil(max(missing, default=0))))


def _bounds(samples: Sequence[tuple[int, int]]) -> list[int]:
    """Predictions below which a floor may lie, two at least; some of them, however many were measured."""
    sizes = sorted({predicted for predicted, _ in samples})[2:]
    step = max(1, -(-len(sizes) // MOST_BOUNDS))
    return sizes[::step]


def _line(runtime: str, points: Sequence[Point]) -> MemoryFit:
    samples = [({_OFFSET: 1.0, _SCALE: float(point.predicted)}, float(point.grown)) for point in points]
    fit = fit_line(samples, signed=(_OFFSET,))
    return MemoryFit(runtime, fit.coefficients[_SCALE], fit.coefficients[_OFFSET], 0, fit.quality)


def _with_graphs(line: MemoryFit, lower: Sequence[Point], points: Sequence[Point]) -> MemoryFit | None:
    """``line`` and a floor by the graph's size, each fitted again to the points that it turns out to hold for."""
    found = None
    for _ in range(ROUNDS):
        try:
            floor = fit_line([({_BASE: 1.0, _GRAPH: float(point.graph)}, float(point.grown)) for point in lower])
        except FitImpossible:
            return found
        base, scale = floor.coefficients[_BASE], floor.coefficients[_GRAPH]
        usual = base + scale * statistics.median(point.graph for point in lower)
        found = replace(line, floor_bytes=round(usual), floor_base_bytes=round(base), floor_graph_scale=scale)
        lower = [point for point in points if _is_floor(found, point)]
        try:
            line = _line(line.runtime, [point for point in points if not _is_floor(found, point)])
        except FitImpossible:
            return found
    return found


def _is_floor(fit: MemoryFit, point: Point) -> bool:
    return fit.growth_bytes(point.predicted, point.graph) > fit.scale * point.predicted + fit.offset_bytes + 1


def _error(fit: MemoryFit, point: Point) -> float:
    return abs(fit.growth_bytes(point.predicted, point.graph) / point.grown - 1.0)


def _mean_error(fit: MemoryFit, points: Sequence[Point]) -> float:
    return statistics.fmean(min(_FAR, _error(fit, point)) for point in points)


def _quality(fit: MemoryFit, points: Sequence[Point]) -> FitQuality:
    """Of the line and its floor; the points that the line left out are those with the largest errors."""
    repeats: dict[tuple[int, int], list[int]] = {}
    for point in points:
        repeats.setdefault((point.predicted, point.graph), []).append(point.grown)
    errors = sorted(
        _error(fit, Point(predicted, round(statistics.median(grown)), graph))
        for (predicted, graph), grown in repeats.items()
    )
    used = errors[: len(errors) - fit.quality.left_out]
    coefficients = 4 if fit.floor_graph_scale else 3
    return FitQuality(
        points=len(used),
        left_out=fit.quality.left_out,
        median_error=statistics.median(used),
        worst_error=used[-1],
        freedom=max(0, len(used) - coefficients),
    )


def fit_memory_by_runtime(samples: Mapping[str, Sequence[tuple[int, int]]]) -> dict[str, MemoryFit]:
    """The model of each runtime.

    Raises:
        FitImpossible: as :func:`fit_memory`.
    """
    return {runtime: fit_memory(runtime, points) for runtime, points in sorted(samples.items())}
