"""Sizes of traced tensors: numbers, or linear expressions of the one batch symbol, and their ONNX shape tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import fx

from edge.contracts.errors import ExportRefused
from export.formats.onnx_step.graph import GraphBuilder

if TYPE_CHECKING:
    import sympy  # takes a second, and a format tells the memory of a step without it

Size = Any
"""An int, or a sympy expression of the batch symbol."""


class Dimensions:
    """Turns sizes into numbers or shape tensors; knows the batch symbol and the input whose dim 0 it is."""

    def __init__(self, builder: GraphBuilder, batch_source: str, batch_symbol: sympy.Symbol | None) -> None:
        self._builder = builder
        self._batch_source = batch_source
        self._symbol = batch_symbol

    def size(self, value: Any) -> Size:
        """A number, or an expression of the batch symbol."""
        import sympy

        if isinstance(value, fx.Node):
            value = value.meta["val"]
        if isinstance(value, torch.SymInt):
            expression = value.node.expr
            return int(expression) if expression.is_number else expression
        return value if isinstance(value, sympy.Expr) and not value.is_number else int(value)

    def sizes(self, values: Iterable[Any]) -> list[Size]:
        return [self.size(v) for v in values]

    def fixed(self, value: Any, *, layer: str) -> int:
        """A size that has to be a number.

        Raises:
            ExportRefused: it depends on the batch size.
        """
        size = self.size(value)
        if not isinstance(size, int):
            raise ExportRefused(
                layer, f"a size that must be fixed is {size} of the batch", instead="a fixed size there"
            )
        return size

    def shape(self, values: Sequence[Any], *, infer: bool = True) -> str:
        """An int64 vector of the sizes; one batch-dependent size becomes -1 when ``infer`` allows it."""
        sizes = self.sizes(values)
        dynamic = [s for s in sizes if not isinstance(s, int)]
        if not dynamic:
            return self._builder.constant(sizes)
        if len(dynamic) == 1 and infer and 0 not in sizes:
            return self._builder.constant([s if isinstance(s, int) else -1 for s in sizes])
        return self._builder.node("Concat", *[self.vector(s) for s in sizes], axis=0)

    def vector(self, size: Size) -> str:
        """An int64 vector of one element."""
        if isinstance(size, int):
            return self._builder.constant([size])
        slope, offset = self._linear(size)
        result = self._builder.node("Shape", self._batch_source, start=0, end=1)
        if slope != 1:
            result = self._builder.node("Mul", result, [slope])
        return self._builder.node("Add", result, [offset]) if offset else result

    def scalar(self, size: Size, onnx_type: int, numpy_type: type) -> str:
        """A rank-0 value of the size, in the given type."""
        if isinstance(size, int):
            return self._builder.constant(np.array(size, numpy_type))
        cast = self._builder.node("Cast", self.vector(size), to=onnx_type)
        return self._builder.node("Squeeze", cast, [0])

    def onnx_shape(self, values: Iterable[Any]) -> list[int | str]:
        """Sizes for a graph input or output; any batch-dependent one is named after its expression."""
        return [s if isinstance(s, int) else ("batch" if s == self._symbol else str(s)) for s in self.sizes(values)]

    def _linear(self, size: sympy.Expr) -> tuple[int, int]:
        import sympy

        try:
            polynomial = sympy.Poly(size, self._symbol)
            if polynomial.degree() > 1:
                raise sympy.PolynomialError
        except sympy.PolynomialError as error:
            raise ExportRefused(
                "(the module itself)", f"a size is {size}, which is not linear in the batch", instead="simpler reshapes"
            ) from error
        return int(polynomial.coeff_monomial(self._symbol)), int(polynomial.coeff_monomial(1))
