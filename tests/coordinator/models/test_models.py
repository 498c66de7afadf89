"""Models by name: shapes, parameter counts by hand, seeds, own builders, refusals."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from coordinator.models import MODELS
from coordinator.models.catalog import build_model, example_input, input_spec
from edge.contracts.errors import ConfigError

# conv: out*in*k*k (+ out with bias); linear: out*in + out; batch norm and layer norm: 2 per channel.
PARAMETERS = {
    "mlp": (64 * 2048 + 2048) + (2048 * 2048 + 2048) + (2048 * 10 + 10),
    "conv2": 6_603_710,  # PruneFL, Table II
    "prism_cnn": 246_590,  # 832 + 51,264 + 194,494, by hand from its layers
    "resnet8": 75_290 + 2_752,  # convs, norms and classifier; then the two 1x1 shortcuts with norms
    "resnet20": 269_722 + 2_752,  # He et al.: 0.27 M; 269,722 without shortcut convolutions
    "resnet18": 11_173_962,  # FedHM, CIFAR-10
    "resnet34": 21_328_292,  # FedHM, CIFAR-100
    "vgg11": 9_750_922,  # PruneFL, Table II
    "depthwise": 928 + 2_528 + 9_152 + 18_048 + 34_688 + 68_864 + 2_570,  # stem, five blocks, classifier
    # embed, positions, four blocks (qkv, proj, fc1, fc2, two norms), norm, head
    "vit": (48 * 128 + 128) + 64 * 128 + 4 * (49_536 + 16_512 + 66_048 + 65_664 + 512) + 256 + 1_290,
    "resnet20_slt": 294_874,  # SLT, section 4
    # stem, stages of convs with norms, the two 3x3 shortcuts, classifier on 4x4x64
    "resnet44_slt": 464 + 14 * 2_336 + 2 * 4_672 + 13 * 9_280 + 2 * 18_560 + 13 * 36_992 + 1_025 * 200,
    "resnet56_slt": 464 + 18 * 2_336 + 2 * 4_672 + 17 * 9_280 + 2 * 18_560 + 17 * 36_992 + 1_025_000,
    "densenet40": 176_122,  # SLT, section 4
    "mobilenet_v3_small": 2_542_856 - 990 * 1_025,  # the published network with 10 instead of 1,000 classes
    # embed, token, positions, twelve blocks, norm, head
    "deit_tiny": 9_408 + 192 + 65 * 192 + 12 * (111_168 + 37_056 + 148_224 + 147_648 + 768) + 384 + 1_930,
    "vit_small": 21_669_514,  # FedLoRA, section 6
    # embedding, two layers of four gates with two biases, classifier
    "lstm": 90 * 8 + 512 * (8 + 128 + 2) + 512 * (128 + 128 + 2) + 90 * 129,
    "review_lstm": 1001 * 64 + 1024 * (64 + 256 + 2) + 1024 * (256 + 256 + 2) + 2 * 257,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MODELS))
def test_model_gives_one_row_of_logits_per_example(name: str) -> None:
    logits = build_model(name)(example_input(name, batch=3))
    assert logits.shape == (3, MODELS[name].classes)
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize("name", PARAMETERS)
def test_model_has_the_parameters_counted_by_hand(name: str) -> None:
    assert sum(p.numel() for p in build_model(name).parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_model_has_no_dropout(name: str) -> None:
    assert not [part for part in build_model(name).modules() if type(part).__name__.startswith("Dropout")]


@pytest.mark.parametrize("name", ["mlp", "resnet8", "vit", "lstm"])
def test_weights_are_a_function_of_the_seed_alone(name: str) -> None:
    first = build_model(name, seed=3).state_dict()
    torch.manual_seed(99)
    before = torch.get_rng_state()
    again = build_model(name, seed=3).state_dict()
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[key], again[key]) for key in first)
    other = build_model(name, seed=4).state_dict()
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_classes_and_input_override_the_canonical_ones() -> None:
    assert build_model("conv2", classes=10)(torch.zeros(1, 1, 28, 28)).shape == (1, 10)
    assert build_model("resnet34", classes=200)(torch.zeros(1, 3, 64, 64)).shape == (1, 200)
    assert build_model("mlp", input_shape=(1, 4, 4), hidden=(8,))(torch.zeros(2, 1, 4, 4)).shape == (2, 10)


def test_vgg_signal_keeps_its_scale_through_eleven_layers() -> None:
    with torch.no_grad():
        logits = build_model("vgg11")(example_input("vgg11", batch=8))
    assert logits.std() > 1e-2


def test_input_spec_names_layout_and_dtype() -> None:
    assert input_spec("lstm").dtype == "int64"
    assert input_spec("lstm").vocabulary == 90
    assert input_spec("resnet20").layout == "chw"
    assert input_spec("resnet34", input_shape=(3, 64, 64)).shape == (3, 64, 64)


def own_builder(classes: int) -> nn.Module:
    """Fixes its input itself."""
    return nn.Linear(5, classes)


def own_without_arguments() -> nn.Module:
    """Fixes everything itself."""
    return nn.Linear(5, 2)


def own_wrong() -> str:
    """Not a module."""
    return "linear"


def test_own_builder_gets_what_its_signature_takes() -> None:
    assert build_model(f"{__name__}:own_builder", input_shape=(5,), classes=7)(torch.zeros(1, 5)).shape == (1, 7)
    assert (
        build_model(f"{__name__}:own_without_arguments", input_shape=(5,), classes=7)(torch.zeros(1, 5)).shape[1] == 2
    )
    assert build_model("torch.nn:Linear", in_features=3, out_features=4)(torch.zeros(1, 3)).shape == (1, 4)
    assert example_input(f"{__name__}:own_builder", input_shape=(5,)).shape == (2, 5)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("resnet19", {}, ["resnet19", "resnet18", "package.module:function"]),
        ("mlp", {"width": 3}, ["$.model.options.width", "hidden"]),
        ("mlp", {"hidden": (0,)}, ["$.model.options.hidden", "[0]"]),
        ("conv2", {"input_shape": (28, 28)}, ["$.model.input", "[28, 28]"]),
        ("prism_cnn", {"input_shape": (28, 28)}, ["$.model.input", "[28, 28]"]),
        ("vgg11", {"input_shape": (3, 28, 28)}, ["$.model.input", "32x32"]),
        ("vit", {"input_shape": (3, 30, 32)}, ["$.model.input", "[3, 30, 32]"]),
        ("lstm", {"input_shape": (3, 32, 32)}, ["$.model.input", "[length]"]),
        ("no.such.module:build", {}, ["$.model.build", "no.such.module"]),
        ("mlp", {"hidden": 5}, ["$.model", "hidden=5", "TypeError"]),
        ("torch.nn:Linear", {"in_features": 3}, ["$.model", "in_features=3", "out_features"]),
        ("torch.nn:NoSuchLayer", {}, ["$.model.build", "NoSuchLayer"]),
        (f"{__name__}:own_wrong", {}, ["$.model.build", "str", "torch.nn.Module"]),
        (f"{__name__}:PARAMETERS", {}, ["$.model.build", "dict"]),
    ],
)
def test_bad_model_is_refused_with_its_path(name: str, options: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        build_model(name, **options)  # type: ignore[arg-type]
    for word in words:
        assert word in str(caught.value)


def test_own_model_without_input_shape_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"\$\.model\.input"):
        example_input("torch.nn:Linear")
