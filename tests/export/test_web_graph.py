"""Rewrites for the browser's runtime: the same values, and only where they were measured to pay."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from export.formats.web_graph import for_web

pytestmark = pytest.mark.runtime

SHAPE = ("N", 3, 4, 5)
RNG = np.random.default_rng(0)


def _graph(nodes: list[onnx.NodeProto], **constants: np.ndarray) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def _kinds(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def _values(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def _rewritten(model: onnx.ModelProto, *kinds: str) -> None:
    """``model`` becomes ``kinds`` and computes the same."""
    before = model.SerializeToString()
    web = for_web(model)
    assert model.SerializeToString() == before
    assert _kinds(web) == list(kinds)
    x = RNG.normal(size=(2, 3, 4, 5)).astype(np.float32)
    x[0, 0, 0, :3] = 0.0, 1e-30, -1e-30
    np.testing.assert_allclose(_values(web, x), _values(model, x), rtol=2e-6, atol=1e-7)


def test_rectifier_after_anything_but_a_product_is_a_maximum() -> None:
    _rewritten(
        _graph([helper.make_node("Neg", ["x"], ["n"]), helper.make_node("Relu", ["n"], ["y"])]),
        "Neg",
        "Max",
    )


def test_rectifier_that_the_runtime_computes_with_a_convolution_stays() -> None:
    w = RNG.normal(size=(2, 3, 1, 1)).astype(np.float32)
    _rewritten(
        _graph([helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["y"])], w=w),
        "Conv",
        "Relu",
    )


@pytest.mark.parametrize(("alpha", "kind"), [(3e38, "Sign"), (0.5, "HardSigmoid")])
def test_mask_of_a_rectifier_is_the_sign_of_its_result(alpha: float, kind: str) -> None:
    pooled = helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2])
    mask = helper.make_node("HardSigmoid", ["p"], ["y"], alpha=alpha, beta=0.0)
    _rewritten(_graph([helper.make_node("Relu", ["x"], ["r"]), pooled, mask]), "Max", "MaxPool", kind)


def test_step_of_values_that_may_be_negative_stays() -> None:
    _rewritten(_graph([helper.make_node("HardSigmoid", ["x"], ["y"], alpha=3e38, beta=0.0)]), "HardSigmoid")


@pytest.mark.parametrize(
    ("kind", "axes", "keepdims", "kinds"),
    [
        ("ReduceMean", [0, 2, 3], 0, ("GlobalAveragePool", "ReduceMean")),
        ("ReduceSum", [0, 2, 3], 0, ("GlobalAveragePool", "ReduceSum", "Mul")),
        ("ReduceSum", [0, 2, 3], 1, ("ReduceSum",)),
        ("ReduceSum", [2, 3], 0, ("ReduceSum",)),
    ],
)
def test_reduction_to_channels_goes_by_planes(kind: str, axes: list[int], keepdims: int, kinds: tuple[str]) -> None:
    reduced = helper.make_node(kind, ["x", "axes"], ["y"], keepdims=keepdims)
    _rewritten(_graph([reduced], axes=np.array(axes)), *kinds)
