"""One function of tensors three ways: as torch runs it, as its rewrite means it, and as the device's kernels do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import numpy as np
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from edge.contracts.tensors import DType, TensorSpec
from edge.runtimes.executorch.library import NativeProgram
from export.capture import Capture
from export.formats.executorch_program.lowering import lower
from export.passes.rewriter import Rewriter


def traced(function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> Capture:
    """``function`` as a program of fixed shapes."""
    outputs: list[int] = []

    def flat(*values: Tensor) -> list[Tensor]:
        results = list(function(*values))
        outputs[:] = range(len(results))
        return results

    graph = make_fx(flat)(*inputs)
    specs = [
        TensorSpec(f"i{n}", tuple(x.shape), cast(DType, str(x.dtype).removeprefix("torch.")), "input")
        for n, x in enumerate(inputs)
    ]
    return Capture(graph, tuple(specs), tuple(f"o{n}" for n in outputs), ())


def assert_rewrite_agrees(
    function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor], folder: Path, *, tolerance: float = 2e-5
) -> set[str]:
    """The rewrite's meaning and the device's kernels both give what torch gives; the operators the program calls."""
    expected = [value.detach() for value in function(*inputs)]
    program = traced(function, inputs)
    meant = Rewriter(program.graph).run(*inputs, enable_io_processing=False)
    lowered = lower(program, program.outputs, batch=1)
    path = folder / "program.pte"
    path.write_bytes(lowered.data)
    native = NativeProgram(path)
    native.run([np.array(x.detach().numpy(), order="C") for x in inputs])
    for i, value in enumerate(expected):
        scale = max(float(value.abs().max()), 1e-6)
        for found in (meant[i].numpy(), native.output(i, tuple(value.shape))):
            assert found.shape == value.shape
            assert np.abs(found - value.numpy()).max() <= tolerance * scale
    return set(lowered.kernels)
