"""Simulated seconds by a published time model: PruneFL's own figures, and one clock for whatever is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.config.run_config import SimulationConfig
from coordinator.methods import build_method
from coordinator.methods.method import Method
from coordinator.models.catalog import build_model, input_spec
from coordinator.simulation.record import read_record
from coordinator.simulation.round_clock import DeviceRound, round_clock
from coordinator.submodels.costs import cut_costs
from coordinator.submodels.record import Cut
from coordinator.submodels.values import Submodel
from edge.contracts.errors import ConfigError
from tests.coordinator.simulation.small_simulation import changed, simulated, small

CONV2 = build_model("conv2")


def seconds(method: Method, simulation: SimulationConfig, submodel: Submodel | None = None) -> float:
    state = method.init()
    chosen = submodel or method.cut(state, method.levels()[-1], round_index=0, device="a", seed=0)
    macs = lambda cut: cut_costs(CONV2, cut, input_spec("conv2")).macs  # noqa: E731
    clock = round_clock(simulation, method, CONV2, macs)
    return clock(DeviceRound(state, chosen, steps=5, batch=20, bytes_down=26_414_840, bytes_up=26_414_840))


def by_published(name: str, **options: Any) -> float:
    return seconds(build_method(name, CONV2, options), SimulationConfig(time_model="pi4-conv2"))


def test_whole_model_takes_what_the_paper_charges_conventional_training() -> None:
    # Source: PruneFL, Table III: 1,021 rounds of conventional training are 52,153 s.
    assert by_published("fedavg") == pytest.approx(51.08107, abs=1e-4)
    assert by_published("prunefl") == by_published("fedavg")


def test_masked_weights_take_no_time() -> None:
    method = build_method("prunefl", CONV2, {})
    state = method.init()
    whole = method.cut(state, method.levels()[0], round_index=0, device="a", seed=0)
    kept = np.zeros(CONV2.fc1.weight.shape, bool)
    kept[0, :7] = True
    masked = Submodel(whole.cut, whole.level, {**whole.tensors, "fc1.weight#mask": kept}, whole.program)
    found = seconds(method, SimulationConfig(time_model="pi4-conv2"), masked)
    # t = 5 tau + q for each of the 6,422,528 - 7 weights of fc1 that are gone.
    gone = 6_422_528 - 7
    assert found == pytest.approx(51.08107 - gone * (5 * 1.927325e-7 + 5.561621025626998e-6), abs=1e-4)


def test_narrowed_layers_take_what_is_left_of_them() -> None:
    # First halves: conv1 16x1x25, conv2 32x16x25, fc1 1024x1568, fc2 62x1024.
    q = 5.561621025626998e-6
    by_hand = 5 * 1.2492789765 + 400 * q + 12_800 * (5 * 7.098850e-6 + q)
    by_hand += 1_605_632 * (5 * 1.927325e-7 + q) + 63_488 * (5 * 1.782308e-7 + q)
    assert by_published("heterofl", levels=[0.5]) == pytest.approx(by_hand, rel=1e-9)


def test_own_time_model_is_the_methods() -> None:
    own = SimulationConfig(time_model="method")
    method = build_method("prunefl", CONV2, {"constant-s": 3.0, "layer-s": [0, 0, 1e-6, 0]})
    assert seconds(method, own) == pytest.approx(3 + 6.422528)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "time_model", "told"),
    [
        ("fedavg", {}, "method", "fedavg has no time model of its own"),
        ("fedavg", {}, "pi5", "'pi5' is not known; use 'method' or one of .*pi4-conv2"),
        ("fedavg", {}, "pi4-vgg11", "coefficients of 11 layers, the model has 4"),
        ("prism", {"levels": [0.5]}, "pi4-conv2", "'conv2' of level 'keep 0.5' is factorized"),
    ],
)
def test_time_model_that_does_not_fit_is_refused(
    name: str, options: dict[str, Any], time_model: str, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        seconds(build_method(name, CONV2, options), SimulationConfig(time_model=time_model))


def test_without_one_the_device_profile_decides() -> None:
    def none(cut: Cut) -> int:
        return 0

    clock = round_clock(SimulationConfig(link_mbit=8.0), build_method("fedavg", CONV2, {}), CONV2, none)
    method = build_method("fedavg", CONV2, {})
    state = method.init()
    whole = method.cut(state, method.levels()[0], round_index=0, device="a", seed=0)
    assert clock(DeviceRound(state, whole, 5, 20, 1_500_000, 500_000)) == pytest.approx(2.0)


def test_pruned_rounds_of_a_simulation_are_shorter(tmp_path: Path) -> None:
    method = {"name": "prunefl", "options": {"interval": 1, "constant-s": 1.0, "layer-s": [1e-3, 1e-3, 1e-3]}}
    groups = tuple(group for group in small().cohort.local[:1])
    config = changed(small(), method=method, simulation={"time_model": "method"})
    config = changed(config, cohort={"size": 2, "local": (groups[0],)}, training={"frobenius_lambda": 0.0})
    simulated(config, tmp_path / "run")
    record = read_record(tmp_path / "run")
    assert record is not None
    whole, *pruned = record.rounds
    weights = 64 * 32 + 32 * 32 + 32 * 10
    assert whole["simulated_s"] == pytest.approx(1 + weights * 1e-3)
    assert [entry["simulated_s"] for entry in pruned] == pytest.approx(
        [1 + before["density"] * weights * 1e-3 for before in record.rounds[:-1]]
    )
    assert pruned[-1]["simulated_s"] < whole["simulated_s"]
