"""Static statistics over devices, by hand."""

from __future__ import annotations

import numpy as np

from coordinator.rounds.batch_norm_statistics import mean_statistics
from coordinator.submodels.record import LayerCut
from coordinator.submodels.values import Level, Update

LEVEL = Level("full", 1.0, 1.0)


def update(device: str, num_examples: int, **tensors: np.ndarray) -> Update:
    return Update(device, LEVEL, {}, tensors, num_examples)


def test_mean_statistics_weighs_devices_by_their_examples() -> None:
    """(1 x 30 + 5 x 10) / 40 = 2 and (2 x 30 + 10 x 10) / 40 = 4."""
    means = mean_statistics(
        [
            update("a", 30, mean=np.asarray([1.0, 2.0], np.float32)),
            update("b", 10, mean=np.asarray([5.0, 10.0], np.float32)),
        ]
    )
    assert means.keys() == {"mean"}
    assert means["mean"].dtype == np.float32
    np.testing.assert_array_equal(means["mean"], [2.0, 4.0])


def test_mean_statistics_sums_in_float64() -> None:
    """In float32, 2^24 + 1 is 2^24: three ones would be lost."""
    values = [2.0**24, 1.0, 1.0, 1.0]
    means = mean_statistics(update(str(i), 1, m=np.asarray([v], np.float32)) for i, v in enumerate(values))
    assert means["m"][0] == np.float32((2.0**24 + 3) / 4)


def test_mean_statistics_of_a_buffer_that_some_devices_have_is_theirs() -> None:
    means = mean_statistics(
        [
            update("a", 3, m=np.asarray([1.0], np.float32)),
            update("b", 5, n=np.asarray([7.0], np.float32)),
        ]
    )
    assert {name: float(value[0]) for name, value in means.items()} == {"m": 1.0, "n": 7.0}


def test_mean_statistics_takes_integers_from_the_first_device() -> None:
    means = mean_statistics([update("a", 1, n=np.asarray(4, np.int64)), update("b", 9, n=np.asarray(9, np.int64))])
    assert means["n"].dtype == np.int64
    assert means["n"] == 4


def test_mean_statistics_of_a_narrow_norm_go_to_the_channels_it_holds() -> None:
    whole = {"norm.running_mean": np.array([9, 9, 9], np.float32)}
    narrow = Update("a", LEVEL, {"norm": LayerCut(out_idx=(2, 0))}, {"norm.running_mean": np.float32([1, 5])}, 1)
    other = Update("b", LEVEL, {"norm": LayerCut(out_idx=(0,))}, {"norm.running_mean": np.float32([1])}, 3)
    assert mean_statistics([narrow, other], whole)["norm.running_mean"].tolist() == [2.0, 9.0, 1.0]
