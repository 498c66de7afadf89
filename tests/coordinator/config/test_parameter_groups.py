"""``[[training.groups]]``: what is read, refused and written out again; what is compiled, and what an order says."""

from __future__ import annotations

import pytest

from coordinator.config.canonical import canonical_toml
from coordinator.config.parameter_groups import ParameterGroupConfig, check_group_names
from coordinator.exporting.cut_exporter import CutExporter, dense_module
from coordinator.exporting.parameter_groups import compiled_groups, group_values
from coordinator.run_file.checks import method_of_run
from coordinator.run_file.loading import load_config_text
from coordinator.submodels.values import DeviceProgram
from edge.contracts.errors import ConfigError
from export.training_step import ParameterGroup, step_values

GROUPS = """
[[training.groups]]
match = "2.bias"
weight-decay = 0
[[training.groups]]
match = "2.*"
lr-factor = 10
weight-decay = 0.5
"""


def text(groups: str = "", training: str = "", model: str = 'torch.nn:Sequential"\ninput = [4]\nclasses = 3\n#') -> str:
    return f"""
[federation]
name = "fed"
rounds = 5
[model]
build = "{model}"
[method]
name = "fedavg"
[data]
source = "digits"
[cohort]
size = 2
[training]
weight-decay = 0.01
{training}
{groups}
"""


def group(lines: str) -> str:
    return f"[[training.groups]]\n{lines}\n"


def test_groups_are_read_in_their_order_and_written_out_again() -> None:
    config = load_config_text(text(GROUPS))
    assert config.training.groups == (
        ParameterGroupConfig(match="2.bias", weight_decay=0.0),
        ParameterGroupConfig(match="2.*", lr_factor=10.0, weight_decay=0.5),
    )
    assert load_config_text(canonical_toml(config)) == config
    assert (
        "weight-decay"
        not in canonical_toml(load_config_text(text(group('match = "a"\nlr-factor = 2'))))
        .partition("[[training.groups]]")[2]
        .partition("\n\n")[0]
    )


def test_a_run_without_groups_is_described_as_before() -> None:
    config = load_config_text(text())
    assert "groups" not in canonical_toml(config)
    assert "lr-warm-up" not in canonical_toml(config)


def test_values_are_no_part_of_what_is_compiled() -> None:
    config = load_config_text(text(GROUPS))
    other = load_config_text(text(GROUPS.replace("10", "3").replace("0.5", "0.25")))
    assert compiled_groups(config.training.groups) == compiled_groups(other.training.groups)
    assert compiled_groups(config.training.groups) == (
        ParameterGroup(match="2.bias", weight_decay="none"),
        ParameterGroup(match="2.*", lr_factor=True, weight_decay="own"),
    )
    assert group_values(config.training.groups) == {"lr_factor_2": 10.0, "weight_decay_2": 0.5}


def test_the_step_has_the_groups_and_is_described_as_before_without() -> None:
    config = load_config_text(text(GROUPS, model="mlp"))
    step = CutExporter(config).step(DeviceProgram())
    assert step.hyper[-2:] == ("lr_factor_2", "weight_decay_2")
    assert len(step_values(step)["groups"]) == 2
    plain = load_config_text(text(model="mlp"))
    assert "groups" not in step_values(CutExporter(plain).step(DeviceProgram()))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ('match = ""\nlr-factor = 2', "$.training.groups[0].match: must not be empty"),
        ("lr-factor = 2", "$.training.groups[0].match: is missing"),
        ('match = "a"', "'a' gets neither lr-factor nor weight-decay"),
        ('match = "a"\nlr-factor = 0', "0 moves nothing, yet trains and sends it all; freeze layers with the method"),
        ('match = "a"\nlr-factor = -1', "$.training.groups[0].lr-factor: -1.0 is outside 0"),
        ('match = "a"\nweight-decay = "no"', "$.training.groups[0].weight-decay: a number expected"),
        ('match = "a"\nlr = 2', "$.training.groups[0].lr: unknown key; known: lr-factor, match, weight-decay"),
    ],
)
def test_impossible_groups_are_told(lines: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config_text(text(group(lines)))
    assert any(expected in problem for problem in caught.value.problems), caught.value.problems


def test_a_pattern_that_is_named_twice_is_told() -> None:
    with pytest.raises(ConfigError, match=r"groups\[1\]\.match: 'a' is named by an earlier group"):
        load_config_text(text(2 * group('match = "a"\nlr-factor = 2')))


@pytest.mark.parametrize(("warm_up", "told"), [("5", "leaves none of 5 rounds"), ("0", "0 is outside 1")])
def test_an_impossible_warm_up_is_told(warm_up: str, told: str) -> None:
    with pytest.raises(ConfigError, match=rf"\$\.training\.lr-warm-up: .*{told}"):
        load_config_text(text(training=f"lr-warm-up = {warm_up}"))


def test_a_factor_beside_control_variates_is_told() -> None:
    with pytest.raises(ConfigError, match=r"scaffold: .* a factor of \$\.training\.groups takes some further"):
        load_config_text(text(group('match = "a"\nlr-factor = 2'), "scaffold = true"))
    load_config_text(text(group('match = "a"\nweight-decay = 0'), "scaffold = true"))


NAMES = ("stem.weight", "stem.bias", "blocks.0.norm.weight", "head.weight", "head.bias")


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (("haed.*",), "no parameter is named 'haed.*'; near are head.bias, head.weight"),
        (("blocks.0.nrom.weight",), "near are blocks.0.norm.weight"),
        (("xyz",), "the last ones are stem.bias, blocks.0.norm.weight, head.weight, head.bias"),
        (("*running*",), "'*running*' names running statistics alone, which no optimizer moves"),
        (("head.*", "*.bias", "head.bias"), "is in groups[0], which comes first; put the narrower pattern before it"),
    ],
)
def test_a_pattern_without_parameters_is_told(patterns: tuple[str, ...], expected: str) -> None:
    problems: list[str] = []
    groups = [ParameterGroupConfig(match=pattern, lr_factor=2.0) for pattern in patterns]
    check_group_names(groups, NAMES, ["norm.running_mean"], problems)
    assert len(problems) == 1
    assert problems[0].startswith(f"$.training.groups[{len(patterns) - 1}].match: ")
    assert expected in problems[0]


def test_names_are_checked_with_the_method() -> None:
    config = load_config_text(text(group('match = "fc9.*"\nlr-factor = 2'), model="mlp"))
    with pytest.raises(ConfigError, match=r"no parameter is named 'fc9\.\*'; near are fc1\.weight"):
        method_of_run(config, dense_module(config))
