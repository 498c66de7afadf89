"""The kernels on several threads: the same bits as on one, at odd sizes and at batch 1."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from edge.runtimes.executorch.library import NativeProgram, NativeThreads
from edge.runtimes.executorch.native_update import NativeUpdate
from edge.runtimes.update_rule import UpdateRule
from export.formats.executorch_program.lowering import lower
from tests.export.executorch.executorch_rewritten import traced

pytestmark = pytest.mark.runtime
ATEN = torch.ops.aten


def _convolution(x: Tensor, w: Tensor, stride: int, groups: int) -> list[Tensor]:
    window = ([stride, stride], [1, 1], [1, 1])
    y = ATEN.convolution(x, w, None, *window, False, [0, 0], groups)
    gradients = ATEN.convolution_backward(y, x, w, None, *window, False, [0, 0], groups, [True, True, False])
    return [y, *gradients[:2]]


def _step(
    x: Tensor, w: Tensor, wide: Tensor, deep: Tensor, tiled: Tensor, large: Tensor, a: Tensor, b: Tensor
) -> Sequence[Tensor]:
    """Every kind of kernel that shares its work out."""
    found = [*_convolution(x, w, 1, 1), *_convolution(x, w, 2, 1), *_convolution(x, wide, 1, x.shape[1])]
    y, mean, rstd = ATEN._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5)
    gradient = ATEN.native_batch_norm_backward(x.abs(), x, None, None, None, mean, rstd, True, 1e-5, [True, True, True])
    found += [y, *gradient[:1], y.relu(), torch.max_pool2d(x, 3, 2, 1), x.permute(0, 2, 3, 1).contiguous()]
    # Sums too large to be held more than once are cut by rows.
    few = x[:, :, :9, :9].repeat(1, deep.shape[1] // x.shape[1] + 1, 1, 1)[:, : deep.shape[1]]
    found += _convolution(few, deep, 1, 1)
    # By tiles: many of few channels, few of many.
    found += _convolution(x.repeat(1, 2, 1, 1)[:, : tiled.shape[1]], tiled, 1, 1)
    found += _convolution(x[:, :, :13, :13].repeat(1, 11, 1, 1)[:, : large.shape[1]], large, 1, 1)
    c = a @ b
    rows, means, rstds = ATEN.native_layer_norm(c, [c.shape[-1]], None, None, 1e-5)
    row_gradient = ATEN.native_layer_norm_backward(
        c.abs(), c, [c.shape[-1]], means, rstds, None, None, [True, False, False]
    )
    weights = torch.softmax(c, -1)
    found += [c, c.t() @ a, rows, row_gradient[0], weights, ATEN._softmax_backward_data(c, weights, 1, torch.float32)]
    return [*found, torch.nn.functional.gelu(c), c.sum(0), c.sum(1), torch.log_softmax(c, -1)]


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 7])
def test_bits_do_not_depend_on_threads(batch: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    shapes = [
        (batch, 19, 37, 41),
        (23, 19, 3, 3),
        (19, 1, 3, 3),
        (150, 130, 3, 3),
        (48, 32, 3, 3),
        (208, 192, 3, 3),
        (301, 70),
        (70, 210),
    ]
    inputs = [torch.randn(shape) for shape in shapes]
    program = traced(_step, inputs)
    path = tmp_path / "program.pte"
    path.write_bytes(lower(program, program.outputs, batch=1).data)
    arrays = [x.numpy() for x in inputs]
    expected = [np.array(value.numpy()) for value in _step(*inputs)]
    found = []
    for threads in (1, 2, 3, 4, 4):
        native = NativeProgram(path, NativeThreads(threads))
        native.run(arrays)
        found.append([np.array(native.output(i, value.shape)) for i, value in enumerate(expected)])
    for i, value in enumerate(expected):
        scale = max(float(np.abs(value).max()), 1e-6)
        assert np.abs(found[0][i] - value).max() <= 5e-5 * scale, i
        assert all(np.array_equal(found[0][i], other[i]) for other in found[1:]), i


def test_optimizers_move_the_same_bits_on_any_number_of_threads() -> None:
    generator = np.random.default_rng(0)
    value, gradient = (generator.standard_normal(100_003).astype(np.float32) for _ in range(2))
    moved = []
    for threads in (1, 2, 3, 4):
        state = {"w": value.copy(), "w#momentum": value * 0.5}
        rule = NativeUpdate(UpdateRule(kind="sgd"), NativeThreads(threads))
        rule.apply({"w": gradient.copy()}, state, {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4})
        moved.append(state)
    # v = 0.9 v + g + 1e-4 w; w -= 0.1 v
    velocity = 0.9 * (value * 0.5) + gradient + 1e-4 * value
    np.testing.assert_allclose(moved[0]["w"], value - 0.1 * velocity, rtol=1e-5, atol=1e-6)
    for other in moved[1:]:
        assert all(np.array_equal(other[name], moved[0][name]) for name in other)
