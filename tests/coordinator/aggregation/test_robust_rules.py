"""Median, trimmed mean, norm clipping, Krum and multi-Krum by hand: tiny numbers, parts of tensors, ties."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from coordinator.aggregation import spilled_values
from coordinator.aggregation.accumulator import Rule
from coordinator.aggregation.choice import chosen_rule
from coordinator.aggregation.entrywise import EntrywiseMean
from coordinator.aggregation.krum import hostile, ranked
from coordinator.aggregation.trimmed_mean import dropped
from coordinator.config.aggregation import AggregationConfig
from edge.contracts.errors import UpdateRejected

RULES = ("median", "trimmed_mean", "norm_clip", "krum", "multi_krum")


def rule_of(name: str, trim: float = 0.2) -> Rule:
    rule = chosen_rule(AggregationConfig(rule=name, trim=trim))
    assert rule is not None
    return rule


def array(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def index(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def result(name: str, values: list[float], *, trim: float = 0.2, before: float = 0.0) -> float:
    """The rule's value of one entry that all devices hold."""
    rule = rule_of(name, trim)({"w": array(before)})
    for number, value in enumerate(values):
        rule.add({"w": array(value)}, 1 + number, where=f"device {number}")
    return float(rule.result()["w"][0])


@pytest.mark.parametrize(
    ("values", "expected"),
    [([5], 5), ([1, 4], 2.5), ([9, 1, 2], 2), ([4, 1e9, 1, 2], 3), ([3, 3, 3, 3, -1e30], 3)],
    ids=["one", "two", "odd", "even", "outlier"],
)
def test_median_of_an_entry(values: list[float], expected: float) -> None:
    assert result("median", values) == expected


@pytest.mark.parametrize(
    ("values", "trim", "expected"),
    [
        ([5], 0.2, 5),
        ([1, 9], 0.4, 5),  # fewer than three: the mean
        ([1, 2, 9], 0.4, 2),  # one of three at each end
        ([1, 2, 9], 0.2, 4),  # 0.2 of three is none
        ([1e9, 1, 2, 3, -1e9], 0.2, 2),
        ([0, 10, 1, 2, 3, 4, 5, 6, 7, 8], 0.2, 4.5),  # 2 to 7
        ([1, 1, 1, 1, 7], 0.2, 1),  # ties
    ],
)
def test_trimmed_mean_of_an_entry(values: list[float], trim: float, expected: float) -> None:
    assert result("trimmed_mean", values, trim=trim) == expected


def test_a_share_of_many_is_the_whole_number() -> None:
    assert [dropped(100, 0.29), dropped(15, 0.2), dropped(2, 0.49), dropped(3, 0.49)] == [29, 3, 0, 1]


def test_norm_clipping_scales_differences_down_to_the_median_norm() -> None:
    # From 10: differences 1, 2, 100; the median is 2, so they count as 1, 2 and 2, by weights 1, 2 and 3.
    assert result("norm_clip", [11, 12, 110], before=10.0) == pytest.approx(10 + (1 + 4 + 6) / 6)


def test_norm_clipping_compares_parts_by_their_entries() -> None:
    rule = rule_of("norm_clip")({"w": array(0, 0, 0, 0)})
    rule.add({"w": array(2, 2, 2, 2)}, 1, where="whole")
    rule.add({"w": array(2, 2)}, 1, where="half", slices={"w": (index(0, 1),)})
    rule.add({"w": array(8)}, 1, where="hostile", slices={"w": (index(3),)})
    # Root mean squares 2, 2 and 8: as long as each other though of 4, 2 and 1 entries; the last becomes 2.
    assert rule.result()["w"].tolist() == [2.0, 2.0, 2.0, 2.0]


def test_krum_takes_the_one_in_the_middle_of_most() -> None:
    values = [0.0, 1.0, 1.1, 1.3, 50.0]  # f = 1, so two closest: 1.1 has 0.01 + 0.04
    assert result("krum", values) == np.float32(1.1)


def test_multi_krum_is_the_mean_of_the_best() -> None:
    # n - f - 2 = 2 of them: 1.1 (0.01 + 0.04) and 1 (0.01 + 0.09), before 1.3 (0.04 + 0.09).
    assert result("multi_krum", [0.0, 1.0, 1.1, 1.3, 50.0]) == pytest.approx(1.05)


