"""What of a run the map is searched by."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from coordinator.advice.features import local_steps, population, skew
from coordinator.config.training import TrainingConfig
from edge.contracts.errors import ConfigError
from tests.coordinator.advice.small_map import run


def test_devices_with_one_class_each_differ_by_what_the_others_have() -> None:
    labels = np.asarray([0, 0, 1, 1])
    # Each device is (1, 0) or (0, 1), all together (1/2, 1/2): half of the absolute differences is 1/2.
    assert skew(labels, [np.asarray([0, 1]), np.asarray([2, 3])], 2) == pytest.approx(0.5)
    assert skew(labels, [np.asarray([0, 2]), np.asarray([1, 3])], 2) == pytest.approx(0.0)


def test_a_device_without_examples_does_not_count() -> None:
    labels = np.asarray([0, 1])
    assert skew(labels, [np.asarray([0, 1]), np.asarray([], np.int64)], 2) == pytest.approx(0.0)


@pytest.mark.parametrize(("last_batch", "steps"), [("keep", 6), ("drop", 4), ("wrap", 4)])
def test_steps_of_a_round(last_batch: str, steps: int) -> None:
    training = TrainingConfig(epochs=2, batch=10, last_batch=last_batch)  # type: ignore[arg-type]
    assert local_steps(training, 25) == steps


def test_steps_that_are_given_do_not_depend_on_the_examples() -> None:
    assert local_steps(TrainingConfig(steps=7, batch=10), 25) == 7


def test_a_run_is_dealt_and_counted() -> None:
    found = population(run())
    here = found.features
    assert (here.devices, here.participants, here.classes, here.input) == (8, 8, 10, (64,))
    assert here.parameters == 64 * 64 + 64 + 64 * 10 + 10
    assert here.examples == pytest.approx(1198 / 8, abs=0.06)
    assert not here.convolutional
    assert 0.2 < here.skew < 0.8
    assert found.most_steps >= here.steps


def test_a_language_model_is_refused() -> None:
    config = run()
    model = msgspec.structs.replace(config.model, build="language:gpt2")
    with pytest.raises(ConfigError, match="language:gpt2' given; the map has runs of classifiers alone"):
        population(msgspec.structs.replace(config, model=model))


def test_a_run_without_local_devices_is_told() -> None:
    config = run()
    cohort = msgspec.structs.replace(config.cohort, local=())
    with pytest.raises(ConfigError, match="advise needs to know how many devices there are"):
        population(msgspec.structs.replace(config, cohort=cohort))
