"""Predictions on a device: a hand-made model, its input's preparation, data with and without labels, and bad input."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge.__main__ import main
from edge.contracts.errors import (
    ApportionError,
    ArtifactCorrupt,
    ConfigError,
    DataError,
    DeviceRefused,
    MessageRejected,
)
from edge.contracts.inference import InferenceManifest
from edge.contracts.manifest import ArtifactFile, InputSpec
from edge.inference.predictor import Predictor

ROOT = Path(__file__).parents[3]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two classes of two numbers: the logits are the inputs, (x / 2 - 1)."""
    folder = tmp_path / "model"
    folder.mkdir()
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["input", "w"], ["logits"])],
        "identity",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 2])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 2])],
        [numpy_helper.from_array(np.eye(2, dtype=np.float32), "w")],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), str(folder / "model.onnx"))
    data = (folder / "model.onnx").read_bytes()
    manifest = InferenceManifest(
        federation="tiny",
        rounds=1,
        model="mlp",
        runtime="onnxruntime",
        minimum_runtime_version="1.20.0",
        precision="float32",
        file=ArtifactFile("model.onnx", hashlib.sha256(data).hexdigest(), len(data)),
        input=InputSpec(layout="features", shape=(2,), scale=0.5, mean=(1.0,)),
        classes=("left", "right"),
        examples=10,
        accuracy=1.0,
        torch_accuracy=1.0,
        agreement=1.0,
    )
    (folder / "inference.json").write_bytes(manifest.to_bytes())
    return folder


def changed(folder: Path, **fields: Any) -> None:
    path = folder / "inference.json"
    manifest = InferenceManifest.from_bytes(path.read_bytes())
    path.write_bytes(msgspec.structs.replace(manifest, **fields).to_bytes())


def test_raw_examples_are_prepared_and_classified(model: Path) -> None:
    predictor = Predictor(model)
    x = np.array([[4, 2], [0, 6]], np.uint8)
    assert predictor.logits(x).tolist() == [[1.0, 0.0], [-1.0, 2.0]]
    assert predictor.predict(x).tolist() == ["left", "right"]
    assert predictor.probabilities(x)[0] == pytest.approx([0.7310586, 0.2689414])
    assert x.tolist() == [[4, 2], [0, 6]]
    assert predictor.logits(np.zeros((0, 2))).shape == (0, 2)


def test_more_examples_than_go_at_once_keep_their_order(model: Path) -> None:
    x = np.arange(1400, dtype=np.float32).reshape(700, 2)
    assert np.array_equal(Predictor(model).logits(x), x / 2 - 1)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.zeros((2, 3)), r"examples have shape \(3,\), the artifact takes \(2,\)"),
        (np.array([["a", "b"]]), "numbers expected"),
        (np.array([[np.nan, 1.0]]), "not finite"),
    ],
)
def test_examples_that_do_not_fit_are_named(model: Path, x: np.ndarray, words: str) -> None:
    with pytest.raises(DataError, match=words):
        Predictor(model).logits(x)


def test_command_prints_classes_and_accuracy(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "data.npz", x=np.array([[4, 2], [0, 6], [9, 0]]), y=np.array([0, 1, 1]))
    assert main(["predict", str(model), "--data", str(tmp_path / "data.npz"), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["schema"] == "apportion.predict/1"
    assert values["predictions"] == ["left", "right", "left"]
    assert values["accuracy"] == pytest.approx(2 / 3)
    assert main(["predict", str(model), "--data", str(tmp_path / "data.npz")]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "     0  left  0.731"


def test_command_takes_examples_without_labels_and_labels_that_are_names(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "x.npz", x=np.array([[4, 2]]))
    assert main(["predict", str(model), "--data", str(tmp_path / "x.npz"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] is None
    np.savez(tmp_path / "named.npz", x=np.array([[4, 2], [0, 6]]), y=np.array(["left", "left"]))
    assert main(["predict", str(model), "--data", str(tmp_path / "named.npz"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == 0.5


def test_command_says_what_is_not_there(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(tmp_path), "--data", str(tmp_path)]) == 2
    assert "it has no inference.json" in capsys.readouterr().err
    assert main(["predict", str(model), "--data", str(tmp_path / "nothing")]) == 1
    assert "no local data at" in capsys.readouterr().err
    (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04")
    assert main(["predict", str(model), "--data", str(tmp_path / "torn.npz")]) == 1
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"runtime": "abacus"}, DeviceRefused, "for the runtime 'abacus'"),
        ({"minimum_runtime_version": "99.0"}, DeviceRefused, r"needs onnxruntime 99\.0 or newer"),
        ({"file": ArtifactFile("model.onnx", "0" * 64, 1)}, ArtifactCorrupt, "has digest"),
        ({"file": ArtifactFile("gone.onnx", "0" * 64, 1)}, ArtifactCorrupt, "copy the folder again"),
        ({"file": ArtifactFile("../model.onnx", "0" * 64, 1)}, MessageRejected, "not a plain name"),
        ({"input": InputSpec(layout="features", shape=(0,))}, MessageRejected, "sizes must be counts"),
    ],
)
def test_model_that_cannot_be_trusted_is_refused(
    model: Path, fields: dict[str, Any], error: type[ApportionError], words: str
) -> None:
    changed(model, **fields)
    with pytest.raises(error, match=words):
        Predictor(model)


def test_file_that_is_no_model_is_refused(model: Path) -> None:
    data = b"\x08\x08 no model"
    (model / "model.onnx").write_bytes(data)
    changed(model, file=ArtifactFile("model.onnx", hashlib.sha256(data).hexdigest(), len(data)))
    with pytest.raises(DeviceRefused, match=r"cannot load model\.onnx"):
        Predictor(model)


def test_folder_without_a_model_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no model there, it has no inference\.json"):
        Predictor(tmp_path)


@pytest.mark.slow
def test_prediction_loads_no_torch_and_no_coordinator(model: Path) -> None:
    code = (
        "import sys, apportion, numpy; p = apportion.Predictor(sys.argv[1]); p.predict(numpy.zeros((1, 2)));"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'torch', 'onnx', 'coordinator', 'export', 'typer'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(model)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
