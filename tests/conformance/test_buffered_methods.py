"""Every method: its updates may be added to a later model, exactly, or it says why a run must not be buffered."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from coordinator.exporting.cut_exporter import dense_module
from coordinator.methods import METHODS, build_method
from coordinator.methods.method import Method
from coordinator.rounds.staleness import rebased, require_rebasing
from coordinator.submodels.record import cut_to_json
from coordinator.submodels.values import State, Submodel, Tensors, Update
from edge.contracts.errors import ConfigError
from edge.contracts.packing import MASK
from tests.conformance.method_runs import CASES, run_config

SEED, LATER = 5, 3


def is_buffered(name: str) -> bool:
    module, _, of = METHODS[name].partition(":")
    return not getattr(importlib.import_module(module), of).synchronous_only


BUFFERED = [name for name in sorted(METHODS) if is_buffered(name)]


def build(name: str, folder: Path) -> Method:
    config = run_config(CASES[name], folder)
    return build_method(config.method.name, dense_module(config), config.method.options)


@pytest.fixture(params=BUFFERED)
def method(request: pytest.FixtureRequest, tmp_path: Path) -> Method:
    return build(request.param, tmp_path)


def cuts(method: Method, state: State) -> Iterator[tuple[str, Submodel]]:
    """What two devices of every level get, by device."""
    for number, level in enumerate(method.levels()):
        for device in (f"pi-{number}-a", f"pi-{number}-b"):
            yield device, method.cut(state, level, round_index=0, device=device, seed=SEED)


def trained(submodel: Submodel, seed: int) -> dict[str, np.ndarray]:
    """What a device could report: everything it may change, changed; statistics stay positive, masked entries 0."""
    generator, frozen = np.random.default_rng(seed), {*submodel.program.frozen}
    changed = {}
    for name, value in submodel.tensors.items():
        if name in frozen or name.endswith(MASK):
            continue
        if value.dtype.kind in "iu":
            changed[name] = value + 4
            continue
        step = generator.random(value.shape, np.float32) * np.float32(0.1)
        changed[name] = value + step * submodel.tensors.get(name + MASK, np.ones(value.shape, bool))
    return changed


def updates(method: Method, state: State, today: State | None = None, weight: float = 1.0) -> Iterator[Update]:
    """One of every device, trained from ``state``; rebased to ``today`` when that is given."""
    for number, (device, submodel) in enumerate(cuts(method, state)):
        tensors: Tensors = trained(submodel, number)
        if today is not None:
            now = method.cut(today, submodel.level, round_index=0, device=device, seed=SEED)
            assert cut_to_json(now.cut) == cut_to_json(submodel.cut), "the cut of a round is not that of a later state"
            tensors = rebased(tensors, submodel.tensors, now.tensors, weight=weight, where=device)
        yield Update(device, submodel.level, submodel.cut, tensors, num_examples=7 + number)


def assert_same(one: State, other: State) -> None:
    for mine, theirs in ((one.tensors, other.tensors), (one.extra, other.extra)):
        assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            assert np.array_equal(value, theirs[name]), name


@pytest.mark.parametrize("name", sorted({*METHODS} - {*BUFFERED}))
def test_method_that_is_never_buffered_says_why(name: str, tmp_path: Path) -> None:
    method = build(name, tmp_path)
    with pytest.raises(ConfigError) as caught:
        require_rebasing(method)
    message = str(caught.value)
    assert "$.aggregation.mode" in message
    assert f"method {name} cannot: {method.synchronous_only}" in message


def test_buffer_of_the_whole_cohort_without_staleness_is_the_synchronous_round(method: Method) -> None:
    state = method.init()
    synchronous = method.refresh(method.aggregate(state, updates(method, state)))
    buffered = method.refresh(method.aggregate(state, updates(method, state, today=state)))
    assert_same(synchronous, buffered)


def test_update_that_moved_nothing_leaves_a_later_model_as_it_is(method: Method) -> None:
    """Where a decomposition or a new mask of the later state would."""
    require_rebasing(method)
    state = method.init()
    later = state
    for _ in range(LATER):
        later = method.refresh(method.aggregate(later, updates(method, later)))
    assert_same(later, method.refresh(method.aggregate(later, updates(method, state, today=later, weight=0.0))))


def test_late_update_moves_a_later_model_as_far_as_it_moved_its_own(method: Method) -> None:
    state = method.init()
    once = method.refresh(method.aggregate(state, updates(method, state)))
    twice = method.refresh(method.aggregate(once, updates(method, state, today=once)))
    for name, value in twice.tensors.items():
        step, before = (value - once.tensors[name]), (once.tensors[name] - state.tensors[name])
        assert np.allclose(step, before, rtol=0, atol=1e-5), name
