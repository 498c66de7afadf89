"""Algorithm 2 against brute force, the published time models, densities on the wire, magnitude pruning."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from coordinator.models.catalog import build_model
from coordinator.pruning.masks import density, prunable_weights, prune_by_magnitude, top_scores, wire_ratio
from coordinator.pruning.reconfigure import largest_density, prunable_share, reconfigure
from coordinator.pruning.time_model import PRESETS, TimeModel
from edge.contracts.errors import ConfigError, PlanError


def _instance(seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, np.ndarray], TimeModel]:
    generator = np.random.default_rng(seed)
    weights = {name: generator.standard_normal(5) for name in ("a", "b")}
    masks = {name: generator.random(5) < 0.7 for name in weights}
    importance = {name: generator.exponential(size=5) for name in weights}
    times = TimeModel(float(generator.random()), {"a": float(generator.random()), "b": float(generator.random())})
    return weights, masks, importance, times


def _worth(masks: dict[str, np.ndarray], importance: dict[str, np.ndarray], times: TimeModel, fixed: float) -> float:
    return (fixed + sum(float(importance[n][m].sum()) for n, m in masks.items())) / times.round_s(masks)


@pytest.mark.parametrize("seed", range(100))
def test_algorithm_2_finds_the_best_of_all_subsets(seed: int) -> None:
    weights, masks, importance, times = _instance(seed)
    result = reconfigure(weights, masks, importance, times, share=0.5, fixed_importance=0.1)
    forced = {}
    for name, mask in masks.items():
        kept = np.flatnonzero(mask)
        smallest = kept[np.argsort(np.abs(weights[name][kept]), kind="stable")[: int(0.5 * len(kept))]]
        forced[name] = mask.copy()
        forced[name][smallest] = False
        assert (result[name] | ~forced[name]).all()  # what may not be pruned was not
    free = [(name, i) for name in masks for i in np.flatnonzero(~forced[name])]
    best = 0.0
    for count in range(len(free) + 1):
        for chosen in combinations(free, count):
            tried = {name: mask.copy() for name, mask in forced.items()}
            for name, i in chosen:
                tried[name][i] = True
            best = max(best, _worth(tried, importance, times, 0.1))
    assert _worth(result, importance, times, 0.1) == pytest.approx(best, rel=1e-12)


def test_one_sort_over_all_layers_equals_a_merge_of_sorted_layers() -> None:
    generator = np.random.default_rng(5)
    sizes = {"a": 400, "b": 300, "c": 200}
    weights = {n: generator.standard_normal(s) for n, s in sizes.items()}
    masks = {n: generator.random(s) < 0.5 for n, s in sizes.items()}
    importance = {n: generator.exponential(size=s) for n, s in sizes.items()}
    times = TimeModel(3.0, {"a": 0.01, "b": 0.1, "c": 0.002})
    result = reconfigure(weights, masks, importance, times, share=0.3)

    import heapq

    kept = {}
    for name, mask in masks.items():
        held = np.flatnonzero(mask)
        kept[name] = mask.copy()
        kept[name][held[np.argsort(np.abs(weights[name][held]), kind="stable")[: int(0.3 * len(held))]]] = False
    gain, seconds = sum(importance[n][m].sum() for n, m in kept.items()), times.round_s(kept)
    queues = {n: sorted((-importance[n][i] / times.weight_s[n], i) for i in np.flatnonzero(~kept[n])) for n in kept}
    heap = [(queue[0][0], n, 0) for n, queue in queues.items()]
    heapq.heapify(heap)
    while heap:
        negative, name, at = heapq.heappop(heap)
        if -negative < gain / seconds:
            break
        index = queues[name][at][1]
        gain, seconds = gain + importance[name][index], seconds + times.weight_s[name]
        kept[name][index] = True
        if at + 1 < len(queues[name]):
            heapq.heappush(heap, (queues[name][at + 1][0], name, at + 1))
    assert all(np.array_equal(kept[n], result[n]) for n in kept)


def test_cap_is_hard_even_when_what_may_not_be_pruned_exceeds_it() -> None:
    weights, _, importance, times = _instance(1)
    masks = {name: np.ones(5, bool) for name in weights}
    result = reconfigure(weights, masks, importance, times, share=0.3, cap=4)
    assert sum(int(m.sum()) for m in result.values()) == 4
    kept = np.abs(np.concatenate([weights[n][result[n]] for n in weights]))
    gone = np.abs(np.concatenate([weights[n][~result[n]] for n in weights]))
    assert kept.min() >= gone.max()


def test_published_time_models_give_the_published_times() -> None:
    names = prunable_weights(build_model("conv2"))
    full = {n: np.ones(s, bool) for n, s in zip(names, (800, 51_200, 6_422_528, 126_976), strict=True)}
    times = PRESETS["pi4-conv2"].model(names, iterations=5)
    assert times.round_s(full) == pytest.approx(51.08107, abs=1e-5)
    assert int(351 * times.round_s(full)) == 17_929  # PruneFL, Table III, cut to whole seconds
    assert int(1_021 * times.round_s(full)) == 52_153

    vgg = build_model("vgg11")
    sizes = {n: p.numel() for n, p in vgg.named_parameters()}
    vgg_names = prunable_weights(vgg)
    assert sum(sizes[n] for n in vgg_names) == 9_747_136
    model = PRESETS["pi4-vgg11"].model(vgg_names, iterations=5)
    assert model.round_s({n: np.ones(sizes[n], bool) for n in vgg_names}) == pytest.approx(209.6, abs=0.05)
    with pytest.raises(ConfigError, match="4 coefficients for 11 prunable layers"):
        PRESETS["pi4-conv2"].model(vgg_names, iterations=5)


def test_share_and_allowed_density_follow_the_rounds() -> None:
    assert prunable_share(0) == 0.3
    assert prunable_share(10_000) == pytest.approx(0.15)
    assert largest_density(0, rounds=100, first=0.1, last=0.05) == pytest.approx(0.1)
    assert largest_density(50, rounds=100, first=0.1, last=0.05) == pytest.approx(0.075)
    assert largest_density(200, rounds=100, first=0.1, last=0.05) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("kept", "changing", "ratio"),
    [(0.01, True, 0.02), (1 / 32, True, 0.0625), (0.134, True, 0.16525), (0.134, False, 0.134), (0.5, True, 0.53125)],
)
def test_bytes_on_the_wire_are_the_published_ones(kept: float, changing: bool, ratio: float) -> None:
    assert wire_ratio(kept, pattern_changes=changing) == pytest.approx(ratio)


def test_magnitude_pruning_keeps_the_share_of_every_layer() -> None:
    generator = np.random.default_rng(0)
    weights = {"a": generator.standard_normal((10, 10)), "b": generator.standard_normal((4, 5))}
    masks = {n: np.ones(v.shape, bool) for n, v in weights.items()}
    half = prune_by_magnitude(weights, masks, 0.5)
    assert [int(m.sum()) for m in half.values()] == [50, 10]
    assert np.abs(weights["a"][half["a"]]).min() >= np.abs(weights["a"][~half["a"]]).max()
    quarter = prune_by_magnitude(weights, half, 0.5)
    assert density(quarter) == pytest.approx(0.25)
    assert all((half[n] | ~quarter[n]).all() for n in half)


def test_top_scores_rank_over_all_layers() -> None:
    masks = top_scores({"a": np.array([1.0, 9.0]), "b": np.array([[5.0, 5.0]])}, 0.5)
    assert masks["a"].tolist() == [False, True]
    assert masks["b"].tolist() == [[True, False]]


def test_shortcuts_biases_and_norms_are_not_prunable() -> None:
    assert len(prunable_weights(build_model("resnet18"))) == 18
    from torch import nn

    with pytest.raises(PlanError, match="no convolution or linear layer"):
        prunable_weights(nn.BatchNorm2d(3))
