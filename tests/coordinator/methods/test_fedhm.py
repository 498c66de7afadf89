"""FedHM: weights by hand, hybrid cuts, buffers, options. Source of the numbers: FedHM and its reference code."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from torch import nn

from coordinator.methods import Method, State, Submodel, Update, build_method
from coordinator.models.catalog import build_model
from coordinator.submodels.factorize import recover_tensors
from edge.contracts.errors import ConfigError, PlanError, UpdateRejected


class Tiny(nn.Module):
    """One layer that is factorized, one norm, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.norm = nn.Linear(4, 64), nn.Linear(64, 32), nn.BatchNorm1d(32)
        self.last = nn.Linear(32, 3)


def tiny(**options: Any) -> tuple[Method, State]:
    method = build_method("fedhm", Tiny(), options)
    return method, method.init()


def sent(method: Method, state: State, index: int, *, device: str = "a", examples: int = 1) -> Update:
    """The update of a device that trained nothing."""
    level = method.levels()[index]
    submodel = method.cut(state, level, round_index=0, device=device, seed=0)
    return Update(device, level, submodel.cut, submodel.tensors, examples)


def with_bias(update: Update, value: float) -> Update:
    """``update`` with the last bias set: a tensor every level holds whole, so it shows the weights."""
    tensors = {**update.tensors, "last.bias": np.full(3, value, np.float32)}
    return Update(update.device, update.level, update.cut, tensors, update.num_examples)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # One participant each of gamma = 1, 1/2, 1/4, 1/8.
        ({}, (0.4007, 0.2430, 0.1893, 0.1670)),
        ({"aggregation": "preprint"}, (0.2774, 0.2510, 0.2388, 0.2329)),
        ({"aggregation": "preprint", "temperature": math.inf}, (0.25, 0.25, 0.25, 0.25)),
        ({"aggregation": "reference"}, (0.7049, 0.2593, 0.0351, 0.0006)),
    ],
    ids=["journal", "preprint dynamic", "preprint fixed", "reference code"],
)
def test_aggregation_weights_are_the_papers(options: Mapping[str, Any], expected: tuple[float, ...]) -> None:
    method, state = tiny(levels=[1, 2, 4, 8], **options)
    for index, weight in enumerate(expected):
        updates = [with_bias(sent(method, state, i), float(i == index)) for i in range(4)]
        assert round(float(method.aggregate(state, updates).tensors["last.bias"][0]), 4) == weight


def test_examples_do_not_weigh_unless_asked() -> None:
    for options, expected in (({}, 0.5), ({"weight-by-examples": True}, 0.75)):
        method, state = tiny(levels=[4], **options)
        updates = [
            with_bias(sent(method, state, 0, examples=1), 0.0),
            with_bias(sent(method, state, 0, examples=3), 1.0),
        ]
        assert method.aggregate(state, updates).tensors["last.bias"].tolist() == [expected] * 3


def test_running_statistics_weigh_by_examples_always() -> None:
    method, state = tiny(levels=[1, 4])
    updates = []
    for index, (mean, count) in enumerate([(0.0, 1), (8.0, 3)]):
        update = sent(method, state, index, examples=count)
        tensors = {**update.tensors, "norm.running_mean": np.full(32, mean, np.float32)}
        updates.append(Update("a", update.level, update.cut, tensors, count))
    assert method.aggregate(state, updates).tensors["norm.running_mean"].tolist() == [6.0] * 32


def test_dense_weights_are_averaged_in_product_space() -> None:
    method, state = tiny(levels=[2, 4], temperature=math.inf)
    updates = [sent(method, state, i) for i in range(2)]
    dense = [recover_tensors(u.tensors, u.cut)["middle.weight"] for u in updates]
    after = method.aggregate(state, updates).tensors["middle.weight"]
    assert np.abs(after - (dense[0] + dense[1]) / 2).max() < 1e-7


