"""What the gate compares with: every step from float32's values, so that roundings do not grow from step to step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from edge.contracts.errors import ParityError
from edge.contracts.manifest import InputSpec
from export.agreement import CLEAN, PATIENCE, SEEDS, Reference, agreeing, agreeing_or_noisy
from export.formats import format_for
from export.parity import STEPS
from export.reference import ReferenceStep
from export.training_step import Optimizer, StepSpec


def spec(**options: object) -> StepSpec:
    return StepSpec(input=InputSpec(layout="features", shape=(12,)), classes=3, batch=4, optimizer=Optimizer(**options))


def reference(step: StepSpec) -> Reference:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    return Reference(module, step, format_for("onnxruntime").write(module, step).tensors, 1)


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_both_precisions_start_a_later_step_from_the_same_values(kind: str) -> None:
    values = reference(spec(kind=kind))
    assert values.own_error(STEPS) < CLEAN
    exact, single = (step._held() for step in values._steps)
    assert len(exact) == len(single) > 8
    single_step, exact_step = values._steps[1], values._steps[0]
    single_step.start_from(exact_step)
    exact_step.start_from(exact_step)
    pairs = zip(exact_step._held(), single_step._held(), strict=True)
    assert all(torch.equal(a.double(), b.double()) for a, b in pairs)


def test_feeds_of_a_later_step_give_what_torch_has_after_it() -> None:
    step = spec(momentum=False)
    values = reference(step)
    values.own_error(STEPS)
    feeds = values.feeds(STEPS)
    assert all(feeds[n].dtype == v.dtype and feeds[n].shape == v.shape for n, v in values.values.items())
    assert not np.array_equal(feeds["0.weight"], values.values["0.weight"])
    again = ReferenceStep(values._steps[0].module, step, feeds, torch.float64).run(1)
    assert again.losses[0] == values.exact.losses[STEPS - 1]
    after = values.exact.states[STEPS - 1]
    assert all(np.array_equal(again.states[0][n], after[n]) for n in ("0.weight", "3.bias", "1.running_var"))


class Known:
    """Values on which torch float32 has the error given."""

    def __init__(self, own: float) -> None:
        self.own = own

    def own_error(self, step: int) -> float:
        return self.own


def test_steps_in_which_torch_itself_flips_are_passed_over() -> None:
    known = {seed: Known(0.1 if seed < SEEDS[2] else 1e-6) for seed in SEEDS}
    assert agreeing(known.__getitem__, STEPS, lambda values: values.own) == 1e-6


def test_graph_may_disagree_on_some_values_but_not_on_three() -> None:
    asked: list[object] = []

    def compare(values: object, *, agrees: int) -> int:
        asked.append(values)
        if len(asked) == agrees:
            return len(asked)
        raise ParityError(f"disagreement {len(asked)}")

    known = {seed: Known(1e-6) for seed in SEEDS}
    assert agreeing(known.__getitem__, 1, lambda values: compare(values, agrees=PATIENCE)) == PATIENCE
    asked.clear()
    with pytest.raises(ParityError, match="disagreement 1"):
        agreeing(known.__getitem__, 1, lambda values: compare(values, agrees=PATIENCE + 1))
    assert len(asked) == PATIENCE


def test_when_torch_flips_everywhere_its_best_values_are_taken() -> None:
    known = {seed: Known(float(1 + abs(seed - SEEDS[3]))) for seed in SEEDS}
    assert agreeing(known.__getitem__, 1, lambda values: values.own) == 1.0


class Noisy(Known):
    """Values on which the graph is off by ``error``, and may be by ten times torch float32's own or usual error."""

    def __init__(self, own: float, error: float) -> None:
        super().__init__(own)
        self.error, self.noise = error, 0.0

    def compare(self) -> float:
        if self.error > 10 * max(self.own, self.noise):
            raise ParityError(f"{self.error:g} off")
        return self.noise


def test_graph_is_judged_by_torchs_usual_error_where_that_is_large() -> None:
    # One layer of one channel under a batch norm: now ten times more, now ten times less.
    own = dict(zip(SEEDS, (7e-4, 4e-5, 4e-4, 1.6e-4, 9e-4, 2.3e-4), strict=True))
    known = {seed: Noisy(own[seed], 2.4e-3) for seed in SEEDS}
    assert agreeing_or_noisy(known.__getitem__, 1, lambda values: values.compare()) == pytest.approx(3.15e-4)  # type: ignore[arg-type]


@pytest.mark.parametrize("own", [1e-6, 3e-4])
def test_graph_that_is_wrong_is_refused_however_noisy_torch_is(own: float) -> None:
    known = {seed: Noisy(own, 0.05) for seed in SEEDS}
    with pytest.raises(ParityError, match=r"0\.05 off"):
        agreeing_or_noisy(known.__getitem__, 1, lambda values: values.compare())  # type: ignore[arg-type]


def test_noise_of_one_step_is_not_that_of_another() -> None:
    class Settled(Noisy):
        def own_error(self, step: int) -> float:
            return 1e-3 if step == 1 else 1e-6

    known = {seed: Settled(1e-6, 5e-3) for seed in SEEDS}
    assert agreeing_or_noisy(known.__getitem__, 1, lambda values: values.compare()) == 1e-3  # type: ignore[arg-type]
    with pytest.raises(ParityError, match=r"0\.005 off"):
        agreeing_or_noisy(known.__getitem__, STEPS, lambda values: values.compare())  # type: ignore[arg-type]
