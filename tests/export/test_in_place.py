"""What a step may write over: by hand, and in whatever order its operations run."""

from __future__ import annotations

import random

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from torch import nn

from edge.contracts.manifest import InputSpec
from export.formats.onnx_step.format import OnnxStep
from export.formats.onnx_step.in_place import updated_last, written_in_place
from export.gate_values import gate_values
from export.training_step import Optimizer, StepSpec

BATCH = 4
IMAGE = InputSpec(layout="chw", shape=(3, 6, 6))


class Net(nn.Module):
    """A convolution, a norm, and linear layers of which the second's weight is read late."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.wide = nn.Linear(4 * 36, 24)
        self.head = nn.Linear(24, 5)

    def forward(self, x):  # type: ignore[no-untyped-def]
        x = nn.functional.relu(self.norm(self.conv(x))).flatten(1)
        return self.head(nn.functional.relu(self.wide(x)))


def graph(nodes: list[onnx.NodeProto], constants: dict[str, float] | None = None) -> onnx.ModelProto:
    """x [2, 3], w and v [3, 3], rate and decay []; the outputs are what nobody reads."""
    shapes = {"x": [2, 3], "w": [3, 3], "v": [3, 3], "rate": [], "decay": []}
    read = {name for node in nodes for name in node.input}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items() if n in read]
    ends = [name for node in nodes for name in node.output if name not in read or name.startswith("next:")]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ends]
    held = [onnx.numpy_helper.from_array(np.float32(v), n) for n, v in (constants or {}).items()]
    return helper.make_model(
        helper.make_graph(nodes, "step", inputs, outputs, held),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=10,
    )


MOMENTUM = [
    helper.make_node("Gemm", ["x", "w"], ["y"]),
    helper.make_node("Gemm", ["x", "y"], ["g"], transA=1),
    helper.make_node("Mul", ["decay", "v"], ["kept"]),
    helper.make_node("Add", ["kept", "g"], ["next:v"]),
    helper.make_node("Mul", ["rate", "next:v"], ["moved"]),
    helper.make_node("Sub", ["w", "moved"], ["next:w"]),
]
LATE = helper.make_node("Gemm", ["y", "w"], ["below"], transB=1)


def test_state_that_only_its_own_rule_reads_is_written_in_place() -> None:
    assert written_in_place(graph(MOMENTUM)) == ("w", "v")


def test_weight_that_is_read_beside_its_update_is_not() -> None:
    assert written_in_place(graph([*MOMENTUM, LATE])) == ("v",)


@pytest.mark.parametrize("view", ["Identity", "Reshape", "Cast", "Transpose", "Squeeze"])
def test_what_may_be_a_view_counts_as_the_weight(view: str) -> None:
    options = {"to": TensorProto.FLOAT} if view == "Cast" else {}
    inputs = ["w", "shape"] if view == "Reshape" else ["w"]
    seen = [helper.make_node(view, inputs, ["seen"], **options), helper.make_node("Gemm", ["y", "seen"], ["below"])]
    before = [helper.make_node(view, inputs, ["view"], **options), helper.make_node("Gemm", ["x", "view"], ["y"])]
    constants = {"shape": 1.0} if view == "Reshape" else {}
    assert written_in_place(graph([*MOMENTUM, *seen], constants)) == ("v",)
    assert written_in_place(graph([*before, *MOMENTUM[1:]], constants)) == ("w", "v")


def test_product_by_a_constant_may_be_a_view_too() -> None:
    late = [helper.make_node("Mul", ["w", "one"], ["same"]), helper.make_node("Gemm", ["y", "same"], ["below"])]
    decay = [
        helper.make_node("Mul", ["w", "one"], ["same"]),
        *MOMENTUM[:-1],
        helper.make_node("Sub", ["same", "moved"], ["next:w"]),
    ]
    assert written_in_place(graph([*MOMENTUM, *late], {"one": 1.0})) == ("v",)
    assert written_in_place(graph(decay, {"one": 1.0})) == ("w", "v")


def test_constant_that_is_computed_is_one_too() -> None:
    made = [helper.make_node("Mul", ["half", "two"], ["one"])]
    late = [helper.make_node("Mul", ["w", "one"], ["same"]), helper.make_node("Gemm", ["y", "same"], ["below"])]
    assert written_in_place(graph([*made, *MOMENTUM, *late], {"half": 0.5, "two": 2.0})) == ("v",)


def test_new_value_that_is_a_copy_is_not_written_in_place() -> None:
    nodes = [helper.make_node("Add", ["w", "w"], ["sum"]), helper.make_node("Identity", ["sum"], ["next:w"])]
    assert written_in_place(graph(nodes)) == ()


def test_large_weight_is_updated_after_its_late_reader_with_the_same_bits() -> None:
    model = graph([*MOMENTUM, LATE])
    ordered = updated_last(model, frozenset({"w"}))
    assert written_in_place(ordered) == ("w", "v")
    generator = np.random.default_rng(1)
    values = {
        v.name: generator.normal(size=[d.dim_value for d in v.type.tensor_type.shape.dim]).astype(np.float32)
        for v in model.graph.input
    }
    values["x"][0, 0] = np.inf  # what waits reads an entry that is not a number, and the rate stays what it is
    names = [value.name for value in model.graph.output]
    for got, wanted in zip(run(ordered, values, names), run(model, values, names), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_update_of_another_form_stays_as_it_is() -> None:
    nodes = [*MOMENTUM[:-1], helper.make_node("Add", ["w", "moved"], ["next:w"]), LATE]
    assert updated_last(graph(nodes), frozenset({"w"})) == graph(nodes)


@pytest.mark.parametrize(
    "optimizer",
    [Optimizer(), Optimizer(nesterov=True), Optimizer(momentum=False), Optimizer(kind="adam"), Optimizer(kind="adamw")],
    ids=["momentum", "nesterov", "plain", "adam", "adamw"],
)
@pytest.mark.slow
def test_any_order_gives_the_same_with_and_without(optimizer: Optimizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("export.formats.onnx_step.format.LARGE_BYTES", 1)
    spec = StepSpec(input=IMAGE, classes=5, batch=BATCH, optimizer=optimizer)
    written = OnnxStep().write(Net(), spec)
    model = onnx.load_from_string(written.files["train.onnx"])
    (program,) = (p for p in written.programs if p.name == "train")
    assert program.in_place == written_in_place(model)
    slots = {t.name for t in written.tensors if t.role in ("slot", "buffer") and t.name in program.inputs}
    assert slots <= {*program.in_place, "optimizer#step"}
    if optimizer.kind == "sgd":
        assert "wide.weight" in program.in_place
    values = gate_values(spec, written.tensors)
    order = random.Random(1)
    wanted = in_some_order(model, values, order, ())
    for _ in range(3):
        got = in_some_order(model, values, order, program.in_place)
        for name, value in wanted.items():
            np.testing.assert_array_equal(got[name], value, err_msg=name)


def in_some_order(
    model: onnx.ModelProto, values: dict[str, np.ndarray], order: random.Random, in_place: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """The graph's outputs, node by node in a drawn order; new values of ``in_place`` go into the old one's array."""
    held = {v.name: np.array(values[v.name]) for v in model.graph.input}
    held |= {c.name: onnx.numpy_helper.to_array(c) for c in model.graph.initializer}
    waiting = list(model.graph.node)
    while waiting:
        ready = [i for i, node in enumerate(waiting) if all(n in held for n in node.input if n)]
        node = waiting.pop(order.choice(ready))
        for name, value in zip(node.output, computed(node, [held[n] for n in node.input if n]), strict=False):
            state = name.removeprefix("next:")
            if name.startswith("next:") and state in in_place:
                held[state][...] = value
                value = held[state]
            held[name] = value
    return {v.name: held[v.name] for v in model.graph.output}


def computed(node: onnx.NodeProto, operands: list[np.ndarray]) -> list[np.ndarray]:
    """What ONNX Runtime gives of one node."""
    kinds = {np.dtype(np.float32): 1, np.dtype(np.int64): 7, np.dtype(np.int32): 6, np.dtype(bool): 9}
    names = iter(f"in{i}" for i in range(len(operands)))
    named = {name: next(names) for name in node.input if name}
    alone = onnx.NodeProto()
    alone.CopyFrom(node)
    for i, name in enumerate(node.input):
        alone.input[i] = named.get(name, "")
    inputs = [
        helper.make_tensor_value_info(f"in{i}", kinds[value.dtype], value.shape) for i, value in enumerate(operands)
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    model = helper.make_model(
        helper.make_graph([alone], "node", inputs, outputs),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=10,
    )
    return run(model, {f"in{i}": value for i, value in enumerate(operands)}, [n for n in node.output if n])


def run(model: onnx.ModelProto, values: dict[str, np.ndarray], names: list[str]) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(names, values))
