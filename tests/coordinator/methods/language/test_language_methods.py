"""Methods of language models against the same sums with dense matrices in float64."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator.methods import build_method
from coordinator.methods.language.language_method import LanguageMethod
from coordinator.submodels.lora import learnt_differences
from coordinator.submodels.values import Level, State, Submodel, Update
from edge.contracts.errors import ConfigError, PlanError, UpdateRejected
from export.language.causal_model import meta_model
from tests.language_models import TINY

DEVICES = (("a", 0, 30), ("b", 1, 10), ("c", 1, 20))
"""Device, number of its level, examples."""


def method(name: str, **options: object) -> LanguageMethod:
    module = meta_model(TINY)
    module.initial_seed = 3  # type: ignore[assignment]
    made = build_method(name, module, {"levels": [4, 2], **options})
    assert isinstance(made, LanguageMethod)
    return made


def trained(submodel: Submodel, device: str, *, rows: bool = True) -> dict[str, np.ndarray]:
    """What the device would send: its factors, moved."""
    moved = {}
    for name, value in submodel.tensors.items():
        seed = sum(f"{device} {name}".encode())
        step = np.random.default_rng(seed).normal(0, 0.1, value.shape).astype(np.float32)
        if rows or name.endswith(".u"):
            moved[name] = value + step
    return moved


def dense(tensors: dict[str, np.ndarray], submodel: Submodel) -> dict[str, np.ndarray]:
    return learnt_differences({**submodel.tensors, **tensors}, submodel.cut)


def difference(state: State, path: str) -> np.ndarray:
    return state.tensors[f"{path}.u"].astype(np.float64) @ state.tensors[f"{path}.v"].astype(np.float64)


def round_of(made: LanguageMethod, state: State, *, rows: bool = True) -> tuple[State, list[tuple[Submodel, Update]]]:
    sent = []
    for device, number, examples in DEVICES:
        level = made.levels()[number]
        submodel = made.cut(state, level, round_index=state.round, device=device, seed=7)
        sent.append(
            (submodel, Update(device, level, submodel.cut, trained(submodel, device, rows=rows), num_examples=examples))
        )
    return made.aggregate(state, [update for _, update in sent]), sent


def close(got: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(got - expected).max() <= 2e-6 * np.abs(expected).max()  # the state is float32


@pytest.mark.parametrize("name", ["fedlora", "flora", "ffa_lora"])
def test_a_state_holds_factors_alone_and_begins_at_the_base(name: str) -> None:
    made = method(name)
    state = made.init()
    assert {key.rpartition(".")[2] for key in state.tensors} == {"u", "v"}
    assert not state.extra
    assert not any(value.any() for key, value in state.tensors.items() if key.endswith(".u"))


def test_fedlora_of_two_rounds_is_the_dense_mean_of_products() -> None:
    made = method("fedlora", **{"weight-by-examples": True, "temperature": 0.5})
    state = made.init()
    for _ in range(2):
        new, sent = round_of(made, state)
        weights = np.array([made.weight(update.level, update.num_examples) for _, update in sent])
        assert weights.tolist() == pytest.approx([30, 10 * np.exp(-1.0), 20 * np.exp(-1.0)])
        for path in made.ladder.paths:
            products = [dense(update.tensors, submodel)[f"{path}.weight"] for submodel, update in sent]
            close(difference(new, path), sum(w * p for w, p in zip(weights, products, strict=True)) / weights.sum())
        state = new
    assert state.tensors["blocks.0.attention.qkv.u"].shape[1] == 4 + 2 + 2


def test_a_level_gets_the_best_approximation_at_its_rank() -> None:
    made = method("fedlora")
    state, _ = round_of(made, made.init())
    path = "blocks.1.attention.qkv"
    submodel = made.cut(state, made.levels()[1], round_index=1, device="b", seed=7)
    p, values, q = np.linalg.svd(difference(state, path))
    best = (p[:, :2] * values[:2]) @ q[:2]
    close(submodel.tensors[f"{path}.u"].astype(np.float64) @ submodel.tensors[f"{path}.v"], best)


def test_flora_keeps_what_a_small_rank_was_not_sent() -> None:
    made = method("flora")
    state, _ = round_of(made, made.init())
    new, sent = round_of(made, state)
    shares = np.array([30, 10, 20]) / 60
    for path in made.ladder.paths:
        expected = difference(state, path)
        for share, (submodel, update) in zip(shares, sent, strict=True):
            before = dense(dict(submodel.tensors), submodel)[f"{path}.weight"]
            expected = expected + share * (dense(update.tensors, submodel)[f"{path}.weight"] - before)
        close(difference(new, path), expected)


def test_ffa_lora_averages_columns_over_those_that_have_them() -> None:
    made = method("ffa_lora")
    state = made.init()
    new, sent = round_of(made, state, rows=False)
    for path in made.ladder.paths:
        assert np.array_equal(new.tensors[f"{path}.v"], state.tensors[f"{path}.v"])
        (_, a), (_, b), (_, c) = sent
        u = {update.device: update.tensors[f"{path}.u"].astype(np.float64) for update in (a, b, c)}
        close(new.tensors[f"{path}.u"][:, :2], (30 * u["a"][:, :2] + 10 * u["b"] + 20 * u["c"]) / 60)
        close(new.tensors[f"{path}.u"][:, 2:], u["a"][:, 2:])
    submodel, _ = sent[0]
    assert set(submodel.program.frozen) >= {"blocks.0.attention.qkv.v", "embedding.weight"}


def test_a_depth_has_factors_in_the_last_blocks_and_others_stay() -> None:
    made = method("fedlora", depths=[2, 1])
    assert [level.name for level in made.levels()] == [
        "rank 4, depth 2",
        "rank 2, depth 2",
        "rank 4, depth 1",
        "rank 2, depth 1",
    ]
    shallow = made.levels()[2]
    state, _ = round_of(made, made.init())
    submodel = made.cut(state, shallow, round_index=1, device="d", seed=7)
    assert {path.split(".")[1] for path in submodel.cut} == {"1"}
    update = Update("d", shallow, submodel.cut, trained(submodel, "d"), num_examples=1)
    new = made.aggregate(state, [update])
    assert np.array_equal(new.tensors["blocks.0.attention.qkv.u"], state.tensors["blocks.0.attention.qkv.u"])
    close(
        difference(new, "blocks.1.attention.qkv"),
        dense(update.tensors, submodel)["blocks.1.attention.qkv.weight"],
    )


@pytest.mark.parametrize("name", ["fedlora", "flora", "ffa_lora"])
def test_below_its_depth_a_device_may_hold_what_others_learnt(name: str) -> None:
    made = method(name, depths=[2, 1], below="factors")
    state, _ = round_of(made, made.init(), rows=name != "ffa_lora")
    shallow = made.levels()[2]
    submodel = made.cut(state, shallow, round_index=1, device="d", seed=7)
    assert {path.split(".")[1] for path in submodel.cut} == {"0", "1"}
    below = "blocks.0.attention.qkv"
    assert {f"{below}.u", f"{below}.v"} <= set(submodel.program.frozen)
    assert np.array_equal(submodel.tensors[f"{below}.u"], state.tensors[f"{below}.u"][:, :4])
    sent = {n: v for n, v in trained(submodel, "d").items() if n not in submodel.program.frozen}
    new = made.aggregate(state, [Update("d", shallow, submodel.cut, sent, num_examples=1)])
    assert np.array_equal(new.tensors[f"{below}.u"], state.tensors[f"{below}.u"])
    assert not np.array_equal(difference(new, "blocks.1.attention.qkv"), difference(state, "blocks.1.attention.qkv"))


@pytest.mark.parametrize("name", ["fedlora", "flora", "ffa_lora"])
def test_the_same_updates_give_the_same_bits(name: str) -> None:
    made = method(name, depths=[2, 1])
    states = []
    for _ in range(2):
        state, sent = round_of(made, made.init(), rows=name != "ffa_lora")
        states.append(made.aggregate(state, [update for _, update in sent]))
    assert all(np.array_equal(states[0].tensors[key], states[1].tensors[key]) for key in states[0].tensors)


def test_a_rank_of_the_server_bounds_its_state() -> None:
    made = method("fedlora", **{"server-rank": 3})
    state, _ = round_of(made, made.init())
    assert {value.shape[1] for key, value in state.tensors.items() if key.endswith(".u")} == {3}


def test_an_update_that_lacks_a_factor_is_rejected_with_its_name() -> None:
    made = method("fedlora")
    level = made.levels()[0]
    submodel = made.cut(made.init(), level, round_index=0, device="a", seed=0)
    tensors = {k: v for k, v in submodel.tensors.items() if k != "blocks.1.attention.output.v"}
    with pytest.raises(UpdateRejected, match=r"blocks\.1\.attention\.output\.v' has nothing, \[4, 16\] expected"):
        made.aggregate(made.init(), [Update("a", level, submodel.cut, tensors, num_examples=1)])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fedavg", {}, "fedavg trains or decomposes weights .* base file"),
        ("fedlora", {"levels": [2.5]}, "different whole numbers expected"),
        ("fedlora", {"levels": [17]}, "rank 17: an adapted layer's weight has only 16"),
        ("fedlora", {"levels": [2], "depths": [3]}, "3 given, the model has 2 blocks"),
        ("fedlora", {"levels": [2], "depths": [1], "layout": ["blocks.0.*"]}, "no layer in the last 1 blocks"),
        ("fedlora", {"levels": [2], "head": "head"}, "no such option"),
        ("ffa_lora", {"levels": [2], "server-rank": 2}, "leave the key out"),
    ],
)
def test_an_impossible_method_is_refused(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises((ConfigError, PlanError), match=message):
        build_method(name, meta_model(TINY), options)


def test_a_stranger_is_refused() -> None:
    with pytest.raises(PlanError, match="rank 3"):
        method("fedlora").cut_shape(Level("rank 3", 3, 1.0), round_index=0, device="", seed=0)
