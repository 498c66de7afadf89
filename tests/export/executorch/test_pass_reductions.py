"""Sums and the log-softmax over the last dimension against torch."""

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


@pytest.mark.parametrize("shape", [(4, 10), (3, 1), (2, 5, 65)], ids=str)
def test_log_softmax_and_sums_of_rows(shape: tuple[int, ...], tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape) * 5

    def rows(x: Tensor) -> list[Tensor]:
        return [torch.log_softmax(x, -1), x.sum(-1), x.sum(-1, keepdim=True)]

    kernels = assert_rewrite_agrees(rows, [x], tmp_path, tolerance=2e-6)
    assert {"apportion_native::log_softmax.out", "apportion_native::row_sum.out"} <= kernels


def test_log_softmax_far_from_its_maximum_and_of_nan(tmp_path: Path) -> None:
    x = torch.tensor([[0.0, -200.0, 1e4], [float("nan"), 1.0, 2.0], [-float("inf"), 0.0, 0.0]])
    program = traced(lambda x: [torch.log_softmax(x, -1)], [x])
    path = tmp_path / "program.pte"
    path.write_bytes(lower(program, program.outputs, batch=1).data)
    native = NativeProgram(path)
    native.run([x.numpy()])
    np.testing.assert_allclose(native.output(0, (3, 3)), torch.log_softmax(x, -1).numpy(), rtol=1e-6)
