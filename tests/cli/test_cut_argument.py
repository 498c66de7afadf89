"""``--cut method:level[,key=value]`` through every kind of method."""

from __future__ import annotations

import pytest

from coordinator.cli.model_arguments import ModelArguments, parse_cut
from coordinator.models.catalog import build_model
from edge.contracts.errors import ConfigError


def test_a_methods_only_level_is_the_one_named() -> None:
    module = build_model("mlp", hidden=(32, 16))
    cut, program = parse_cut(module, "heterofl:0.5,loss=cross_entropy")
    assert cut["fc1"].out_idx == tuple(range(16))
    assert program.loss == "cross_entropy"
    assert len(parse_cut(module, "split_mix:2,width=0.25")[0][""].atoms) == 2


def test_a_method_with_a_ladder_of_its_own_has_the_level_by_value_or_name() -> None:
    module = build_model("mlp", hidden=(32, 16))
    assert parse_cut(module, "fedavg:1")[0] == {}
    assert parse_cut(module, "fedavg:full")[0] == {}
    with pytest.raises(ConfigError, match=r"fedavg has no level '0.5'; its levels are 'full' \(1\)"):
        parse_cut(module, "fedavg:0.5")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("heterofl", ["has no level"]),
        ("heterofl:", ["has no level"]),
        ("heterofl:wide", ["no level 'wide'", "'full' (1)"]),
        ("heterofl:2", ["$.method.levels: [2]"]),
        ("heterofl:0.5,scaler", ["'scaler' is not key=value"]),
        ("nothing:4", ["unknown method 'nothing'", "heterofl"]),
        ("nothing:x", ["has no level"]),
        ("heterofl:0.5,round=soon", ["round=soon", "whole number"]),
    ],
)
def test_bad_cut_is_refused(text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_cut(build_model("mlp", hidden=(32, 16)), text)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.slow
def test_cut_of_a_later_round() -> None:
    module = build_model("resnet8", input_shape=(3, 8, 8), classes=4)
    cuts = [parse_cut(module, f"slt:0.5,rounds=100,schedule=equal,round={n}")[0] for n in (0, 99)]
    assert not any(record.frozen for record in cuts[0].values())
    assert any(record.frozen for record in cuts[1].values())


def test_what_is_exported_does_not_depend_on_which_channels_are_kept() -> None:
    arguments = [
        ModelArguments("resnet8", (3, 8, 8), 4, 8, cut=f"{name}:0.5,rounding=ceil")
        for name in ("fedrolex", "federated_dropout")
    ]
    builds = [a.prepare().build["cut"] for a in arguments]
    assert builds[0] == builds[1]
    assert builds[0]["layer1.0.conv1"] == {"out_idx": "0-7", "in_idx": "0-7"}
