"""Norms of updates beside their cohort's: who is set aside, compared with whom, and that nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator.defences.screening import Movement, movement, outliers
from coordinator.rounds.participants import examples_limit
from profiles.bounds import MOST_EXAMPLES


def array(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def moved(**by_device: float) -> dict[str, Movement]:
    return {device: Movement(rms, ("w", 1.0)) for device, rms in by_device.items()}


def test_movement_is_the_root_mean_square_of_what_was_trained() -> None:
    origin = {"w": array(1, 1), "v": array(0, 0), "steps": np.array(5), "frozen": array(9)}
    trained = {"w": array(4, 1), "v": array(0, 1), "steps": np.array(900), "w#squared_gradient": array(1e9, 1e9)}
    found = movement(trained, origin)
    assert found.rms == pytest.approx((10 / 4) ** 0.5)
    assert found.largest[0] == "w"
    assert found.largest[1] == pytest.approx(0.9)


def test_movement_of_an_update_that_is_its_weights_is_zero() -> None:
    assert movement({"w": array(1, 2)}, {"w": array(1, 2)}) == Movement(0.0, ("", 0.0))


def test_outlier_is_one_beyond_the_factor() -> None:
    found = outliers(moved(a=1.0, b=1.2, c=0.9, d=3.1), dict.fromkeys("abcd", "full"), 3.0)
    # The median of 0.9, 1, 1.2 and 3.1 is 1.1.
    assert found == {}
    found = outliers(moved(a=1.0, b=1.2, c=0.9, d=3.4), dict.fromkeys("abcd", "full"), 3.0)
    ((device, (middle, whose)),) = found.items()
    assert (device, whose) == ("d", "level 'full'")
    assert middle == pytest.approx(1.1)


def test_levels_are_compared_among_themselves_where_there_are_three() -> None:
    movements = moved(a=1.0, b=1.0, c=1.0, x=10.0, y=10.0, z=10.0, lone=10.0)
    levels = {"a": "full", "b": "full", "c": "full", "x": "half", "y": "half", "z": "half", "lone": "quarter"}
    assert outliers(movements, levels, 3.0) == {}
    movements = moved(a=1.0, b=1.0, c=1.0, d=1.0, lone=10.0)
    assert outliers(movements, dict.fromkeys("abcd", "full") | {"lone": "half"}, 3.0) == {"lone": (1.0, "all levels")}


def test_two_updates_are_not_compared() -> None:
    assert outliers(moved(a=1.0, b=1e9), dict.fromkeys("ab", "full"), 3.0) == {}


def test_a_cohort_that_stands_still_sets_aside_who_moves() -> None:
    assert list(outliers(moved(a=0.0, b=0.0, c=0.1), dict.fromkeys("abc", "full"), 5.0)) == ["c"]


@pytest.mark.parametrize(("factor", "limit"), [(0.0, MOST_EXAMPLES), (1.0, 20), (2.5, 50)])
def test_examples_are_limited_by_the_median(factor: float, limit: int) -> None:
    assert examples_limit([10, 20, 2**40], factor) == limit
