"""``plan`` with several runtimes: each group on its own, and one that is not here does not hide the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.planning.planner import MB
from profiles.device import DeviceProfile, MemoryLine, StepLine
from profiles.stored_profile import store_profile
from tests.cli.conftest import Command
from tests.federation.small_run import config_text

pytestmark = [pytest.mark.runtime, pytest.mark.slow]


def test_plan_names_the_runtime_of_every_group_and_why_one_cannot_be_placed(command: Command, tmp_path: Path) -> None:
    config, nowhere = tmp_path / "run.toml", tmp_path / "nowhere"
    text = config_text(local=2, runtimes=("onnxruntime", "executorch"))
    config.write_text(text.replace("[runtime]\n", f'[runtime]\nenvironments = {{ executorch = "{nowhere}" }}\n'))
    outcome = command("plan", config, "--json")
    assert outcome.status == 1
    here, missing = outcome.line["groups"]
    assert (here["runtime"], here["level"]) == ("onnxruntime", "rank 1/4")
    assert (missing["runtime"], missing["level"]) == ("executorch", None)
    assert missing["error"].startswith("cohort.local[1]: cannot train on its runtime 'executorch': ")
    assert f"{nowhere} has no bin/python" in missing["error"]


def test_plan_explains_the_parts_and_everything_that_was_tried(command: Command, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(config_text(local=1))
    outcome = command("plan", config, "--explain")
    assert outcome.status == 0
    head, *lines = outcome.out.splitlines()
    assert head.endswith(", on onnxruntime")
    assert [line.split()[0] for line in lines] == [
        "limit",
        "idle",
        "step",
        "headroom",
        "threads",
        "tried",
        "cut",
        "fits",
    ]
    assert "none known: everything fits; give a budget" in lines[0]
    assert "measured on this machine" in lines[1]


def test_plan_counts_on_a_local_trainer_without_python(command: Command, tmp_path: Path) -> None:
    """The int8 run's orders are the Python trainer's, the plain run's are not."""
    trainers = {}
    for name, precision in (("plain", ""), ("coded", '[updates]\nprecision = "int8"\n')):
        config = tmp_path / f"{name}.toml"
        config.write_text(config_text(local=1, runtimes=("executorch",)) + precision)
        outcome = command("plan", config, "--json")
        assert outcome.status == 0
        (group,) = outcome.line["groups"]
        trainers[name] = group["trainer_idle_bytes"]
    assert 0 < trainers["plain"] < 12 * MB < 25 * MB < trainers["coded"]


def test_plan_for_devices_of_the_catalog_and_of_a_folder(command: Command, tmp_path: Path) -> None:
    """A Pi Zero 2 W by its datasheet, and a device with measured lines: its own idle sizes, step times and threads."""
    config = tmp_path / "run.toml"
    config.write_text(config_text(local=0))
    measured = DeviceProfile(
        device="pi-07",
        budget_bytes=90 * MB,
        cpu_count=4,
        supervisor_idle_bytes=20 * MB,
        trainer_idle_bytes={"onnxruntime": 50 * MB},
        memory_lines={"onnxruntime": MemoryLine(1.0, MB, missing_bytes=8 * MB, points=6)},
        step_lines={"onnxruntime": (StepLine(1, 2.0, 0.0, 0.0), StepLine(2, 1.0, 0.0, 0.0))},
    )
    store_profile(tmp_path / "devices", measured, method="ladder")
    outcome = command(
        "plan", config, "--device", "pi-zero-2w", "--device", "pi-07", "--profiles", tmp_path / "devices", "--json"
    )
    assert outcome.status == 0
    zero, own = outcome.line["groups"]
    assert (zero["device"], zero["ceiling_bytes"], zero["step_ms"]) == ("pi-zero-2w", 512 * MB, None)
    assert zero["idle_source"].startswith("measured on this machine")
    assert (own["supervisor_bytes"], own["trainer_idle_bytes"]) == (24 * MB, 50 * MB)
    assert own["growth_bytes"] == own["manifest_growth_bytes"] + MB
    assert own["predicted_peak_bytes"] == own["expected_peak_bytes"] + 8 * MB
    assert (own["threads"], own["step_ms"]) == (2, 1.0)
    assert own["idle_source"] == "measured on the device"


def test_plan_for_a_device_that_nobody_knows_lists_the_catalog(command: Command, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(config_text(local=0))
    outcome = command("plan", config, "--device", "pi-99", "--json")
    assert outcome.status == 2
    assert "'pi-99' is not in the catalog; it has " in outcome.line["error"]["message"]
