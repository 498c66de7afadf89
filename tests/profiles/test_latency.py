"""Time models against truths that are known: PruneFL's layers, batch and threads, and the work of other graphs."""

from __future__ import annotations

import numpy as np
import pytest

from profiles.device import PARAMETER_LIVE_BYTES, StepLine
from profiles.fit import FitImpossible
from profiles.latency import WorkSample, fit_layer_times, fit_work_time
from profiles.step_work import StepWork

# PruneFL's published coefficients of Conv-2 on a Raspberry Pi 4, with its layers' sizes; the first takes no time.
LAYERS = {"conv1": 800, "conv2": 51_200, "fc1": 6_422_528, "fc2": 126_976}
TAU_S = {"conv1": 0.0, "conv2": 7.098850e-6, "fc1": 1.927325e-7, "fc2": 1.782308e-7}
CONSTANT_S = 1.2492789765


def truth_s(kept: dict[str, int]) -> float:
    return CONSTANT_S + sum(TAU_S[layer] * count for layer, count in kept.items())


def masks(count: int, *, seed: int = 3) -> list[dict[str, int]]:
    draw = np.random.default_rng(seed)
    return [{layer: int(size * draw.uniform(0.02, 1.0)) for layer, size in LAYERS.items()} for _ in range(count)]


def test_layer_times_of_exact_measurements_are_prunefls() -> None:
    fit = fit_layer_times((kept, truth_s(kept)) for kept in masks(12))
    assert fit.constant_s == pytest.approx(CONSTANT_S)
    for layer, tau in TAU_S.items():
        assert fit.weight_s[layer] == pytest.approx(tau, rel=1e-6, abs=1e-14)
    assert fit.seconds(LAYERS) == pytest.approx(truth_s(LAYERS))
    assert fit.options(list(LAYERS))["layer-s"] == [fit.weight_s[layer] for layer in LAYERS]


def test_layer_times_with_noise_and_interruptions_predict_other_masks() -> None:
    draw = np.random.default_rng(11)
    samples = []
    for index, kept in enumerate(masks(40)):
        for repeat in range(3):
            slowed = 5.0 if (index + repeat) % 7 == 0 else 1.0  # one of three repeats at most
            samples.append((kept, truth_s(kept) * slowed * (1.0 + 0.02 * float(draw.normal()))))
    fit = fit_layer_times(samples)
    errors = [abs(fit.seconds(kept) / truth_s(kept) - 1.0) for kept in masks(50, seed=99)]
    assert np.median(errors) < 0.01
    assert max(errors) < 0.03
    assert fit.quality.median_error < 0.03
    largest = fit.weight_error_s["fc1"]
    assert largest is not None
    assert abs(fit.weight_s["fc1"] - TAU_S["fc1"]) < 4 * largest


def test_layers_pruned_alike_everywhere_cannot_be_told_apart() -> None:
    alike = [({layer: int(size * share) for layer, size in LAYERS.items()}, 1.0 + share) for share in (0.1, 0.2, 0.5)]
    with pytest.raises(FitImpossible, match="3 different measurements for 5 coefficients"):
        fit_layer_times(alike)
    tied = [({"a": count, "b": 2 * count}, 1.0 + count) for count in range(1, 9)]
    with pytest.raises(FitImpossible, match="a, b: always changed together"):
        fit_layer_times(tied)


def test_a_layer_of_the_constants_name_is_refused() -> None:
    with pytest.raises(FitImpossible, match="a layer is called 'constant'"):
        fit_layer_times([({"constant": 3}, 1.0)])


def test_work_time_predicts_graphs_it_was_not_fitted_on() -> None:
    draw = np.random.default_rng(2)

    def sample() -> WorkSample:
        macs, batch, moved = (
            int(draw.integers(10**6, 10**9)),
            int(draw.integers(1, 65)),
            int(draw.integers(10**6, 10**8)),
        )
        exact = 3.0 + batch * macs / 1e9 * 40.0 + moved / 1e6 * 0.7
        return WorkSample(macs, batch, moved, exact * (1.0 + 0.03 * float(draw.normal())))

    fit = fit_work_time([sample() for _ in range(30)])
    others = [sample() for _ in range(30)]
    errors = [abs(fit.step_ms(macs=s.macs, batch=s.batch, live_bytes=s.moved_bytes) / s.step_ms - 1) for s in others]
    assert np.median(errors) < 0.04
    assert fit.gigamac_ms == pytest.approx(40.0, rel=0.03)


def test_work_by_kind_tells_convolutions_from_products() -> None:
    """Work that one rate for all would get wrong by half."""
    draw = np.random.default_rng(3)
    rates = {"convolution_gigamac_ms": 10.0, "padded_gigamac_ms": 4.0, "matrix_gigamac_ms": 30.0}

    def sample() -> WorkSample:
        counts = [int(10 ** draw.uniform(6, 9)) for _ in range(3)]
        work = StepWork(counts[0], counts[0] + counts[1], counts[2])
        parameters, graph = int(10 ** draw.uniform(4, 7)), int(10 ** draw.uniform(3, 5))
        live = PARAMETER_LIVE_BYTES * parameters + int(10 ** draw.uniform(6, 8))
        line = StepLine(1, 0.0, 1.0, 0.2, graph_kilobyte_ms=0.05, megaparameter_ms=0.7, **rates)
        macs = sum(counts) // 96
        exact = line.step_ms(macs=macs, batch=32, live_bytes=live, parameters=parameters, graph_bytes=graph, work=work)
        return WorkSample(macs, 32, live, exact * (1 + 0.01 * float(draw.normal())), parameters, graph, work)

    fit = fit_work_time([sample() for _ in range(40)])
    for name, rate in rates.items():
        assert getattr(fit, name) == pytest.approx(rate, rel=0.05)
    other = sample()
    known = {"macs": other.macs, "batch": 32, "live_bytes": other.moved_bytes, "parameters": other.parameters}
    told = fit.step_ms(**known, graph_bytes=other.graph_bytes, work=other.work)
    assert told == pytest.approx(other.step_ms, rel=0.05)
    # An artifact that is not exported yet has its forward multiply-accumulates alone: the usual rate of all work.
    assert fit.step_ms(**known, graph_bytes=other.graph_bytes) == pytest.approx(
        told - fit.line(1).work_ms(macs=other.macs, batch=32, work=other.work) + 32 * other.macs / 1e9 * fit.gigamac_ms
    )
    assert fit.gigamac_ms > 0


def test_a_device_without_convolutions_has_no_rate_of_them() -> None:
    draw = np.random.default_rng(4)
    samples = [
        WorkSample(macs, 8, 36 * parameters + moved, 1.0 + 24 * macs / 1e9 * 20 + moved / 1e7, parameters, graph,
                   StepWork(0, 0, 24 * macs))
        for macs, moved, parameters, graph in zip(
            *(draw.integers(low, 100 * low, 20).tolist() for low in (10**6, 10**6, 10**4, 10**3)), strict=True
        )
    ]  # fmt: skip
    fit = fit_work_time(samples)
    assert (fit.convolution_gigamac_ms, fit.padded_gigamac_ms) == (0.0, 0.0)
    assert fit.matrix_gigamac_ms == pytest.approx(20.0, rel=0.2)
