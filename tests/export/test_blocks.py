"""Updates in blocks: the bits of whole ones, on any optimizer, and what stays whole."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from torch import nn

from edge.contracts.manifest import InputSpec
from edge.runtimes.onnxruntime.session import OnnxSession
from export.formats.onnx_step.format import OnnxStep
from export.gate_values import gate_values
from export.graph_session import GraphSession
from export.training_step import Optimizer, StepSpec
from export.written_programs import WrittenPrograms

FEATURES = InputSpec(layout="features", shape=(96,))
WEIGHT = "0.weight"
"""[768, 96], of 73,728 entries: blocks of 24,576."""
OPTIMIZERS = {
    "plain": Optimizer(momentum=False, weight_decay=False),
    "momentum": Optimizer(),
    "nesterov": Optimizer(nesterov=True),
    "adam": Optimizer(kind="adam"),
    "adamw": Optimizer(kind="adamw"),
}
FORMS = {
    **{name: {"optimizer": o} for name, o in OPTIMIZERS.items()},
    "clip": {"clip_norm": True},
    "proximal": {"proximal": True},
    "masked": {"masked": (WEIGHT,)},
}


@pytest.fixture(autouse=True)
def small_weights_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("export.formats.onnx_step.format.LARGE_BYTES", 1 << 18)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(96, 768), nn.ReLU(), nn.Linear(768, 5))


def step(**parts: object) -> StepSpec:
    return StepSpec(input=FEATURES, classes=5, batch=4, **parts)  # type: ignore[arg-type]


class Whole(OnnxStep):
    """The same without blocks."""

    writes_over = False


@pytest.mark.parametrize("form", FORMS)
def test_blocks_give_the_bits_of_whole_updates(form: str) -> None:
    spec = step(**FORMS[form])
    blocks, whole = (made().write(net(), spec) for made in (OnnxStep, Whole))
    train = onnx.load_from_string(blocks.files["train.onnx"])
    (scan,) = (node for node in train.graph.node if node.op_type == "Scan")
    state = {f"next:{t.name}" for t in blocks.tensors if t.name == WEIGHT or t.name.startswith(WEIGHT + "#")}
    assert set(scan.output) == {name for name in state if name in {o.name for o in train.graph.output}}
    values = gate_values(spec, blocks.tensors)
    got, wanted = (GraphSession(w.files["train.onnx"]).run(values) for w in (blocks, whole))
    for name in wanted:
        np.testing.assert_array_equal(got[name], wanted[name], err_msg=name)
    assert blocks.memory.written + blocks.memory.intermediate < whole.memory.written + whole.memory.intermediate


def test_gradient_that_the_gate_reads_stays_whole() -> None:
    model = onnx.load_from_string(OnnxStep().write(net(), step()).files["train.onnx"])
    assert f"grad:{WEIGHT}" in {name for node in model.graph.node for name in node.output}


def test_weight_without_blocks_of_one_size_is_whole() -> None:
    module = nn.Sequential(nn.Linear(97, 769), nn.ReLU(), nn.Linear(769, 5))  # both are primes
    spec = msgspec.structs.replace(step(), input=InputSpec(layout="features", shape=(97,)))
    model = onnx.load_from_string(OnnxStep().write(module, spec).files["train.onnx"])
    assert "Scan" not in {node.op_type for node in model.graph.node}


def session(written: WrittenPrograms, folder: Path) -> OnnxSession:
    """A device's session with what was written."""

    class Manifest(msgspec.Struct):
        programs: tuple[object, ...]
        tensors: tuple[object, ...]
        minimum_runtime_version: str = "1.20"

        def program(self, name: str) -> object:
            return next(p for p in self.programs if p.name == name)  # type: ignore[attr-defined]

    files = {}
    for name, data in written.files.items():
        files[name] = folder / name
        files[name].write_bytes(data)
    return OnnxSession(Manifest(written.programs, written.tensors), files, threads=1)  # type: ignore[arg-type]


def test_device_ends_several_steps_with_the_bits_of_two_buffers(tmp_path: Path) -> None:
    ends = []
    for made in (OnnxStep, Whole):
        written, folder = made().write(net(), step()), tmp_path / made.__name__
        folder.mkdir()
        device = session(written, folder)
        values = gate_values(step(), written.tensors)
        device.load_state(values)
        losses = [device.run("train", values)["loss"] for _ in range(4)]
        ends.append((losses, {n: device.read(n).copy() for n in (WEIGHT, f"{WEIGHT}#momentum", "2.weight", "0.bias")}))
    (losses, state), (wanted_losses, wanted) = ends
    assert losses == wanted_losses
    assert losses[-1] < losses[0]
    for name, value in wanted.items():
        np.testing.assert_array_equal(state[name], value, err_msg=name)
