"""Attention and its gradient as one kernel each: found in the form that models have, the same values on all threads."""

# Dims: B batch, T tokens, H heads, D channels per head.

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
KERNELS = {"apportion_native::attention.out", "apportion_native::attention_backward.out"}


def _parts(qkv: Tensor) -> tuple[Tensor, ...]:
    parts: tuple[Tensor, ...] = ATEN.permute(qkv, [2, 0, 3, 1, 4]).unbind(0)
    return parts


def _weights(q: Tensor, k: Tensor, scale: float) -> Tensor:
    b, h, t, d = q.shape
    scores = ATEN.bmm(q.reshape(b * h, t, d), ATEN.permute(k, [0, 1, 3, 2]).reshape(b * h, d, t))
    return torch.softmax(scores.reshape(b, h, t, t) * scale, -1)


def _attention(qkv: Tensor, dy: Tensor) -> list[Tensor]:
    """What is traced of a model's attention, forward and backward; y and the gradient."""
    b, t, _, h, d = qkv.shape
    scale = d**-0.5
    q, k, v = _parts(qkv)
    weights = _weights(q, k, scale)
    flat, values = weights.reshape(b * h, t, t), v.reshape(b * h, t, d)
    y = ATEN.permute(ATEN.bmm(flat, values).reshape(b, h, t, d), [0, 2, 1, 3])
    g = ATEN.permute(dy, [0, 2, 1, 3]).reshape(b * h, t, d)
    dv = ATEN.bmm(ATEN.permute(flat, [0, 2, 1]), g).reshape(b, h, t, d)
    dweights = ATEN.bmm(g, ATEN.permute(values, [0, 2, 1])).reshape(b, h, t, t)
    ds = (ATEN._softmax_backward_data(dweights, weights, -1, torch.float32) * scale).reshape(b * h, t, t)
    keys = ATEN.permute(k, [0, 1, 3, 2]).reshape(b * h, d, t)
    dk = ATEN.permute(ATEN.bmm(ATEN.permute(q.reshape(b * h, t, d), [0, 2, 1]), ds).reshape(b, h, d, t), [0, 1, 3, 2])
    dq = ATEN.bmm(ds, ATEN.permute(keys, [0, 2, 1])).reshape(b, h, t, d)
    dqkv = ATEN.permute(torch.stack([dq, dk, dv]), [1, 3, 0, 2, 4])
    return [y * 1.5, dqkv * 1.5]  # of a program's own outputs nothing is renamed


@pytest.mark.parametrize("size", [(2, 7, 3, 3, 5), (3, 20, 3, 2, 32)])
def test_attention_and_its_gradient_are_a_kernel_each(size: tuple[int, ...], tmp_path: Path) -> None:
    torch.manual_seed(0)
    b, t, _, h, d = size
    kernels = assert_rewrite_agrees(_attention, [torch.randn(size), torch.randn(b, t, h, d)], tmp_path)
    assert kernels >= KERNELS
    gone = ("softmax", "softmax_backward", "matrix_product", "permute")
    assert not kernels & {f"apportion_native::{name}.out" for name in gone}


def test_gradient_is_that_of_torch(tmp_path: Path) -> None:
    torch.manual_seed(1)
    qkv, dy = torch.randn(2, 9, 3, 2, 8, requires_grad=True), torch.randn(2, 9, 2, 8)
    y, dqkv = _attention(qkv.detach(), dy)
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
    (gradient,) = torch.autograd.grad(expected, qkv, dy)
    torch.testing.assert_close(y / 1.5, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(dqkv / 1.5, gradient, rtol=1e-5, atol=1e-5)


def test_weights_that_are_read_too_stay(tmp_path: Path) -> None:
    torch.manual_seed(2)

    def read(qkv: Tensor, dy: Tensor) -> list[Tensor]:
        q, k, _ = _parts(qkv)
        return [*_attention(qkv, dy), _weights(q, k, 0.25) * 2.0]

    assert_rewrite_agrees(read, [torch.randn(2, 6, 3, 2, 8), torch.randn(2, 6, 2, 8)], tmp_path)


def test_other_heads_of_values_are_not_taken_for_attention(tmp_path: Path) -> None:
    torch.manual_seed(3)

    def of_queries(qkv: Tensor) -> list[Tensor]:
        b, t, _, h, d = qkv.shape
        q, k, _ = _parts(qkv)
        y = ATEN.bmm(_weights(q, k, 0.5).reshape(b * h, t, t), q.reshape(b * h, t, d)).reshape(b, h, t, d)
        return [ATEN.permute(y, [0, 2, 1, 3]) * 1.5]

    assert not KERNELS & assert_rewrite_agrees(of_queries, [torch.randn(2, 6, 3, 2, 8)], tmp_path)


def test_bits_do_not_depend_on_threads(tmp_path: Path) -> None:
    torch.manual_seed(4)
    inputs = [torch.randn(3, 17, 3, 5, 24), torch.randn(3, 17, 5, 24)]
    program = traced(_attention, inputs)
    path = tmp_path / "program.pte"
    path.write_bytes(lower(program, program.outputs, batch=1).data)
    found = []
    for threads in (1, 2, 3):
        native = NativeProgram(path, NativeThreads(threads))
        native.run([x.numpy() for x in inputs])
        found.append([np.array(native.output(i, shape)) for i, shape in enumerate(((3, 17, 5, 24), (3, 17, 3, 5, 24)))])
    for other in found[1:]:
        assert all((a == b).all() for a, b in zip(found[0], other, strict=True))
