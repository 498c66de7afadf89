"""What the gate compares with: every step from float32's values, so that roundings do not grow from step to step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from edge.contracts.errors import ParityError
from edge.contracts.manifest import InputSpec
from export.agreement import CLEAN, CLEAN_ENOUGH, HOPELESS, LOOKS, PATIENCE, SEEDS, Reference, References, agreeing
from export.formats import format_for
from export.gate_values import ORDINARY, SETTINGS, Setting
from export.parity import STEPS
from export.reference import ReferenceStep
from export.tensor_error import Disagreement, relative_errors, vanishing, worst_error
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


def test_gradient_that_is_0_but_for_rounding_does_not_make_values_noisy() -> None:
    values = reference(spec())
    gradients = values.exact.gradients
    errors = relative_errors(values.single.gradients, gradients)
    assert vanishing(gradients) == {"0.bias"}  # a batch norm follows
    assert errors["0.bias"] > CLEAN > values.own_error(1)


def test_nothing_vanishes_beside_zeros() -> None:
    zeros = {"a": np.zeros(2), "b": np.zeros(3)}
    assert vanishing(zeros) == set()
    assert worst_error(zeros, zeros, zeros).error == 0.0


class Known:
    """Values on which torch float32 has one error and the graph another, which may be ten times the first."""

    def __init__(self, own: float, error: float = 0.0) -> None:
        self.own, self.error, self.noise = own, error, 0.0

    def own_error(self, step: int) -> float:
        return self.own

    def compare(self) -> float:
        if self.error > 10 * max(self.own, self.noise):
            raise Disagreement(f"{self.error:g} off", error=self.error, hint="")
        return self.noise


class Table:
    """The values of every setting and seed; notes those that are asked for."""

    def __init__(self, known: dict[tuple[Setting, int], Known]) -> None:
        self.known, self.asked = known, list[tuple[int, int]]()

    def __call__(self, setting: Setting, seed: int) -> Known:
        self.asked.append((SETTINGS.index(setting), seed))
        return self.known[setting, seed]


def table(own: dict[Setting, tuple[float, ...]], error: float = 0.0) -> Table:
    """``own``: torch float32's error by setting, one per seed or one for all; 0.1 in settings left out."""
    rows = {setting: own.get(setting, (0.1,)) for setting in SETTINGS}
    return Table(
        {(s, seed): Known(row[i % len(row)], error) for s, row in rows.items() for i, seed in enumerate(SEEDS)}
    )


def agreed(values: Table, step: int = 1) -> tuple[float, Setting]:
    return agreeing(References(values), step, lambda known: known.compare())


def test_seeds_on_which_torch_itself_flips_are_passed_over() -> None:
    values = table({ORDINARY: (5 * CLEAN, 1e-6)})
    assert agreed(values) == (0.0, ORDINARY)
    assert values.asked == [(0, SEEDS[0]), (0, SEEDS[1])]


def test_calmer_setting_is_taken_where_torch_flips_on_ordinary_values() -> None:
    values = table({ORDINARY: (5 * CLEAN,), SETTINGS[1]: (0.5 * CLEAN_ENOUGH,)})
    assert agreed(values)[1] == SETTINGS[1]
    assert values.asked == [(0, seed) for seed in SEEDS[:LOOKS]] + [(1, SEEDS[0])]


def test_chaotic_setting_is_left_after_one_look() -> None:
    values = table({ORDINARY: (2 * HOPELESS,), SETTINGS[1]: (1e-6,)})
    agreed(values)
    assert values.asked == [(0, SEEDS[0]), (1, SEEDS[0])]


def test_values_that_are_no_number_are_chaotic() -> None:
    values = table({ORDINARY: (float("nan"),), SETTINGS[1]: (1e-6,)})
    assert agreed(values)[1] == SETTINGS[1]


def test_graph_may_disagree_on_some_values_but_not_on_three() -> None:
    values = table({ORDINARY: (1e-6,), SETTINGS[1]: (1e-6,)}, error=0.5)
    values.known[ORDINARY, SEEDS[PATIENCE - 1]].error = 0.0
    assert agreed(values) == (0.0, ORDINARY)
    values.known[ORDINARY, SEEDS[PATIENCE - 1]].error = 0.5
    values.asked.clear()
    with pytest.raises(ParityError, match=r"0\.5 off"):
        agreed(values)
    assert values.asked == [(0, seed) for seed in SEEDS[:PATIENCE]]  # and no calmer setting, which might hide it


def test_small_disagreements_are_decided_in_a_calmer_setting() -> None:
    """As a network has whose every run meets a rectifier within rounding of 0."""
    values = table(dict.fromkeys(SETTINGS, (1e-6,)), error=2e-3)
    for seed in SEEDS:
        values.known[SETTINGS[2], seed].error = 0.0
    assert agreed(values)[1] == SETTINGS[2]


def test_calmest_setting_does_not_acquit() -> None:
    values = table(dict.fromkeys(SETTINGS, (1e-6,)), error=2e-3)
    for seed in SEEDS:
        values.known[SETTINGS[-1], seed].error = 0.0
    with pytest.raises(ParityError, match=r"0\.002 off"):
        agreed(values)


@pytest.mark.parametrize("own", [(5e-3, 4e-3), (1.2e-3, 9e-3)])
def test_where_no_setting_is_calm_torchs_usual_error_in_the_best_one_counts(own: tuple[float, ...]) -> None:
    usual = sum(own) / 2
    noise, setting = agreed(table({SETTINGS[2]: own}, error=9 * usual))
    assert (noise, setting) == (pytest.approx(usual), SETTINGS[2])
    with pytest.raises(ParityError, match="off"):
        agreed(table({SETTINGS[2]: own}, error=11 * max(own)))


def test_graph_is_not_judged_where_torch_overflows_everywhere() -> None:
    """Ten times an infinite error allows everything."""
    with pytest.raises(ParityError, match="infinite or no numbers in every setting"):
        agreed(table(dict.fromkeys(SETTINGS, (float("inf"),)), error=float("inf")))


def test_noise_of_one_step_is_not_that_of_another() -> None:
    class Settled(Known):
        def own_error(self, step: int) -> float:
            return 4e-3 if step == 1 else 1e-6

    values = Table({(setting, seed): Settled(1e-6, 2e-2) for setting in SETTINGS for seed in SEEDS})
    references = References(values)
    assert agreeing(references, 1, lambda known: known.compare())[0] == 4e-3
    with pytest.raises(ParityError, match=r"0\.02 off"):
        agreeing(references, STEPS, lambda known: known.compare())


def test_nothing_is_kept_of_values_that_are_not_calm() -> None:
    values = table({ORDINARY: (5 * CLEAN,), SETTINGS[1]: (1e-6,)})
    references = References(values)
    agreeing(references, 1, lambda known: known.compare())
    assert list(references._kept) == [(SETTINGS[1], SEEDS[0])]
