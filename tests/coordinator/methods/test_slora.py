"""SLoRA: a sparse stage, one decomposition, factors averaged plainly; by hand on a tiny network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import nn

from coordinator.methods import Method, State, Submodel, Update, build_method
from coordinator.models.catalog import build_model
from coordinator.rounds.global_model import decode_state, encode_state
from coordinator.submodels.packed_tensors import split_tensors
from edge.contracts.errors import ConfigError, PlanError, UpdateRejected

MASK, SPARSE = "first.difference#mask", "first.difference"


class Tiny(nn.Module):
    """One layer that is adapted and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(12, 10), nn.Linear(10, 3)


def tiny(**options: Any) -> tuple[Method, State]:
    method = build_method("slora", Tiny(), {"levels": [2], "stage-one-rounds": 2, "density": 0.25, **options})
    return method, method.init()


def sent(method: Method, state: State, device: str = "a", seed: int = 9) -> Submodel:
    return method.cut(state, method.levels()[0], round_index=state.round, device=device, seed=seed)


def update(submodel: Submodel, examples: int = 1, **tensors: np.ndarray) -> Update:
    """What a device reports: ``tensors`` (dots written as ``__``), the classifier as it was."""
    trained = {n: v for n, v in submodel.tensors.items() if n not in submodel.program.frozen and n != MASK}
    trained |= {name.replace("__", "."): value for name, value in tensors.items()}
    return Update("a", submodel.level, submodel.cut, trained, examples)


def after_stage_one(method: Method, state: State) -> tuple[State, np.ndarray]:
    """The state when stage one is over, and the difference learnt in its last round."""
    rng = np.random.default_rng(0)
    for _ in range(2):
        submodel = sent(method, state)
        learnt = np.where(submodel.tensors[MASK], rng.standard_normal((10, 12)), 0).astype(np.float32)
        state = method.refresh(method.aggregate(state, [update(submodel, first__difference=learnt)]))
    return state, learnt


def test_one_mask_holds_for_all_devices_and_rounds_of_a_run() -> None:
    method, state = tiny()
    one = sent(method, state, "a").tensors[MASK]
    later = State(state.tensors, state.extra, 1)
    assert np.array_equal(one, sent(method, later, "b").tensors[MASK])
    assert one.sum() == 30  # a quarter of 10 x 12
    assert not np.array_equal(one, sent(method, state, seed=10).tensors[MASK])


def test_stage_one_trains_masked_differences_and_sends_their_entries_alone() -> None:
    method, state = tiny()
    submodel = sent(method, state)
    assert submodel.program.masked == (SPARSE,)
    assert {*submodel.program.frozen} == {"first.weight", "first.bias"}
    changing, constant = split_tensors(submodel)
    assert changing.keys() == {"first.difference#kept", "last.weight", "last.bias"}
    assert changing["first.difference#kept"].size == 30
    assert {"first.weight", "first.bias"} < constant.keys()


def test_stage_one_is_the_mean_of_differences_by_examples() -> None:
    method, state = tiny()
    submodel = sent(method, state)
    values = [np.where(submodel.tensors[MASK], value, 0).astype(np.float32) for value in (1.0, 5.0)]
    updates = [update(submodel, n, first__difference=v) for n, v in zip((3, 1), values, strict=True)]
    after = method.refresh(method.aggregate(state, updates))
    assert np.array_equal(after.extra[SPARSE], np.where(submodel.tensors[MASK], np.float32(2), 0))
    assert np.array_equal(after.tensors["first.weight"], state.tensors["first.weight"] + after.extra[SPARSE])
    assert np.array_equal(sent(method, after).tensors["first.weight"], state.tensors["first.weight"])


def test_decomposed_difference_is_where_every_device_begins_stage_two() -> None:
    method, state = tiny()
    after, learnt = after_stage_one(method, state)
    assert SPARSE not in after.extra
    first, second = sent(method, after, "a"), sent(method, after, "b")
    u, v = first.tensors["first.u"], first.tensors["first.v"]
    assert np.array_equal(u, second.tensors["first.u"])
    assert np.array_equal(v, second.tensors["first.v"])
    left, values, right = np.linalg.svd(learnt.astype(float))
    best = (left[:, :2] * values[:2]) @ right[:2]
    assert np.abs(u @ v - best).max() < 1e-5
    assert np.abs(np.linalg.norm(u) - np.linalg.norm(v)) < 1e-5  # sqrt(Sigma) on both
    base = state.tensors["first.weight"]
    assert np.array_equal(first.tensors["first.weight"], base)
    assert np.abs(after.tensors["first.weight"] - (base + best)).max() < 1e-5  # what exceeds the rank is lost
    assert {*first.program.frozen} == {"first.weight", "first.bias"}
    assert first.program.masked == ()


def test_stage_two_is_the_mean_of_each_factor_not_of_products() -> None:
    method, state = tiny()
    state, _ = after_stage_one(method, state)
    submodel = sent(method, state)
    rng = np.random.default_rng(1)
    pairs = [(rng.standard_normal((10, 2)), rng.standard_normal((2, 12))) for _ in range(2)]
    updates = [
        update(submodel, n, first__u=u.astype(np.float32), first__v=v.astype(np.float32))
        for n, (u, v) in zip((3, 1), pairs, strict=True)
    ]
    after = method.refresh(method.aggregate(state, updates))
    u, v = ((3 * one + other) / 4 for one, other in zip(*pairs, strict=True))
    assert np.abs(after.extra["first.u"] - u).max() < 1e-6
    expected = sent(method, state).tensors["first.weight"] + u @ v
    assert np.abs(after.tensors["first.weight"] - expected).max() < 1e-5
    assert np.array_equal(after.tensors["first.bias"], state.tensors["first.bias"])


def test_without_stage_one_factors_begin_without_effect() -> None:
    method, state = tiny(**{"stage-one-rounds": 0})
    submodel = sent(method, state)
    assert not submodel.tensors["first.u"].any()
    assert np.abs(submodel.tensors["first.v"]).max() > 0.05
    assert np.array_equal(state.tensors["first.weight"], submodel.tensors["first.weight"])


def test_either_stage_goes_on_from_its_checkpoint() -> None:
    method, state = tiny()
    first = method.refresh(method.aggregate(state, [update(sent(method, state))]))
    for at in (first, after_stage_one(method, state)[0]):
        restored = decode_state(encode_state(at), round_index=at.round)
        one, other = sent(method, at).tensors, sent(build_method("slora", Tiny(), OPTIONS), restored).tensors
        assert one.keys() == other.keys()
        assert all(one[name].tobytes() == other[name].tobytes() for name in one)


OPTIONS = {"levels": [2], "stage-one-rounds": 2, "density": 0.25}


def test_update_of_the_other_stage_is_refused() -> None:
    method, state = tiny()
    late = update(sent(method, state))
    state, _ = after_stage_one(method, state)
    with pytest.raises(UpdateRejected, match=r"device a, round 2.*first\.difference"):
        method.aggregate(state, [late])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"density": 0}, "density: 0 given"),
        ({"density": 1.5}, "density: 1.5 given, a share"),
        ({"stage-one-rounds": -1}, "stage-one-rounds: -1"),
        ({"levels": [11]}, "rank 11.*only 10"),
        ({"layout": "conv*"}, "matches no linear layer"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, PlanError), match=words):
        tiny(**options)


def test_model_without_a_layer_to_adapt_is_refused() -> None:
    with pytest.raises(PlanError, match="head 'fc'"):
        build_method("slora", build_model("resnet8"), {})
