"""Final models for inference: what torch says, the file says; int8 within its limit; and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

import apportion
from coordinator.cli.deploy import deployed
from coordinator.config.personal import PersonalConfig
from coordinator.deployment.inference_folder import deploy
from coordinator.exporting.cut_exporter import dense_module
from coordinator.run_file.checks import method_of_run
from coordinator.run_file.loading import load_config
from coordinator.submodels.build import module_tensors
from coordinator.submodels.values import State
from edge.contracts.errors import ApportionError, ArtifactCorrupt, ConfigError, LedgerError, ParityError
from edge.inference.predictor import Predictor
from tests.apportion.small_federation import digits, perceptron, small

ROOT = Path(__file__).parents[3]
X, Y = digits(1500)


class TinyConv(nn.Module):
    """With batch norm, so that statistics are deployed, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.head = nn.Linear(16 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.norm(self.first(x)).relu()).relu().flatten(1))


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> apportion.History:
    """Of a perceptron whose input is normalised."""
    data = apportion.Data((X[:1200], Y[:1200], X[1200:], Y[1200:]), mean=[0.3], std=[0.4])
    return small(data=data, rounds=6).simulate(tmp_path_factory.mktemp("runs") / "perceptron", quiet=True)


@pytest.fixture(scope="module")
def model(history: apportion.History, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "float"
    history.deploy(folder)
    return folder


@pytest.mark.slow
def test_file_says_what_torch_says_of_raw_examples(history: apportion.History, model: Path) -> None:
    module = perceptron()
    module.load_state_dict(history.state_dict())
    with torch.no_grad():
        expected = module((torch.tensor(X[1200:]) - 0.3) / 0.4)
    predictor = Predictor(model)
    assert np.allclose(predictor.logits(X[1200:]), expected.numpy(), atol=1e-4)
    assert np.allclose(predictor.probabilities(X[1200:1210]), expected[:10].double().softmax(1).numpy(), atol=1e-5)
    assert predictor.predict(X[1200:]).tolist() == [str(index) for index in expected.argmax(1).tolist()]
    assert predictor.manifest.accuracy == predictor.manifest.torch_accuracy == pytest.approx(history.accuracy)
    assert (predictor.manifest.examples, predictor.manifest.rounds) == (300, 6)
    assert sorted(path.name for path in model.iterdir()) == ["inference.json", "model.onnx"]


@pytest.mark.slow
def test_int8_is_smaller_and_states_its_accuracy(history: apportion.History, model: Path, tmp_path: Path) -> None:
    manifest = history.deploy(tmp_path / "small", int8=True)
    predictor = Predictor(tmp_path / "small")
    assert manifest == predictor.manifest == history.deploy(tmp_path / "again", int8=True)
    assert manifest.precision == "int8"
    right = (predictor.logits(X[1200:]).argmax(1) == Y[1200:]).mean()
    assert manifest.accuracy == pytest.approx(right)
    assert manifest.torch_accuracy - manifest.accuracy <= 0.02
    assert not np.array_equal(predictor.logits(X[1200:]), Predictor(model).logits(X[1200:]))


@pytest.mark.slow
def test_int8_of_a_network_with_batch_norm(tmp_path: Path) -> None:
    images = X.reshape(-1, 1, 8, 8)
    federation = small(model=TinyConv(), data=(images[:1200], Y[:1200], images[1200:], Y[1200:]), rounds=4, devices=2)
    history = federation.simulate(tmp_path / "run", quiet=True)
    whole, small_one = history.deploy(tmp_path / "whole"), history.deploy(tmp_path / "int8", int8=True)
    assert history.accuracy > 0.8
    assert whole.accuracy == whole.torch_accuracy == pytest.approx(history.accuracy)
    assert small_one.torch_accuracy - small_one.accuracy <= 0.02
    assert small_one.file.size < 0.6 * whole.file.size  # a quarter of its weights, and the ranges


@pytest.mark.slow
def test_held_out_folder_is_what_the_model_is_checked_on(tmp_path: Path) -> None:
    (tmp_path / "held-out").mkdir()
    np.savez(tmp_path / "held-out" / "a.npz", x=X[1200:], y=Y[1200:])
    federation = small(
        data=(X[:900], Y[:900], X[900:1000], Y[900:1000]), evaluation={"data": str(tmp_path / "held-out")}
    )
    history = federation.simulate(tmp_path / "run", quiet=True)
    manifest = history.deploy(tmp_path / "model")
    assert (manifest.examples, manifest.torch_accuracy) == (300, pytest.approx(history.accuracy))


def test_int8_without_training_examples_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X[:30], y=Y[:30])
    federation = small(data=None, devices=None, cohort={"size": 2}, evaluation={"data": str(tmp_path)}, model="mlp")
    state = method_of_run(federation.config, dense_module(federation.config)).init()
    with pytest.raises(ConfigError, match="int8 takes its ranges from training examples"):
        deploy(federation.config, state, tmp_path / "model", precision="int8", max_drop=0.0)


