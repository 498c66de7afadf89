"""Which layers are factorized, at which rank, and the module built from the cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from coordinator.models.catalog import build_model, example_input
from coordinator.submodels.build import apply_cut, load_tensors, module_tensors
from coordinator.submodels.factorize import FactorizedConv2d, FactorizedLinear
from coordinator.submodels.layout import factorizable_layers, factorized_cut, hybrid_layout, layer_rank
from coordinator.submodels.record import Factor, LayerCut
from edge.contracts.errors import ConfigError, PlanError


def test_resnet18_keeps_stem_first_block_shortcuts_and_classifier() -> None:
    # FedHM: 14 of the 16 block convolutions are factorized.
    blocks = [f"layer{stage}.{block}.conv{i}" for stage in (1, 2, 3, 4) for block in (0, 1) for i in (1, 2)]
    assert list(hybrid_layout(build_model("resnet18"))) == blocks[2:]


def test_resnet34_factorizes_the_last_two_stages() -> None:
    expected = [f"layer3.{block}.conv{i}" for block in range(6) for i in (1, 2)]
    expected += [f"layer4.{block}.conv{i}" for block in range(3) for i in (1, 2)]
    assert list(hybrid_layout(build_model("resnet34"))) == expected


def test_default_layout_keeps_first_layer_and_classifier() -> None:
    assert hybrid_layout(build_model("mlp")) == ("fc2",)
    assert hybrid_layout(build_model("conv2")) == ("conv2", "fc1")
    assert hybrid_layout(build_model("vit"))[:4] == tuple(
        f"blocks.0.{name}" for name in ("attention.qkv", "attention.proj", "fc1", "fc2")
    )
    assert hybrid_layout(build_model("lstm")) == tuple(
        f"lstm.weight_{kind}_l{i}" for i in (0, 1) for kind in ("ih", "hh")
    )


def test_depthwise_convolutions_are_never_factorized() -> None:
    assert hybrid_layout(build_model("depthwise")) == tuple(f"blocks.{i}.pointwise" for i in range(5))


def test_module_says_which_layers_stay_dense() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    module.dense_layers = ("1",)  # type: ignore[assignment]
    assert hybrid_layout(module) == ("0", "2")


def test_patterns_choose_and_the_last_match_decides() -> None:
    module = build_model("resnet18")
    assert hybrid_layout(module, ["layer4.*", "!*.downsample.*", "!layer4.0.*"]) == ("layer4.1.conv1", "layer4.1.conv2")


def test_patterns_without_a_match_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        hybrid_layout(build_model("mlp"), ["layer9.*"])
    assert "$.method.layout" in str(caught.value)
    assert "layer9.*" in str(caught.value)
    assert "fc2" in str(caught.value)


class Tied(nn.Module):
    """Two layers of one weight, an attention whose projection is read without being called, an odd padding."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)
        self.two.weight = self.one.weight
        self.attention = nn.MultiheadAttention(8, 2)
        self.same = nn.Conv2d(8, 8, 3, padding="same")
        self.circular = nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular")
        self.plain = nn.Conv2d(8, 8, 3, padding=1)


def test_layers_that_cannot_be_replaced_are_not_candidates() -> None:
    assert list(factorizable_layers(Tied())) == ["plain"]


@pytest.mark.parametrize(
    ("outputs", "factor", "rounding", "rank"),
    [(64, 2, "round", 32), (128, 12, "round", 11), (128, 12, "floor", 10), (8, 64, "round", 1), (8, 64, "floor", 1)],
)
def test_rank_is_relative_to_the_outputs(outputs: int, factor: float, rounding: str, rank: int) -> None:
    assert layer_rank(outputs, factor, rounding) == rank  # type: ignore[arg-type]


def test_layers_that_would_not_shrink_stay_dense() -> None:
    module = nn.Sequential(nn.Linear(4, 32), nn.Linear(32, 32))
    # 32/4 = 8 components: 8 x 36 >= 4 x 32, but 8 x 64 < 32 x 32.
    assert list(factorized_cut(module, ["0", "1"], 4)) == ["1"]


def test_built_module_keeps_parameter_order_and_leaves_the_dense_one() -> None:
    module = build_model("resnet8")
    cut = factorized_cut(module, hybrid_layout(module), 4)
    built = apply_cut(module, cut)
    names = [name for name, _ in built.named_parameters()]
    assert names[names.index("layer1.0.conv1.u") : names.index("layer1.0.bn1.weight")] == [
        "layer1.0.conv1.u",
        "layer1.0.conv1.v",
    ]
    assert isinstance(built.get_submodule("layer1.0.conv1"), FactorizedConv2d)
    assert isinstance(module.get_submodule("layer1.0.conv1"), nn.Conv2d)
    assert built(example_input("resnet8")).shape == (2, 10)


def test_built_linear_layer_takes_sequences() -> None:
    module = build_model("vit")
    built = apply_cut(module, factorized_cut(module, hybrid_layout(module), 16))
    assert isinstance(built.get_submodule("blocks.0.fc1"), FactorizedLinear)
    assert built(example_input("vit")).shape == (2, 10)


def test_frozen_record_turns_gradients_off() -> None:
    built = apply_cut(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), {"0": LayerCut(frozen=True)})
    assert [p.requires_grad for p in built.parameters()] == [False, False, True, True]


def test_loading_copies_read_only_values() -> None:
    module = nn.BatchNorm1d(3)
    tensors = module_tensors(module)
    tensors["weight"] = np.frombuffer(np.full(3, 2.0, np.float32).tobytes(), np.float32)
    load_tensors(module, tensors)
    assert torch.equal(module.weight.detach(), torch.full((3,), 2.0))


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        ({"nope": LayerCut()}, ["'nope'", "Sequential"]),
        ({"0": LayerCut(out_idx=(0, 4))}, ["'0'", "0 to 3"]),
        ({"0": LayerCut(factor=Factor("spatial", (0,)))}, ["'0'", "spatial", "Linear"]),
        ({"0": LayerCut(factor=Factor("additive_lora", tuple(range(99))))}, ["'0'", "rank 99"]),
    ],
)
def test_cut_that_cannot_be_built_is_refused(cut: dict[str, LayerCut], words: list[str]) -> None:
    with pytest.raises(PlanError) as caught:
        apply_cut(nn.Sequential(nn.Linear(4, 4)), cut)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weight": None}, ["1 missing", "weight"]),
        ({"other": np.zeros(1)}, ["1 unknown", "other"]),
        ({"weight": np.zeros((4, 5))}, ["(4, 5)", "(4, 4)"]),
    ],
)
def test_tensors_that_do_not_fit_are_refused(change: dict[str, np.ndarray | None], words: list[str]) -> None:
    module = nn.Linear(4, 4)
    merged = {**module_tensors(module), **change}
    with pytest.raises(PlanError) as caught:
        load_tensors(module, {name: value for name, value in merged.items() if value is not None})
    assert all(word in str(caught.value) for word in words)
