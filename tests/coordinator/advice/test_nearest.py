"""Which setting is nearest, and where the map is thin."""

from __future__ import annotations

import msgspec
import pytest

from coordinator.advice.nearest import differences, distance, nearest
from tests.coordinator.advice.small_map import FEATURES, MAP, SETTING, course

replace = msgspec.structs.replace


def test_equal_features_are_at_no_distance() -> None:
    assert distance(FEATURES, FEATURES) == 0
    assert list(differences(FEATURES, SETTING)) == []


def test_what_is_said_is_at_a_distance_of_one() -> None:
    assert distance(replace(FEATURES, examples=300.0), FEATURES) == pytest.approx(1)
    assert distance(replace(FEATURES, parameters=4 * FEATURES.parameters), FEATURES) == pytest.approx(1)
    assert distance(replace(FEATURES, skew=0.2), FEATURES) == pytest.approx(1)


def test_the_nearest_setting_is_taken() -> None:
    other = replace(SETTING, name="large", features=replace(FEATURES, devices=100, participants=20))
    both = replace(MAP, settings=(SETTING, other))
    assert nearest(both, replace(FEATURES, devices=80, participants=20)).name == "large"
    assert nearest(both, replace(FEATURES, devices=10)).name == "small"


def test_every_difference_is_named_with_both_values() -> None:
    far = replace(FEATURES, examples=400.0, classes=62, devices=100, skew=0.9, input=(1, 28, 28), convolutional=True)
    told = "; ".join(differences(far, SETTING))
    assert "400 examples on a device, recorded with 150" in told
    assert "62 classes, recorded with 10" in told
    assert "100 devices, recorded with 8" in told
    assert "devices' classes differ by 0.90, recorded with 0.40" in told
    assert "inputs of shape [1, 28, 28], recorded with [64]" in told
    assert "a model with convolutions, recorded with a model without convolutions" in told


def test_few_seeds_are_told() -> None:
    one = replace(SETTING, courses=(course("fedavg", "fedavg", {}, [0.5]),))
    assert list(differences(FEATURES, one)) == ["recorded with 1 seed"]