def test_krum_takes_the_first_of_equals() -> None:
    assert ranked(np.array([[0, 1, 1], [1, 0, 1], [1, 1, 0.0]]), 0) == [0, 1, 2]


def test_krum_never_takes_more_for_hostile_than_it_can_stand() -> None:
    assert [hostile(n, 0.4) for n in (1, 2, 3, 4, 5, 9, 10, 20)] == [0, 0, 0, 0, 1, 3, 3, 8]


def test_krum_compares_what_two_hold_both_and_leaves_out_pairs_without() -> None:
    nan = np.nan
    held = [
        array(90, 90, nan, nan), array(0.1, 0.1, nan, nan), array(nan, nan, 1, 1), array(nan, nan, 1, 1.5),
        array(0, 0, 1, 1.2), array(0, 0, 1, 1.25), array(0.2, 0.2, 1, 1.1),
    ]  # fmt: skip
    rule = rule_of("krum")({"w": array(7, 7, 7, 7)})
    scores = []
    for number, own in enumerate(held):
        places = np.flatnonzero(~np.isnan(own))
        rule.add({"w": own[places]}, 1, where=f"device {number}", slices={"w": (places,)})
        apart = [
            np.nanmean((own - other) ** 2)
            for k, other in enumerate(held)
            if k != number and any(own == own + 0 * other)
        ]
        scores.append(np.mean(sorted(apart)[:4]))  # n - f - 2 of seven
    assert np.argmin(scores) == 4
    assert rule.result()["w"].tolist() == held[4].tolist()


def test_krum_of_parts_without_anything_in_common_changes_nothing() -> None:
    rule = rule_of("krum")({"w": array(7, 7)})
    rule.add({"w": array(1)}, 1, where="a", slices={"w": (index(0),)})
    rule.add({"w": array(2)}, 1, where="b", slices={"w": (index(1),)})
    assert rule.result()["w"].tolist() == [7.0, 7.0]


@pytest.mark.parametrize("name", RULES)
def test_device_that_is_alone_with_entries_does_not_set_them(name: str) -> None:
    """Nineteen devices at half width and a hostile one at full: what it alone holds stays, but for a clipped step."""
    rule = rule_of(name)({"w": array(*[0.5] * 8), "b": array(0.5)})
    for number in range(19):
        half = array(*[0.4 + 0.01 * number] * 4)
        rule.add({"w": half, "b": half[:1]}, 1, where=f"device {number}", slices={"w": (index(0, 1, 2, 3),)})
    rule.add({"w": array(*[1e6] * 8), "b": array(1e6)}, 1, where="hostile")
    after = rule.result()
    if name == "norm_clip":
        assert np.abs(after["w"] - 0.5).max() < 0.2
    else:
        assert after["w"][4:].tolist() == [0.5] * 4
        assert 0.4 <= after["w"][:4].min() <= after["w"][:4].max() <= 0.59
        assert 0.4 <= after["b"][0] <= 0.59


@pytest.mark.parametrize("name", ["median", "trimmed_mean"])
def test_an_entry_is_of_those_who_hold_it(name: str) -> None:
    rule = rule_of(name, 0.4)({"w": np.full((2, 3), 9.0, np.float32), "b": array(4), "c": array(8)})
    rows: Mapping[str, tuple[int, ...]] = {"w": (0,)}
    rule.add({"w": np.array([[1, 2], [3, 4]], np.float32)}, 1, where="a", slices={"w": (None, index(0, 2))})
    rule.add({"w": np.array([[5], [7]], np.float32)}, 3, where="b", slices={"w": (None, index(2))})
    rule.add({"w": np.array([[1, 1, 100], [6, 6, 6]], np.float32), "c": array(5)}, 3, where="c", rows=rows)
    rule.add({"w": np.array([[1, 2], [3, 4]], np.float32)}, 1, where="d", slices={"w": (None, index(0, 2))})
    rule.add({"w": np.array([[2], [8]], np.float32), "c": array(5)}, 1, where="e", slices={"w": (None, index(2))})
    after = rule.result()
    # Three hold (0, 0); all (0, 2), as 2, 2, 2, 5 and 100; four (1, 2), as 4, 4, 7 and 8; the others too few.
    assert after["w"].tolist() == [[1.0, 9.0, 2.0], [9.0, 9.0, 5.5]]
    assert (after["b"].tolist(), after["c"].tolist()) == ([4.0], [8.0])


