"""What a probe reads on the machine at hand, and on one without sensors."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from profiles import probe as probe_module
from profiles.probe import cpu_model, probe, temperature_c


def test_probe_reads_this_machine(tmp_path: Path) -> None:
    profile = probe("dev-1", budget_bytes=5, storage=tmp_path, trainer_idle_bytes={"onnxruntime": 7})
    assert (profile.device, profile.budget_bytes, profile.trainer_idle_bytes) == ("dev-1", 5, {"onnxruntime": 7})
    assert 0 < profile.free_ram_bytes <= profile.ram_bytes
    assert 1 <= profile.cpu_count <= (os.cpu_count() or 1)
    assert profile.machine == os.uname().machine
    assert profile.storage_free_bytes > 0
    assert profile.probed_at > 1_700_000_000


def test_probe_takes_the_hottest_cpu_sensor(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = {
        "nvme": [SimpleNamespace(current=90.0)],
        "cpu_thermal": [SimpleNamespace(current=51.5), SimpleNamespace(current=60.25)],
    }
    monkeypatch.setattr(probe_module.psutil, "sensors_temperatures", lambda: readings)
    assert temperature_c() == 60.25


def test_probe_without_sensors_says_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_module.psutil, "sensors_temperatures", dict)
    monkeypatch.setattr(probe_module.psutil, "sensors_battery", lambda: None)
    profile = probe("dev-1")
    assert (profile.temperature_c, profile.battery_percent, profile.charging) == (None, None, None)


def test_probe_board_model_is_nul_terminated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "model"
    model.write_bytes(b"Raspberry Pi 5 Model B Rev 1.0\0")
    monkeypatch.setattr(probe_module, "_MODEL_FILES", (model, model))
    assert cpu_model() == "Raspberry Pi 5 Model B Rev 1.0"
