"""Index sets, slices of tensors, and the way back. Invariants 7 and 8: exact both ways; windows visit every channel."""

from __future__ import annotations

from functools import cache

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from coordinator.models.catalog import build_model
from coordinator.submodels.build import apply_cut, module_tensors
from coordinator.submodels.channel_groups import ChannelMap, channel_map
from coordinator.submodels.factorize import factorize_tensors
from coordinator.submodels.narrowed import AtomEnsemble, ChannelSelection, layer_slices
from coordinator.submodels.record import Cut, Factor, LayerCut, cut_from_json, cut_to_json
from coordinator.submodels.width import (
    cut_tensors,
    first_channels,
    group_counts,
    kept_count,
    lift_tensors,
    random_channels,
    shape_of_cut,
    tensor_slices,
    window,
    within,
)
from edge.contracts.errors import PlanError
from tests.coordinator.submodels.width_modules import OWN, own, own_input

MODULES = (*OWN, "resnet8", "depthwise", "lstm")

property_test = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@cache
def traced(name: str) -> tuple[nn.Module, ChannelMap]:
    module = own(name) if name in OWN else build_model(name)
    return module, channel_map(module)


@st.composite
def cuts(draw: st.DrawFn) -> tuple[nn.Module, Cut, Cut]:
    """A module, a cut of it, and a smaller cut inside that one."""
    module, channels = traced(draw(st.sampled_from(MODULES)))
    large, small = {}, {}
    for group in channels.groups:
        keep = sorted(draw(st.sets(st.integers(0, group.size - 1), min_size=1)))
        large[group.name] = keep
        small[group.name] = sorted(draw(st.sets(st.sampled_from(keep), min_size=1)))
    return module, channels.cut(large), channels.cut(small)


@property_test
@given(cuts())
def test_lifting_a_cut_gives_back_the_model(drawn: tuple[nn.Module, Cut, Cut]) -> None:
    module, cut, _ = drawn
    tensors, slices = module_tensors(module), tensor_slices(module, cut)
    lifted = lift_tensors(cut_tensors(tensors, slices), slices, tensors)
    assert all(lifted[name].tobytes() == value.tobytes() for name, value in tensors.items())


@property_test
@given(cuts(), st.floats(0.5, 2))
def test_lifting_changes_the_entries_of_the_cut_alone(drawn: tuple[nn.Module, Cut, Cut], factor: float) -> None:
    module, cut, _ = drawn
    tensors, slices = module_tensors(module), tensor_slices(module, cut)
    trained = {
        n: np.full_like(v, 1000 * factor) for n, v in cut_tensors(tensors, slices).items() if v.dtype.kind == "f"
    }
    lifted = lift_tensors(trained, slices, tensors)
    for name, before in tensors.items():
        if before.dtype.kind != "f":
            continue
        changed = lifted[name] == np.float32(1000 * factor)
        assert changed.sum() == trained[name].size
        assert np.array_equal(lifted[name][~changed], before[~changed])


@property_test
@given(cuts())
def test_cut_of_a_cut_is_the_smaller_cut(drawn: tuple[nn.Module, Cut, Cut]) -> None:
    module, cut, smaller = drawn
    tensors = module_tensors(module)
    built = apply_cut(module, cut)
    once = cut_tensors(tensors, tensor_slices(module, cut))
    twice = cut_tensors(once, tensor_slices(built, within(cut, smaller)))
    direct = cut_tensors(tensors, tensor_slices(module, smaller))
    assert all(twice[name].tobytes() == direct[name].tobytes() for name in tensors)


@property_test
@given(cuts())
def test_built_module_has_the_shapes_and_values_of_the_tensors(drawn: tuple[nn.Module, Cut, Cut]) -> None:
    module, cut, _ = drawn
    expected = cut_tensors(module_tensors(module), tensor_slices(module, cut))
    got = module_tensors(apply_cut(module, cut))
    assert got.keys() == expected.keys()
    assert all(got[name].tobytes() == value.tobytes() for name, value in expected.items())


