"""Every method under every rule: equal devices give what the mean gives, and hostile values do not take it over.

A new method and a new rule are here by being registered.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coordinator.aggregation import AGGREGATIONS
from coordinator.aggregation.choice import chosen_rule
from coordinator.config.aggregation import AggregationConfig
from coordinator.distillation.proxy import DistilsOnProxy
from coordinator.exporting.cut_exporter import dense_module
from coordinator.methods import METHODS, build_method
from coordinator.methods.method import Method
from coordinator.run_file.checks import rules_refused_by
from coordinator.submodels.values import State, Update
from edge.contracts.errors import PlanError
from tests.conformance.method_runs import CASES, run_config

RULES = sorted(AGGREGATIONS)
DEVICES = 5


def method_of(name: str, folder: Path) -> Method:
    config = run_config(CASES[name], folder)
    method = build_method(name, dense_module(config), config.method.options)
    if isinstance(method, DistilsOnProxy):
        # The means alone: what is distilled from the devices' predictions takes a proxy set.
        options = {**config.method.options, **method.without_distillation}
        method = build_method(name, dense_module(config), options)
    return method


def equal_updates(method: Method, state: State) -> list[Update]:
    """The same update from every device: the weights as they came, a little smaller."""
    submodel = method.cut(state, method.levels()[0], round_index=0, device="a", seed=1)
    tensors = {
        tensor: (value * 0.99).astype(value.dtype)
        for tensor, value in submodel.tensors.items()
        if "#" not in tensor and tensor not in submodel.program.frozen
    }
    one = Update("a", submodel.level, submodel.cut, tensors, num_examples=7)
    return [replace(one, device=f"device-{number}") for number in range(DEVICES)]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_equal_devices_give_the_mean_under_every_rule(name: str, tmp_path: Path) -> None:
    method = method_of(name, tmp_path)
    state = method.init()
    updates = equal_updates(method, state)
    mean = method.aggregate(state, iter(updates))
    for rule in RULES:
        chosen = chosen_rule(AggregationConfig(rule=rule), tmp_path)
        if rules_refused_by(name):
            with pytest.raises(PlanError, match=r"aggregation\.rule"):
                method.aggregate(state, iter(updates), chosen)
            continue
        found = method.aggregate(state, iter(updates), chosen)
        for tensor, value in mean.tensors.items():
            np.testing.assert_allclose(found.tensors[tensor], value, rtol=1e-5, atol=1e-6, err_msg=f"{rule}: {tensor}")
        assert found.round == mean.round
