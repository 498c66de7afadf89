"""Estimates of steps that were not exported."""

from __future__ import annotations

import pytest

from coordinator.planning.estimate import (
    ACTIVATIONS_HELD,
    FIRST_TOLERANCE,
    NARROWED_SHARE,
    TOLERANCE,
    WEIGHTS_HELD,
    CountedStep,
    Estimate,
    Estimator,
)
from coordinator.submodels.record import Cut, LayerCut
from coordinator.submodels.values import DeviceProgram
from edge.contracts.manifest import Cost
from export.forms.step_form import PLAIN, StepForm

MB = 2**20
PROGRAM = DeviceProgram()
LARGE: Cut = {}
SMALL: Cut = {"fc1": LayerCut(frozen=True)}
ODD: Cut = {"odd": LayerCut(frozen=True)}
COUNTS = {
    "": CountedStep(state_bytes=5 * MB, twice_bytes=3 * MB, trained_bytes=2 * MB, activation_bytes=100 * MB, macs=7),
    "fc1": CountedStep(state_bytes=3 * MB, twice_bytes=MB, trained_bytes=MB, activation_bytes=50 * MB, macs=3),
}
LARGE_MB = WEIGHTS_HELD * 10 + ACTIVATIONS_HELD * 100


@pytest.fixture
def estimator() -> Estimator:
    return Estimator(lambda cut, program, runtime: COUNTS.get("".join(cut)))


def cost(growth_mb: float) -> Cost:
    growth = round(growth_mb * MB)
    return Cost(
        parameters=1,
        trained_parameters=1,
        macs=10,
        state_bytes=1,
        live_bytes=growth,
        predicted_peak_bytes=growth,
        batch=32,
    )


def of(estimator: Estimator, cut: Cut, form: StepForm = PLAIN, runtime: str = "onnxruntime") -> tuple[float, float]:
    found = estimator.estimate(cut, PROGRAM, runtime, form)
    assert isinstance(found, Estimate)
    return found.growth_bytes / MB, found.least_bytes / MB


def test_first_estimate_is_what_is_held_by_weights_and_activations(estimator: Estimator) -> None:
    assert of(estimator, LARGE) == (pytest.approx(LARGE_MB), pytest.approx(LARGE_MB * (1 - FIRST_TOLERANCE)))
    # Two micro-batches hold half the activations and the sums of the gradients, twice.
    held = WEIGHTS_HELD * 14 + ACTIVATIONS_HELD * 50
    assert of(estimator, LARGE, StepForm(2))[0] == pytest.approx(held)
    narrow, plain = (of(estimator, LARGE, StepForm(keep=keep))[0] for keep in ("float16", ""))
    assert plain - narrow == pytest.approx(ACTIVATIONS_HELD * (1 - NARROWED_SHARE) * 100)


def test_what_a_runtime_writes_over_is_held_once() -> None:
    estimator = Estimator(lambda cut, program, runtime: CountedStep(5 * MB, 0, 2 * MB, 0, 1))
    assert of(estimator, LARGE)[0] == pytest.approx(WEIGHTS_HELD * 7)
    assert of(estimator, LARGE, StepForm(2))[0] == pytest.approx(WEIGHTS_HELD * 9)


def test_exported_step_corrects_those_like_it_and_narrows_the_tolerance(estimator: Estimator) -> None:
    estimator.learn(LARGE, PROGRAM, "onnxruntime", PLAIN, cost(1.5 * LARGE_MB))
    small_mb, least_mb = of(estimator, SMALL)
    # Half the size: exp(-ln 2) of what was learned, 1 + 0.5 / 2 times what the counts say.
    assert small_mb == pytest.approx(1.25 * LARGE_MB / 2)
    assert 1 - least_mb / small_mb == pytest.approx((FIRST_TOLERANCE + TOLERANCE) / 2)
    assert of(estimator, SMALL, runtime="executorch")[0] == pytest.approx(LARGE_MB / 2)


def test_least_is_never_below_the_state_itself() -> None:
    estimator = Estimator(lambda cut, program, runtime: CountedStep(100 * MB, 0, 0, 0, 1))
    estimator.learn(LARGE, PROGRAM, "onnxruntime", PLAIN, cost(10))
    assert of(estimator, SMALL)[1] == pytest.approx(90)


def test_nothing_is_said_of_a_step_that_cannot_be_counted(estimator: Estimator) -> None:
    assert estimator.estimate(ODD, PROGRAM, "onnxruntime", PLAIN) is None
    assert estimator.plain_cost(ODD, PROGRAM, "onnxruntime", batch=32) is None
    estimator.learn(ODD, PROGRAM, "onnxruntime", PLAIN, cost(9))
    assert estimator.plain_cost(ODD, PROGRAM, "onnxruntime", batch=32) == cost(9)
    assert of(estimator, LARGE)[0] == pytest.approx(LARGE_MB)


def test_time_of_a_step_needs_its_macs_and_an_estimate_of_what_it_moves(estimator: Estimator) -> None:
    told = estimator.plain_cost(SMALL, PROGRAM, "onnxruntime", batch=16)
    assert told is not None
    assert (told.macs, told.batch, told.live_bytes) == (3, 16, pytest.approx(LARGE_MB / 2 * MB))
