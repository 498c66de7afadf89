"""Which rules and screening suit what else a run file says, and the reasons that are given for the rest."""

from __future__ import annotations

import pytest

from coordinator.aggregation import AGGREGATIONS
from coordinator.aggregation.choice import rule_class
from coordinator.run_file.loading import load_config_text
from edge.contracts.errors import ConfigError
from tests.federation.small_run import config_text

TEXT = config_text(size=5, min_reports=5)


@pytest.mark.parametrize("rule", ["mean", *AGGREGATIONS])
def test_rule_of_a_cohort_of_five(rule: str) -> None:
    assert load_config_text(f'{TEXT}\n[aggregation]\nrule = "{rule}"').aggregation.rule == rule
    assert rule == "mean" or rule in AGGREGATIONS


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ('[aggregation]\nrule = "krum"\ntrim = 0.1', ["$.aggregation.rule: krum needs 10 updates", "min-reports is 5"]),
        ('[aggregation]\nrule = "trimmed_mean"\ntrim = 0.1', ["trimmed_mean needs 10 updates"]),
        ('[aggregation]\nrule = "median"\n[privacy]\nsecure-aggregation = true', ["needs every device's values"]),
        ('[aggregation]\nrule = "krum"\nmode = "buffered"\nbuffer = 5', ["compares updates of one model"]),
        ('[aggregation]\nmode = "buffered"\n[defences]\nquarantine-factor = 5', ["compares the updates of one round"]),
        ("[defences]\nquarantine-factor = 5\n[privacy]\nsecure-aggregation = true", ["norms of single updates"]),
        ("[defences]\nquarantine-factor = 1", ["$.defences.quarantine-factor: 1 sets half"]),
        ("[defences]\nexamples-factor = 0.5", ["$.defences.examples-factor: 0.5"]),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_reason(more: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config_text(f"{TEXT}\n{more}")
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_ds_fl_takes_no_rule() -> None:
    text = TEXT.replace('name = "fedhm"\nlevels = [4]', 'name = "ds_fl"')
    with pytest.raises(ConfigError, match="averages probabilities"):
        load_config_text(f'{text}\n[aggregation]\nrule = "median"')


@pytest.mark.parametrize(
    ("rule", "trim", "least"), [("median", 0.2, 3), ("trimmed_mean", 0.2, 5), ("krum", 0.2, 5), ("krum", 0.34, 5)]
)
def test_least_updates(rule: str, trim: float, least: int) -> None:
    assert rule_class(rule).least_updates(trim) == least
