"""``apportion profile --layer-times``: seconds per kept weight by layer, as PruneFL's time model takes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from edge.contracts.manifest import InputSpec
from edge.measuring.layers import drawn_masks, round_options
from export.bundle import export_artifact
from export.training_step import SparseWeight, StepSpec
from profiles.latency import fit_layer_times
from tests.cli.conftest import Command


def test_masks_determine_every_layer_and_are_the_same_again() -> None:
    room = {"conv.weight": 400, "fc1.weight": 6000, "fc2.weight": 90}
    masks = drawn_masks(room)
    assert masks == drawn_masks(room)
    assert len(masks) == 2 * len(room) + 2
    assert all(1 <= mask[name] <= size for mask in masks for name, size in room.items())
    per_weight = {"conv.weight": 4e-4, "fc1.weight": 2e-6, "fc2.weight": 1e-5}
    fit = fit_layer_times((mask, 0.5 + sum(per_weight[name] * mask[name] for name in room)) for mask in masks)
    assert fit.constant_s == pytest.approx(0.5)
    assert fit.weight_s == pytest.approx(per_weight)


def test_a_rounds_times_are_its_iterations_and_the_way_of_its_weights() -> None:
    options = round_options(0.25, [1e-6, 0.0], 4, 2e6)
    assert options == {"constant-s": 1.0, "layer-s": [pytest.approx(8e-6), pytest.approx(4e-6)]}


def test_layers_without_kernels_of_their_own_have_no_times(command: Command, artifact: Path) -> None:
    outcome = command("profile", "--layer-times", artifact, "--json")
    assert outcome.status == 2
    assert "no layer of it is held by its kept entries" in outcome.error["message"]
    unknown = command("profile", "--layer-times", "resnet99", "--json")
    assert unknown.status == 2
    assert "resnet99" in unknown.error["message"]
    assert command("profile", "--layer-times", artifact, "--iterations", "0", "--json").status == 2


@pytest.mark.slow
@pytest.mark.runtime
def test_layer_times_of_a_real_artifact_are_options_of_a_run_file(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("ruamel.yaml", reason="the executorch exporter imports ruamel.yaml: make setup")
    names = ("0.weight", "2.weight")
    module = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 3))
    step = StepSpec(
        input=InputSpec("features", (64,)), classes=3, batch=8, masked=names, sparse=(SparseWeight("0.weight", 4096),)
    )
    export_artifact(module, step, tmp_path / "artifact", runtime="executorch")
    told = command("profile", "--layer-times", tmp_path / "artifact", "--iterations", "3", "--json")
    found = told.line["layer_times"]
    assert [(layer["name"], layer["size"], layer["room"]) for layer in found["layers"]] == [
        ("0.weight", 64 * 256, 4096),
        ("2.weight", 3 * 256, None),
    ]
    assert [row["kept"]["0.weight"] for row in found["rows"]][:2] == [4096, 410]
    assert all(row["cpu_ms_p50"] > 0 for row in found["rows"])
    assert found["layers"][1]["step_s"] == 0.0
    constant, layers = found["options"]["constant-s"], found["options"]["layer-s"]
    assert constant == pytest.approx(3 * found["constant_s"])
    assert layers[1] == pytest.approx(8 / 1.44e6)  # held dense: its weights cost their way alone
    assert layers[0] >= layers[1]
    assert "layer-s = [" in told.err
