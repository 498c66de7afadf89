"""The streaming weighted mean, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator.aggregation.weighted_mean import WeightedMean
from edge.contracts.errors import UpdateRejected


def model(**values: list[float]) -> dict[str, np.ndarray]:
    return {name: np.array(value, np.float32) for name, value in values.items()}


def test_mean_weighs_by_hand() -> None:
    mean = WeightedMean(model(w=[0, 0]))
    mean.add(model(w=[1, 2]), 1, where="a")
    mean.add(model(w=[5, -2]), 3, where="b")
    assert mean.result()["w"].tolist() == [4.0, -1.0]
    assert mean.result()["w"].dtype == np.float32


def test_each_tensor_has_its_own_weight() -> None:
    mean = WeightedMean(model(w=[0], running_mean=[0]))
    mean.add(model(w=[1], running_mean=[1]), {"w": 1, "running_mean": 3}, where="a")
    mean.add(model(w=[2], running_mean=[2]), {"w": 1, "running_mean": 1}, where="b")
    assert {name: value.tolist() for name, value in mean.result().items()} == {"w": [1.5], "running_mean": [1.25]}


def test_tensor_that_some_sent_is_the_mean_over_those_and_untouched_ones_stay() -> None:
    mean = WeightedMean(model(a=[9], b=[9], c=[9]))
    mean.add(model(a=[1], b=[1]), 1, where="x")
    mean.add(model(a=[3]), 1, where="y")
    assert {name: value.tolist() for name, value in mean.result().items()} == {"a": [2.0], "b": [1.0], "c": [9.0]}


def test_sums_are_float64() -> None:
    # In float32, 2^24 + 1 is 2^24: a thousand ones would be lost.
    mean = WeightedMean(model(w=[0]))
    mean.add(model(w=[2.0**24]), 1, where="large")
    for _ in range(1000):
        mean.add(model(w=[1.0]), 1, where="small")
    assert mean.result()["w"][0] == np.float32((2.0**24 + 1000) / 1001)


def test_identical_devices_give_back_their_bits() -> None:
    tensors = {"w": np.random.default_rng(0).normal(size=1000).astype(np.float32)}
    mean = WeightedMean(tensors)
    for weight in (0.4007, 0.2430, 0.1893):
        mean.add(tensors, weight, where="a")
    assert mean.result()["w"].tobytes() == tensors["w"].tobytes()


def test_integers_are_rounded() -> None:
    mean = WeightedMean({"steps": np.array(0, np.int64)})
    mean.add({"steps": np.array(3)}, 1, where="a")
    mean.add({"steps": np.array(4)}, 2, where="b")
    assert mean.result()["steps"].dtype == np.int64
    assert mean.result()["steps"] == 4


def test_zero_weight_changes_nothing() -> None:
    mean = WeightedMean(model(w=[7]))
    mean.add(model(w=[1]), 0, where="a")
    assert mean.result()["w"].tolist() == [7.0]


@pytest.mark.parametrize(
    ("tensors", "weight", "words"),
    [
        (model(w=[1, 2], other=[1]), 1, ["pi-07", "'other'"]),
        (model(v=[1, 1], w=[1, 2, 3]), 1, ["pi-07", "(3,)", "(2,)"]),
        (model(v=[1, 1], w=[1, float("nan")]), 1, ["pi-07", "'w'", "not finite"]),
        (model(v=[1, 1], w=[float("inf"), float("-inf")]), 1, ["pi-07", "'w'", "not finite"]),
        (model(w=[1, 2]), float("nan"), ["pi-07", "nan"]),
        (model(w=[1, 2]), -1, ["pi-07", "-1"]),
    ],
    ids=["unknown", "shape", "nan", "infinities that cancel", "weight nan", "weight negative"],
)
def test_hostile_update_is_refused_and_changes_nothing(
    tensors: dict[str, np.ndarray], weight: float, words: list[str]
) -> None:
    mean = WeightedMean(model(v=[0, 0], w=[0, 0]))
    mean.add(model(v=[4, 4], w=[2, 2]), 1, where="good")
    with pytest.raises(UpdateRejected) as caught:
        mean.add(tensors, weight, where="pi-07")
    assert all(word in str(caught.value) for word in words)
    assert {name: value.tolist() for name, value in mean.result().items()} == {"v": [4, 4], "w": [2, 2]}