@property_test
@given(cuts())
def test_a_cut_survives_the_ledger_and_its_shape_builds_the_same_layers(drawn: tuple[nn.Module, Cut, Cut]) -> None:
    module, cut, _ = drawn
    assert cut_from_json(msgspec.json.decode(msgspec.json.encode(cut_to_json(cut)))) == cut
    moved, first = apply_cut(module, cut), apply_cut(module, shape_of_cut(module, cut))
    assert [(n, repr(p)) for n, p in moved.named_modules()] == [(n, repr(p)) for n, p in first.named_modules()]
    assert [p.shape for p in moved.parameters()] == [p.shape for p in first.parameters()]


@pytest.mark.parametrize(
    ("size", "ratio", "expected"),
    [(64, 0.35, (23, 22, 22)), (64, 0.64, (41, 41, 40)), (30, 0.1, (3, 3, 3)), (8, 0.01, (1, 1, 1)), (7, 1, (7, 7, 7))],
)
def test_channels_left_by_rounding_rule(size: int, ratio: float, expected: tuple[int, ...]) -> None:
    assert tuple(kept_count(size, ratio, rule) for rule in ("ceil", "round", "floor")) == expected


def test_window_visits_every_channel_once_in_as_many_rounds_as_there_are() -> None:
    _, channels = traced("resnet8")
    counts = group_counts(channels, 0.25, "floor")
    for group in channels.groups:
        kept = [window(channels, counts, lambda _, r=r: r)[group.name] for r in range(group.size)]
        starts = {min(set(k) - {(i + 1) % group.size for i in k}) for k in kept}
        assert starts == set(range(group.size))
        assert np.bincount(np.concatenate(kept)).tolist() == [counts[group.name]] * group.size


def test_random_residual_sets_agree_and_differ_by_device_round_and_group() -> None:
    channels = traced("resnet8")[1]
    counts = group_counts(channels, 0.5, "floor")

    def drawn(device: str, round_index: int) -> Cut:
        return channels.cut(random_channels(channels, counts, seed=1, round_index=round_index, device=device))

    cut = drawn("a", 0)
    assert cut["layer2.0.conv2"].out_idx == cut["layer2.0.downsample.0"].out_idx == cut["layer2.0.bn2"].out_idx
    assert cut["layer2.0.conv2"].out_idx == cut["layer3.0.conv1"].in_idx
    assert cut["layer2.0.conv1"].out_idx != cut["layer2.0.conv2"].out_idx
    assert drawn("a", 0) == cut
    assert drawn("b", 0) != cut
    assert drawn("a", 1) != cut


def test_cumulative_counts_add_up_behind_a_concatenation() -> None:
    module = build_model("densenet40")
    channels = channel_map(module)
    for ratio in (0.33, 0.66, 0.14):
        cut = channels.cut(first_channels(group_counts(channels, ratio, "floor", cumulative=True)))
        for block, first in (("block1", 24), ("block2", 48)):
            for pair in range(1, 6):
                inputs = cut[f"{block}.{pair}.conv1"].in_idx or ()
                assert len(inputs) == int((first + 12 * pair) * ratio)
        each = channels.cut(first_channels(group_counts(channels, ratio, "floor")))
        assert len(each["block1.5.conv1"].in_idx or ()) == int(24 * ratio) + 5 * int(12 * ratio)


def test_width_comes_before_factors_and_frozen_layers() -> None:
    module, channels = traced("resnet8")
    width = channels.cut(first_channels(group_counts(channels, 0.5, "floor")))
    factor = Factor("conv1x1", (0, 1, 2))
    cut = {
        **width,
        "layer3.0.conv2": msgspec.structs.replace(width["layer3.0.conv2"], factor=factor),
        "conv1": msgspec.structs.replace(width["conv1"], frozen=True),
        "layer1": LayerCut(frozen=True),
    }
    narrow = cut_tensors(module_tensors(module), tensor_slices(module, width))
    tensors = factorize_tensors(narrow, cut)
    built = apply_cut(module, cut, tensors)
    assert built.layer3[0].conv2.v.shape == (3, 32, 3, 3)
    assert built.layer3[0].conv2.u.shape == (32, 3, 1, 1)
    frozen = [name for name, p in built.named_parameters() if not p.requires_grad]
    assert set(frozen) == {"conv1.weight", *(n for n, _ in built.named_parameters() if n.startswith("layer1."))}
    assert built.layer1[0].conv1.weight.shape == (8, 8, 3, 3)
    assert torch.isfinite(built(torch.randn(2, 3, 32, 32))).all()


