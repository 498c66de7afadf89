"""Adapter, prefix and prompt: what travels, what is averaged, what stays, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coordinator.methods import Level, Method, State, Update, build_method
from coordinator.models.catalog import build_model, input_spec
from coordinator.rounds.global_model import decode_state, encode_state
from coordinator.submodels.costs import cut_costs
from edge.contracts.errors import ConfigError, PlanError, UpdateRejected

NAMES = ("adapter", "prefix", "prompt")
TINY = {"input_shape": (3, 8, 8), "width": 16, "depth": 2, "heads": 2}
HEAD = ("head.weight", "head.bias")


def tiny(name: str, *, seed: int = 1, **options: Any) -> tuple[Method, State]:
    method = build_method(name, build_model("vit", seed=seed, **TINY), {"levels": [3], **options})
    return method, method.init()


def update(method: Method, state: State, value: float, examples: int, device: str = "a") -> Update:
    """What a device reports of which every trained tensor became ``value``."""
    submodel = method.cut(state, method.levels()[0], round_index=0, device=device, seed=4)
    trained = {n: v for n, v in submodel.tensors.items() if n not in submodel.program.frozen}
    tensors = {name: np.full_like(tensor, value) for name, tensor in trained.items()}
    return Update(device, submodel.level, submodel.cut, tensors, examples)


@pytest.mark.parametrize("name", NAMES)
def test_trained_tensors_are_averaged_by_examples_and_the_base_keeps_its_bits(name: str) -> None:
    method, state = tiny(name)
    after = method.aggregate(state, [update(method, state, 1.0, 3), update(method, state, 5.0, 1)])
    frozen = {*method.program(method.eval_models(state)["server"].cut).frozen}
    assert after.round == 1
    for key, value in after.tensors.items():
        if key in frozen:
            assert value.tobytes() == state.tensors[key].tobytes()
        else:
            assert (value == 2.0).all()
    assert {*HEAD} < {*state.tensors} - frozen


@pytest.mark.parametrize(
    ("name", "added"),
    [
        ("adapter", 2 * (3 * (2 * 16 + 1) + 16)),
        ("prefix", 2 * (10 * 16 + 3 * (3 * 16 + 1) + 2 * 16)),
        ("prompt", 2 * 3 * 16),
    ],
)
def test_only_additions_and_classifier_travel_up(name: str, added: int) -> None:
    method, state = tiny(name)
    module = build_model("vit", **TINY)
    cut = method.cut_shape(method.levels()[0], round_index=0, device="", seed=0)
    costs = cut_costs(module, cut, input_spec("vit", input_shape=(3, 8, 8)))
    base = sum(p.numel() for p in module.parameters())
    assert costs.bytes_up == 4 * (added + 16 * 10 + 10)
    assert costs.bytes_up == sum(v.nbytes for v in update(method, state, 0.0, 1).tensors.values())
    assert (costs.params, costs.bytes_down) == (base + added, 4 * (base + added))


def test_deep_prompt_costs_more_tokens_in_every_block_and_a_prefix_less() -> None:
    module, spec = build_model("vit", **TINY), input_spec("vit", input_shape=(3, 8, 8))
    macs = {}
    for name in NAMES:
        method = build_method(name, module, {"levels": [4], **({"length": 4} if name == "prefix" else {})})
        cut = method.cut_shape(method.levels()[0], round_index=0, device="", seed=0)
        macs[name] = cut_costs(module, cut, spec).macs
    base = cut_costs(module, {}, spec).macs
    # Two blocks of 4 patches of width 16: two products with 4 units, and a ReLU of each unit.
    assert macs["adapter"] - base == 2 * 4 * (2 * 16 * 4 + 4)
    assert macs["prompt"] > macs["prefix"] > base


@pytest.mark.parametrize("name", NAMES)
def test_additions_are_drawn_by_the_runs_seed(name: str) -> None:
    (_, one), (_, same), (_, other) = tiny(name), tiny(name), tiny(name, seed=2)
    added = [key for key in one.tensors if key not in build_model("vit", **TINY).state_dict()]
    drawn = [key for key in added if one.tensors[key].any()]
    assert drawn
    assert all(np.array_equal(one.tensors[key], same.tensors[key]) for key in added)
    assert not any(np.array_equal(one.tensors[key], other.tensors[key]) for key in drawn)


@pytest.mark.parametrize("name", NAMES)
def test_state_goes_on_from_its_checkpoint(name: str) -> None:
    method, state = tiny(name)
    after = method.aggregate(state, [update(method, state, 0.25, 1)])
    restored = decode_state(encode_state(after), round_index=1)
    again, _ = tiny(name)
    level = again.levels()[0]
    one = method.cut(after, level, round_index=1, device="a", seed=9).tensors
    other = again.cut(restored, level, round_index=1, device="a", seed=9).tensors
    assert one.keys() == other.keys()
    assert all(one[key].tobytes() == other[key].tobytes() for key in one)


@pytest.mark.parametrize("name", NAMES)
def test_frozen_tensor_in_an_update_is_refused_by_device(name: str) -> None:
    method, state = tiny(name)
    bad = update(method, state, 1.0, 1, device="pi-07")
    tensors = {**bad.tensors, "embed.weight": state.tensors["embed.weight"]}
    with pytest.raises(UpdateRejected, match=r"pi-07.*'embed\.weight'"):
        method.aggregate(state, [Update("pi-07", bad.level, bad.cut, tensors, 1)])


@pytest.mark.parametrize("name", [*NAMES, "slora"])
@pytest.mark.parametrize("levels", [[4, 8], [2.5]])
def test_one_whole_size_is_asked_for(name: str, levels: list[float]) -> None:
    with pytest.raises(ConfigError, match=rf"levels.*{name} takes one whole number"):
        tiny(name, levels=levels)


@pytest.mark.parametrize("name", [*NAMES, "slora"])
def test_unknown_level_is_refused(name: str) -> None:
    method, state = tiny(name)
    with pytest.raises(PlanError, match=r"no level 'rank 99' \(99\)"):
        method.cut(state, Level("rank 99", 99, 0.5), round_index=0, device="a", seed=0)


@pytest.mark.parametrize("name", NAMES)
def test_model_without_blocks_is_refused_and_what_is_needed_is_named(name: str) -> None:
    with pytest.raises(PlanError, match=rf"{name} needs a module with transformer blocks.*vit_small"):
        build_method(name, build_model("resnet8"), {})


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("adapter", {"per-block": 3}, "per-block: 3"),
        ("adapter", {"layout": "conv*"}, "matches no linear layer"),
        ("adapter", {"head": "blocks"}, "head"),
        ("prefix", {"length": 0}, "length: 0"),
        ("prefix", {"layout": "layers.*"}, "matches no transformer block"),
        ("prompt", {"depth": "middle"}, "deep, shallow"),
        ("prompt", {"depth": "shallow", "layout": "blocks.0"}, "goes through all blocks"),
    ],
)
def test_impossible_options_are_refused(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        tiny(name, **options)


def test_adapters_stand_behind_any_linear_layer_that_is_named() -> None:
    method = build_method("adapter", build_model("mlp", hidden=(8, 8)), {"levels": [2], "layout": "*"})
    cut = method.cut_shape(method.levels()[0], round_index=0, device="", seed=0)
    assert sum(record.added is not None for record in cut.values()) == 2  # both hidden layers, not the classifier


def test_two_adapters_per_block_are_behind_attention_and_feed_forward() -> None:
    method, _ = tiny("adapter", **{"per-block": 2})
    cut = method.cut_shape(method.levels()[0], round_index=0, device="", seed=0)
    paths = {path for path, record in cut.items() if record.added}
    assert paths == {f"blocks.{i}.{part}" for i in (0, 1) for part in ("fc2", "attention.proj")}
