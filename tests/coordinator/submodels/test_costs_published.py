"""Sizes and MACs of FedHM's tables, exactly; conventions on layers counted by hand."""

from __future__ import annotations

from functools import cache

import pytest
from torch import nn

from coordinator.methods import build_method
from coordinator.models.catalog import build_model, input_spec
from coordinator.submodels.costs import cut_costs
from coordinator.submodels.record import Factor, LayerCut
from edge.contracts.manifest import InputSpec

# (model, classes, image side, rank factor, rounding, parameters, MACs in M as printed). Source: FedHM, size tables;
# parameters below the printed precision by hand from the layer shapes. Rank factor 12 is printed with the parameters
# of ``round`` (2.71 M) and the MACs of ``floor`` (557.90 M): both runs are given.
PUBLISHED = [
    ("resnet18", 10, 32, 1, "round", 11_173_962, 557.22),
    ("resnet18", 10, 32, 2, "round", 4_157_514, 261.52),
    ("resnet18", 10, 32, 4, "round", 2_209_866, 173.44),
    ("resnet18", 10, 32, 8, "round", 1_236_042, 129.40),
    ("resnet34", 100, 32, 1, "round", 21_328_292, 1162.47),
    ("resnet34", 100, 32, 2, "round", 8_401_316, 747.24),
    ("resnet34", 100, 32, 4, "round", 4_985_252, 633.99),
    ("resnet34", 100, 32, 8, "round", 3_277_220, 577.37),
    ("resnet34", 100, 32, 12, "round", 2_707_748, 558.20),
    ("resnet34", 100, 32, 12, "floor", 2_690_084, 557.90),
    ("resnet34", 200, 64, 1, "round", 21_379_592, 4649.78),
    ("resnet34", 200, 64, 2, "round", 8_452_616, 2988.84),
    ("resnet34", 200, 64, 4, "round", 5_036_552, 2535.85),
    ("resnet34", 200, 64, 8, "round", 3_328_520, 2309.36),
]


@cache
def dense(model: str, classes: int, side: int) -> nn.Module:
    return build_model(model, classes=classes, input_shape=(3, side, side))


@pytest.mark.parametrize(
    ("model", "classes", "side", "factor", "rounding", "params", "mega_macs"),
    PUBLISHED,
    ids=[f"{row[0]}-{row[1]}-f{row[3]}-{row[4]}" for row in PUBLISHED],
)
def test_costs_equal_the_published_ones(
    model: str, classes: int, side: int, factor: int, rounding: str, params: int, mega_macs: float
) -> None:
    module = dense(model, classes, side)
    method = build_method("fedhm", module, {"levels": [factor], "rank-rounding": rounding})
    cut = method.cut_shape(method.levels()[0], round_index=0, device="", seed=0)
    costs = cut_costs(module, cut, input_spec(model, input_shape=(3, side, side)), batch=2)
    assert costs.params == params
    assert round(costs.macs / 1e6, 2) == mega_macs


def test_activations_of_resnet18_equal_the_published_elements() -> None:
    # PriSM, Table 1, full model: 31.5 M = 32 x 2 x (4 x 65536 + 4 x 32768 + 4 x 16384 + 4 x 8192).
    costs = cut_costs(dense("resnet18", 10, 32), {}, input_spec("resnet18"))
    assert costs.activation_elements == 31_457_280


def test_macs_of_conv2_are_the_papers_plus_its_activations() -> None:
    # PruneFL: 17,211,904 multiply-accumulates; ReLU elements 32*28*28 + 64*14*14 + 2048.
    costs = cut_costs(build_model("conv2"), {}, input_spec("conv2"), batch=2)
    assert costs.macs == 17_211_904 + 25_088 + 12_544 + 2_048


def test_macs_of_an_lstm_are_its_weights_times_steps() -> None:
    costs = cut_costs(build_model("lstm"), {}, input_spec("lstm"), batch=2)
    assert costs.macs == 80 * (512 * (8 + 128) + 512 * (128 + 128)) + 128 * 90


def test_macs_do_not_depend_on_the_batch_and_activations_do() -> None:
    module, spec = build_model("resnet8"), input_spec("resnet8")
    small, large = cut_costs(module, {}, spec, batch=1), cut_costs(module, {}, spec, batch=8)
    assert small.macs == large.macs
    assert large.activation_elements == 8 * small.activation_elements
    constant = 4 * 2 * small.params
    assert large.train_bytes - constant == 8 * (small.train_bytes - constant)


def test_costs_of_grouped_and_transposed_convolutions_by_hand() -> None:
    module = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1, groups=2), nn.ConvTranspose2d(8, 2, 2, stride=2))
    costs = cut_costs(module, {}, InputSpec(layout="chw", shape=(4, 6, 6)), batch=2)
    # 8 outputs x 36 places x 2 inputs x 9; then 36 places x 8 inputs x 2 outputs x 4.
    assert costs.macs == 8 * 36 * 2 * 9 + 36 * 8 * 2 * 4


def test_train_bytes_by_hand() -> None:
    module = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    costs = cut_costs(module, {}, InputSpec(layout="features", shape=(3,)), batch=10)
    assert costs.train_bytes == 4 * (10 * (5 + 5 + 2) + 32 + 32)
    assert costs.bytes_up == costs.bytes_down == 4 * 32


def test_frozen_layers_cost_no_upload_and_store_no_activation() -> None:
    module = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    costs = cut_costs(module, {"0": LayerCut(frozen=True)}, InputSpec(layout="features", shape=(3,)), batch=10)
    assert costs.params == 32
    assert costs.bytes_up == 4 * 12
    assert costs.bytes_down == 4 * 32
    assert costs.train_bytes == 4 * (10 * 2 + 32 + 12)


def test_factorized_layer_costs_by_hand_and_leaves_the_module_alone() -> None:
    module = nn.Sequential(nn.Conv2d(4, 8, 3, stride=2, padding=1))
    cut = {"0": LayerCut(factor=Factor("spatial", (0, 1)))}
    costs = cut_costs(module, cut, InputSpec(layout="chw", shape=(4, 6, 6)), batch=2)
    # 1x3 of stride (1, 2): 2 channels on 6x3 from 4; then 3x1 of stride (2, 1): 8 channels on 3x3 from 2.
    assert costs.macs == 2 * 18 * 4 * 3 + 8 * 9 * 2 * 3
    assert costs.params == 2 * 4 * 3 + 8 * 2 * 3 + 8
    assert isinstance(module[0], nn.Conv2d)
    assert not module[0].weight.is_meta


def test_running_statistics_travel_both_ways_and_counters_do_not() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))
    costs = cut_costs(module, {}, InputSpec(layout="chw", shape=(1, 2, 2)), batch=2)
    assert costs.bytes_up == costs.bytes_down == 4 * (4 + 4 + 4)


def test_costs_as_a_dictionary_have_the_command_lines_names() -> None:
    costs = cut_costs(nn.Linear(2, 1), {}, InputSpec(layout="features", shape=(2,)))
    assert list(costs.to_dict()) == ["params", "macs", "activation_elements", "train_bytes", "bytes_up", "bytes_down"]
