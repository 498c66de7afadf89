"""Programs in edge form are the bytes that ExecuTorch's own passes make, whichever way they take."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coordinator.cli.model_arguments import ModelArguments
from export.bundle import export_artifact
from export.formats.executorch_program import edge_form, lowering
from export.formats.executorch_program.lowering import backend, compiled, quietly
from tests.export.executorch.executorch_rewritten import assert_rewrite_agrees

pytestmark = pytest.mark.runtime

Function = Callable[..., Sequence[Tensor]]


def by_passes(exported: Any) -> bytes:
    """The program as ExecuTorch's ``to_edge`` and its passes make it."""
    from executorch.exir import EdgeCompileConfig, to_edge

    edge = to_edge(exported, compile_config=EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True))
    return bytes(edge.to_executorch(backend()).buffer)


class Calls:
    """Which of ExecuTorch's passes over a whole program were asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import executorch.exir as exir

        self.made: list[str] = []
        self._watch(monkeypatch, exir, "to_edge")
        self._watch(monkeypatch, torch.export.ExportedProgram, "run_decompositions")

    def _watch(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def called(*args: Any, **kwargs: Any) -> Any:
            self.made.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, called)


def exported(function: Function, *inputs: Tensor) -> Any:
    """``function`` for 1 to 8 rows of the first input."""

    class Program(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.full((6,), 2.0))

        def forward(self, *values: Tensor) -> list[Tensor]:
            return list(function(self.scale, *values))

    batch = torch.export.Dim("batch", min=1, max=8)
    shapes = ({0: batch}, *[{} for _ in inputs[1:]])
    with torch.no_grad(), quietly():
        return torch.export.export(Program(), inputs, dynamic_shapes=(shapes,), strict=False)


def plain(scale: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
    rows = torch.arange(6).unsqueeze(0).eq(y.reshape(-1, 1))
    halves = (x * 0.5 - 1.0).reshape(-1, 2, 3)
    return [rows, halves.permute(0, 2, 1).sum(-1), torch.cat([x, scale.expand(x.shape)]), x[:, 0:6] + scale]


def of_no_effect(scale: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
    """Outputs that become inputs, and a value as it is."""
    return [x[:, :], (x + 1.0)[:, :6], y[0:]]


def promoted(scale: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
    return [x + y, x * 2]


def quotients(scale: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
    return [y / y, x / scale]


def composed(scale: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
    return [x.transpose(0, 1).reshape(-1), torch.ones_like(x), x.unbind(1)[2]]


def of_a_size(scale: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
    return [x.sum(1) * x.shape[0]]


@pytest.mark.parametrize(
    ("function", "passes"),
    [
        (plain, []),
        (of_no_effect, []),
        (promoted, ["to_edge", "run_decompositions"]),
        (quotients, ["to_edge", "run_decompositions"]),
        (composed, ["run_decompositions"]),
        (of_a_size, ["to_edge", "run_decompositions"]),
    ],
)
def test_edge_form_is_what_the_passes_make(
    function: Function, passes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = torch.randn(5, 6), torch.arange(6)
    program, other = exported(function, *inputs), exported(function, *inputs)
    with quietly():
        expected = by_passes(other)
    calls = Calls(monkeypatch)
    with quietly():
        assert bytes(compiled(program).buffer) == expected
    assert calls.made == passes


def test_edge_form_leaves_numbers_and_views_to_no_pass() -> None:
    program = exported(plain, torch.randn(5, 6), torch.arange(6))
    with quietly():
        graph = edge_form.edge_manager(program).exported_program().graph
    names = {str(node.target) for node in graph.nodes if node.op == "call_function"}
    assert {"aten.view_copy.default", "aten.permute_copy.default", "aten.expand_copy.default"} <= {
        name.split("EdgeOpOverload: ")[-1].split(">")[0] for name in names
    }
    assert sum("lifted_tensor_constant" in node.name for node in graph.find_nodes(op="placeholder")) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet8", "vit", "lstm", "depthwise"])
def test_whole_models_are_what_the_passes_make_and_need_none(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[bool] = []

    def both(program: Any) -> Any:
        expected = by_passes(copy.deepcopy(program))
        calls = Calls(monkeypatch)
        made = compiled(program)
        compared.append(bytes(made.buffer) == expected)
        assert calls.made == []
        return made

    monkeypatch.setattr(lowering, "compiled", both)
    prepared = ModelArguments(name, (), 0, 4).prepare()
    export_artifact(prepared.module, prepared.step, tmp_path / "a", build=prepared.build, runtime="executorch")
    assert len(compared) >= 2
    assert all(compared)


@pytest.mark.parametrize(("dim", "index"), [(0, 1), (1, -1), (-1, 0)])
def test_a_part_set_in_a_dimension_agrees_with_torch(dim: int, index: int, tmp_path: Path) -> None:
    x = torch.randn(3, 4, 5)
    part = torch.randn(x.select(dim, index).shape)
    kernels = assert_rewrite_agrees(lambda x, part: [torch.select_scatter(x, part, dim, index)], [x, part], tmp_path)
    assert "aten::slice_scatter.out" in kernels
