"""A simulation with a device's runtime ends with the bits of the federation on devices; its settings are checked."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from coordinator.cli.assembly import start_run
from coordinator.cli.open_run import RunOptions
from coordinator.cli.simulate import begin, with_runtime
from coordinator.config.run_config import RunConfig
from coordinator.run_file.loading import load_config, load_config_text
from coordinator.simulation.assembly import SimulationOptions, simulate
from coordinator.simulation.runtime_artifacts import check_runtime
from edge.contracts.errors import ConfigError
from tests.federation.small_run import config_text, with_convolutions
from tests.federation.test_record_of_bits import DEMO, recorded_bits

FINAL = Path("checkpoints") / "final.safetensors"


def _with_runtime(text: str, name: str, more: str = "") -> RunConfig:
    return load_config_text(f'{text}\n[simulation]\nruntime = "{name}"\n{more}')


def _simulated(config: RunConfig, folder: Path, workers: int = 1) -> bytes:
    record = begin(config, folder)
    simulate(config, folder, record, SimulationOptions(quiet=True, workers=workers))
    assert {name for entry in record.rounds for name in entry["runtimes"]} == {config.simulation.runtime}
    return (folder / FINAL).read_bytes()


@pytest.fixture(params=["onnxruntime", "executorch"])
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "executorch":
        request.getfixturevalue("executorch")
    return str(request.param)


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.runtime
@pytest.mark.parametrize("convolutions", [False, True], ids=["factors", "norms"])
def test_ends_with_the_bits_of_the_devices(name: str, convolutions: bool, tmp_path: Path) -> None:
    text = config_text(runtimes=[name])
    if convolutions:
        text = with_convolutions(text)
    start_run(load_config_text(text), tmp_path / "run", RunOptions(quiet=True))
    config = _with_runtime(text, name)
    simulated = _simulated(config, tmp_path / "one")
    assert simulated == (tmp_path / "run" / FINAL).read_bytes()
    assert list((tmp_path / "one" / "artifacts").rglob("manifest.json"))
    assert _simulated(config, tmp_path / "two", workers=2) == simulated


@pytest.mark.slow
@pytest.mark.runtime
def test_runs_that_name_a_folder_export_once(tmp_path: Path) -> None:
    text = f'{config_text(rounds=1)}\n[planner]\nexport-cache = "{tmp_path / "kept"}"\n'
    first = _simulated(_with_runtime(text, "onnxruntime"), tmp_path / "one")
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").rglob("manifest.json")}
    assert made
    assert _simulated(_with_runtime(text, "onnxruntime"), tmp_path / "two") == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").rglob("manifest.json")} == made


@pytest.mark.slow
@pytest.mark.runtime
def test_the_demo_has_the_bits_of_its_record(tmp_path: Path) -> None:
    recorded = recorded_bits("demo")
    _simulated(with_runtime(load_config(DEMO), "onnxruntime"), tmp_path)
    assert hashlib.sha256((tmp_path / FINAL).read_bytes()).hexdigest() == recorded


@pytest.mark.parametrize(
    ("runtime", "device", "more", "words"),
    [
        ("tflite", "cpu", "", "'tflite' is not known"),
        ("onnxruntime", "cuda", "", "not on cuda; leave out --device"),
        ("onnxruntime", "cpu", 'precision = "bfloat16"', 'precision is "bfloat16"; leave one out'),
    ],
)
def test_what_it_cannot_do_is_refused_and_said(runtime: str, device: str, more: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_runtime(_with_runtime(config_text(), runtime, more), device)


def test_the_command_line_replaces_it_and_knows_the_runtimes() -> None:
    config = load_config_text(config_text())
    assert with_runtime(config, "") is config
    assert with_runtime(config, "onnxruntime").simulation.runtime == "onnxruntime"
    with pytest.raises(ConfigError, match="'tflite' is not known; use torch, onnxruntime"):
        with_runtime(config, "tflite")


def test_torch_is_the_default_and_needs_nothing() -> None:
    check_runtime(load_config_text(config_text()), "cuda")