@pytest.mark.slow
def test_a_drop_beyond_the_limit_leaves_no_folder(
    history: apportion.History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(source: Path, out: Path, calibration: np.ndarray) -> None:
        import onnx
        from onnx import numpy_helper

        spoilt = onnx.load(str(source))
        for tensor in spoilt.graph.initializer:
            tensor.CopyFrom(numpy_helper.from_array(np.zeros_like(numpy_helper.to_array(tensor)), tensor.name))
        onnx.save(spoilt, str(out))

    monkeypatch.setattr("export.int8_model.write_int8_model", spoil)
    with pytest.raises(
        ParityError, match=r"in int8 the accuracy on 300 held-out examples is 0\.\d+, torch's is 0\.\d+"
    ):
        history.deploy(tmp_path / "model", int8=True)
    assert list(tmp_path.iterdir()) == []
    assert history.deploy(tmp_path / "model", int8=True, max_drop=1.0).accuracy < 0.2


@pytest.mark.slow
def test_float_model_that_disagrees_is_not_given_out(
    history: apportion.History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.deployment.inference_folder.TOLERANCE", -1.0)
    with pytest.raises(ParityError, match=r"logits of model\.onnx differ from torch's by"):
        history.deploy(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_run_with_devices_is_deployed_by_the_command(tmp_path: Path) -> None:
    model = {"build": "mlp", "options": {"hidden": [32, 32]}}
    small(model=model, data="digits", rounds=2).run(tmp_path / "run", quiet=True)
    command = [sys.executable, "-m", "edge"]
    done = subprocess.run(
        [*command, "deploy", str(tmp_path / "run"), "--out", str(tmp_path / "model"), "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    values = json.loads(done.stdout)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert values["accuracy"] == pytest.approx(summary["accuracy"])
    share = tmp_path / "run" / "devices" / "device-00" / "data"
    done = subprocess.run(
        [*command, "predict", str(tmp_path / "model"), "--data", str(share)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "examples with labels" in done.stdout


def test_run_that_is_not_there_or_has_not_ended_is_not_deployed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no run and no simulation"):
        deployed(tmp_path, tmp_path / "model")

    def stop(row: Any) -> None:
        raise ApportionError("enough")

    with pytest.raises(ApportionError, match="enough"):
        small(rounds=2).simulate(tmp_path / "run", on_round=stop, quiet=True)
    with pytest.raises(LedgerError, match="the simulation has not ended"):
        deployed(tmp_path / "run", tmp_path / "model", allow_code=True)


def test_simulation_of_somebody_elses_code_is_not_imported(history: apportion.History, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"names code to run, apportion\.given:Sequential_\w+"):
        apportion.deploy(history.run_dir, tmp_path / "model")


def test_run_with_personal_layers_is_refused(tmp_path: Path) -> None:
    config = load_config(ROOT / "examples" / "digits.toml")
    state = State(module_tensors(dense_module(config)))
    config = msgspec.structs.replace(config, personal=PersonalConfig(layers=("fc2.*",)))
    with pytest.raises(ConfigError, match=r"\$\.personal\.layers: 'fc2\.\w+' and 1 more stay on the devices"):
        deploy(config, state, tmp_path / "model", max_drop=0.02)
    assert not (tmp_path / "model").exists()


def test_arguments_that_cannot_be_used_are_named(history: apportion.History, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--format: 'tflite' is not known; known: onnx"):
        history.deploy(tmp_path / "model", format="tflite")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thing").touch()
    with pytest.raises(ConfigError, match=r"--out: .*full is there already"):
        history.deploy(tmp_path / "full")


@pytest.mark.slow
def test_changed_file_is_not_loaded(model: Path, tmp_path: Path) -> None:
    for path in model.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "model.onnx").write_bytes((model / "model.onnx").read_bytes()[:-1] + b"x")
    with pytest.raises(ArtifactCorrupt, match=r"model\.onnx has digest"):
        Predictor(tmp_path)
