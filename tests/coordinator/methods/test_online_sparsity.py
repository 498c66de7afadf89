"""Online sparsity: what a device is asked to compare, what the server makes of it, and what comes back how."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from coordinator.methods import Method, State, Submodel, Update, build_method
from coordinator.methods.online_sparsity import CONTROL, DENSE
from coordinator.pruning.masks import density
from coordinator.pruning.size_control import SizeControl
from coordinator.rounds.program_schedule import training_turns
from coordinator.simulation.torch_session import TorchArtifact
from coordinator.submodels.build import apply_cut
from coordinator.submodels.packed_tensors import split_tensors
from edge.contracts.manifest import InputSpec
from edge.contracts.streams import stream_seed, uniform
from export.loss_probe import LOSSES, PREVIOUS, THRESHOLD
from export.training_step import Optimizer, StepSpec

PRUNABLE = {"0.weight": 54, "3.weight": 384}
TOTAL = sum(PRUNABLE.values())
OPTIONS = {"constant-s": 1.0, "layer-s": [0.01, 0.02]}


def net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 4))


def cut(method: Method, state: State, device: str = "a") -> Submodel:
    return method.cut(state, method.levels()[0], round_index=state.round, device=device, seed=0)


def update(
    method: Method, state: State, device: str, losses: tuple[float, ...] | None, *, examples: int = 4, seed: int = 0
) -> Update:
    """Kept weights that moved, and made-up losses (at k, before, at k')."""
    submodel = cut(method, state, device)
    generator = np.random.default_rng([seed, state.round, len(device)])
    tensors: dict[str, np.ndarray] = {}
    for name, value in submodel.tensors.items():
        if "#" not in name:
            step = generator.standard_normal(value.shape).astype(np.float32) * 0.1
            tensors[name] = value + step * submodel.tensors.get(f"{name}#mask", True)
    if losses is not None:
        tensors[LOSSES] = np.array([1.0, *losses], np.float32)
    return Update(device, submodel.level, submodel.cut, tensors, examples)


def masks(state: State) -> Mapping[str, np.ndarray]:
    return {name: state.extra[f"{name}#mask"] for name in PRUNABLE}


def seconds(size: int) -> float:
    return 1.0 + size / TOTAL * (54 * 0.01 + 384 * 0.02)


def started(method: Method) -> State:
    """After the first round, in which there is nothing to compare with."""
    first = method.init()
    state = method.aggregate(first, [update(method, first, "a", (1.0, 1.0, 1.0))])
    assert SizeControl.from_array(state.extra[CONTROL]) == SizeControl.first(TOTAL)
    return state


def test_size_follows_the_costs_of_the_devices_losses() -> None:
    method = build_method("online_sparsity", net(), {**OPTIONS, "rounding-seed": 5})
    state = started(method)
    control = SizeControl.from_array(state.extra[CONTROL])
    reports = [((0.8, 1.0, 0.85), 4), ((0.6, 1.2, 0.75), 12)]
    updates = [update(method, state, d, losses, examples=n) for d, (losses, n) in zip("ab", reports, strict=True)]
    after = method.aggregate(state, updates)
    present, previous, lesser = (sum(r[0][i] * r[1] for r in reports) / 16 for i in range(3))
    assert (present, previous, lesser) == pytest.approx((0.65, 1.15, 0.775))
    lesser_cost = seconds(control.lesser) * (previous - present) / (previous - lesser)
    assert lesser_cost > seconds(control.size)  # fewer weights gained less than they saved: k wants to grow
    draws = uniform(stream_seed(5, "online-sparsity/rounding", 1), 2).tolist()
    expected = control.after(seconds(control.size), lesser_cost, (draws[0], draws[1]))
    assert SizeControl.from_array(after.extra[CONTROL]) == expected
    better = [update(method, state, "a", (0.65, 1.15, 0.66))]
    found = SizeControl.from_array(method.aggregate(state, better).extra[CONTROL])
    step = (TOTAL - 2) / math.sqrt(2)
    assert found.size in (math.floor(TOTAL - step), math.ceil(TOTAL - step))  # as good and faster: k falls


@pytest.mark.parametrize("losses", [(1.1, 1.0, 0.9), (0.9, 1.0, 1.0), (1.0, 1.0, 1.0), None])
def test_without_two_losses_that_fell_the_size_stays(losses: tuple[float, ...] | None) -> None:
    method = build_method("online_sparsity", net(), OPTIONS)
    state = started(method)
    after = method.aggregate(state, [update(method, state, "a", losses)])
    control = SizeControl.from_array(after.extra[CONTROL])
    assert control.size == TOTAL
    assert control.waited == (0 if losses is None else 1)


def test_a_device_that_did_not_compare_says_nothing() -> None:
    method = build_method("online_sparsity", net(), OPTIONS)
    state = started(method)
    good = update(method, state, "a", (0.6, 1.0, 0.7))
    silent = update(method, state, "b", None, examples=100)
    silent.tensors[LOSSES] = np.zeros(4, np.float32)  # type: ignore[index]
    both = method.aggregate(state, [good, silent])
    assert np.array_equal(both.extra[CONTROL], method.aggregate(state, [good]).extra[CONTROL])


def test_every_layer_keeps_the_same_share_and_what_comes_back_has_its_last_value() -> None:
    method = build_method("online_sparsity", net(), OPTIONS)
    states = [started(method)]
    for losses in ((0.6, 1.0, 0.61), (0.6, 1.0, 0.95), (0.6, 1.0, 0.99)):  # down, then up again
        states.append(method.aggregate(states[-1], [update(method, states[-1], "a", losses, seed=len(states))]))
    sizes = [SizeControl.from_array(s.extra[CONTROL]).size for s in states]
    assert sizes[0] > sizes[1] < sizes[2]
    for state, size in zip(states, sizes, strict=True):
        for name, mask in masks(state).items():
            assert mask.sum() == round(size / TOTAL * PRUNABLE[name])
            kept, gone = (np.abs(state.extra[DENSE + name][m]) for m in (mask, ~mask))
            assert not gone.size or kept.min() >= gone.max()
            assert not state.tensors[name][~mask].any()
    low, high = states[1], states[2]
    returned = masks(high)["3.weight"] & ~masks(low)["3.weight"]
    assert returned.any()
    assert np.array_equal(high.tensors["3.weight"][returned], states[1].extra[DENSE + "3.weight"][returned])
    assert high.tensors["3.weight"][returned].all()
    assert density(masks(low)) < density(masks(high)) <= 1


def test_devices_losses_are_those_of_the_models_the_server_means() -> None:
    module = net()
    method = build_method("online_sparsity", module, OPTIONS)
    before = started(method)
    state = method.aggregate(before, [update(method, before, "a", (0.6, 1.0, 0.7))])
    submodel = cut(method, state)
    spec = StepSpec(
        input=InputSpec(layout="chw", shape=(1, 6, 6)),
        classes=4,
        optimizer=Optimizer(momentum=False, weight_decay=False),
        masked=submodel.program.masked,
        probe=submodel.program.probe,
    )
    session = TorchArtifact(apply_cut(module, submodel.cut), spec, classes=list("0123")).session("cpu")
    session.load_state(submodel.tensors)
    generator = np.random.default_rng(0)
    x, y = generator.standard_normal((5, 1, 6, 6)).astype(np.float32), generator.integers(0, 4, 5)
    feeds = {"input": x, "target": y, "lr": np.array(0.5, np.float32)}
    turns = training_turns(submodel.program, seed=0, round_index=1, device="a")
    assert [turn.program for turn in turns[:3]] == ["train_probe", "train", "train"]
    assert [turn.advance_batch for turn in turns[:3]] == [False, True, True]
    assert {turn.program for turn in turns[1:]} == {"train"}
    for turn in (*turns[:3], turns[0]):  # a longer round comes to the comparison again, with other weights
        session.run(turn.program, feeds)

    def loss(tensors: Mapping[str, np.ndarray]) -> float:
        part = net().double()
        part.load_state_dict({n: torch.from_numpy(np.array(tensors[n])).double() for n in part.state_dict()})
        with torch.no_grad():
            return float(F.cross_entropy(part(torch.from_numpy(x).double()), torch.from_numpy(y)))

    control = SizeControl.from_array(state.extra[CONTROL])
    thinned = dict(state.tensors)
    for name, size in PRUNABLE.items():
        kept = max(1, round(control.lesser / TOTAL * size))
        order = np.argsort(-np.abs(state.tensors[name]).reshape(-1), kind="stable")
        value = np.zeros(size, np.float32)
        value[order[:kept]] = state.tensors[name].reshape(-1)[order[:kept]]
        thinned[name] = value.reshape(state.tensors[name].shape)
    expected = [1.0, loss(state.tensors), loss(before.tensors), loss(thinned)]
    np.testing.assert_allclose(session.read(LOSSES), expected, rtol=1e-5)


def test_earlier_weights_travel_without_their_zeros() -> None:
    method = build_method("online_sparsity", net(), OPTIONS)
    state = started(method)
    for losses in ((0.6, 1.0, 0.61), (1.0, 1.0, 1.0)):
        state = method.aggregate(state, [update(method, state, "a", losses)])
    changing, constant = split_tensors(cut(method, state))
    for name, size in PRUNABLE.items():
        kept = changing[name + PREVIOUS + "#kept"]
        assert kept.size < size
        assert kept.all()
        assert name + PREVIOUS not in changing
        assert constant[name + PREVIOUS + "#mask_shape"].tolist() == list(state.tensors[name].shape)
        assert changing[name + THRESHOLD].shape == ()
    assert changing["3.bias" + PREVIOUS].shape == (4,)


def test_it_knows_no_compaction_and_gives_its_seconds() -> None:
    method = build_method("online_sparsity", net(), OPTIONS)
    state = method.init()
    assert method.round_seconds(state) == pytest.approx(seconds(TOTAL))  # type: ignore[attr-defined]
    after = replace(started(method), round=7)
    assert cut(method, after).program.probe
    with pytest.raises(Exception, match=r"\$.method.compact"):
        build_method("online_sparsity", net(), {"compact": True})
