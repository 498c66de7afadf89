"""Channels that masks have killed: which ones go, that nothing changes without them, and when their removal pays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from coordinator.methods import State, Submodel, Update, build_method
from coordinator.methods.sparse import SparseMethod
from coordinator.models.catalog import build_model
from coordinator.pruning.compaction import Compaction, mask_records
from coordinator.pruning.dead_channels import is_same_function, live_channels
from coordinator.pruning.masks import Masks, prunable_weights
from coordinator.simulation.torch_session import TorchArtifact
from coordinator.submodels.build import apply_cut, module_tensors
from coordinator.submodels.channel_groups import channel_map
from coordinator.submodels.costs import cut_costs
from coordinator.submodels.packed_tensors import masks_of, split_tensors
from coordinator.submodels.record import cut_from_json, cut_to_json
from coordinator.submodels.width import lift_tensors, shape_of_cut, tensor_slices
from edge.contracts.errors import PlanError
from edge.contracts.manifest import InputSpec
from edge.contracts.packing import KEPT
from export.training_step import Optimizer, StepSpec

SPEC = InputSpec(layout="chw", shape=(2, 8, 8))
CLASSES = 3


class Residual(nn.Module):
    """A stem, a residual block with norms, a depthwise convolution, a flatten, a hidden layer."""

    def __init__(self, norm: type[nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.input_spec = SPEC
        self.stem = nn.Conv2d(2, 6, 3, padding=1, bias=False)
        self.bn0 = norm(6)
        self.conv1 = nn.Conv2d(6, 8, 3, padding=1, bias=False)
        self.bn1 = norm(8)
        self.conv2 = nn.Conv2d(8, 6, 3, padding=1, bias=False)
        self.bn2 = norm(6)
        self.depthwise = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.conv3 = nn.Conv2d(6, 4, 3, stride=2, padding=1)
        self.fc1 = nn.Linear(4 * 16, 10)
        self.fc2 = nn.Linear(10, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn0(self.stem(x)))
        x = torch.relu(x + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))
        x = torch.relu(self.conv3(torch.relu(self.depthwise(x)))).flatten(1)
        return self.fc2(torch.relu(self.fc1(x)))


def net(kind: type[nn.Module] = Residual, **options: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return kind(**options)


def dying_masks(module: nn.Module, seed: int = 0) -> dict[str, np.ndarray]:
    """Half of all entries, and every connection of some channels: unread ones of each kind of layer."""
    generator = np.random.default_rng(seed)
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    masks = {name: generator.random(shapes[name]) < 0.5 for name in prunable_weights(module)}
    masks["fc2.weight"][:, [1, 4]] = False  # units of fc1 nobody reads
    masks["fc1.weight"][:, 16:32] = False  # the 16 columns of channel 1 of conv3
    masks["fc1.weight"][:, 33:64:2] = False  # single columns of the two others
    masks["conv3.weight"][:, [0, 5]] = False  # channels of the residual stream, through the depthwise convolution
    for name in ("conv1.weight", "stem.weight"):
        masks[name][0, 0] = True
    masks["conv1.weight"][:, [0, 5]] = False
    masks["conv2.weight"][:, 3] = False  # channel 3 inside the block
    return masks


def held_dense(state: State, method: SparseMethod) -> Submodel:
    return method.submodel(state, method.masked_cut(method.levels()[0], scored=False))


def steps(module: nn.Module, submodel: Submodel, count: int = 3) -> dict[str, np.ndarray]:
    """Every tensor after ``count`` steps with momentum, weight decay and clipping, on one batch."""
    spec = StepSpec(
        input=SPEC,
        classes=CLASSES,
        optimizer=Optimizer(momentum=True, weight_decay=True),
        clip_norm=True,
        masked=submodel.program.masked,
    )
    session = TorchArtifact(apply_cut(module, submodel.cut), spec, classes=["0", "1", "2"]).session("cpu")
    session.load_state(submodel.tensors)
    generator = np.random.default_rng(1)
    hyper = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "clip_norm": 0.3}
    feeds = {
        "input": generator.standard_normal((5, *SPEC.shape)).astype(np.float32),
        "target": generator.integers(0, CLASSES, 5),
        **{name: np.array(value, np.float32) for name, value in hyper.items()},
    }
    for _ in range(count):
        session.run("train", feeds)
    kept = [n for n in submodel.tensors if "#" not in n and not n.endswith("num_batches_tracked")]
    return {name: np.array(session.read(name)) for name in kept}


@pytest.fixture(scope="module")
def masked_run() -> tuple[SparseMethod, State]:
    """SNIP after its first round, its masks replaced by dying ones."""
    module = net()
    method = build_method("snip", module, {})
    assert isinstance(method, SparseMethod)
    return method, replace(method.with_masks(method.init(), dying_masks(module)), round=1)


def cut_now(method: SparseMethod, state: State) -> Submodel:
    return method.cut(state, method.levels()[0], round_index=state.round, device="a", seed=0)


def test_dead_channels_go_through_residuals_norms_depthwise_layers_and_flatten(
    masked_run: tuple[SparseMethod, State],
) -> None:
    cut = cut_now(*masked_run).cut
    stream = (1, 2, 3, 4)
    for path in ("stem", "bn0", "conv2", "bn2", "depthwise"):
        assert cut[path].out_idx == stream
    assert cut["conv1"].in_idx == cut["conv3"].in_idx == stream
    assert cut["bn1"].out_idx == cut["conv1"].out_idx == cut["conv2"].in_idx == (0, 1, 2, 4, 5, 6, 7)
    assert cut["conv3"].out_idx == (0, 2, 3)
    assert cut["fc1"].in_idx == (*range(16), *range(32, 64))
    assert cut["fc1"].read_idx == (*range(16), *range(32, 64, 2))
    assert cut["fc1"].out_idx == cut["fc2"].in_idx == (0, 2, 3, 5, 6, 7, 8, 9)
    assert cut["fc2"].out_idx is None


def test_three_steps_without_dead_channels_give_the_values_of_the_masked_ones(
    masked_run: tuple[SparseMethod, State],
) -> None:
    method, state = masked_run
    submodel = cut_now(method, state)
    whole = steps(method.module, held_dense(state, method))
    left = steps(method.module, submodel)
    slices = tensor_slices(method.module, submodel.cut)
    lifted = lift_tensors(left, slices, state.tensors)
    compared = lift_tensors(left, slices, {n: np.full(v.shape, np.nan) for n, v in state.tensors.items()})
    for name, value in left.items():
        kept = ~np.isnan(compared[name])
        assert kept.sum() == value.size
        distance = np.linalg.norm(lifted[name][kept] - whole[name][kept])
        assert distance <= 1e-5 * max(1.0, np.linalg.norm(whole[name][kept])), name
        moved = np.linalg.norm(whole[name][kept] - state.tensors[name][kept])
        assert moved > 0, name
        assert np.array_equal(lifted[name][~kept], state.tensors[name][~kept])  # not sent: its bits are kept


def test_what_a_dead_channel_keeps_is_shrunk_by_decay_alone_where_it_is_held(
    masked_run: tuple[SparseMethod, State],
) -> None:
    method, state = masked_run
    whole = steps(method.module, held_dense(state, method), 1)
    masks = method.masks(state)
    assert not whole["fc1.weight"][~masks["fc1.weight"]].any()
    before = state.tensors["fc1.weight"][1]
    np.testing.assert_allclose(whole["fc1.weight"][1], before * (1 - 0.1 * 0.01), rtol=1e-6, atol=1e-9)
    assert before.any()


def test_aggregation_puts_the_cut_back_and_leaves_every_other_bit(masked_run: tuple[SparseMethod, State]) -> None:
    method, state = masked_run
    submodel = cut_now(method, state)
    generator = np.random.default_rng(2)
    updates, sent = [], []
    for device, examples in (("a", 3), ("b", 5)):
        values = {}
        for name, value in submodel.tensors.items():
            if "#" not in name and value.dtype.kind == "f":
                step = generator.standard_normal(value.shape) * submodel.tensors.get(f"{name}#mask", True)
                values[name] = (value + step).astype(value.dtype)
        sent.append((values, examples))
        updates.append(Update(device, submodel.level, submodel.cut, values, examples))
    after = method.aggregate(state, updates)
    slices = tensor_slices(method.module, submodel.cut)
    for name, value in state.tensors.items():
        if name not in sent[0][0]:
            assert after.tensors[name].tobytes() == value.tobytes()
            continue
        mean = sum(v[name].astype(np.float64) * w for v, w in sent) / 8
        expected = lift_tensors({name: mean.astype(value.dtype)}, slices, {name: value})[name]
        assert after.tensors[name].tobytes() == expected.tobytes(), name
    other = replace(updates[1], cut=mask_records(method.prunable, scored=False))
    with pytest.raises(Exception, match="device b, round 1: its cut is not"):
        method.aggregate(state, [updates[0], other])


def test_columns_passed_over_are_part_of_the_artifact_and_of_no_checkpoint() -> None:
    module = net()
    masks = dying_masks(module)
    compaction = Compaction(module)
    cut = compaction.cut(mask_records(tuple(masks), scored=False), compaction.live(masks, {}))
    shape = shape_of_cut(module, cut)
    assert shape["fc1"].in_idx == tuple(range(48))
    assert shape["fc1"].read_idx == (*range(16), *range(16, 48, 2))
    whole, canonical = apply_cut(module, cut), apply_cut(module, shape)
    assert whole.fc1.extra_repr() == canonical.fc1.extra_repr()  # one artifact
    other = {**shape, "fc1": msgspec.structs.replace(shape["fc1"], read_idx=(*range(16), *range(17, 48, 2)))}
    assert apply_cut(module, other).fc1.extra_repr() != canonical.fc1.extra_repr()
    assert whole.state_dict().keys() == module.state_dict().keys()
    assert cut_from_json(cut_to_json(cut)) == dict(cut)
    with pytest.raises(PlanError, match=r"layer 'fc1': columns \[16\] are to be read but do not come in"):
        apply_cut(module, {"fc1": msgspec.structs.replace(cut["fc1"], read_idx=(0, 16))})


def test_masks_travel_in_the_cuts_shapes(masked_run: tuple[SparseMethod, State]) -> None:
    method, state = masked_run
    submodel = cut_now(method, state)
    masks = masks_of(submodel.tensors)
    assert submodel.cut["fc1"].mask == "fc1.weight#mask"
    assert masks["fc1.weight"].shape == submodel.tensors["fc1.weight"].shape == (8, 32)
    changing, constant = split_tensors(submodel)
    assert changing["fc1.weight" + KEPT].shape == (int(masks["fc1.weight"].sum()),)
    assert constant["fc1.weight#mask_shape"].tolist() == [8, 32]
    whole = held_dense(state, method)
    assert sum(v.size for v in changing.values()) < sum(v.size for v in split_tensors(whole)[0].values())


def test_a_channel_that_a_bias_or_a_norm_can_shift_is_not_silent() -> None:
    def small(bias: bool, norm: bool) -> nn.Module:
        layers: list[nn.Module] = [nn.Conv2d(2, 4, 3, bias=bias), *([nn.BatchNorm2d(4)] if norm else []), nn.ReLU()]
        module = nn.Sequential(*layers, nn.Conv2d(4, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        module.input_spec = SPEC
        return module

    for bias, norm, is_dead in ((False, False, True), (True, False, False), (False, True, False)):
        module = small(bias, norm)
        masks = {name: np.ones(tuple(module.get_parameter(name).shape), bool) for name in prunable_weights(module)}
        masks["0.weight"][2] = False
        found = live_channels(module, channel_map(module), masks)
        assert bool(found) == is_dead, (bias, norm)
        if found:
            assert found["0"].tolist() == [True, True, False, True]


@pytest.mark.parametrize("activation", [nn.Sigmoid(), nn.Softplus()], ids=["sigmoid", "softplus"])
def test_silence_is_checked_on_numbers_where_an_operation_shifts_zero(activation: nn.Module) -> None:
    module = nn.Sequential(nn.Linear(6, 8, bias=False), activation, nn.Linear(8, 3))
    module.input_spec = InputSpec(layout="features", shape=(6,))
    masks: dict[str, np.ndarray] = {"0.weight": np.ones((8, 6), bool), "2.weight": np.ones((3, 8), bool)}
    masks["0.weight"][:3] = False
    masks["2.weight"][:, 5:] = False
    live = Compaction(module).live(masks, {})
    assert live["0"].tolist() == [True] * 5 + [False] * 3  # unread ones go, silent ones are not silent here


class OwnProduct(nn.Module):
    """Uses a layer's weight without calling the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.input_spec = InputSpec(layout="features", shape=(12,))
        self.first, self.second = nn.Linear(12, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(nn.functional.linear(x, self.first.weight, self.first.bias)))


