"""Axes: bounds that show the values, marks at round numbers, labels that tell marks apart."""

from __future__ import annotations

import pytest

from coordinator.reporting.plots.axis import axis_of


def labels(*values: float, **how: bool) -> list[str]:
    axis = axis_of(values, **how)  # type: ignore[arg-type]
    return [axis.label(mark) for mark in axis.marks]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((0.9583, 0.9716), ["0.955", "0.960", "0.965", "0.970", "0.975"]),
        ((0.012, 0.947), ["0.00", "0.25", "0.50", "0.75", "1.00"]),
        ((97.9, 224.0), ["50", "100", "150", "200", "250"]),
    ],
)
def test_bounds_are_round_numbers_around_the_values(values: tuple[float, ...], expected: list[str]) -> None:
    assert labels(*values) == expected


def test_amounts_begin_at_zero() -> None:
    assert labels(49.2, 49.3, from_zero=True)[0] == "0"


def test_rounds_are_whole_and_end_at_the_last() -> None:
    axis = axis_of([1, 10], is_whole=True, marks=8)
    assert (axis.low, axis.high) == (1, 10)
    assert axis.marks == (2, 4, 6, 8, 10)
    assert axis_of([1, 3], is_whole=True, marks=8).marks == (1, 2, 3)
    assert axis_of([4], is_whole=True).marks == (4, 5)


def test_values_over_several_powers_of_ten_are_logarithmic_where_that_is_allowed() -> None:
    assert labels(0.0009, 3.0, may_log=True) == ["0.0001", "0.001", "0.01", "0.1", "1", "10"]
    assert not axis_of([0.0, 3.0], may_log=True).is_log
    assert axis_of([0.01, 100.0], may_log=True).share(1.0) == pytest.approx(0.5)


@pytest.mark.parametrize("value", [0.0, 0.5, -3.0, 1e9])
def test_one_value_has_an_axis_around_it(value: float) -> None:
    axis = axis_of([value, value])
    assert axis.low < value < axis.high
    assert 0 < axis.share(value) < 1
