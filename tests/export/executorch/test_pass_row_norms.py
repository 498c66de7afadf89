"""Layer norm and softmax with their gradients against torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from edge.runtimes.executorch.library import NativeProgram
from export.formats.executorch_program.lowering import lower
from tests.export.executorch.executorch_rewritten import assert_rewrite_agrees, traced

pytestmark = pytest.mark.runtime
ATEN = torch.ops.aten
WANTED = [True, True, True]


@pytest.mark.parametrize(("shape", "normalised"), [((1, 1, 5), 1), ((3, 7, 65), 1), ((130, 4, 5), 2)], ids=str)
def test_layer_norm_and_its_gradients(shape: tuple[int, ...], normalised: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    size = list(shape[-normalised:])
    x, dy, w, b = torch.randn(shape) * 3 + 5, torch.randn(shape), torch.randn(size), torch.randn(size)

    def norm(x: Tensor, dy: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
        y, mean, rstd = ATEN.native_layer_norm(x, size, w, b, 1e-5)
        plain, *_ = ATEN.native_layer_norm(x, size, None, None, 1e-5)
        dx, *_ = ATEN.native_layer_norm_backward(dy, x, size, mean, rstd, None, None, [True, False, False])
        return [y, mean, rstd, plain, dx, *ATEN.native_layer_norm_backward(dy, x, size, mean, rstd, w, b, WANTED)]

    kernels = assert_rewrite_agrees(norm, [x, dy, w, b], tmp_path)
    names = ("layer_norm", "layer_norm_backward", "layer_norm_weight_gradient")
    assert {f"apportion_native::{name}.out" for name in names} <= kernels
    assert "aten::native_layer_norm.out" not in kernels


@pytest.mark.parametrize("shape", [(1, 1), (4, 10), (2, 5, 65), (700, 33)], ids=str)
def test_softmax_and_its_gradient(shape: tuple[int, ...], tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, dy = torch.randn(shape) * 5, torch.randn(shape)

    def softmax(x: Tensor, dy: Tensor) -> list[Tensor]:
        y = torch.softmax(x, -1)
        return [y, ATEN._softmax_backward_data(dy, y, -1, torch.float32)]

    kernels = assert_rewrite_agrees(softmax, [x, dy], tmp_path)
    assert {"apportion_native::softmax.out", "apportion_native::softmax_backward.out"} <= kernels


def test_softmax_far_from_its_maximum_and_of_nan(tmp_path: Path) -> None:
    infinity = float("inf")
    x = torch.tensor([[0.0, -200.0, 1e4], [float("nan"), 1.0, 2.0], [-infinity, 0.0, 0.0], [-infinity] * 3])
    program = traced(lambda x: [torch.softmax(x, -1)], [x])
    path = tmp_path / "program.pte"
    path.write_bytes(lower(program, program.outputs, batch=1).data)
    native = NativeProgram(path)
    native.run([x.numpy()])
    np.testing.assert_allclose(native.output(0, (4, 3)), torch.softmax(x, -1).numpy(), rtol=1e-6, atol=1e-30)
