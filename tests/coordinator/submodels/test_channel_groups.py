"""Channel groups of every model and of modules of one's own; a cut by them computes what the whole model would."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from coordinator.models import MODELS
from coordinator.models.catalog import build_model
from coordinator.submodels.build import apply_cut
from coordinator.submodels.channel_groups import channel_map
from coordinator.submodels.width import check_runs, first_channels, group_counts
from edge.contracts.errors import PlanError
from edge.contracts.manifest import InputSpec
from tests.coordinator.submodels.width_modules import OWN, model_input, own, own_input, random_cut, silenced_difference

ATTENTION = ("vit", "deit_tiny", "vit_small")
"""Their norms and attention scores are over channels, so dropping any changes the others: shapes are compared alone."""

LARGE = ("resnet34", "resnet44_slt", "resnet56_slt", "vit_small")
"""The same blocks as a smaller model of the list, only more of them."""


def trained_shapes(module: nn.Module, x: Tensor) -> None:
    """Every parameter gets a gradient."""
    module.train()
    module(x).sum().backward()
    assert all(p.grad is not None for p in module.parameters())


SLOW = ("densenet40", "mobilenet_v3_small", "resnet20", "resnet18", "vgg11")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in SLOW else ())
        for name in MODELS
        if name not in (*ATTENTION, *LARGE)
    ],
)
def test_random_cut_of_a_model_computes_what_the_silenced_model_does(name: str) -> None:
    module = build_model(name)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.uniform_(-0.1, 0.1), part.bias.data.uniform_(-0.5, 0.5)
    cut = random_cut(module, 0.4, seed=5)
    assert silenced_difference(module, cut, model_input(name)) < 1e-9
    assert sum(p.numel() for p in apply_cut(module, cut).parameters()) < 0.6 * sum(
        p.numel() for p in module.parameters()
    )


@pytest.mark.parametrize("name", [name for name in OWN if name != "group_normed"])
@pytest.mark.parametrize("seed", [0, 1])
def test_random_cut_of_an_own_module_computes_what_the_silenced_module_does(name: str, seed: int) -> None:
    module = own(name)
    cut = random_cut(module, 0.5, seed)
    assert silenced_difference(module, cut, own_input()) < 1e-9


def test_silencing_tells_a_wrong_cut() -> None:
    module = own("residual")
    cut = dict(random_cut(module, 0.5, 0))
    moved = tuple((i + 1) % 160 for i in cut["head"].in_idx or ())
    cut["head"] = type(cut["head"])(in_idx=tuple(sorted(moved)))
    assert silenced_difference(module, cut, own_input()) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "deit_tiny"])
def test_transformer_keeps_the_same_part_of_every_head_and_trains(name: str) -> None:
    module = build_model(name)
    channels = channel_map(module)
    heads = module.blocks[0].attention.heads
    size = module.blocks[0].attention.qkv.in_features // heads
    cut = channels.cut(first_channels(group_counts(channels, 0.5, "round")))
    expected = [block * size + i for block in range(3 * heads) for i in range(size // 2)]
    assert list(cut["blocks.0.attention.qkv"].out_idx or ()) == expected
    assert list(cut["blocks.0.attention.proj"].in_idx or ()) == expected[: heads * size // 2]
    built = apply_cut(module, cut)
    assert built.position.shape[-1] == module.position.shape[-1] // 2
    trained_shapes(built, model_input(name))


def test_norms_over_groups_keep_as_many_channels_of_each() -> None:
    module = own("group_normed")
    channels = channel_map(module)
    cut = channels.cut({"first": (1, 3), "second": (0, 5)})
    assert cut["groups"].out_idx == (1, 3, 5, 7)
    built = apply_cut(module, cut)
    assert (built.groups.num_groups, built.groups.num_channels) == (2, 4)
    assert (built.single.num_groups, built.single.num_channels) == (2, 2)
    trained_shapes(built, own_input())


def test_group_of_a_convolution_keeps_as_many_channels_as_the_others() -> None:
    cut = channel_map(own("grouped")).cut({"stem": (0, 2), "grouped": (1,)})
    assert cut["grouped"].in_idx == (0, 2, 4, 6)
    assert cut["grouped"].out_idx == (1, 7)
    assert cut["multiplied"].out_idx == (2, 3, 14, 15)
    built = apply_cut(own("grouped"), cut)
    assert (built.grouped.groups, built.depthwise.groups, built.multiplied.groups) == (2, 2, 2)
    assert built.grouped.weight.shape == (2, 2, 3, 3)


def test_columns_behind_a_flatten_belong_to_their_channel() -> None:
    cut = channel_map(build_model("conv2")).cut({"conv2": (2, 63)})
    assert list(cut["fc1"].in_idx or ()) == [*range(98, 147), *range(63 * 49, 64 * 49)]


def test_concatenated_channels_keep_their_order() -> None:
    cut = channel_map(own("concatenated")).cut({"left": (1, 4), "right": (0, 3), "mixed": (7,)})
    assert cut["mixed"].in_idx == (1, 4, 6, 9)
    assert cut["norm"].out_idx == (1, 4, 6, 9)
    assert cut["last"].in_idx == (7, 9, 12, 14, 17)


def test_residual_stream_is_one_group_and_the_classifier_is_whole() -> None:
    channels = channel_map(build_model("resnet20"))
    stream = channels.group("layer2.0.conv2")
    assert stream is not None
    assert stream.size == 32
    assert {"layer2.0.downsample.0", "layer2.1.conv2", "layer2.2.bn2"} <= set(stream.producers)
    assert channels.group("fc") is None
    assert "output" in channels.whole["fc"]


def test_named_shortcuts_select_channels_of_a_wider_input() -> None:
    module = build_model("resnet20_slt")
    shortcuts = [path for path, part in module.named_modules() if isinstance(part, nn.Identity)]
    channels = channel_map(module, selections=shortcuts)
    # Frozen and full layers before the second block of stage 1, a quarter of the channels from there on.
    head = [
        group for group in channels.groups if group.producers[0] not in ("conv1", "layer1.0.conv1", "layer1.0.conv2")
    ]
    cut = channels.cut({group.name: range(group.size // 4) for group in head})
    assert cut["layer1.1.downsample"].out_idx == (0, 1, 2, 3)
    assert cut["layer1.1.downsample"].in_idx is None or len(cut["layer1.1.downsample"].in_idx) == 16
    assert "layer1.2.downsample" not in cut
    built = apply_cut(module, cut)
    assert built.layer1[1].conv1.weight.shape == (4, 16, 3, 3)
    assert silenced_difference(module, cut, model_input("resnet20_slt")) < 1e-9
    trained_shapes(built, model_input("resnet20_slt"))


def test_shortcut_cannot_pass_on_more_than_comes_in() -> None:
    module = build_model("resnet20_slt")
    channels = channel_map(module, selections=["layer1.1.downsample"])
    narrow = next(group for group in channels.groups if "conv1" in group.producers)
    with pytest.raises(PlanError, match=r"shortcut 'layer1.1.downsample': 16 channels wanted of 4"):
        channels.cut({narrow.name: range(4)})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kept", "words"),
    [
        ({"nope": (0,)}, ["'nope'", "conv1"]),
        ({"conv1": ()}, ["'conv1'", "0 to 31"]),
        ({"conv1": (0, 32)}, ["'conv1'", "0 to 31"]),
        ({"conv1": (1, 1)}, ["'conv1'", "different"]),
    ],
)
def test_impossible_channels_are_refused(kept: dict[str, tuple[int, ...]], words: list[str]) -> None:
    with pytest.raises(PlanError) as caught:
        channel_map(build_model("conv2")).cut(kept)
    assert all(word in str(caught.value) for word in words)


class FixedSize(nn.Module):
    """A forward that knows its channels by number."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8 * 64, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x).view(-1, 8 * 64))


