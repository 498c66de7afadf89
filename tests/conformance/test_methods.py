"""The same checks over every registered method: a new file in ``coordinator/methods`` is tested without an edit."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from coordinator.distillation.proxy import DistilsOnProxy
from coordinator.methods import METHODS, Method, State, Submodel, Update, build_method
from coordinator.models.vit import Block
from coordinator.submodels.build import apply_cut
from coordinator.submodels.record import cut_digest, cut_from_json, cut_to_json
from coordinator.submodels.width import cut_tensors, shape_of_cut, tensor_slices
from edge.contracts.errors import ApportionError, ConfigError
from edge.contracts.manifest import InputSpec
from edge.contracts.tensor_file import encode_tensors

pytestmark = pytest.mark.parametrize("name", sorted(METHODS))


class Net(nn.Module):
    """Convolutions with norms, a shortcut, linear layers: something for every family to cut."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 16, 3, 1, 1)
        self.bn2 = nn.BatchNorm2d(16)
        self.conv3 = nn.Conv2d(16, 32, 3, 2, 1)
        self.input_spec = InputSpec(layout="chw", shape=(3, 4, 4))
        self.fc1 = nn.Linear(32 * 4, 64)
        self.fc2 = nn.Linear(64, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(x + self.bn2(self.conv2(x)))
        x = torch.relu(self.conv3(x)).flatten(1)
        return self.fc2(torch.relu(self.fc1(x)))


class Transformer(nn.Module):
    """Two blocks behind patches, for methods that add to blocks alone; input and classifier are named as Net's."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 16, 2, 2)
        self.position = nn.Parameter(torch.randn(1, 4, 16))
        self.input_spec = InputSpec(layout="chw", shape=(3, 4, 4))
        self.blocks = nn.Sequential(Block(16, 2), Block(16, 2))
        self.fc2 = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.blocks(self.embed(x).flatten(2).transpose(1, 2) + self.position).mean(1))


MODULES: dict[str, type[nn.Module]] = {"adapter": Transformer, "prefix": Transformer, "prompt": Transformer}
"""Methods to which convolutions give no place."""


def net(name: str) -> nn.Module:
    """What method ``name`` is given."""
    return MODULES.get(name, Net)()


def needed_options(name: str) -> dict[str, Any]:
    """Options without which a method has nothing to go on."""
    if name == "slt":
        return {"levels": [0.5], "steps": [0.4, 0.6, 1], "rounds": 8}  # so small a network is all parameters
    if name == "synflow":
        return {"passes": 5}
    if name in ("feddf", "ds_fl", "fed_et"):
        return {"proxy": "tests.federation.proxy_images:build", "proxy-examples": 24, "distillation-steps": 3}
    if name == "lottery_ticket":
        path = Path(tempfile.gettempdir()) / f"apportion-ticket-{os.getpid()}.safetensors"
        generator = np.random.default_rng(0)
        state = {n: v.numpy() * (generator.random(tuple(v.shape)) < 0.5) for n, v in Net().state_dict().items()}
        path.write_bytes(encode_tensors({n: v.astype(np.float32) for n, v in state.items()}))
        return {"mask-file": str(path)}
    return {}


def method_and_state(name: str, options: Mapping[str, Any] | None = None) -> tuple[Method, State]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        method = build_method(name, net(name), {**needed_options(name), **(options or {})})
    return method, method.init()


def cut(method: Method, state: State, index: int, device: str = "pi-01") -> Submodel:
    return method.cut(state, method.levels()[index], round_index=0, device=device, seed=7)


def untrained(method: Method, state: State, index: int, device: str = "pi-01", examples: int = 4) -> Update:
    """What a device reports that trained nothing: its trained parameters and running statistics."""
    submodel = cut(method, state, index, device)
    tensors = {
        name: value
        for name, value in submodel.tensors.items()
        if name not in submodel.program.frozen and not name.endswith("num_batches_tracked")
    }
    return Update(device, submodel.level, submodel.cut, tensors, examples)


def same_bits(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and a[k].tobytes() == b[k].tobytes() for k in a)


@pytest.mark.slow
def test_is_named_as_registered(name: str) -> None:
    assert method_and_state(name)[0].name == name


def test_init_holds_the_modules_own_weights(name: str) -> None:
    method, state = method_and_state(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        dense = net(name)
    server = method.eval_models(state)["server"].cut
    expected = {key: value.numpy() for key, value in dense.state_dict().items()}
    if server:
        # The server holds less than the module, or several parts of it.
        slices = tensor_slices(dense, {path: record for path, record in server.items() if path})
        part = cut_tensors(expected, slices)
        atoms = server[""].atoms if "" in server else ()
        expected = {f"atoms.{atom}.{key}": value for atom in atoms for key, value in part.items()} or part
    added = {key for record in server.values() if record.added for key in state.tensors if key not in expected}
    assert state.round == 0
    assert state.tensors.keys() - added == expected.keys()
    for key, value in expected.items():
        if key.startswith("atoms.") and not key.startswith("atoms.0."):
            assert state.tensors[key].shape == value.shape  # another part of the module than the first atom
            continue
        mask = state.extra.get(f"{key}#mask", True)
        assert np.array_equal(state.tensors[key], np.where(mask, value, 0))


def test_levels_are_a_ladder_largest_first(name: str) -> None:
    levels = method_and_state(name)[0].levels()
    assert len({level.name for level in levels}) == len(levels) >= 1
    assert all(0 < level.capacity <= 1 for level in levels)
    assert [lv.capacity for lv in levels] == sorted((lv.capacity for lv in levels), reverse=True)


def test_every_cut_is_what_its_shape_says_and_survives_the_ledger(name: str) -> None:
    method, state = method_and_state(name)
    for level in method.levels():
        shape = method.cut_shape(level, round_index=0, device="pi-01", seed=7)
        submodel = method.cut(state, level, round_index=0, device="pi-01", seed=7)
        # One artifact for both: which channels and components they are is in the values.
        assert shape_of_cut(net(name), submodel.cut) == shape_of_cut(net(name), shape)
        assert submodel.program == method.program(shape)
        stored = cut_from_json(msgspec.json.decode(msgspec.json.encode(cut_to_json(shape))))
        assert cut_digest(stored) == cut_digest(shape)
        assert stored == dict(shape)


def test_every_cut_builds_a_module_that_runs_on_its_tensors(name: str) -> None:
    method, state = method_and_state(name)
    for index in range(len(method.levels())):
        submodel = cut(method, state, index)
        built = apply_cut(net(name), submodel.cut, submodel.tensors).eval()
        parameters = dict(built.named_parameters())
        assert {*parameters} <= submodel.tensors.keys()
        assert torch.isfinite(built(torch.ones(2, 3, 4, 4))).all()
        pairs = [factor for pair in submodel.program.frobenius for factor in pair]
        assert {*pairs, *submodel.program.frozen, *submodel.program.accumulators} <= parameters.keys()


def test_smaller_levels_are_smaller(name: str) -> None:
    method, state = method_and_state(name)
    sizes = []
    for index in range(len(method.levels())):
        submodel = cut(method, state, index)
        sizes.append(sum(p.numel() for p in apply_cut(net(name), submodel.cut).parameters()))
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(sizes)


def test_same_arguments_give_the_same_bytes(name: str) -> None:
    (first, state), (second, other) = method_and_state(name), method_and_state(name)
    count = len(first.levels())
    results = [cut(first, state, i).tensors for i in range(count)]
    again = [cut(second, other, i).tensors for i in reversed(range(count))][::-1]
    assert all(same_bits(a, b) for a, b in zip(results, again, strict=True))
    after = [
        method.aggregate(initial, (untrained(method, initial, i, f"pi-{i:02d}") for i in range(count))).tensors
        for method, initial in ((first, state), (second, other))
    ]
    assert same_bits(after[0], after[1])


def test_cutting_and_aggregating_leave_the_state_alone(name: str) -> None:
    method, state = method_and_state(name)
    before = {key: value.copy() for key, value in state.tensors.items()}
    updates = [untrained(method, state, i) for i in range(len(method.levels()))]
    copies = [{key: value.copy() for key, value in update.tensors.items()} for update in updates]
    method.eval_models(method.refresh(method.aggregate(state, updates)))
    assert same_bits(state.tensors, before)
    assert all(same_bits(update.tensors, copy) for update, copy in zip(updates, copies, strict=True))


def test_untrained_devices_of_the_largest_level_return_the_model(name: str) -> None:
    method, state = method_and_state(name)
    if isinstance(method, DistilsOnProxy):
        method, state = method_and_state(name, method.without_distillation)  # its docstring says why
    updates = [untrained(method, state, 0, device, examples) for device, examples in (("a", 1), ("b", 7))]
    after = method.refresh(method.aggregate(state, updates))
    assert after.round == 1
    assert same_bits(after.tensors, state.tensors)


def test_number_of_identical_devices_does_not_matter(name: str) -> None:
    method, state = method_and_state(name)
    for index in range(len(method.levels())):
        one = method.aggregate(state, [untrained(method, state, index)])
        five = method.aggregate(state, [untrained(method, state, index) for _ in range(5)])
        assert all(np.allclose(one.tensors[k], five.tensors[k], rtol=0, atol=1e-7) for k in one.tensors)


def test_new_state_has_the_models_names_shapes_and_types(name: str) -> None:
    method, state = method_and_state(name)
    after = method.refresh(method.aggregate(state, [untrained(method, state, len(method.levels()) - 1)]))
    described = [{k: (v.shape, v.dtype) for k, v in s.tensors.items()} for s in (state, after)]
    assert described[0] == described[1]


def test_server_is_evaluated_and_every_evaluated_model_runs(name: str) -> None:
    method, state = method_and_state(name)
    models = method.eval_models(state)
    assert same_bits(models["server"].tensors, state.tensors)
    for submodel in models.values():
        built = apply_cut(net(name), submodel.cut, submodel.tensors).eval()
        assert torch.isfinite(built(torch.ones(2, 3, 4, 4))).all()


@pytest.mark.parametrize(
    "options",
    [
        {"no-such-option": 1},
        {"loss": "no_such_loss"},
        {"loss": None},
        {"norm": ["running"]},
        {"levels": [math.nan]},
        {"levels": {"a": 1}},
        {"loss": 3, "norm": 4, "no-such-option": 5},
    ],
    ids=repr,
)
def test_hostile_options_are_refused_with_their_paths(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        method_and_state(name, options)
    assert len(caught.value.problems) == len(options)
    for key in options:
        assert f"$.method.{key}" in str(caught.value)


@pytest.mark.parametrize("change", ["nan", "shape", "unknown", "no examples"])
def test_hostile_update_is_refused_by_device(name: str, change: str) -> None:
    method, state = method_and_state(name)
    good = untrained(method, state, 0, "pi-07")
    tensors = dict(good.tensors)
    if change == "nan":
        tensors["fc2.bias"] = np.full(5, np.nan, np.float32)
    elif change == "shape":
        tensors["fc2.bias"] = np.zeros(6, np.float32)
    elif change == "unknown":
        tensors["fc9.bias"] = np.zeros(5, np.float32)
    bad = Update(good.device, good.level, good.cut, tensors, 0 if change == "no examples" else 4)
    with pytest.raises(ApportionError, match="pi-07"):
        method.aggregate(state, [bad])


def test_no_updates_are_refused(name: str) -> None:
    method, state = method_and_state(name)
    with pytest.raises(ApportionError, match="no updates"):
        method.aggregate(state, [])
