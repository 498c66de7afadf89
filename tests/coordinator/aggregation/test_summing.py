"""Sums of several updates at a time have the bits of one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator.aggregation.entrywise import EntrywiseMean
from coordinator.aggregation.parts import FiniteTensors, check_parts
from coordinator.aggregation.summing import PIECE, TOGETHER, WeightedSums
from coordinator.aggregation.weighted_mean import WeightedMean
from edge.contracts.errors import UpdateRejected

SHAPES = {"large": (3, PIECE + 17), "scalar": (), "small": (5, 7)}


def updates(count: int, *, read_only: bool) -> list[dict[str, np.ndarray]]:
    draws = np.random.default_rng(1)
    made = []
    for _ in range(count):
        tensors = {n: np.asarray(draws.standard_normal(s), np.float32) for n, s in SHAPES.items()}
        for value in tensors.values():
            value.flags.writeable = not read_only
        made.append(tensors)
    return made


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("count", [1, TOGETHER, 2 * TOGETHER + 3])
def test_sums_are_those_of_one_after_the_other(count: int, read_only: bool) -> None:
    sums = WeightedSums()
    totals = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    expected = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    for number, tensors in enumerate(updates(count, read_only=read_only)):
        weight = 0.1 + number / 3
        sums.add([(totals[name], value, weight) for name, value in tensors.items()])
        for name, value in tensors.items():
            expected[name] += value.astype(np.float64) * weight
    sums.settle()
    assert all(totals[name].tobytes() == expected[name].tobytes() for name in SHAPES)


def test_value_that_its_owner_may_change_is_added_at_once() -> None:
    value, total = np.ones(4, np.float32), np.zeros(4)
    sums = WeightedSums()
    sums.add([(total, value, 2.0)])
    value[:] = 7.0
    sums.settle()
    assert total.tolist() == [2.0] * 4


def test_updates_that_wait_are_few_and_small(monkeypatch: pytest.MonkeyPatch) -> None:
    value, total = np.ones(4, np.float32), np.zeros(4)
    value.flags.writeable = False
    sums = WeightedSums()
    for _ in range(TOGETHER - 1):
        sums.add([(total, value, 1.0)])
    assert total.tolist() == [0.0] * 4
    sums.add([(total, value, 1.0)])
    assert total.tolist() == [TOGETHER] * 4
    monkeypatch.setattr("coordinator.aggregation.summing.MOST_WAITING_BYTES", 15)
    sums.add([(total, value, 1.0)])
    assert total.tolist() == [TOGETHER + 1] * 4


def test_part_of_a_tensor_is_added_in_its_turn() -> None:
    draws = np.random.default_rng(2)
    reference = {"w": np.zeros((4, 3), np.float32)}
    whole = [np.asarray(draws.standard_normal((4, 3)), np.float32) for _ in range(5)]
    part = np.asarray(draws.standard_normal((2, 3)), np.float32)
    for value in whole:
        value.flags.writeable = False
    mean, total, weights = EntrywiseMean(reference), np.zeros((4, 3)), np.zeros((4, 3))
    for number, value in enumerate(whole):
        mean.add({"w": value}, 1.0 + number, where="d")
        total += value.astype(np.float64) * (1.0 + number)
        weights += 1.0 + number
        if number == 1:  # while others wait
            mean.add({"w": part}, 0.3, where="d", slices={"w": (np.array([1, 3]), None)})
            total[[1, 3]] += part.astype(np.float64) * 0.3
            weights[[1, 3]] += 0.3
    assert mean.result()["w"].tobytes() == (total / weights).astype(np.float32).tobytes()


def test_values_are_searched_unless_they_were() -> None:
    reference = {"w": np.zeros(2, np.float32)}
    bad = {"w": np.array([1.0, np.nan], np.float32)}
    with pytest.raises(UpdateRejected, match="'w' holds values that are not finite"):
        WeightedMean(reference).add(bad, 1.0, where="d")
    check_parts(reference, FiniteTensors(bad), {"w": 1.0}, {}, where="d")
    with pytest.raises(UpdateRejected, match="has shape"):
        check_parts({"w": np.zeros(3, np.float32)}, FiniteTensors(bad), {"w": 1.0}, {}, where="d")
