"""Matrix products; transposes of their operands are folded into Gemm."""

from __future__ import annotations

from typing import Any

from torch import fx

from export.formats.onnx_step.translation import Translation, translates


def _operand(t: Translation, a: fx.Node) -> tuple[str, int]:
    """The value of a 2-d operand, and whether it is to be read transposed."""
    is_transposed = 0
    while str(a.target) == "aten.permute.default" and list(a.args[1]) == [1, 0]:
        a, is_transposed = a.args[0], 1 - is_transposed
    return t.value(a), is_transposed


@translates("mm")
def mm(t: Translation, node: fx.Node, a: fx.Node, b: fx.Node) -> str:
    (left, transpose_a), (right, transpose_b) = _operand(t, a), _operand(t, b)
    return t.make.node("Gemm", left, right, transA=transpose_a, transB=transpose_b)


@translates("addmm")
def addmm(t: Translation, node: fx.Node, c: fx.Node, a: fx.Node, b: fx.Node, **scales: Any) -> str:
    (left, transpose_a), (right, transpose_b) = _operand(t, a), _operand(t, b)
    factors = {k: float(v) for k, v in scales.items()}
    return t.make.node("Gemm", left, right, t.value(c), transA=transpose_a, transB=transpose_b, **factors)


@translates("bmm", "matmul")
def bmm(t: Translation, node: fx.Node, a: fx.Node, b: fx.Node) -> str:
    return t.make.node("MatMul", t.value(a), t.value(b))
