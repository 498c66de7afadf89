"""Between two recorded settings: averages by the variance of a round's mean update, checked by hand."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import replace

import pytest
from msgspec import structs

from coordinator.advice import words
from coordinator.advice.between import between, drawn_variance
from coordinator.advice.ranking import advise
from coordinator.advice.recorded import Setting
from coordinator.config.device_speed import DeviceSpeed
from tests.coordinator.advice.small_map import DEVICES, FEATURES, MAP, SETTING, course, run


def setting(name: str, participants: int, *courses: tuple[str, list[float]], **features: float) -> Setting:
    """A setting with courses of one seed, like the small map's but for the devices in a round."""
    made = tuple(course(label, "fedavg", {}, values) for label, values in courses)
    here = structs.replace(FEATURES, participants=participants, **features)
    return structs.replace(SETTING, name=name, features=here, courses=made)


TWO = setting("two", 2, ("fedavg", [0.1, 0.2, 0.3, 0.4]), ("alone", [0.5]))
EIGHT = setting("eight", 8, ("fedavg", [0.5, 0.6]))
BOTH = structs.replace(MAP, settings=(EIGHT, TWO))


def test_variance_is_that_of_a_mean_of_devices_drawn_without_replacement() -> None:
    values = [1.0, 2.0, 4.0, 9.0]
    means = [statistics.mean(drawn) for drawn in itertools.combinations(values, 2)]
    of = structs.replace(FEATURES, devices=4, participants=2)
    assert drawn_variance(of) == pytest.approx(statistics.pvariance(means) / statistics.pvariance(values))
    assert drawn_variance(structs.replace(FEATURES, devices=1, participants=1)) == 0


def test_four_devices_of_eight_are_a_third_of_the_way_to_two() -> None:
    mixed, recorded = between(BOTH, EIGHT, structs.replace(FEATURES, participants=4))
    assert [one.name for one in recorded] == ["two", "eight"]
    assert mixed.features.participants == 4
    (fedavg,) = mixed.courses
    # Variances are 3/7, 1/7 and 0. After its two rounds the second course stays at 0.6.
    assert fedavg.accuracy["1"] == pytest.approx([1.1 / 3, 1.4 / 3, 1.5 / 3, 1.6 / 3])
    assert fedavg.rounds == [1, 2, 3, 4]


def test_it_is_the_same_from_both_sides() -> None:
    here = structs.replace(FEATURES, participants=3)
    one, other = between(BOTH, EIGHT, here)[0], between(BOTH, TWO, here)[0]
    assert one.courses[0].accuracy["1"] == pytest.approx(other.courses[0].accuracy["1"])
    assert one.courses[0].accuracy["1"][0] == pytest.approx(0.5 - 0.4 * 5 / 9)


@pytest.mark.parametrize("participants", [1, 2, 8, 20])
def test_a_run_that_is_not_between_keeps_its_nearest(participants: int) -> None:
    nearest = TWO if participants < 3 else EIGHT
    assert between(BOTH, nearest, structs.replace(FEATURES, participants=participants)) == (nearest, (nearest,))


def test_a_setting_that_differs_in_more_is_not_mixed_in() -> None:
    other = structs.replace(TWO, features=structs.replace(TWO.features, skew=0.6))
    found = structs.replace(MAP, settings=(EIGHT, other))
    assert between(found, EIGHT, structs.replace(FEATURES, participants=4)) == (EIGHT, (EIGHT,))


def test_of_several_the_nearest_on_the_other_side_is_taken() -> None:
    three = structs.replace(TWO, name="three", features=structs.replace(TWO.features, participants=3))
    found = structs.replace(MAP, settings=(TWO, EIGHT, three))
    assert [one.name for one in between(found, EIGHT, structs.replace(FEATURES, participants=4))[1]] == [
        "three",
        "eight",
    ]


def test_advice_names_both_settings() -> None:
    here = replace(DEVICES, features=structs.replace(FEATURES, participants=4))
    advice = advise(run(), here, BOTH, speed=DeviceSpeed(gmac_per_s=1.0, link_mbit=8.0), target=0.45)
    told = "\n".join(words.lines(advice))
    assert "the run is between the recorded settings 'two' (8 devices, 2 in a round, 1 seed) and 'eight' (8" in told
    assert "between them it took 2 rounds" in told
    assert words.values(advice)["setting"] == "two and eight"
    assert advice.distance == 0
