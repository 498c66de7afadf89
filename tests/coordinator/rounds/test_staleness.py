"""What an update is worth beside a later model, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator.aggregation.weighted_mean import WeightedMean
from coordinator.rounds.staleness import rebased, staleness_weight
from edge.contracts.errors import UpdateRejected


def array(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_staleness_weights_are_powers_of_the_age() -> None:
    assert [staleness_weight(age, 0.5) for age in (0, 3, 8)] == [1.0, 0.5, 1 / 3]
    assert staleness_weight(7, 0.0) == 1.0
    assert staleness_weight(1, 1.0) == 0.5


def test_what_training_moved_is_added_to_the_model_of_today() -> None:
    moved = rebased({"w": array(3, 0)}, {"w": array(1, 2)}, {"w": array(10, 20)}, weight=0.5, where="pi-1")
    assert moved["w"].tolist() == [11.0, 19.0]
    assert moved["w"].dtype == np.float32


def test_update_of_the_current_model_is_itself_to_the_bit() -> None:
    trained = {"w": array(0.1, 1e-8)}
    origin = {"w": array(0.3, 7e7)}
    assert rebased(trained, origin, {"w": origin["w"].copy()}, weight=1.0, where="")["w"] is trained["w"]
    by_step = np.float32(np.float64(7e7) + (np.float64(np.float32(1e-8)) - 7e7))
    assert by_step != np.float32(1e-8), "which a sum of differences is not"


def test_counter_is_rounded_and_keeps_its_dtype() -> None:
    counted = rebased({"n": np.array(9)}, {"n": np.array(4)}, {"n": np.array(30)}, weight=0.5, where="")
    assert (counted["n"].dtype, counted["n"].tolist()) == (np.int64, 32)  # 30 + 2.5, to the even neighbour


def test_mean_of_rebased_updates_is_the_weighted_step_of_the_buffer() -> None:
    """n = 10 of this version and 30 of the one before: 100 + (10 * 1 * 4 + 30 * 1/2 * 8) / 40."""
    current = {"w": array(100)}
    mean = WeightedMean(current)
    for examples, age, trained, origin in ((10, 0, 104, 100), (30, 1, 58, 50)):
        weight = staleness_weight(age, 1.0)
        mean.add(
            rebased({"w": array(trained)}, {"w": array(origin)}, current, weight=weight, where=""),
            examples,
            where="",
        )
    assert mean.result()["w"].tolist() == [100 + (10 * 4 + 15 * 8) / 40]


@pytest.mark.parametrize("lacking", ["the weights it was sent", "today's cut"])
def test_tensor_that_is_not_in_both_cuts_is_refused_by_name(lacking: str) -> None:
    whole, part = {"w": array(1, 2)}, {"w": array(1)}
    origin, current = (part, whole) if lacking.startswith("the weights") else (whole, part)
    with pytest.raises(UpdateRejected, match=rf"pi-1: 'w' has shape \(2,\), in {lacking} \(1,\)"):
        rebased(whole, origin, current, weight=1.0, where="pi-1")