def test_untrained_full_devices_give_back_the_model_and_small_ones_its_best_approximation() -> None:
    method, state = tiny(levels=[1, 4])
    same = method.aggregate(state, [sent(method, state, 0), sent(method, state, 0)])
    assert all(np.array_equal(same.tensors[name], value) for name, value in state.tensors.items())
    small = method.aggregate(state, [sent(method, state, 1)]).tensors
    left, values, right = np.linalg.svd(state.tensors["middle.weight"].astype(float), full_matrices=False)
    best = (left[:, :8] * values[:8]) @ right[:8]
    assert np.abs(small["middle.weight"] - best).max() < 1e-6
    assert np.array_equal(small["first.weight"], state.tensors["first.weight"])


def test_server_joins_when_no_full_device_did() -> None:
    method, state = tiny(levels=[1, 4], **{"server-joins": True, "temperature": math.inf})
    joined = method.aggregate(state, [sent(method, state, 1)]).tensors["middle.weight"]
    low = recover_tensors(sent(method, state, 1).tensors, sent(method, state, 1).cut)["middle.weight"]
    assert np.abs(joined - (state.tensors["middle.weight"] + low) / 2).max() < 1e-7
    with_full = method.aggregate(state, [with_bias(sent(method, state, 0), 5.0)]).tensors["last.bias"]
    assert with_full.tolist() == [5.0] * 3


def test_levels_share_layout_and_program_names_every_pair() -> None:
    method = build_method("fedhm", build_model("resnet18"), {"levels": [8, 1, 2], "frobenius-lambda": 5e-4})
    assert [(lv.name, lv.value, lv.capacity) for lv in method.levels()] == [
        ("full", 1.0, 1.0),
        ("rank 1/2", 2.0, 0.5),
        ("rank 1/8", 8.0, 0.125),
    ]
    cuts = [method.cut_shape(level, round_index=0, device="a", seed=0) for level in method.levels()]
    assert not cuts[0]
    assert cuts[1].keys() == cuts[2].keys()
    program = method.program(cuts[2])
    assert ("layer4.1.conv2.u", "layer4.1.conv2.v") in program.frobenius
    assert len(program.frobenius) == 14
    assert program.extra_hyper == {"frobenius_lambda": 5e-4}
    assert not method.program(cuts[0]).frobenius
    assert not method.program(cuts[0]).extra_hyper


def test_frobenius_can_be_turned_off() -> None:
    method, _ = tiny(levels=[4], frobenius=False)
    cut = method.cut_shape(method.levels()[0], round_index=0, device="a", seed=0)
    assert cut
    assert not method.program(cut).frobenius


def test_evaluated_are_the_server_and_every_level() -> None:
    method, state = tiny(levels=[1, 2, 4])
    models: Mapping[str, Submodel] = method.eval_models(state)
    assert list(models) == ["server", "full", "rank 1/2", "rank 1/4"]
    assert models["server"].tensors is state.tensors
    assert models["rank 1/4"].tensors["middle.u"].shape == (32, 8)


def test_one_state_is_decomposed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from coordinator.submodels import factorize

    shapes = []
    real = factorize.truncated_svd

    def counting(matrix: np.ndarray, rank: int) -> Any:
        shapes.append((matrix.shape, rank))
        return real(matrix, rank)

    monkeypatch.setattr(factorize, "truncated_svd", counting)
    method, state = tiny(levels=[1, 2, 4])
    for device in "abc":
        for index in range(3):
            sent(method, state, index, device=device)
    method.eval_models(state)
    assert shapes == [((32, 64), 16)]
    method.eval_models(method.aggregate(state, [sent(method, state, 0)]))
    assert len(shapes) == 2


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"middle.u": np.zeros((32, 8), np.float32)}, ["device pi-07", "round 0", "'middle'"]),
        ({"middle.u": np.zeros((32, 4)), "middle.v": np.zeros((4, 64))}, ["device pi-07", "rank 8"]),
        ({"middle.weight": np.zeros((31, 64), np.float32)}, ["device pi-07", "(31, 64)"]),
        ({"last.bias": np.full(3, np.nan, np.float32)}, ["device pi-07", "'last.bias'"]),
        ({"last.bias#momentum": np.zeros(3, np.float32)}, ["device pi-07", "last.bias#momentum"]),
    ],
)
def test_hostile_update_is_refused(tensors: dict[str, np.ndarray], words: list[str]) -> None:
    method, state = tiny(levels=[4])
    good = sent(method, state, 0)
    with pytest.raises(UpdateRejected) as caught:
        method.aggregate(state, [good, Update("pi-07", good.level, good.cut, tensors, 1)])
    assert all(word in str(caught.value) for word in words)


