"""Prediction errors by hand, and a shape that is never predicted from itself."""

from __future__ import annotations

import pytest

from profiles.fit import FitImpossible
from profiles.memory_check import PeakPoint, held_out_errors, manifest_errors, peak_errors

IDLE = 80


def points(runtime: str, scale: float, *shapes: tuple[str, int]) -> list[PeakPoint]:
    return [PeakPoint(runtime, shape, IDLE, size, round(scale * size)) for shape, size in shapes]


def test_manifest_errors_by_hand() -> None:
    measured = [PeakPoint("a", "x", 80, 20, 20), PeakPoint("a", "y", 80, 30, 20), PeakPoint("a", "z", 80, 10, 20)]
    errors = manifest_errors(measured)
    assert (errors.points, errors.total_median, errors.total_worst) == (3, pytest.approx(0.1), pytest.approx(0.1))
    assert (errors.growth_median, errors.short_worst) == (pytest.approx(0.5), pytest.approx(0.1))
    assert peak_errors(measured, [20, 20, 20]).total_worst == 0.0


def test_held_out_errors_vanish_where_one_line_holds_for_every_shape_of_a_runtime() -> None:
    shapes = [("mlp", 100_000), ("mlp", 120_000), ("resnet", 300_000), ("resnet", 500_000), ("vit", 700_000)]
    mixed = points("onnxruntime", 1.2, *shapes) + points("executorch", 0.7, *shapes)
    assert manifest_errors(mixed).growth_median > 0.1
    errors = held_out_errors(mixed)
    assert (errors.points, errors.total_worst) == (10, pytest.approx(0.0, abs=1e-4))


def test_a_shape_of_its_own_kind_is_not_predicted_from_itself() -> None:
    alike = points("onnxruntime", 1.0, ("mlp", 100_000), ("vit", 200_000), ("conv", 400_000), ("lstm", 800_000))
    odd = [PeakPoint("onnxruntime", "odd", IDLE, size, 3 * size) for size in (300_000, 300_000, 600_000)]
    own = held_out_errors([*alike, *odd])
    assert own.total_worst > 0.6
    assert own.short_worst > 0.6


def test_too_few_shapes_are_refused_by_name() -> None:
    with pytest.raises(FitImpossible, match="no measured peaks"):
        held_out_errors([])
    with pytest.raises(FitImpossible, match="mlp on onnxruntime, from the other shapes: there are no measurements"):
        held_out_errors(points("onnxruntime", 1.0, ("mlp", 10), ("mlp", 20)))
