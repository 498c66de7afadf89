"""Recomputation: the same bits in less memory, on the runtimes' own sessions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from edge.contracts.manifest import InputSpec
from export.formats import format_for
from export.formats.onnx_step.operator_table import translate
from export.forms.recomputation import RECOMPUTED, keeping, recomputed
from export.forms.step_form import PLAIN, StepForm, in_form
from export.gate_values import gate_values
from export.graph_session import GraphSession
from export.programs import capture_programs
from export.training_step import StepSpec
from export.value_lifetimes import peak_bytes

pytestmark = pytest.mark.runtime

STEP = StepSpec(input=InputSpec(layout="chw", shape=(3, 8, 8)), classes=5, batch=16)
RECOMPUTE = StepForm(recompute=True)


class Block(nn.Module):
    """A residual block."""

    def __init__(self, norm: type[nn.Module]) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(8, 8, 3, padding=1, bias=False), norm(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3, padding=1, bias=False), norm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + x)


class Residual(nn.Module):
    """Three blocks in a row."""

    def __init__(self, norm: type[nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.Sequential(*(Block(norm) for _ in range(3)))
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def ran(module: nn.Module, spec: StepSpec, name: str, folder: Path) -> tuple[dict[str, np.ndarray], int]:
    """Everything that a step gives and moves, and the peak of its values in bytes."""
    written = format_for(name).write(module, spec)
    values = gate_values(spec, written.tensors)
    if name == "onnxruntime":
        return GraphSession(written.files["train.onnx"]).run(values), written.memory.intermediate
    from export.formats.executorch_program.gate_run import GateRun

    paths = {file: folder / file for file in written.files}
    for file, data in written.files.items():
        paths[file].write_bytes(data)
    run = GateRun("train", written.programs, written.tensors, paths, batch=spec.batch)
    return run.run(values), written.memory.intermediate


@pytest.mark.slow
@pytest.mark.parametrize("name", ["onnxruntime", "executorch"])
def test_recomputed_steps_have_the_bits_of_plain_ones_in_less_memory(name: str, tmp_path: Path) -> None:
    if name == "executorch":
        pytest.importorskip("executorch")
    (plain, most), (got, least) = (ran(Residual(), in_form(STEP, form), name, tmp_path) for form in (PLAIN, RECOMPUTE))
    assert least < 0.75 * most
    assert {"loss", "next:stem.weight", "next:blocks.1.norm2.running_var"} <= plain.keys() == got.keys()
    for tensor, value in plain.items():
        np.testing.assert_array_equal(got[tensor], value, err_msg=tensor)


@pytest.mark.slow
def test_recomputation_moves_running_statistics_once() -> None:
    program = capture_programs(Residual(), STEP)["train"]
    again = keeping(program, frozenset(), 16)
    kinds = [(str(n.target), RECOMPUTED in n.meta) for n in again.graph.graph.nodes]
    assert kinds.count(("aten._native_batch_norm_legit_functional.default", False)) == 6
    assert kinds.count(("aten._native_batch_norm_legit.no_stats", True)) >= 5
    assert ("aten._native_batch_norm_legit_functional.default", True) not in kinds


@pytest.mark.slow
@pytest.mark.parametrize("norm", [nn.BatchNorm2d, lambda channels: nn.GroupNorm(2, channels)])
def test_every_choice_of_kept_values_gives_the_same_numbers(norm: type[nn.Module]) -> None:
    program = capture_programs(Residual(norm), STEP)["train"]
    torch.manual_seed(0)
    values = [
        torch.randint(0, 5, (4,)) if s.role == "target" else torch.rand([4 if d == "batch" else d for d in s.shape])
        for s in program.inputs
    ]

    def run(made: torch.fx.GraphModule) -> list[torch.Tensor]:
        return list(torch.fx.Interpreter(made).run(*values))

    expected = run(program.graph)
    for kept in (frozenset(), frozenset({"relu_1"}), frozenset({"convolution_2", "relu_3"})):
        for name, got, true in zip(
            (*program.outputs, *program.hidden), run(keeping(program, kept, 16).graph), expected, strict=True
        ):
            assert torch.equal(got, true), (kept, name)


def test_recomputation_keeps_a_program_it_cannot_improve() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(192, 5))
    program = capture_programs(module, STEP)["train"]
    assert recomputed(program, 16, lambda p: peak_bytes(p.graph.graph, 16)) is program


def test_peak_of_values_is_that_of_the_fullest_moment() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.zeros(10)
    first = graph.call_function(torch.ops.aten.relu.default, (x,))
    second = graph.call_function(torch.ops.aten.neg.default, (first,))
    view = graph.call_function(torch.ops.aten.view.default, (first, [10]))
    third = graph.call_function(torch.ops.aten.neg.default, (second,))
    last = graph.call_function(torch.ops.aten.add.Tensor, (third, view))
    graph.output([last])
    for node in (first, second, view, third, last):
        node.meta["val"] = torch.zeros(10)
    assert peak_bytes(graph, 1) == 120  # first, which its view keeps, second and third; then first, third and last


@pytest.mark.parametrize("batch", [2, 5])
def test_weight_gradients_in_parts_of_the_batch_are_those_of_the_whole(batch: int) -> None:
    image = InputSpec(layout="chw", shape=(6, 24, 24))
    module = nn.Sequential(
        nn.Conv2d(6, 7, 3, 1, 1), nn.Conv2d(7, 5, 3, 1, (0, 1)), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    program = capture_programs(module, StepSpec(input=image, classes=5))["train"]
    draws = np.random.default_rng(0)
    values = {
        s.name: draws.integers(0, 5, batch) if s.role == "target"
        else draws.normal(size=[batch if d == "batch" else d for d in s.shape]).astype(np.float32)
        for s in program.inputs
    }  # fmt: skip
    whole, parts = (GraphSession(translate(program, batch_parts=count), program.hidden).run(values) for count in (1, 4))
    for name in program.hidden:
        np.testing.assert_allclose(parts[name], whole[name], rtol=1e-5, atol=1e-6, err_msg=name)
