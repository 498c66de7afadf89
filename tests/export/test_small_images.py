"""Convolutions whose kernels outgrow their images, and single numbers beside tensors that end in sizes of 1."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from edge.contracts.manifest import InputSpec
from export.formats.onnx_step.broadcasts import with_full_ranks
from export.formats.onnx_step.format import OnnxStep
from export.formats.onnx_step.operators.geometry import Window
from export.training_step import StepSpec

GEOMETRIES = [
    (size, kernel, stride, padding)
    for size, kernel, stride, padding in itertools.product((1, 2, 3, 5, 9), (1, 2, 3, 5), (1, 2, 3), (0, 1, 2, 3))
    if size + 2 * padding >= kernel
]


def taps_that_meet(size: int, kernel: int, stride: int, padding: int) -> set[int]:
    count = (size + 2 * padding - kernel) // stride + 1
    return {k for o in range(count) for k in range(kernel) if 0 <= o * stride + k - padding < size}


def test_a_window_keeps_the_taps_that_meet_the_image() -> None:
    for size, kernel, stride, padding in GEOMETRIES:
        count = (size + 2 * padding - kernel) // stride + 1
        window, (first,) = Window.padded([kernel], [stride], [padding], [1], 1).met([size], [count])
        met = taps_that_meet(size, kernel, stride, padding)
        kept_taps = range(first, first + window.kernel[0])
        assert met <= {*kept_taps}
        if met and stride == 1:
            assert met == {*kept_taps}, (size, kernel, padding)
        x, w = torch.randn(2, 3, size), torch.randn(4, 3, kernel)
        padded = nn.functional.pad(x, (window.before[0], window.after[0]))
        kept = nn.functional.conv1d(padded, w[:, :, first : first + window.kernel[0]], stride=stride)
        whole = nn.functional.conv1d(x, w, stride=stride, padding=padding)
        assert torch.allclose(kept, whole, atol=1e-5), (size, kernel, stride, padding)


def test_a_dilated_window_stays_whole() -> None:
    window = Window.padded([5, 5], [1, 1], [4, 4], [2, 2], 1)
    assert window.met([2, 2], [2, 2]) == (window, [0, 0])


NEITHER = {"Conv", "ConvTranspose"}
LAYERS = {
    "linear": ((6, 2, 2), nn.Conv2d(6, 8, 2), NEITHER),
    "centre tap": ((6, 1, 1), nn.Conv2d(6, 8, 3, padding=1), NEITHER),
    "middle taps": ((6, 2, 2), nn.Conv2d(6, 8, 7, padding=3), set()),
    "depthwise, one tap": ((6, 1, 1), nn.Conv2d(6, 6, 5, padding=2, groups=6), NEITHER),
    "depthwise": ((6, 4, 4), nn.Conv2d(6, 6, 3, padding=1, groups=6), NEITHER),
    "depthwise, stride": ((6, 5, 4), nn.Conv2d(6, 6, (3, 5), 2, (1, 2), groups=6, bias=False), NEITHER),
    "depthwise, large image": ((3, 40, 40), nn.Conv2d(3, 3, 3, padding=1, groups=3), set()),
    "grouped": ((6, 2, 2), nn.Conv2d(6, 12, 5, padding=2, groups=3), set()),
    "pointwise, few positions": ((40, 2, 2), nn.Conv2d(40, 48, 1), {"ConvTranspose"}),
    "pointwise, stride": ((40, 3, 3), nn.Conv2d(40, 48, 1, stride=2), set()),
    "pointwise, many positions": ((6, 12, 12), nn.Conv2d(6, 8, 1), {"ConvTranspose"}),
    "whole image, stride": ((6, 3, 3), nn.Conv2d(6, 8, 3, stride=2), NEITHER),
    "image rest": ((6, 4, 4), nn.Conv2d(6, 8, 3, stride=2), set()),
    "1-d depthwise": ((6, 5), nn.Conv1d(6, 6, 9, padding=4, groups=6), NEITHER),
}
"""Shape of an example, a layer behind a pointwise one, and operators that its step does without."""


@pytest.mark.parametrize("name", LAYERS)
def test_steps_on_small_images_are_torchs(name: str) -> None:
    shape, layer, without = LAYERS[name]
    before = (nn.Conv2d if len(shape) == 3 else nn.Conv1d)(shape[0], shape[0], 1)
    net = nn.Sequential(before, nn.Tanh(), layer, nn.Flatten(), nn.LazyLinear(3))
    net(torch.zeros(1, *shape))
    spec = StepSpec(input=InputSpec(layout="chw" if len(shape) == 3 else "features", shape=shape), classes=3, batch=4)
    written = OnnxStep().write(net, spec)
    OnnxStep().check(net, spec, written.files, written.programs, written.tensors)  # gradients beside torch's
    graph = onnx.load_from_string(written.files["train.onnx"]).graph
    of_layer = {node.op_type for node in graph.node if node.name.startswith("2/")}
    assert of_layer
    assert not of_layer & without


def graph(nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], shape: tuple[int, ...]) -> onnx.ModelProto:
    """w [5, 4, 1, 1], rate [] and one [1, 1] in, ``out`` out."""
    shapes = {"w": [5, 4, 1, 1], "rate": [], "one": [1, 1]}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    held = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, list(shape))]
    made = helper.make_graph(nodes, "step", inputs, outputs, held)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def test_single_numbers_get_the_rank_of_tensors_that_end_in_ones() -> None:
    model = graph(
        [
            helper.make_node("Mul", ["rate", "w"], ["moved"]),
            helper.make_node("Mul", ["one", "moved"], ["again"]),
            helper.make_node("Add", ["again", "half"], ["more"]),
            helper.make_node("Reshape", ["more", "flat"], ["row"]),
            helper.make_node("Mul", ["row", "half"], ["scaled"]),  # ends in 20: left as it is
            helper.make_node("Mul", ["scaled", "rate"], ["out"]),
        ],
        {"half": np.array(0.5, np.float32), "flat": np.array([20])},
        (20,),
    )
    changed = with_full_ranks(model)
    onnx.checker.check_model(changed, full_check=True)
    inputs = {node.output[0]: list(node.input) for node in changed.graph.node}
    assert inputs["moved"] == ["rate/4d", "w"]
    assert inputs["again"] == ["one/4d", "moved"]
    assert inputs["more"] == ["again", "half/4d"]
    assert inputs["scaled"] == ["row", "half"]
    assert inputs["out"] == ["scaled", "rate"]
    feeds = {
        "w": np.random.default_rng(0).standard_normal((5, 4, 1, 1)).astype(np.float32),
        "rate": np.array(0.3, np.float32),
        "one": np.full((1, 1), 1.7, np.float32),
    }
    got, wanted = (ort.InferenceSession(m.SerializeToString()).run(None, feeds)[0] for m in (changed, model))
    np.testing.assert_array_equal(got, wanted)


def test_a_graph_without_such_numbers_stays() -> None:
    model = graph([helper.make_node("Relu", ["w"], ["out"])], {}, (5, 4, 1, 1))
    assert with_full_ranks(model) == model