def test_vanishing_weights_are_an_error_not_a_round_without_effect() -> None:
    method, state = tiny(levels=[4], temperature=1e-4)
    with pytest.raises(PlanError, match=r"temperature 0\.0001 .*\$\.method\.temperature"):
        method.aggregate(state, [sent(method, state, 0)])


@pytest.mark.parametrize(
    ("options", "paths"),
    [
        ({"levels": []}, ["$.method.levels: []"]),
        ({"levels": [0.5]}, ["$.method.levels: [0.5]"]),
        ({"levels": [4, 4]}, ["$.method.levels: [4, 4]"]),
        ({"levels": [True]}, ["$.method.levels: [True]"]),
        ({"levels": [math.nan]}, ["$.method.levels: [nan]"]),
        ({"levels": "4"}, ["$.method.levels: '4'"]),
        ({"aggregation": "mean"}, ["$.method.aggregation: 'mean'", "journal, preprint, reference"]),
        ({"temperature": 0}, ["$.method.temperature: 0", "above 0"]),
        ({"frobenius-lambda": -1}, ["$.method.frobenius-lambda: -1"]),
        ({"frobenius-lambda": math.inf}, ["$.method.frobenius-lambda: inf"]),
        ({"layout": ["nothing*"]}, ["$.method.layout", "nothing*", "middle"]),
        ({"layout": []}, ["$.method.layout: []"]),
        ({"ranks": [4]}, ["$.method.ranks", "levels"]),
        (
            {"loss": "mse", "norm": 3, "levels": "7"},
            ["$.method.loss: 'mse'", "$.method.norm: 3", "$.method.levels: '7'"],
        ),
    ],
)
def test_bad_options_are_refused_with_path_and_value(options: dict[str, Any], paths: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        tiny(**options)
    assert all(path in str(caught.value) for path in paths)


def test_underscores_are_dashes_and_one_pattern_needs_no_list() -> None:
    method, _ = tiny(levels=[4], rank_rounding="floor", layout="middle")
    assert method.cut_shape(method.levels()[0], round_index=0, device="", seed=0).keys() == {"middle"}


def test_level_that_makes_nothing_smaller_is_refused_when_named_and_left_out_by_default() -> None:
    module = build_model("mlp", hidden=(64, 64))
    assert [level.value for level in build_method("fedhm", module, {}).levels()] == [1, 4, 8]
    with pytest.raises(PlanError, match=r"fedhm level 2 .* raise the level"):  # 32 x (64 + 64) is the dense 64 x 64
        build_method("fedhm", module, {"levels": [1, 2]})


def test_model_without_a_layer_to_factorize_is_refused_with_what_to_use() -> None:
    module = nn.Sequential(nn.GRU(4, 4))
    with pytest.raises(PlanError, match=r"Sequential.*of recurrent layers only an LSTM.*fedavg"):
        build_method("fedhm", module, {"levels": [1, 4]})
    assert [level.value for level in build_method("fedhm", module, {}).levels()] == [1]


def test_self_distillation_begins_with_the_second_round() -> None:
    options = {"levels": [1, 2], "distillation-weight": 0.1, "distillation-temperature": 2.0}
    method = build_method("fedhm", Tiny(), options)
    state, level = method.init(), method.levels()[1]
    first, second = (method.cut(state, level, round_index=r, device="a", seed=0).program for r in (0, 1))
    assert first.distillation
    assert second.distillation
    assert first.extra_hyper["distillation_weight"] == 0.0
    assert second.extra_hyper["distillation_weight"] == 0.1
    assert second.extra_hyper["distillation_temperature"] == 2.0
    assert not build_method("fedhm", Tiny(), {"levels": [1, 2]}).program({}).distillation
