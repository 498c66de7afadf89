"""Which group a parameter of a cut is in, and what it moves by; the rule that runtimes apply by themselves."""

from __future__ import annotations

from edge.contracts.manifest import InputSpec
from edge.runtimes.update_rule import RuleGroup
from export.parameter_groups import Rate, group_of, rates, update_rule
from export.training_step import FactorPair, Optimizer, ParameterGroup, StepSpec

SPEC = StepSpec(
    input=InputSpec(layout="features", shape=(4,)),
    classes=3,
    frobenius=(FactorPair("fc.u", "fc.v"),),
    groups=(
        ParameterGroup(match="fc.weight", lr_factor=True, weight_decay="own"),
        ParameterGroup(match="*.bias", weight_decay="none"),
        ParameterGroup(match="head.*", weight_decay="own"),
    ),
)
NAMES = ("fc.u", "fc.v", "fc.bias", "head.weight", "head.bias", "stem.weight", "u")


def test_factors_of_a_layer_are_in_the_group_of_its_weight() -> None:
    assert group_of("fc.u", ["fc.weight"]) == 0
    assert group_of("fc.v", ["head.*", "fc.weight"]) == 1
    assert group_of("fc.bias", ["fc.weight"]) is None
    assert group_of("u", ["*.weight"]) is None  # a parameter of the module itself is no factor


def test_the_first_group_that_matches_counts_and_factors_do_not_decay() -> None:
    assert rates(SPEC, NAMES) == {
        "fc.u": Rate("lr_factor_1", ""),
        "fc.v": Rate("lr_factor_1", ""),
        "fc.bias": Rate("", ""),
        "head.weight": Rate("", "weight_decay_3"),
        "head.bias": Rate("", ""),
        "stem.weight": Rate("", "weight_decay"),
        "u": Rate("", "weight_decay"),
    }
    assert SPEC.hyper[:6] == ("lr", "momentum", "weight_decay", "lr_factor_1", "weight_decay_1", "weight_decay_3")


def test_the_rule_of_other_runtimes_says_the_same() -> None:
    rule = update_rule(SPEC, NAMES)
    assert rule.undecayed == ("fc.bias", "fc.u", "fc.v", "head.bias")
    assert rule.groups == (
        RuleGroup(("fc.u", "fc.v"), "lr_factor_1", ""),
        RuleGroup(("head.weight",), "", "weight_decay_3"),
    )
    hyper = {"lr": 0.5, "weight_decay": 0.1, "lr_factor_1": 3.0, "weight_decay_3": 0.2}
    assert rule.rates(("fc.u", "head.weight", "head.bias", "u"), hyper) == {
        "fc.u": (1.5, 0.0),
        "head.weight": (0.5, 0.2),
        "head.bias": (0.5, 0.0),
        "u": (0.5, 0.1),
    }


def test_without_decay_of_the_step_a_group_may_still_decay() -> None:
    spec = StepSpec(
        input=SPEC.input,
        classes=3,
        optimizer=Optimizer(weight_decay=False),
        groups=(ParameterGroup(match="head.*", weight_decay="own"),),
    )
    assert rates(spec, ("head.weight", "stem.weight")) == {
        "head.weight": Rate("", "weight_decay_1"),
        "stem.weight": Rate("", ""),
    }
    assert update_rule(spec, ("head.weight", "stem.weight")).undecayed == ()