class Recurrent(nn.Module):
    """A recurrent layer that torch has as one piece."""

    def __init__(self, steps: nn.Module) -> None:
        super().__init__()
        self.steps, self.fc = steps, nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.steps(x)[0][:, -1])


def test_forward_with_fixed_sizes_is_refused_by_layer() -> None:
    module = FixedSize()
    channels = channel_map(module, InputSpec(layout="chw", shape=(3, 8, 8)))
    cut = channels.cut({"conv": range(4)})
    with pytest.raises(PlanError, match=r"FixedSize cut in width .*(layer 'conv'|layer 'fc').*flatten\(1\)"):
        check_runs(module, cut, InputSpec(layout="chw", shape=(3, 8, 8)))


@pytest.mark.parametrize("layer", [nn.GRU(4, 6, batch_first=True), nn.LSTM(4, 3, batch_first=True, bidirectional=True)])
def test_layer_that_cannot_be_followed_is_refused_by_name(layer: nn.Module) -> None:
    with pytest.raises(
        PlanError, match=rf"layer 'steps': this {type(layer).__name__} has no cut.*factorized or frozen"
    ):
        channel_map(Recurrent(layer), InputSpec(layout="features", shape=(3, 4)))


def test_tied_weights_stay_whole() -> None:
    module = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 8), nn.Linear(8, 5))
    module[2].weight = module[0].weight
    channels = channel_map(module, InputSpec(layout="features", shape=(6,)))
    assert [group.name for group in channels.groups] == ["4"]
    assert "shares" in channels.whole["0"]


def test_module_in_which_nothing_can_be_cut_is_refused_with_reasons() -> None:
    with pytest.raises(PlanError, match=r"Linear .*cut in width.*the model's output.*factorized or frozen"):
        channel_map(nn.Linear(4, 2), InputSpec(layout="features", shape=(4,)))


def test_module_without_an_example_is_refused_with_the_next_step() -> None:
    with pytest.raises(PlanError, match=r"Sequential need one example's shape; set \$\.model\.input"):
        channel_map(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))


def test_module_that_does_not_run_on_its_input_is_refused() -> None:
    with pytest.raises(PlanError, match=r"example of shape \[5\]"):
        channel_map(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), InputSpec(layout="features", shape=(5,)))


def test_declared_layers_stay_whole() -> None:
    module = build_model("mlp")
    module.whole_layers = ("fc1",)
    channels = channel_map(module)
    assert [group.name for group in channels.groups] == ["fc2"]
    assert "whole_layers" in channels.whole["fc1"]


def test_tracing_leaves_the_module_and_the_random_state_alone() -> None:
    module = build_model("resnet8")
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.random.get_rng_state()
    channel_map(module)
    assert module.training
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert not any(part._forward_hooks for part in module.modules())
    assert torch.equal(state, torch.random.get_rng_state())