def test_a_module_that_cannot_do_without_is_left_whole() -> None:
    module = net(OwnProduct)
    masks = {name: np.ones(tuple(module.get_parameter(name).shape), bool) for name in prunable_weights(module)}
    masks["first.weight"][:, 4:] = False  # columns that a called layer would pass over
    assert Compaction(module).live(masks, {}) == {}


def test_norms_over_channels_keep_all_of_them() -> None:
    module = net(norm=lambda channels: nn.GroupNorm(2, channels))
    masks = dying_masks(module)
    found = live_channels(module, channel_map(module), masks)
    assert "stem" not in found
    assert "conv1" not in found
    assert found["conv3"].tolist() == [True, False, True, True]


def test_death_spreads_until_nothing_more_dies() -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
    module.input_spec = InputSpec(layout="features", shape=(4,))
    masks = {name: np.ones(tuple(module.get_parameter(name).shape), bool) for name in prunable_weights(module)}
    masks["4.weight"][:, 2:] = False
    masks["2.weight"][:2, 3] = False  # unit 3 is read by dead units alone
    found = live_channels(module, channel_map(module), masks)
    assert found["2"].tolist() == [True, True, False, False, False, False]
    assert found["0"].tolist() == [True, True, True, False, True]
    masks["4.weight"][:] = False
    assert [int(kept.sum()) for kept in live_channels(module, channel_map(module), masks).values()] == [1, 1]


