"""Graphs that would read other files of the machine, or name operators that nobody has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edge.contracts.errors import DeviceRefused
from edge.contracts.manifest import ArtifactManifest
from edge.runtimes import runtime
from edge.runtimes.graph_file import check_is_whole
from tests.edge.runtimes.test_onnxruntime_session import feeds
from tests.edge.tiny_artifact import BATCH, CLASSES, FEATURES, softmax_graph, softmax_manifest, tiny_job

SECRET = b"-----BEGIN PRIVATE KEY-----\n" + b"x" * 36


def tensor_of(location: str) -> TensorProto:
    tensor = TensorProto(name="stolen", data_type=TensorProto.FLOAT, dims=[16], data_location=TensorProto.EXTERNAL)
    for key, value in (("offset", "0"), ("length", "64"), ("location", location)):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return tensor


def hidden_in(place: str, tensor: TensorProto) -> bytes:
    """The tiny training graph with ``tensor`` somewhere in it."""
    model = onnx.load_from_string(softmax_graph())
    if place == "initializer":
        model.graph.initializer.append(tensor)
    elif place == "constant":
        model.graph.node.append(helper.make_node("Constant", [], ["stolen"], value=tensor))
    elif place == "subgraph":
        branch = helper.make_graph([helper.make_node("Identity", ["stolen"], ["out"])], "then", [], [], [tensor])
        model.graph.node.append(helper.make_node("If", ["hit"], ["out"], then_branch=branch, else_branch=branch))
    else:
        nodes = [helper.make_node("Constant", [], ["stolen"], value=tensor)]
        model.functions.append(helper.make_function("own", "f", [], ["stolen"], nodes, model.opset_import))
    return bytes(model.SerializeToString())


@pytest.mark.parametrize("place", ["initializer", "constant", "subgraph", "function"])
@pytest.mark.parametrize("location", ["../key.pem", "/etc/passwd", "key.pem"])
def test_graph_that_names_other_files_is_refused(tmp_path: Path, place: str, location: str) -> None:
    """ONNX Runtime Training 1.19.2 reads all three as weights."""
    (tmp_path / "store").mkdir()
    for folder in (tmp_path, tmp_path / "store"):
        (folder / "key.pem").write_bytes(SECRET)
    path = tmp_path / "store" / "train.onnx"
    path.write_bytes(hidden_in(place, tensor_of(location)))
    with pytest.raises(DeviceRefused, match=r"cannot load train.onnx: it takes values from another file"):
        check_is_whole(path, "train.onnx")


def test_ordinary_graph_passes_also_with_a_parameter_named_location(tmp_path: Path) -> None:
    path = tmp_path / "train.onnx"
    path.write_bytes(softmax_graph())
    check_is_whole(path, "train.onnx")
    model = onnx.load_from_string(softmax_graph())
    model.graph.initializer.append(helper.make_tensor("location", TensorProto.FLOAT, [1], [1.0]))
    path.write_bytes(model.SerializeToString())
    check_is_whole(path, "train.onnx")


@pytest.mark.parametrize("data", [b"location", b"\x0b\x00location", b"\x3a\xff\xff\xff\xff\x0flocation", b"\xff" * 9])
def test_what_is_no_graph_and_has_the_key_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "train.onnx").write_bytes(data + b"location")
    with pytest.raises(DeviceRefused, match=r"cannot load train.onnx: .* no ONNX graph"):
        check_is_whole(tmp_path / "train.onnx", "train.onnx")


@pytest.mark.runtime
def test_runtime_is_not_given_such_a_graph(tmp_path: Path) -> None:
    path = tmp_path / "train.onnx"
    path.write_bytes(hidden_in("initializer", tensor_of("key.pem")))
    (tmp_path / "key.pem").write_bytes(SECRET)
    assert "takes values from another file" in refused(path)


@pytest.mark.runtime
def test_graph_of_foreign_operators_is_refused(tmp_path: Path) -> None:
    """No library of operators is ever registered: what a graph names beyond the runtime's own is not there."""
    model = onnx.load_from_string(softmax_graph())
    model.opset_import.append(helper.make_opsetid("evil", 1))
    model.graph.node.append(helper.make_node("System", ["lr"], ["out"], domain="evil", command="touch ran"))
    path = tmp_path / "train.onnx"
    path.write_bytes(model.SerializeToString())
    assert "evil" in refused(path)


def refused(path: Path) -> str:
    """What the session says of the graph when it is to run."""
    manifest = ArtifactManifest.from_bytes(softmax_manifest(softmax_graph()))
    session = runtime("onnxruntime").load(manifest, {"train.onnx": path}, threads=1)
    session.load_state(tiny_job().weights)
    with pytest.raises(DeviceRefused) as caught:
        session.run("train", feeds(np.zeros((BATCH, FEATURES)), np.zeros(BATCH), np.ones(CLASSES)))
    return str(caught.value)