@pytest.mark.parametrize("name", RULES)
def test_equal_devices_are_the_mean(name: str) -> None:
    generator = np.random.default_rng(3)
    before = {"w": generator.normal(size=(6, 5)).astype(np.float32), "s": np.array(2.0, np.float32), "n": np.array(3)}
    update = {"w": before["w"][1:4] + np.float32(0.1), "s": np.array(2.5, np.float32), "n": np.array(8)}
    rule, mean = rule_of(name)(before), EntrywiseMean(before)
    for number in range(5):
        for accumulator in (rule, mean):
            accumulator.add(update, 1 + number, where="a", slices={"w": (index(1, 2, 3), None)})
    for tensor, value in mean.result().items():
        found = rule.result()[tensor]
        assert (found.dtype, found.shape) == (value.dtype, value.shape)
        np.testing.assert_allclose(found, value, rtol=1e-6, atol=1e-6)
    assert rule.result()["w"][[0, 4, 5]].tobytes() == before["w"][[0, 4, 5]].tobytes()


@pytest.mark.parametrize("name", RULES)
def test_integers_are_rounded_and_untouched_tensors_are_the_same(name: str) -> None:
    before = {"n": np.array([3, 3]), "v": array(1)}
    rule = rule_of(name)(before)
    rule.add({"n": np.array([2, 5])}, 1, where="a")
    after = rule.result()
    assert after["n"].tolist() == [2, 5]
    assert after["n"].dtype == np.int64
    assert after["v"] is before["v"]


@pytest.mark.parametrize("name", RULES)
def test_weight_zero_is_not_held(name: str) -> None:
    rule = rule_of(name)({"w": array(4)})
    rule.add({"w": array(1)}, 0, where="a")
    assert rule.result()["w"].tolist() == [4.0]


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(
    ("tensors", "weight", "words"),
    [
        ({"x": array(1)}, 1.0, ["pi-07", "'x'", "global model"]),
        ({"w": array(1, 2)}, 1.0, ["pi-07", "'w'", "(2,)", "(1,)"]),
        ({"w": array(np.nan)}, 1.0, ["pi-07", "'w'", "not finite"]),
        ({"w": array(1)}, math.inf, ["pi-07", "weight inf"]),
    ],
)
def test_hostile_updates_are_refused_and_change_nothing(
    name: str, tensors: dict[str, np.ndarray], weight: float, words: list[str]
) -> None:
    rule = rule_of(name)({"v": array(1), "w": array(0)})
    rule.add({"v": array(2)}, 1.0, where="good")
    with pytest.raises(UpdateRejected) as caught:
        rule.add({"v": array(5), **tensors}, weight, where="device pi-07")
    assert all(word in str(caught.value) for word in words)
    assert rule.result()["v"].tolist() == [2.0]


@pytest.mark.parametrize("name", RULES)
def test_tiles_do_not_change_a_bit(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    generator = np.random.default_rng(5)
    before = {"w": generator.normal(size=(7, 11)).astype(np.float32)}
    updates = [before["w"] + generator.normal(size=(7, 11)).astype(np.float32) for _ in range(5)]
    found = []
    for tile_bytes in (2**20, 4 * 5 * 3):
        monkeypatch.setattr(spilled_values, "TILE_BYTES", tile_bytes)
        rule = chosen_rule(AggregationConfig(rule=name), tmp_path / "values")
        assert rule is not None
        accumulator = rule(before)
        for number, value in enumerate(updates):
            accumulator.add({"w": value}, 1, where=str(number))
        found.append(accumulator.result()["w"].tobytes())
        assert list((tmp_path / "values").iterdir()) == []  # nothing is left of a run that is killed
    assert found[0] == found[1]


def test_the_mean_is_no_rule_of_its_own() -> None:
    assert chosen_rule(AggregationConfig()) is None