def test_a_smaller_network_is_made_only_when_it_pays_and_holds_what_comes_back() -> None:
    module = build_model("mlp", input_shape=(16,), classes=4, hidden=[40, 40])
    names = prunable_weights(module)
    masks = {name: np.ones(tuple(module.get_parameter(name).shape), bool) for name in names}
    compaction = Compaction(module)
    last = names[-1]

    def dying(count: int) -> Masks:
        thinner = {name: mask.copy() for name, mask in masks.items()}
        thinner[last][:, :count] = False
        return thinner

    assert compaction.live(dying(2), {}) == {}  # under a tenth
    first = compaction.live(dying(10), {})
    (group,) = first
    assert first[group].sum() == 30
    assert compaction.live(dying(11), first)[group].sum() == 30  # the network in use holds all that is alive
    assert compaction.live(dying(9), first)[group].sum() == 31  # one came back
    assert compaction.live(dying(20), first)[group].sum() == 20
    assert compaction.live(masks, first) == {}


def test_costs_are_those_of_what_is_left() -> None:
    module = build_model("conv2", input_shape=(1, 8, 8), classes=10)
    masks = {name: np.ones(tuple(module.get_parameter(name).shape), bool) for name in prunable_weights(module)}
    masks["fc2.weight"][:, 512:] = False
    compaction = Compaction(module)
    cut = compaction.cut(mask_records(tuple(masks), scored=False), compaction.live(masks, {}))
    spec = InputSpec(layout="chw", shape=(1, 8, 8))
    whole, left = cut_costs(module, {}, spec), cut_costs(module, cut, spec)
    assert whole.params - left.params == 1536 * (256 + 1 + 10)
    assert left.bytes_down == 4 * left.params
    assert is_same_function(module, cut, masks, spec)
    narrower = {**cut, "conv2": cut["conv2"]}
    assert narrower["fc1"].out_idx == tuple(range(512))


