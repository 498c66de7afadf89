"""``bench``, ``costs`` and ``plan``: the keys scripts rely on, and figures that stand in a sane relation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import OWN, Command
from tests.federation.small_run import config_text

DESIGNED = {
    "ratio_to_torch",
    "step_ms",
    "torch_step_ms",
    "trainer_peak_mb",
    "process_peak_mb",
    "idle_rss_mb",
    "torch_peak_rss_mb",
    "predicted_peak_mb",
    "max_grad_rel_err",
}
OURS = {"schema", "ok", "model", "runtime", "batch", "threads", "torch_layout", "torch_fp32_rel_err", "parameters"}
OURS |= {"optimizer", "device_threads", "form", "cpu_s", "share_of_peak", "cpu_ms", "torch_cpu_ms", "loss", "trainer"}


@pytest.mark.slow
@pytest.mark.broker
def test_bench_step_has_its_keys_and_sane_figures(command: Command) -> None:
    arguments = ("--model", "mlp", "--runtime", "onnxruntime", "--batch", "8", "--threads", "1", "--blocks", "3")
    outcome = command("bench", "step", *arguments, "--json")
    assert outcome.status == 0, outcome.err
    line = outcome.line
    assert set(line) == DESIGNED | OURS
    assert (line["schema"], line["batch"], line["threads"]) == ("apportion.bench/1", 8, 1)
    assert line["device_threads"] == 1
    assert line["parameters"] == 64 * 2048 + 2048 + 2048 * 2048 + 2048 + 2048 * 10 + 10
    assert line["ratio_to_torch"] == pytest.approx(line["step_ms"] / line["torch_step_ms"], abs=2e-3)
    assert 0 < line["idle_rss_mb"] < line["trainer_peak_mb"] < line["process_peak_mb"]
    assert line["idle_rss_mb"] < line["predicted_peak_mb"]
    weights_mb = 4 * line["parameters"] / 2**20
    assert line["trainer_peak_mb"] - line["idle_rss_mb"] > 2 * weights_mb  # weights and momentum at the least
    assert line["torch_peak_rss_mb"] > 3 * weights_mb
    assert 0 < line["max_grad_rel_err"] < 1e-4
    assert line["cpu_s"] > 0
    assert 0 < line["share_of_peak"] < 1


@pytest.mark.slow
@pytest.mark.broker
def test_bench_of_kept_features_sets_them_beside_the_step_that_runs_its_frozen_layers(command: Command) -> None:
    of = ("--model", "resnet8", "--freeze", "2", "--batch", "16", "--blocks", "3", "--cached", "float32")
    outcome = command("bench", "step", *of, "--json")
    assert outcome.status == 0, outcome.err
    line = outcome.line
    keys = {"cached", "uncached_step_ms", "uncached_cpu_ms", "ratio_to_uncached", "first_epoch_cpu_ms", "same_updates"}
    assert set(line) == DESIGNED | OURS | keys
    assert line["same_updates"]
    assert 0.2 < line["ratio_to_uncached"] < 1
    assert line["trainer_peak_mb"] < 1.1 * line["predicted_peak_mb"]


@pytest.mark.slow
def test_bench_of_kept_features_without_frozen_layers_says_how_to_freeze_some(command: Command) -> None:
    outcome = command("bench", "step", "--model", "mlp", "--batch", "4", "--cached", "float32", "--json")
    assert outcome.status == 2
    assert "--freeze 0 trains the first layer; freeze some: --freeze 4" in str(outcome.error)


def test_bench_of_a_model_without_a_step_is_exit_2(command: Command) -> None:
    outcome = command("bench", "step", "--model", "tests.cli.own_models:with_sorting", *OWN, "--json")
    assert (outcome.status, outcome.error["code"]) == (2, "export-refused")


def test_costs_has_its_keys_and_those_of_its_level(command: Command) -> None:
    lines = [
        command("costs", "--method", "fedhm", "--model", "resnet20", "--level", level, "--json").line
        for level in ("1", "4")
    ]
    whole, quarter = lines
    designed = {"params", "macs", "activation_elements", "train_bytes", "bytes_up", "bytes_down"}
    assert set(whole) == designed | {"schema", "ok"}
    for key in ("params", "macs", "bytes_up", "bytes_down"):
        assert 0 < quarter[key] < whole[key]


def test_costs_for_people_are_the_same_numbers(command: Command) -> None:
    arguments = ("costs", "--method", "fedhm", "--model", "mlp", "--level", "8")
    shown = dict(row.split() for row in command(*arguments).out.splitlines())
    line = command(*arguments, "--json").line
    assert {key: int(value.replace(",", "")) for key, value in shown.items()} == {
        key: value for key, value in line.items() if key not in ("schema", "ok")
    }


def plan_file(folder: Path, *budgets_mb: float) -> Path:
    groups = "".join(f"[[cohort.local]]\ncount = 2\nbudget-mb = {budget}\n" for budget in budgets_mb)
    text = config_text(local=0, size=1).replace("levels = [4]", "levels = [1, 8]").replace("[96, 96]", "[1024, 1024]")
    text = text.replace("devices = 1\n", "").replace("[broker]", groups + "[broker]")
    path = folder / "run.toml"
    path.write_text(text)
    return path


@pytest.mark.slow
def test_plan_explains_what_was_too_large_and_fails_where_nothing_fits(command: Command, tmp_path: Path) -> None:
    outcome = command("plan", plan_file(tmp_path, 0, 90, 20), "--explain", "--json")
    assert outcome.status == 1
    line = outcome.line
    free, tight, none = line["groups"]
    assert (free["level"], free["form"]) == ("full", "plain")
    assert [(trial["level"], trial["outcome"]) for trial in free["tried"]] == [("full", "fits")]
    assert tight["level"] == "rank 1/8"
    assert tight["predicted_peak_bytes"] < 90 * 2**20
    whole = [trial for trial in tight["tried"] if trial["level"] == "full"]
    assert whole
    assert all(trial["outcome"] != "fits" for trial in whole)
    assert all(trial["predicted_peak_bytes"] > 90 * 2**20 for trial in whole if "predicted_peak_bytes" in trial)
    assert none["level"] is None
    assert line["ok"] is False
    assert line["error"]["code"] == "plan-error"
    assert "cohort.local[2]: budget 20.0 MB fits no cut" in line["error"]["message"]


def test_plan_without_devices_names_the_key(command: Command, tmp_path: Path) -> None:
    outcome = command("plan", plan_file(tmp_path), "--json")
    assert outcome.status == 2
    assert "$.cohort.local" in outcome.error["message"]
