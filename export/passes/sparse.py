"""Layers whose weights a device holds as kept values alone: what their products become, and their gradients.

A linear layer's weight gradient is a product of its output's gradient and its input, like any other; it is found from
the program's output back and taken at the kept entries only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

import export.passes.sparse_operators  # noqa: F401  registers what is called here
from export.passes.operators import NATIVE
from export.passes.rewriter import Rewriter, Unsupported
from export.passes.values import SparseWeight, Transposed, tensor_of

ATEN = torch.ops.aten
_SAME = {
    ATEN.permute.default, ATEN.t.default, ATEN.transpose.int, ATEN.view.default, ATEN._unsafe_view.default,
    ATEN.reshape.default, ATEN.clone.default, ATEN.detach.default, ATEN.alias.default,
}  # fmt: skip
"""What may stand between a product and the gradient it is; the first three exchange its dimensions."""
_EXCHANGES = {ATEN.permute.default, ATEN.t.default, ATEN.transpose.int}


def linear(x: Any, w: SparseWeight, bias: Any) -> Tensor:
    """``x`` [N, I] times the transpose of ``w``, or times ``w``, which is the gradient of an input."""
    rows = tensor_of(x)
    if w.is_transposed:
        result: Tensor = NATIVE.sparse_linear(rows, w.values, *w.places, bias)
        return result
    if bias is not None:
        w.tensor()
    result = NATIVE.sparse_linear_input_gradient(rows, w.values, *w.places, w.whole[1])
    return result


def convolution(x: Tensor, w: SparseWeight, bias: Any, window: tuple[Any, Any, Any, int]) -> Tensor:
    """``x`` [N, H, W, C] under the filters ``w``."""
    result: Tensor = NATIVE.sparse_convolution(x, w.values, *w.places, bias, *_plain(w, window))
    return result


def convolution_input_gradient(dy: Tensor, w: SparseWeight, size: Any, window: tuple[Any, Any, Any, int]) -> Tensor:
    """The gradient of the images [N, *size, C]."""
    kernel, padding, dilation = _plain(w, window)
    if any(p > (k - 1) * d for p, k, d in zip(padding, kernel, dilation, strict=True)):
        raise Unsupported("its padding is wider than its kernel", "the dense form of this layer")
    whole = [*size, w.whole[1]]
    result: Tensor = NATIVE.sparse_convolution_input_gradient(dy, w.values, *w.places, whole, kernel, padding, dilation)
    return result


def convolution_weight_gradient(x: Tensor, dy: Tensor, w: SparseWeight, window: tuple[Any, Any, Any, int]) -> Tensor:
    """The gradient of the kept values."""
    result: Tensor = NATIVE.sparse_convolution_weight_gradient(x, dy, *w.places, *_plain(w, window))
    return result


def is_plain(stride: Any, groups: int) -> bool:
    """Whether there are sparse kernels for a convolution of this stride and number of groups."""
    return all(s == 1 for s in stride) and groups == 1


def _plain(w: SparseWeight, window: tuple[Any, Any, Any, int]) -> tuple[list[int], Any, Any]:
    stride, padding, dilation, groups = window
    if not is_plain(stride, groups) or len(w.whole) != 4:
        w.tensor()
    return list(w.whole[2:]), padding, dilation


@dataclass(frozen=True)
class Sample:
    """A product of which only the kept entries of a weight are wanted; ``is_transposed``: it gives [I, O]."""

    weight: str
    is_transposed: bool

    def of(self, a: Any, b: Any, weight: SparseWeight) -> Tensor:
        """The kept entries of ``a`` times ``b``."""
        if self.is_transposed:
            x, dy = _transposed(a), tensor_of(b)
        else:
            x, dy = tensor_of(b), _transposed(a)
        result: Tensor = NATIVE.sparse_linear_weight_gradient(dy, x, *weight.places)
        return result


class SparseRewriter(Rewriter):
    """The rewriter for programs some of whose inputs are :class:`SparseWeight`.

    Args:
        gradients: by the name of every such weight, the node that is its gradient, if there is one.
    """

    def __init__(self, graph: fx.GraphModule, gradients: Mapping[str, fx.Node | None]) -> None:
        super().__init__(graph)
        self._weights: dict[str, SparseWeight] = {}
        self._products: dict[fx.Node, Sample] = {}
        self._between: set[fx.Node] = set()
        for name, node in gradients.items():
            product, passed = (None, []) if node is None else _product_of(node)
            if product is not None:
                self._products[product] = Sample(name, sum(n.target in _EXCHANGES for n in passed) % 2 == 1)
                self._between.update(passed)

    def run(self, *args: Any, **options: Any) -> Any:
        """As the rewriter's, but that weights are known by name."""
        self._weights = {a.name: a for a in args if isinstance(a, SparseWeight)}
        return super().run(*args, **options)

    def run_node(self, n: fx.Node) -> Any:
        """One operation; a product that is a sparse weight's gradient at the kept entries only."""
        if n in self._products:
            (a, b), _ = self.fetch_args_kwargs_from_env(n)
            sample = self._products[n]
            return sample.of(a, b, self._weights[sample.weight])
        if n in self._between:
            args, _ = self.fetch_args_kwargs_from_env(n)
            return args[0]
        return super().run_node(n)


def _product_of(node: fx.Node) -> tuple[fx.Node | None, list[fx.Node]]:
    """The matrix product that ``node`` only shows otherwise, and what is between; None for a convolution's gradient."""
    passed = []
    while node.target in _SAME and len(node.users) == 1:
        passed.append(node)
        node = node.all_input_nodes[0]
    return (node if node.target is ATEN.mm.default else None), passed


def _transposed(value: Any) -> Tensor:
    return value.base if isinstance(value, Transposed) else tensor_of(Transposed(tensor_of(value)))
