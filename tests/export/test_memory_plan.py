"""Live bytes by hand on a small graph, and what a graph is predicted to take against what ONNX Runtime takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from torch import nn

from edge.contracts.manifest import InputSpec
from edge.contracts.tensors import TensorSpec
from export.bundle import export_artifact
from export.formats.onnx_step.execution_order import in_execution_order
from export.memory_plan import memory_plan
from export.training_step import StepSpec

MEGABYTE = 1 << 20
CHILD = """
import sys
import numpy as np
import onnxruntime as ort

def peak_kb():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

options = ort.SessionOptions()
options.intra_op_num_threads = 1
options.enable_mem_pattern = False
options.enable_mem_reuse = False
session = ort.InferenceSession(sys.argv[1], options, ["CPUExecutionProvider"])
binding = session.io_binding()
kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
for i in session.get_inputs():
    shape = [int(sys.argv[2]) if isinstance(d, str) else d for d in i.shape]
    binding.bind_cpu_input(i.name, np.zeros(shape, kinds[i.type]))
for o in session.get_outputs():
    binding.bind_output(o.name, "cpu")
before = peak_kb()
session.run_with_iobinding(binding)
print((peak_kb() - before) * 1024)
"""


def chain() -> onnx.ModelProto:
    """y = relu(x) [batch, 4]; z = y @ w [batch, 3]; next:w = w * 2; loss = sum(z)."""
    nodes = [
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("Gemm", ["y", "w"], ["z"]),
        helper.make_node("Add", ["w", "w"], ["next:w"]),
        helper.make_node("ReduceSum", ["z"], ["loss"], keepdims=0),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4]),
        helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 3]),
    ]
    outputs = [
        helper.make_tensor_value_info("loss", TensorProto.FLOAT, []),
        helper.make_tensor_value_info("next:w", TensorProto.FLOAT, [4, 3]),
    ]
    return helper.make_model(
        helper.make_graph(nodes, "chain", inputs, outputs), opset_imports=[helper.make_opsetid("", 20)]
    )


def test_plan_counts_lifetimes_by_hand() -> None:
    specs = [
        TensorSpec("x", ("batch", 4), "float32", "input"),
        TensorSpec("w", (4, 3), "float32", "parameter"),
        TensorSpec("loss", (), "float32", "loss"),
    ]
    plan = memory_plan(chain(), specs, batch=10)
    # y (10 * 4 floats) and z (10 * 3) live together while the product runs.
    assert (plan.state, plan.written, plan.batch, plan.intermediate) == (48, 48, 160, 160 + 120)
    assert plan.live == 48 + 48 + 160 + 280


def test_execution_order_takes_the_last_output_first() -> None:
    assert [n.op_type for n in in_execution_order(chain()).graph.node] == ["Relu", "Gemm", "ReduceSum", "Add"]


@pytest.mark.slow
@pytest.mark.runtime
@pytest.mark.parametrize("name", ["mlp", "convolutions"])
def test_plan_is_near_what_the_runtime_allocates(name: str, tmp_path: Path) -> None:
    if name == "mlp":
        module: nn.Module = nn.Sequential(
            nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
        )
        spec = StepSpec(input=InputSpec(layout="features", shape=(64,)), classes=10)
    else:
        layers: list[nn.Module] = []
        for width_in, width in ((3, 16), (16, 32), (32, 32), (32, 32)):
            layers += [nn.Conv2d(width_in, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
        spec = StepSpec(input=InputSpec(layout="chw", shape=(3, 32, 32)), classes=10)
    manifest = export_artifact(module, spec, tmp_path / "artifact")
    command = [sys.executable, "-c", CHILD, str(tmp_path / "artifact" / "train.onnx"), "32"]
    measured = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    # The child's peak grows by intermediates and one copy of all new state; inputs exist before.
    over = manifest.program("train").in_place or ()
    expected = manifest.cost.live_bytes - manifest.cost.state_bytes
    expected += sum(spec.byte_count() for spec in manifest.tensors if spec.name in over)
    assert measured == pytest.approx(expected, rel=0.2, abs=4 * MEGABYTE)
