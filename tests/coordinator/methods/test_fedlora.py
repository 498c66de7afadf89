"""FedLoRA: products averaged over mixed ranks by hand, what the server keeps, what devices get back, options."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from torch import nn

from coordinator.methods import Method, State, Submodel, Update, build_method
from coordinator.models.catalog import build_model
from coordinator.rounds.global_model import decode_state, encode_state
from coordinator.submodels.costs import cut_costs
from edge.contracts.errors import ConfigError, PlanError, UpdateRejected
from edge.contracts.manifest import InputSpec


class Tiny(nn.Module):
    """One layer that is adapted, one norm, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)


def tiny(**options: Any) -> tuple[Method, State]:
    method = build_method("fedlora", Tiny(), {"levels": [1, 4], **options})
    return method, method.init()


def sent(method: Method, state: State, index: int) -> Submodel:
    return method.cut(state, method.levels()[index], round_index=state.round, device="a", seed=9)


def update(method: Method, state: State, index: int, u: np.ndarray, v: np.ndarray, *, examples: int = 1) -> Update:
    """What a device reports whose factors became u and v, and whose head and norm are as they were."""
    submodel = sent(method, state, index)
    kept = ("last.weight", "last.bias", "norm.running_mean", "norm.running_var")
    tensors = {n: submodel.tensors[n] for n in kept} | {"first.u": u, "first.v": v}
    return Update("a", submodel.level, submodel.cut, tensors, examples)


def factors(rank: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((5, rank)).astype(np.float32), rng.standard_normal((rank, 6)).astype(np.float32)


def test_first_round_sends_the_base_and_factors_without_effect() -> None:
    method, state = tiny()
    small, large = sent(method, state, 1), sent(method, state, 0)
    assert np.array_equal(small.tensors["first.weight"], state.tensors["first.weight"])
    assert not large.tensors["first.u"].any()
    assert np.array_equal(small.tensors["first.v"], large.tensors["first.v"][:1])
    assert small.program.frozen == ("first.weight", "first.bias", "norm.weight", "norm.bias")


def test_products_of_mixed_ranks_are_averaged_by_capacity() -> None:
    method, state = tiny()
    (u1, v1), (u4, v4) = factors(1, 0), factors(4, 1)
    after = method.aggregate(state, [update(method, state, 1, u1, v1), update(method, state, 0, u4, v4)])
    # softmax(gamma / 1) of gamma 1/4 and 1.
    small, large = math.exp(0.25), math.exp(1.0)
    expected = (small * (u1.astype(float) @ v1) + large * (u4.astype(float) @ v4)) / (small + large)
    learnt = after.extra["first.weight#learnt"]
    assert np.abs(learnt - expected).max() < 1e-6
    assert np.array_equal(after.extra["first.weight#base"], state.tensors["first.weight"])
    assert np.array_equal(after.tensors["first.weight"], state.tensors["first.weight"] + learnt)
    assert np.array_equal(after.tensors["first.bias"], state.tensors["first.bias"])


def test_small_device_gets_the_best_part_and_the_server_keeps_all() -> None:
    method, state = tiny()
    after = method.aggregate(state, [update(method, state, 0, *factors(4, 2))])
    learnt = after.extra["first.weight#learnt"].astype(float)
    left, values, right = np.linalg.svd(learnt)
    small, large = sent(method, after, 1), sent(method, after, 0)
    assert np.abs(large.tensors["first.u"] @ large.tensors["first.v"] - learnt).max() < 1e-5
    best = values[0] * np.outer(left[:, 0], right[0])
    assert np.abs(small.tensors["first.u"] @ small.tensors["first.v"] - best).max() < 1e-5
    assert np.array_equal(small.tensors["first.weight"], state.tensors["first.weight"])  # not counted twice


def test_state_goes_on_from_its_checkpoint() -> None:
    method, state = tiny()
    after = method.aggregate(state, [update(method, state, 1, *factors(1, 3))])
    restored = decode_state(encode_state(after), round_index=1)
    again = build_method("fedlora", Tiny(), {"levels": [1, 4]})
    for index in (0, 1):
        one, other = sent(method, after, index).tensors, sent(again, restored, index).tensors
        assert one.keys() == other.keys()
        assert all(one[n].tobytes() == other[n].tobytes() for n in one)


def test_running_statistics_follow_the_examples_and_the_head_the_capacity() -> None:
    method, state = tiny()
    one, other = (update(method, state, i, *factors(r, 4), examples=e) for i, r, e in ((0, 4, 1), (1, 1, 3)))
    one.tensors["norm.running_mean"], other.tensors["norm.running_mean"] = np.zeros(5), np.full(5, 4.0)  # type: ignore[index]
    one.tensors["last.bias"], other.tensors["last.bias"] = np.zeros(3), np.ones(3)  # type: ignore[index]
    after = method.aggregate(state, [one, other])
    assert np.allclose(after.tensors["norm.running_mean"], 3.0)
    assert np.allclose(after.tensors["last.bias"], math.exp(0.25) / (math.exp(0.25) + math.exp(1.0)))


def test_frozen_tensor_in_an_update_is_refused() -> None:
    method, state = tiny()
    bad = update(method, state, 0, *factors(4, 5))
    bad.tensors["first.bias"] = np.zeros(5)  # type: ignore[index]
    with pytest.raises(UpdateRejected, match=r"first\.bias"):
        method.aggregate(state, [bad])


def test_half_a_pair_is_refused_by_device() -> None:
    method, state = tiny()
    bad = update(method, state, 0, *factors(4, 5))
    del bad.tensors["first.u"]  # type: ignore[attr-defined]
    with pytest.raises(UpdateRejected, match=r"device a.*'first'"):
        method.aggregate(state, [bad])


def test_default_levels_are_the_papers_ranks_and_those_that_fit() -> None:
    assert [level.value for level in build_method("fedlora", build_model("vit"), {}).levels()] == [16, 8, 4, 2]
    method = build_method("fedlora", Tiny(), {})
    assert [(level.value, level.capacity) for level in method.levels()] == [(4, 1.0), (2, 0.5)]


def test_costs_of_the_small_transformer_by_hand() -> None:
    # Width 128, depth 4: qkv (128 -> 384) and proj (128 -> 128) take 4 r (128 + 384 + 128 + 128); head 128 x 10 + 10.
    module = build_model("vit")
    method = build_method("fedlora", module, {"levels": [8]})
    cut = method.cut_shape(method.levels()[0], round_index=0, device="", seed=0)
    costs = cut_costs(module, cut, InputSpec(layout="chw", shape=(3, 32, 32)))
    trained = 4 * 8 * 768 + 1290
    assert costs.bytes_up == 4 * trained
    assert costs.params == sum(p.numel() for p in module.parameters()) + 4 * 8 * 768


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"levels": [2.5]}, "whole numbers"),
        ({"head": "first2"}, "first, last"),
        ({"layout": "conv*"}, "first"),
        ({"levels": [6]}, "rank 6.*only 5"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, PlanError), match=words):
        build_method("fedlora", Tiny(), options)


def test_model_without_a_layer_to_adapt_is_refused() -> None:
    with pytest.raises(PlanError, match="head 'fc'"):
        build_method("fedlora", build_model("resnet8"), {})


def test_another_head_may_be_named() -> None:
    method = build_method("fedlora", Tiny(), {"levels": [1], "head": "first"})
    cut = method.cut_shape(method.levels()[0], round_index=0, device="", seed=0)
    assert cut["last"].factor is not None
    assert "first" not in cut