def test_a_wrong_removal_is_noticed() -> None:
    module = net()
    cut = channel_map(module).cut({"conv3": [0, 1, 2]})
    assert not is_same_function(module, cut, {}, SPEC)
    assert is_same_function(module, {}, {}, SPEC)


def test_compaction_can_be_turned_off_and_scored_rounds_hold_everything() -> None:
    module = net()
    for name, options in (("snip", {"compact": False}), ("prunefl", {"interval": 4})):
        method = build_method(name, module, options)
        assert isinstance(method, SparseMethod)
        state = replace(method.with_masks(method.init(), dying_masks(module)), round=3)
        submodel = cut_now(method, state)
        assert all(record.out_idx is None and record.in_idx is None for record in submodel.cut.values())
    narrow = cut_now(method, replace(state, round=4))
    assert narrow.cut["fc1"].out_idx is not None
    assert not narrow.program.accumulators


def test_a_fixed_mask_is_costed_and_placed_without_its_dead_channels() -> None:
    module = build_model("mlp", input_shape=(16,), classes=4, hidden=[40, 40])
    method = build_method("synflow", module, {"density": 0.03, "input": [16], "passes": 20})
    shape = method.cut_shape(method.levels()[0], round_index=0, device="", seed=0)
    assert shape == cut_now(method, method.init()).cut  # type: ignore[arg-type]
    assert any(record.out_idx is not None for record in shape.values())
    assert sum(p.numel() for p in apply_cut(module, shape).parameters()) < 0.9 * sum(
        v.size for v in module_tensors(module).values()
    )
