"""How far predicted memory is from measured, by runtime: a scale, an offset, a floor, and what covered every point.

``measured growth = max(floor, scale x predicted growth + offset)``, growth being the trainer's peak above idle. The
floor is what loading a small artifact takes: its steps never need as much. It rises with the size of the graph, where
sizes are known: ``floor = base + graph scale x graph bytes``. What a plan takes of it is the planner's choice.
:func:`profiles.memory.fit_correction` is the cautious one-number form.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

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


class MemoryFit(MemoryLine, frozen=True, kw_only=True):
    """One runtime's line on one kind of device, with how well it gives the measured growth back."""

    quality: FitQuality

    def line(self, *, measured_at: float = 0.0) -> MemoryLine:
        """The model as a profile holds it."""
        found = {name: getattr(self, name) for name in MemoryLine.__struct_fields__}
        return MemoryLine(**found | {"points": self.quality.points, "measured_at": measured_at})


def fit_memory(samples: Sequence[tuple[int, int]], graphs: Sequence[int] = ()) -> MemoryFit:
    """The model of one runtime from (predicted growth, measured growth), bytes; repeats become their median.

    Args:
        graphs: size of each sample's graph; empty, or 0 among them: the floor is the same for all.

    ``missing_bytes`` counts every sample within twice the model, repeats on their own: a peak that came once can come
    again. What is beyond that was another program's, or another graph's.

    Raises:
        FitImpossible: fewer than two different predictions, or a growth that is not above 0.
    """
    sizes = tuple(graphs) if graphs and all(graphs) else (0,) * len(samples)
    points = [Point(predicted, grown, size) for (predicted, grown), size in zip(samples, sizes, strict=True)]
    found = _line(points)
    least = (round(FLOOR_WORTH * _mean_error(found, points), 6), 0)
    for bound in _bounds(samples):
        lower = [point for point in points if point.predicted < bound]
        floor = round(statistics.median(point.grown for point in lower))
        try:
            line = _line([point for point in points if point.predicted >= bound])
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


def _line(points: Sequence[Point]) -> MemoryFit:
    samples = [({_OFFSET: 1.0, _SCALE: float(point.predicted)}, float(point.grown)) for point in points]
    fit = fit_line(samples, signed=(_OFFSET,))
    scale, offset = fit.coefficients[_SCALE], fit.coefficients[_OFFSET]
    return MemoryFit(scale=scale, offset_bytes=round(offset), quality=fit.quality)


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
            line = _line([point for point in points if not _is_floor(found, point)])
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
