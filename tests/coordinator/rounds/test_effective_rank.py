"""Effective ranks: the formula, what methods record of the whole model, and where a round leaves them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.methods import build_method
from coordinator.models.catalog import build_model
from coordinator.reporting.sections.ranks import ranks
from coordinator.reporting.subject import Subject
from coordinator.rounds.metrics import effective_ranks
from coordinator.submodels.spectrum import effective_rank, singular_values
from tests.coordinator.simulation.small_simulation import changed, simulated, small


def test_equal_components_count_whole_and_faint_ones_hardly() -> None:
    assert effective_rank(np.ones(7)) == pytest.approx(7)
    assert effective_rank(np.array([3.0, 0, 0])) == 1
    assert effective_rank(np.array([2.0, 1, 1])) == pytest.approx(1 / (0.25 + 2 * 0.0625))
    assert effective_rank(np.zeros(3)) == 0


def test_singular_values_are_lapacks() -> None:
    matrix = np.random.default_rng(0).normal(size=(20, 12)).astype(np.float32)
    assert singular_values(matrix) == pytest.approx(np.linalg.svd(matrix.astype(float), compute_uv=False), rel=1e-12)


@pytest.mark.parametrize(
    "options", [{"name": "prism"}, {"name": "orthdrop"}, {"name": "fedhm", "levels": [4]}], ids=str
)
def test_methods_record_the_whole_models_spectra_when_asked(options: dict[str, Any]) -> None:
    module = build_model("mlp", input_shape=(64,), hidden=[32, 32])
    name, others = options["name"], {key: value for key, value in options.items() if key != "name"}
    silent = build_method(name, module, others)
    assert effective_ranks(silent, silent.init()) == {}
    method = build_method(name, module, {**others, "spectra": True})
    state = method.init()
    weight = state.tensors["fc2.weight"].astype(float)
    found = effective_ranks(method, state)["effective_rank"]
    assert found == {"fc2": pytest.approx(effective_rank(np.linalg.svd(weight, compute_uv=False)), abs=2e-4)}
    assert 16 < found["fc2"] < 32  # of 32 components of a random matrix


def test_methods_without_spectra_record_none() -> None:
    method = build_method("fedavg", build_model("mlp"), {})
    assert effective_ranks(method, method.init()) == {}


def test_rounds_of_a_simulation_leave_a_curve(tmp_path: Path) -> None:
    config = small(federation={"rounds": 2})
    config = changed(config, method={"options": {**config.method.options, "spectra": True}})
    simulated(config, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    curve = [line["effective_rank"]["fc2"] for line in lines if "effective_rank" in line]
    assert len(curve) == 2
    assert curve[0] != curve[1]


def test_report_shows_a_curve_where_there_is_one() -> None:
    subject = Subject(
        name="a", folder="a", is_simulated=True, state="running", seed=0, config_text="", rounds=(), devices=()
    )
    assert ranks(subject) == ""
    found = {1: {"fc2": 9.25, "fc3": 10.25}, 2: {"fc2": 7.5, "fc3": 8.5}}
    shown = ranks(dataclasses.replace(subject, ranks=found))
    assert ">round 1</th>" in shown
    assert "<td>9.2</td><td>7.5</td>" in shown
    assert "<title>mean, 2: 8</title>" in shown
