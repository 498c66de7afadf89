"""A GELU, its gradient and residual sums in the product before them: fewer kernels, the same values on all threads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from edge.runtimes.executorch.library import NativeProgram, NativeThreads
from export.formats.executorch_program.lowering import lower
from tests.export.executorch.executorch_rewritten import assert_rewrite_agrees, traced

pytestmark = pytest.mark.runtime
ATEN = torch.ops.aten


def _names(*names: str) -> set[str]:
    return {f"apportion_native::{name}.out" for name in names}


def _perceptron(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, dy: Tensor) -> list[Tensor]:
    """x + fc2(gelu(fc1(x))) of [B, T, C], and its gradients of x (without the residual's) and of w2."""
    b, t, c = x.shape
    hidden = ATEN.addmm(b1, x.reshape(-1, c), ATEN.permute(w1, [1, 0])).reshape(b, t, -1)
    inner = ATEN.gelu(hidden).reshape(b * t, -1)
    y = x + ATEN.addmm(b2, inner, ATEN.permute(w2, [1, 0])).reshape(b, t, c)
    flat = dy.reshape(-1, c)
    dhidden = ATEN.gelu_backward(ATEN.mm(flat, w2).reshape(b, t, -1), hidden)
    dw2 = ATEN.mm(ATEN.permute(flat, [1, 0]), inner)
    return [y * 1.5, ATEN.mm(dhidden.reshape(b * t, -1), w1), dw2]


def _values(b: int, t: int, c: int, hidden: int) -> list[Tensor]:
    shapes = [(b, t, c), (hidden, c), (hidden,), (c, hidden), (c,), (b, t, c)]
    return [torch.randn(shape) * 0.5 for shape in shapes]


@pytest.mark.parametrize("size", [(2, 5, 7, 19), (3, 70, 32, 40)])
def test_perceptron_and_its_gradients(size: tuple[int, int, int, int], tmp_path: Path) -> None:
    """Up to 64 rows products are sums along both operands, beyond in tiles."""
    torch.manual_seed(0)
    kernels = assert_rewrite_agrees(_perceptron, _values(*size), tmp_path)
    assert kernels >= _names("linear_gelu", "linear_add", "product_times")
    assert not kernels & _names("gelu", "gelu_backward", "add", "linear")


def test_gradient_is_that_of_torch() -> None:
    torch.manual_seed(1)
    x, w1, b1, w2, b2, dy = _values(2, 5, 7, 19)
    inner = torch.nn.functional.linear(x.requires_grad_(), w1, b1)
    y = torch.nn.functional.linear(torch.nn.functional.gelu(inner), w2.requires_grad_(), b2)
    expected = torch.autograd.grad(y, [x, w2], dy)
    with torch.no_grad():
        found = _perceptron(x, w1, b1, w2, b2, dy)
    for a, b in zip(found[1:], expected, strict=True):
        torch.testing.assert_close(a.reshape(b.shape), b, rtol=1e-5, atol=1e-5)


def test_argument_of_a_gelu_that_is_read_too_stays(tmp_path: Path) -> None:
    torch.manual_seed(2)

    def read(x: Tensor, w: Tensor, b: Tensor, dy: Tensor) -> list[Tensor]:
        hidden = ATEN.addmm(b, x, ATEN.permute(w, [1, 0]))
        return [ATEN.gelu(hidden), ATEN.gelu_backward(dy, hidden), hidden * 2.0]

    values = [torch.randn(shape) for shape in ((6, 7), (9, 7), (9,), (6, 9))]
    kernels = assert_rewrite_agrees(read, values, tmp_path)
    assert kernels >= _names("gelu", "gelu_backward", "linear")


def test_gelu_that_is_not_trained_through_has_no_derivative(tmp_path: Path) -> None:
    torch.manual_seed(3)

    def forward(x: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
        return [ATEN.gelu(ATEN.addmm(b, x, ATEN.permute(w, [1, 0]))) * 1.5]

    kernels = assert_rewrite_agrees(forward, [torch.randn(s) for s in ((6, 7), (9, 7), (9,))], tmp_path)
    assert kernels >= _names("gelu", "linear")


def test_gradient_of_a_gelu_of_another_gradient(tmp_path: Path) -> None:
    """The gradient that comes is no product of its own: it is multiplied with the derivative."""
    torch.manual_seed(4)

    def both(x: Tensor, w: Tensor, b: Tensor, dy: Tensor) -> list[Tensor]:
        hidden = ATEN.addmm(b, x, ATEN.permute(w, [1, 0]))
        return [ATEN.gelu(hidden) * 1.5, ATEN.gelu_backward(dy, hidden) * 1.5]

    values = [torch.randn(shape) for shape in ((6, 7), (9, 7), (9,), (6, 9))]
    assert assert_rewrite_agrees(both, values, tmp_path) >= _names("linear_gelu", "multiply")


def test_residual_joins_the_gradient_of_a_layer_norm(tmp_path: Path) -> None:
    torch.manual_seed(5)

    def residual(x: Tensor, dy: Tensor, w: Tensor) -> list[Tensor]:
        _, mean, rstd = ATEN.native_layer_norm(x, [x.shape[-1]], w, None, 1e-5)
        dx, *_ = ATEN.native_layer_norm_backward(dy, x, [x.shape[-1]], mean, rstd, w, None, [True, False, False])
        return [(dy + dx) * 1.5]

    values = [torch.randn(2, 5, 19), torch.randn(2, 5, 19), torch.randn(19)]
    kernels = assert_rewrite_agrees(residual, values, tmp_path)
    assert kernels >= _names("layer_norm_backward_add")
    assert not kernels & _names("add")


def test_bits_do_not_depend_on_threads(tmp_path: Path) -> None:
    torch.manual_seed(6)
    inputs = _values(5, 61, 48, 301)
    program = traced(_perceptron, inputs)
    path = tmp_path / "program.pte"
    path.write_bytes(lower(program, program.outputs, batch=1).data)
    found = []
    for threads in (1, 2, 3):
        native = NativeProgram(path, NativeThreads(threads))
        native.run([x.numpy() for x in inputs])
        found.append([np.array(native.output(i, shape)) for i, shape in enumerate(((5, 61, 48), (305, 48), (48, 301)))])
    for other in found[1:]:
        assert all((a == b).all() for a, b in zip(found[0], other, strict=True))
