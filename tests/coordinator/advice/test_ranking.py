"""Which option comes first, at costs that are checked by hand."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from coordinator.advice import words
from coordinator.advice.ranking import Advice, advise
from coordinator.config.device_speed import DeviceSpeed
from edge.contracts.errors import ConfigError
from tests.coordinator.advice.small_map import DEVICES, MAP, run

SLOW_LINK = DeviceSpeed(gmac_per_s=1.0, link_mbit=0.008)
"""1 kB/s, beside which computing takes no time."""

FAST_LINK = DeviceSpeed(gmac_per_s=1e-4, link_mbit=8e6)
"""Beside which sending takes no time."""

WHOLE = 4 * (64 * 64 + 64 + 64 * 10 + 10)
HALF = 4 * (64 * 32 + 32 + 32 * 10 + 10)
"""Bytes of the models, one way."""


def found(speed: DeviceSpeed = SLOW_LINK, **settings: float | str) -> Advice:
    return advise(run(), DEVICES, MAP, speed=speed, **settings)  # type: ignore[arg-type]


def labels(advice: Advice) -> list[tuple[str, str]]:
    return [(option.course.label, option.outcome) for option in advice.options]


def test_bytes_and_seconds_are_those_of_the_runs_own_model() -> None:
    half, whole = found(target=0.85).options[:2]
    assert (whole.rounds, half.rounds) == (2, 3)
    assert whole.spent is not None
    assert half.spent is not None
    assert whole.spent.bytes == 2 * 8 * 2 * WHOLE
    assert half.spent.bytes == 3 * 8 * 2 * HALF
    step_s = 16 * (64 * 64 + 64 * 10 + 64) / 1e9
    assert whole.spent.time_s == pytest.approx(2 * (20 * step_s + 2 * WHOLE / 1000))
    assert whole.spent.cpu_s == pytest.approx(2 * 8 * 10 * step_s)


def test_the_first_by_time_depends_on_the_link() -> None:
    # Three rounds of half the model are 1.55 of the whole one in bytes and in work; two rounds are 2.
    assert labels(found(target=0.85))[0] == ("small_model 0.5", "fits")
    fast = found(FAST_LINK, target=0.5)
    # One round of the whole model against two of half of it, all of it computing.
    assert labels(fast)[0] == ("fedavg", "fits")


def test_what_misses_the_target_or_the_budget_comes_after_what_does_not() -> None:
    assert labels(found(target=0.85)) == [
        ("small_model 0.5", "fits"),
        ("fedavg", "fits"),
        ("small_model 0.25", "too-slow"),
        ("prism 2", "refused"),
    ]
    memory = found(target=0.85).options[0].memory_mb
    tight = found(target=0.85, budget_mb=memory)
    assert labels(tight)[0] == ("small_model 0.5", "fits")
    assert ("fedavg", "too-large") in labels(tight)


def test_a_target_that_is_not_given_is_a_share_of_the_best() -> None:
    assert found().target == pytest.approx(0.95 * 0.95)


@pytest.mark.parametrize("target", [0.0, 1.5])
def test_a_target_that_is_no_accuracy_is_refused(target: float) -> None:
    with pytest.raises(ConfigError, match=f"--target: {target:g} given"):
        found(target=target)


def test_the_words_name_choice_reason_and_the_next_one() -> None:
    told = "\n".join(words.lines(found(target=0.85, budget_mb=100.0)))
    assert 'run name = "small_model", levels = [0.5]' in told
    assert "'small' (8 devices, 8 in a round, 3 seeds); target: accuracy 0.850" in told
    assert "the smallest device has 100 MB" in told
    assert "next: fedavg, 1." in told
    assert "the map is thin" not in told


def test_advice_from_afar_is_called_a_guess() -> None:
    far = msgspec.structs.replace(DEVICES.features, convolutional=True, input=(3, 16, 16), devices=100)
    advice = advise(run(), replace(DEVICES, features=far), MAP, speed=SLOW_LINK, target=0.85)
    assert words.headline(advice).startswith("nothing recorded is like this run; by the nearest setting, as a guess:")
    assert words.values(advice)["is_guess"]
    assert not words.values(found(target=0.85))["is_guess"]


def test_the_words_say_that_nothing_does_it() -> None:
    told = words.headline(found(target=0.99))
    assert told.startswith("nothing that fits reached accuracy 0.990")
    assert told.endswith('nearest, at 0.950: name = "fedavg"')
    assert words.headline(found(budget_mb=10.0)) == "nothing in the map fits 10 MB with this model"


def test_the_values_have_every_option() -> None:
    values = words.values(found(target=0.85))
    assert values["choice"]["label"] == "small_model 0.5"
    assert [option["outcome"] for option in values["options"]] == ["fits", "fits", "too-slow", "refused"]
    assert values["options"][3]["reason"]
