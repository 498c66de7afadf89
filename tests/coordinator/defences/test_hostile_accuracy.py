"""Hostile devices in simulation: the mean is taken over, robust rules are not. The whole table: docs/defences.md."""

from __future__ import annotations

import pytest

from benchmarks.hostile_cohort import ATTACKS, accuracy

ROUNDS = 4

pytestmark = pytest.mark.slow


def test_mean_is_taken_over_and_robust_rules_are_not() -> None:
    attack = ATTACKS["sign flip x10"]
    assert accuracy("fedavg", "mean", attack, rounds=ROUNDS) < 0.4
    for rule in ("trimmed_mean", "multi_krum"):
        assert accuracy("fedavg", rule, attack, rounds=ROUNDS) > 0.55, rule  # 0.72 and 0.81


def test_rules_hold_where_devices_train_parts() -> None:
    attack = ATTACKS["sign flip x10"]
    assert accuracy("heterofl", "mean", attack, rounds=ROUNDS) < 0.4
    assert accuracy("heterofl", "trimmed_mean", attack, rounds=ROUNDS) > 0.55  # 0.69
