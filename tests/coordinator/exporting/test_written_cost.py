"""What is known of a language model's step without an export, and what a planner makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.exporting.cut_exporter import CutExporter, dense_module
from coordinator.exporting.shorter_window import shorter_window
from coordinator.methods.method import Method
from coordinator.planning.estimate import Estimate, Estimator
from coordinator.planning.prediction import MB
from coordinator.run_file.checks import method_of_run
from coordinator.run_file.loading import load_config_text
from edge.contracts.errors import ConfigError
from export.forms.step_form import PLAIN, StepForm
from profiles.device import DeviceProfile
from tests.language_models import run_text

CONFIG = load_config_text(run_text(options="levels = [4, 2]\ndepths = [2, 1]").replace("input = [8]", "input = [24]"))
RUNTIME = "onnxruntime"


def method() -> Method:
    return method_of_run(CONFIG, dense_module(CONFIG))


def test_a_smaller_level_and_smaller_parts_cost_less() -> None:
    exporter, made = CutExporter(CONFIG), method()
    costs = {}
    for level in made.levels():
        cut = made.cut_shape(level, round_index=0, device="", seed=0)
        for form in (PLAIN, StepForm(2, False)):
            cost = exporter.written_cost(cut, made.program(cut), RUNTIME, form)
            assert cost is not None
            costs[level.name, form.name] = cost
    plain = [costs[level.name, "plain"].state_bytes for level in made.levels()]
    assert plain == sorted(plain, reverse=True)
    assert costs["rank 4, depth 1", "plain"].trained_parameters == 4 * ((48 + 16) + (16 + 16))
    for level in made.levels():
        assert costs[level.name, "micro:2"].live_bytes < costs[level.name, "plain"].live_bytes


def test_an_estimate_is_what_the_manifest_will_say() -> None:
    exporter, made = CutExporter(CONFIG), method()
    cut = made.cut_shape(made.levels()[0], round_index=0, device="", seed=0)
    cost = exporter.written_cost(cut, made.program(cut), RUNTIME, PLAIN)
    assert cost is not None
    estimator = Estimator(exporter.counted, exporter.written_cost)
    expected = Estimate(cost.predicted_peak_bytes, cost.predicted_peak_bytes, is_exact=True)
    assert estimator.estimate(cut, made.program(cut), RUNTIME, PLAIN) == expected
    assert estimator.plain_cost(cut, made.program(cut), RUNTIME, batch=8) == cost


def test_only_levels_with_frozen_blocks_read_kept_features() -> None:
    text = run_text(options="levels = [2]\ndepths = [2, 1]").replace(
        "lr = 0.02", 'lr = 0.02\ncached-features = "float16"'
    )
    cached, plain = (CutExporter(load_config_text(t)) for t in (text, text.replace('cached-features = "float16"', "")))
    made, work = method_of_run(load_config_text(text), dense_module(CONFIG)), {}
    for level in made.levels():
        cut = made.cut_shape(level, round_index=0, device="", seed=0)
        program = made.program(cut)
        assert cached.unable(program, RUNTIME) == ()
        costs = [exporter.written_cost(cut, program, RUNTIME, PLAIN) for exporter in (cached, plain)]
        work[level.name] = [cost.step_work.matrix_macs for cost in costs if cost and cost.step_work]
    assert work["rank 2, depth 2"][0] == work["rank 2, depth 2"][1]
    assert work["rank 2, depth 1"][0] < work["rank 2, depth 1"][1]
    assert cached.refused_form(cut, program, RUNTIME, StepForm(1, True)) == ""


def test_blocks_that_are_kept_for_their_backward_pass_take_memory_and_save_work() -> None:
    text = run_text(options="levels = [2]\ndepths = [3]").replace("layers = 2", "layers = 4")
    text = text.replace('level = "4"\n', "").replace('level = "2"\n', "")
    config = load_config_text(text.replace("lr = 0.02", 'lr = 0.02\ncached-features = "float16"'))
    exporter, made = CutExporter(config), method_of_run(config, dense_module(config))
    cut = made.cut_shape(made.levels()[0], round_index=0, device="", seed=0)
    costs = [exporter.written_cost(cut, made.program(cut), RUNTIME, StepForm(1, again)) for again in (True, False)]
    (again, again_macs), (kept, kept_macs) = [
        (cost.live_bytes, cost.step_work.matrix_macs) for cost in costs if cost and cost.step_work
    ]
    assert again < 0.7 * kept
    assert again_macs > kept_macs


@pytest.mark.slow
@pytest.mark.runtime
def test_the_cost_is_that_of_the_exported_artifact(tmp_path: Path) -> None:
    exporter, made = CutExporter(CONFIG), method()
    cut = made.cut_shape(made.levels()[1], round_index=0, device="", seed=0)
    manifest = exporter.export(cut, made.program(cut), RUNTIME, tmp_path / "artifact")
    assert manifest.cost == exporter.written_cost(cut, made.program(cut), RUNTIME, PLAIN)
    assert manifest.classes == ("0",)
    assert manifest.symbols == {"target": 30}
    assert len(manifest.to_bytes()) < 40_000
    assert {spec.role for spec in manifest.tensors} >= {"mapped", "parameter", "slot"}


@pytest.mark.slow
@pytest.mark.runtime
@pytest.mark.parametrize("name", ["fedlora", "ffa_lora"])
def test_factors_below_a_depth_are_held_and_not_trained(tmp_path: Path, name: str) -> None:
    options = 'levels = [2]\ndepths = [2, 1]\nbelow = "factors"'
    config = load_config_text(run_text(method=name, options=options))
    made = method_of_run(config, dense_module(config))
    cut = made.cut_shape(made.levels()[1], round_index=0, device="", seed=0)
    manifest = CutExporter(config).export(cut, made.program(cut), RUNTIME, tmp_path / "artifact")  # held against torch
    roles = {spec.name: spec.role for spec in manifest.tensors}
    assert roles["blocks.0.attention.qkv.u"] == roles["blocks.0.attention.output.v"] == "frozen"
    assert roles["blocks.1.attention.qkv.u"] == "parameter"
    assert roles["blocks.1.attention.qkv.v"] == ("frozen" if name == "ffa_lora" else "parameter")


def test_a_device_that_no_level_fits_is_told_of_a_shorter_window() -> None:
    exporter, made = CutExporter(CONFIG), method()
    cut = made.cut_shape(made.levels()[-1], round_index=0, device="", seed=0)
    cost = exporter.written_cost(cut, made.program(cut), RUNTIME, StepForm(8, False))
    assert cost is not None
    small = {"supervisor_idle_bytes": MB, "trainer_idle_bytes": {RUNTIME: MB}}
    roomy = DeviceProfile(device="a", budget_bytes=200 * MB, **small)  # type: ignore[arg-type]
    assert shorter_window(CONFIG, made, roomy, RUNTIME).startswith("$.planner.windows = [12] fits: rank 2, depth 1")
    tight = DeviceProfile(device="a", budget_bytes=MB, **small)  # type: ignore[arg-type]
    assert shorter_window(CONFIG, made, tight, RUNTIME) == ""


@pytest.mark.parametrize(("runtime", "message"), [("executorch", "trains no language model")])
def test_another_runtime_refuses_with_its_reason(runtime: str, message: str, tmp_path: Path) -> None:
    from edge.contracts.errors import ExportRefused

    exporter, made = CutExporter(CONFIG), method()
    cut = made.cut_shape(made.levels()[0], round_index=0, device="", seed=0)
    assert exporter.written_cost(cut, made.program(cut), runtime, PLAIN) is None
    with pytest.raises((ExportRefused, ConfigError), match=message):
        exporter.export(cut, made.program(cut), runtime, tmp_path / "artifact")
