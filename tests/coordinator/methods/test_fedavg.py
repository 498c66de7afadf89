"""FedAvg by hand."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from coordinator.methods import Level, State, Update, build_method
from coordinator.methods.fedavg import FULL
from edge.contracts.errors import PlanError, UpdateRejected


def update(value: float, examples: int, device: str = "a") -> Update:
    return Update(device, FULL, {}, {"weight": np.full((1, 2), value, np.float32)}, examples)


def test_mean_is_weighted_by_examples() -> None:
    method = build_method("fedavg", nn.Linear(2, 1, bias=False), {})
    state = method.aggregate(method.init(), [update(1, 10), update(4, 30)])
    assert state.tensors["weight"].tolist() == [[3.25, 3.25]]
    assert state.round == 1


def test_running_statistics_are_averaged_by_examples_and_unsent_ones_kept() -> None:
    method = build_method("fedavg", nn.BatchNorm1d(1), {})
    state = method.init()
    updates = [
        Update(str(i), FULL, {}, {"running_mean": np.array([mean], np.float32)}, count)
        for i, (mean, count) in enumerate([(0.0, 1), (4.0, 3)])
    ]
    after = method.aggregate(state, updates).tensors
    assert after["running_mean"].tolist() == [3.0]
    assert after["running_var"].tolist() == [1.0]


def test_state_holds_copies_of_the_modules_weights() -> None:
    module = nn.Linear(2, 1)
    state = build_method("fedavg", module, {}).init()
    before = state.tensors["weight"].copy()
    module.weight.data.zero_()
    assert np.array_equal(state.tensors["weight"], before)


def test_aggregate_consumes_a_generator_once() -> None:
    method = build_method("fedavg", nn.Linear(2, 1, bias=False), {})
    state = method.aggregate(method.init(), (update(float(v), 1, str(v)) for v in range(3)))
    assert state.tensors["weight"].tolist() == [[1.0, 1.0]]


def test_round_without_updates_is_refused() -> None:
    method = build_method("fedavg", nn.Linear(2, 1), {})
    with pytest.raises(PlanError, match="round 5: no updates"):
        method.aggregate(State(method.init().tensors, round=5), [])


def test_update_without_examples_is_refused() -> None:
    method = build_method("fedavg", nn.Linear(2, 1, bias=False), {})
    with pytest.raises(UpdateRejected, match="device pi-07: trained on 0 examples"):
        method.aggregate(method.init(), [update(1, 0, "pi-07")])


def test_other_levels_are_refused() -> None:
    method = build_method("fedavg", nn.Linear(2, 1), {})
    with pytest.raises(PlanError, match="no level 'rank 1/4'"):
        method.cut_shape(Level("rank 1/4", 4, 0.25), round_index=0, device="a", seed=0)
