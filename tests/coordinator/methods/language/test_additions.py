"""Adapter, prefix and prompt of language models: what a level holds, and the mean of each entry by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coordinator.methods import build_method
from coordinator.methods.language.addition import LanguageAddition
from coordinator.privacy.one_cut import is_summable
from coordinator.run_file.loading import load_config_text
from coordinator.submodels.build import apply_cut
from coordinator.submodels.costs import cut_costs
from coordinator.submodels.values import DeviceProgram, Update
from edge.contracts.errors import ConfigError, PlanError, UpdateRejected
from export.language.causal_model import meta_model, token_input
from tests.language_models import TINY, run_text

MODULE = meta_model(TINY)


def method(name: str, **options: Any) -> LanguageAddition:
    made = build_method(name, MODULE, options)
    assert isinstance(made, LanguageAddition)
    return made


@pytest.mark.parametrize("name", ["adapter", "prefix", "prompt"])
def test_a_submodel_is_what_its_module_has_beside_the_base(name: str) -> None:
    made = method(name, levels=[3])
    state, (level, *others) = made.init(), made.levels()
    submodel = made.cut(state, level, round_index=0, device="a", seed=1)
    built = apply_cut(MODULE, submodel.cut)
    base = {n for n, _ in MODULE.named_parameters()}
    beside = {n: tuple(p.shape) for n, p in built.named_parameters() if n not in base}
    assert {n: v.shape for n, v in submodel.tensors.items()} == beside
    assert set(submodel.program.frozen) == base
    assert not others
    moved = [n for n, v in state.tensors.items() if v.any()]
    assert all(n.endswith(".down") for n in moved) == (name == "adapter")
    assert moved
    again = method(name, levels=[3]).init().tensors
    assert all(np.array_equal(value, again[n]) for n, value in state.tensors.items())
    costs = cut_costs(MODULE, submodel.cut, token_input(TINY, 8), batch=2)
    assert costs.bytes_down == 4 * sum(v.size for v in submodel.tensors.values())
    assert costs.bytes_up == costs.bytes_down  # all of an addition is trained, nothing of the base


def test_units_of_mixed_sizes_and_blocks_of_mixed_depths_are_averaged_over_those_who_have_them() -> None:
    made = method("adapter", levels=[4, 2], depths=[2, 1])
    names = [level.name for level in made.levels()]
    assert names == ["4 units, depth 2", "2 units, depth 2", "4 units, depth 1", "2 units, depth 1"]
    state, draw = made.init(), np.random.default_rng(0)
    updates, weights = [], {"a": (0, 30), "b": (3, 10)}
    for device, (number, count) in weights.items():
        level = made.levels()[number]
        submodel = made.cut(state, level, round_index=0, device=device, seed=1)
        tensors = {n: draw.normal(size=v.shape).astype(np.float32) for n, v in submodel.tensors.items()}
        updates.append(Update(device, level, submodel.cut, tensors, num_examples=count))
    large, small = (update.tensors for update in updates)
    found = made.aggregate(state, updates).tensors
    for name, value in large.items():
        expected = value.astype(np.float64).copy()
        if name.startswith("blocks.1."):
            held = {"down": np.s_[:2], "down_bias": np.s_[:2], "up": np.s_[:, :2], "up_bias": np.s_[:]}
            part = held[name.rpartition(".")[2]]
            expected[part] = (30 * expected[part] + 10 * small[name].astype(np.float64)) / 40
        assert found[name] == pytest.approx(expected, rel=1e-6)
    again = made.aggregate(state, updates[1:]).tensors
    assert np.array_equal(
        again["blocks.0.feed_forward.adapter.down"], state.tensors["blocks.0.feed_forward.adapter.down"]
    )
    assert made.aggregate(state, updates).round == 1


def test_updates_that_do_not_fit_are_rejected() -> None:
    made = method("prefix", levels=[3])
    state, level = made.init(), made.levels()[0]
    cut = made.cut_shape(level, round_index=0, device="a", seed=1)
    less = dict(list(state.tensors.items())[1:])
    with pytest.raises(UpdateRejected, match=r"device a, round 0: update has no 'blocks\.0\.attention\.prefix\.keys'"):
        made.aggregate(state, [Update("a", level, cut, less, num_examples=1)])
    wrong = {**state.tensors, "blocks.0.attention.prefix.keys": np.zeros((2, 16), np.float32)}
    with pytest.raises(UpdateRejected, match=r"blocks\.0\.attention\.prefix\.keys"):
        made.aggregate(state, [Update("a", level, cut, wrong, num_examples=1)])
    with pytest.raises(PlanError, match="no updates"):
        made.aggregate(state, [])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("prefix", {"levels": [8, 4]}, r"levels: \[8, 4\] given, prefix takes one: where symbols stand depends on the"),
        ("prompt", {"levels": [8, 4]}, "prompt takes one"),
        ("prompt", {"depths": [1]}, r"\$\.method\.depths"),
        ("adapter", {"depths": [3]}, r"\$\.method\.depths: 3 given, the model has 2 blocks"),
        ("adapter", {"levels": [2.5]}, r"\$\.method\.levels: .*2\.5.* whole numbers expected"),
        ("adapter", {"per-block": 2}, r"\$\.method\.per-block"),
    ],
)
def test_impossible_options_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        method(name, **options)


def text(options: str, more: str = "") -> str:
    without = run_text(method="adapter", options=options).replace('level = "4"\n', "").replace('level = "2"\n', "")
    return without.replace("[[cohort.local]]", "[cohort]\nmin-reports = 3\n[[cohort.local]]", 1) + more


def test_entries_may_be_compared_and_hidden_where_all_devices_have_the_same() -> None:
    for more in (
        '[aggregation]\nrule = "median"\n',
        '[server-optimizer]\nname = "fedadam"\n',
        "[privacy]\nsecure-aggregation = true\n",
    ):
        load_config_text(text("levels = [4]", more))
        with pytest.raises(ConfigError, match=r"method .?fedlora|factors of two devices|mean of factors"):
            load_config_text(text("levels = [4]", more).replace('name = "adapter"', 'name = "fedlora"'))
    with pytest.raises(ConfigError, match=r"\$\.privacy\.secure-aggregation: devices of several sizes or depths"):
        load_config_text(text("levels = [4, 2]", "[privacy]\nsecure-aggregation = true\n"))
    one, mixed = (load_config_text(text(options)) for options in ("levels = [4]", "levels = [4]\ndepths = [2, 1]"))
    assert (is_summable(one, DeviceProgram()), is_summable(mixed, DeviceProgram())) == (True, False)