def test_scale_divides_outputs_in_training_alone() -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 1), nn.Flatten(), nn.Linear(4, 2))
    built = apply_cut(module, {"0": LayerCut(scale=0.25), "2": LayerCut(scale=0.5)})
    x = torch.randn(3, 1, 1, 1)
    assert torch.equal(built.train()(x), module[2](module[1](module[0](x) / 0.25)) / 0.5)
    assert torch.equal(built.eval()(x), module(x))
    assert "scale=0.25" in repr(built)
    assert list(built.state_dict()) == list(module.state_dict())


def test_selection_passes_on_channels_in_order() -> None:
    x = torch.arange(6.0).reshape(1, 6, 1, 1)
    assert ChannelSelection((0, 1, 4))(x).flatten().tolist() == [0, 1, 4]
    built = apply_cut(nn.Sequential(nn.Identity()), {"0": LayerCut(in_idx=(1, 3, 5), out_idx=(1, 5))})
    assert built(x[:, [1, 3, 5]]).flatten().tolist() == [1, 5]


def test_atoms_are_copies_whose_logits_are_averaged() -> None:
    module, channels = traced("residual")
    width = channels.cut(first_channels(group_counts(channels, 0.5, "floor")))
    built = apply_cut(module, {"": LayerCut(atoms=(3, 5)), **width})
    assert isinstance(built, AtomEnsemble)
    with torch.no_grad():
        built.atoms[1].head.bias += 1.0
    single = apply_cut(module, width)
    assert torch.allclose(built(own_input()), single(own_input()) + 0.5)


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        ({"conv1": LayerCut(out_idx=(0, 16))}, ["'conv1'", "outputs", "0 to 15"]),
        ({"conv1": LayerCut(out_idx=())}, ["'conv1'", "0 outputs"]),
        ({"conv1": LayerCut(in_idx=(0, 0))}, ["'conv1'", "inputs", "different"]),
        ({"relu": LayerCut(out_idx=(0,))}, ["'relu'", "ReLU", "no cut in width"]),
        ({"nothing": LayerCut(out_idx=(0,))}, ["'nothing'", "ResNet"]),
        ({"relu": LayerCut(scale=0.5)}, ["'relu'", "ReLU", "scaler"]),
    ],
)
def test_impossible_cut_is_refused(cut: Cut, words: list[str]) -> None:
    with pytest.raises(PlanError) as caught:
        apply_cut(traced("resnet8")[0], cut)
    assert all(word in str(caught.value) for word in words)


def test_groups_that_would_differ_are_refused() -> None:
    with pytest.raises(PlanError, match=r"'grouped': 2 groups must keep the same channels each"):
        apply_cut(own("grouped"), {"grouped": LayerCut(out_idx=(0, 1, 2))})
    with pytest.raises(PlanError, match=r"'depthwise': the outputs kept are not those of the inputs"):
        apply_cut(own("grouped"), {"depthwise": LayerCut(out_idx=(0, 1), in_idx=(0, 2))})


def test_smaller_cut_outside_the_larger_one_is_refused() -> None:
    with pytest.raises(PlanError, match=r"'0': the smaller cut keeps \[2\]"):
        within({"0": LayerCut(out_idx=(0, 1))}, {"0": LayerCut(out_idx=(1, 2))})
    with pytest.raises(PlanError, match=r"'0': the smaller cut keeps all"):
        within({"0": LayerCut(out_idx=(0, 1))}, {})


def test_outputs_of_groups_with_one_input_each_are_cut_alike_or_refused() -> None:
    layer = nn.Conv2d(2, 4, 3, groups=2)
    kept = layer_slices("grouped", layer, LayerCut(out_idx=(0, 2)))
    assert [None if part is None else part.tolist() for part in kept["weight"][:2]] == [[0, 2], None]
    with pytest.raises(PlanError, match="same channels each"):
        layer_slices("grouped", layer, LayerCut(out_idx=(0, 1)))
    with pytest.raises(PlanError, match="cut both alike"):
        layer_slices("depthwise", nn.Conv2d(4, 4, 3, groups=4), LayerCut(out_idx=(0, 2)))
