"""Methods with one mask for everybody: when masks change, what comes back, what a device is asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from coordinator.methods import Method, State, Update, build_method
from coordinator.methods.synflow import synaptic_flow
from coordinator.pruning.masks import density
from edge.contracts.errors import ConfigError, PlanError
from edge.contracts.tensor_file import encode_tensors

PRUNABLE = ("0.weight", "3.weight")


def net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 4))


def trained(method: Method, state: State, device: str, *, seed: int, examples: int = 4) -> Update:
    """An update whose kept weights moved and whose scores are made up."""
    submodel = method.cut(state, method.levels()[0], round_index=state.round, device=device, seed=0)
    generator = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}
    for name, value in submodel.tensors.items():
        if "#" in name:
            continue
        step = generator.standard_normal(value.shape).astype(np.float32) * 0.1
        tensors[name] = value + step * submodel.tensors.get(f"{name}#mask", True)
    for name in submodel.program.accumulators:
        tensors[f"{name}#squared_gradient"] = generator.exponential(size=tensors[name].shape).astype(np.float32)
    return Update(device, submodel.level, submodel.cut, tensors, examples)


def rounds(method: Method, count: int, state: State | None = None) -> list[State]:
    states = [method.init() if state is None else state]
    for index in range(count):
        updates = [trained(method, states[-1], d, seed=10 * index + i) for i, d in enumerate(("a", "b"))]
        states.append(method.refresh(method.aggregate(states[-1], updates)))
    return states


def masks(state: State) -> dict[str, np.ndarray]:
    return {name: state.extra[f"{name}#mask"] for name in PRUNABLE}


def test_prunefl_reconfigures_every_interval_and_asks_for_scores_only_then() -> None:
    method = build_method("prunefl", net(), {"interval": 3, "constant-s": 1.0, "layer-s": [0.001, 0.01]})
    level = method.levels()[0]
    asked = [
        bool(method.program(method.cut_shape(level, round_index=i, device="", seed=0)).accumulators) for i in range(6)
    ]
    assert asked == [False, False, True, False, False, True]
    states = rounds(method, 6)
    assert [density(masks(s)) == 1.0 for s in states] == [True, True, True, False, False, False, False]
    assert all(np.array_equal(masks(states[3])[n], masks(states[5])[n]) for n in PRUNABLE)
    changed = masks(states[6])
    for name in PRUNABLE:
        assert not states[6].tensors[name][~changed[name]].any()
        came_back = changed[name] & ~masks(states[5])[name]
        assert not states[6].tensors[name][came_back].any()  # a weight that comes back starts at 0
    assert any((masks(states[6])[n] & ~masks(states[5])[n]).any() for n in PRUNABLE)


def test_prunefl_limit_is_kept_from_the_first_reconfiguration() -> None:
    options = {"interval": 1, "first-density": 0.4, "last-density": 0.2, "limit-rounds": 4}
    states = rounds(build_method("prunefl", net(), options), 5)
    total = sum(masks(states[0])[n].size for n in PRUNABLE)
    for state in states[1:]:
        allowed = 0.4 - 0.2 * min(state.round / 4, 1)
        assert sum(int(m.sum()) for m in masks(state).values()) <= int(allowed * total + 1e-9)


def test_prunefl_initial_pruning_takes_one_device_until_the_density_settles() -> None:
    method = build_method("prunefl", net(), {"initial-rounds": 40, "interval": 50, "selected-device": "b"})
    state = method.init()
    assert method.select(state, ["a", "b"]) == ["b"]
    assert method.select(state, ["c", "a"]) == ["a"]  # the selected one is not there
    for index in range(40):
        if list(method.select(state, ["a", "b"])) == ["a", "b"]:
            break
        state = method.aggregate(state, [trained(method, state, "b", seed=index)])
    assert 5 <= state.round < 40
    assert list(method.select(state, ["a", "b"])) == ["a", "b"]
    # Rounds that were left for initial pruning send no scores.
    submodel = method.cut(state, method.levels()[0], round_index=state.round, device="a", seed=0)
    assert not submodel.program.accumulators


def test_iterative_pruning_leaves_every_layer_its_density_after_half_of_the_rounds() -> None:
    method = build_method("iterative_magnitude", net(), {"density": 0.25, "rounds": 8, "prunings": 2})
    states = rounds(method, 8)
    shares = [{n: m.mean() for n, m in masks(s).items()} for s in states]
    assert all(
        shares[r][n] == pytest.approx(w, abs=0.02) for r, w in ((0, 1), (1, 1), (2, 0.5), (3, 0.5)) for n in PRUNABLE
    )
    assert all(shares[8][n] == pytest.approx(0.25, abs=0.02) for n in PRUNABLE)
    assert shares[4] == shares[8]


def test_snip_masks_once_by_weight_times_step() -> None:
    method = build_method("snip", net(), {"density": 0.1})
    assert method.cut_shape(method.levels()[0], round_index=0, device="", seed=0) == {}
    states = rounds(method, 3)
    assert density(masks(states[1])) == pytest.approx(0.1, abs=0.002)
    assert all(np.array_equal(masks(states[1])[n], masks(states[3])[n]) for n in PRUNABLE)
    update = [trained(method, states[0], d, seed=i) for i, d in enumerate(("a", "b"))]
    moved = {n: (update[0].tensors[n].astype(np.float64) + update[1].tensors[n]) / 2 for n in PRUNABLE}
    score = {n: np.abs(states[0].tensors[n] * (moved[n] - states[0].tensors[n])) for n in PRUNABLE}
    kept = np.concatenate([score[n][masks(states[1])[n]] for n in PRUNABLE])
    gone = np.concatenate([score[n][~masks(states[1])[n]] for n in PRUNABLE])
    assert kept.min() >= gone.max() * (1 - 1e-5)


def test_synflow_scores_are_those_of_the_product_of_paths() -> None:
    linear = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
    with torch.no_grad():
        linear[0].weight.copy_(torch.tensor([[1.0, -2.0], [3.0, 0.5]]))
        linear[1].weight.copy_(torch.tensor([[0.1, 2.0]]))
    # flow of a first-layer weight is |w| |u|: 0.1 0.2 / 6.0 1.0; of a second-layer one its whole inflow: 0.3 7.0
    found = synaptic_flow(linear, ("0.weight", "1.weight"), (2,), 0.5, 1)
    assert found["0.weight"].tolist() == [[False, False], [True, True]]
    assert found["1.weight"].tolist() == [[False, True]]
    assert not any(p.grad is not None for p in linear.parameters())
    assert linear[0].weight[0, 1].item() == -2.0  # the module itself is left alone


def test_ticket_masks_what_is_zero_in_the_file_and_keeps_the_first_weights(tmp_path: Path) -> None:
    final = {n: v.numpy().copy() for n, v in net().state_dict().items()}
    final["3.weight"][:, ::2] = 0
    path = tmp_path / "final.safetensors"
    path.write_bytes(encode_tensors(final))
    state = build_method("lottery_ticket", net(), {"mask-file": str(path)}).init()
    assert not state.tensors["3.weight"][:, ::2].any()
    assert np.array_equal(state.tensors["3.weight"][:, 1::2], net().state_dict()["3.weight"].numpy()[:, 1::2])


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("lottery_ticket", {}, "mask-file"),
        ("lottery_ticket", {"mask-file": "/no/such/file"}, "cannot be read"),
        ("synflow", {"density": 0.1}, "a shape needed"),
        ("snip", {"density": 2.0}, "up to 1"),
        ("iterative_magnitude", {"density": 0.5, "rounds": 10}, "at least 40 rounds"),
        ("prunefl", {"time-model": "pi4-vgg11"}, "11 coefficients for 2 prunable layers"),
        ("prunefl", {"constant-s": 1.0, "layer-s": [1.0]}, "one value per prunable layer"),
    ],
)
def test_impossible_options_name_the_value(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_method(name, net(), options)


def test_model_without_prunable_layers_is_refused() -> None:
    with pytest.raises(PlanError, match="no convolution or linear layer"):
        build_method("prunefl", nn.Sequential(nn.BatchNorm2d(3)), {})


def test_what_a_device_sends_outside_the_mask_does_not_count() -> None:
    method = build_method("snip", net(), {"density": 0.2})
    state = rounds(method, 1)[-1]
    update = trained(method, state, "a", seed=3)
    noisy = {n: v + np.float32(1) if n in PRUNABLE else v for n, v in update.tensors.items()}
    after = method.aggregate(state, [replace(update, tensors=noisy)])
    assert all(not after.tensors[n][~masks(state)[n]].any() for n in PRUNABLE)
