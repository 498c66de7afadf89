"""Runs a traced program with other operators: each kind of layer has a rewrite, everything else stays as it is.

The graph is interpreted, so the same code gives numbers when fed real tensors (the tests) and a new graph when traced.
A rewrite is a function of the operation's arguments, registered with :func:`rewrites`; it returns NotImplemented for a
form that it leaves to the ordinary operator.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_map

from edge.contracts.errors import ExportRefused
from export.alternatives import SUPPORTED, alternative
from export.capture import layer_of
from export.forms.kept_activations import is_kept
from export.passes.values import Image, PooledMaximum, SparseWeight, Transposed, Unsupported, image_of, tensor_of

REWRITE_FILES = (
    "activations",
    "convolution",
    "elementwise",
    "group_norms",
    "kept_activations",
    "normalisation",
    "pooling",
    "products",
    "recurrent",
    "reductions",
    "row_norms",
    "slices",
)
"""Files of this package that register rewrites; order does not matter, no operation has two."""

__all__ = ["REWRITE_FILES", "Rewriter", "Unsupported", "rewrites"]

_TYPES = frozenset({torch.float32, torch.int64, torch.int32, torch.uint8, torch.int8, torch.bool})
"""What the runtime and the kernels compute in."""

Rewrite = Callable[..., Any]
_REWRITES: dict[Any, Rewrite] = {}


def rewrites(*targets: Any) -> Callable[[Rewrite], Rewrite]:
    """Register a rewrite of the ATen overloads ``targets``."""

    def register(function: Rewrite) -> Rewrite:
        for target in targets:
            if target in _REWRITES:
                raise ValueError(f"two rewrites of {target}")
            _REWRITES[target] = function
        return function

    return register


class Rewriter(fx.Interpreter):
    """Interprets a traced program with the rewrites.

    Attributes:
        layers: operator name -> layer it was last called for, of the operators that were left as they are.
        applied: the rewrite of the operation that was run last; None where it was left as it is.
    """

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.extra_traceback = False  # a refusal's message stays as it is
        for name in REWRITE_FILES:
            import_module(f"export.passes.{name}")
        self.layers: dict[str, str] = {}
        self.applied: Rewrite | None = None
        self._images: dict[int, tuple[Any, Image]] = {}

    def run_node(self, n: fx.Node) -> Any:
        """One operation; raises ExportRefused with its layer."""
        if n.op != "call_function" or n.target is operator.getitem:
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if not is_kept(n):
            _require_known_type(n)
        try:
            result = self._call(n.target, args, kwargs)
        except Unsupported as problem:
            raise ExportRefused(layer_of(n), problem.reason, instead=problem.instead) from problem
        if isinstance(n.target, torch._ops.OpOverload) and result is not NotImplemented:
            self.layers[n.target._schema.name] = layer_of(n)
        return result

    def output(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Outputs in torch's layout, each a tensor of its own."""
        return tree_map(tensor_of, args[0], is_leaf=_is_value)

    def _call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        rewrite = _REWRITES.get(target)
        if rewrite is not None:
            result = rewrite(*args, **kwargs)
            if result is not NotImplemented:
                self.applied = rewrite
                return result
        self.applied = None
        if isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags:
            images = self._pixels(args)
            if images is not None:
                return Image(target(*images, **tree_map(tensor_of, kwargs, is_leaf=_is_value)))
        if any(isinstance(a, PooledMaximum) for a in args):
            raise Unsupported("it reads the indices of a max-pool, which are not kept", alternative("max_unpool"))
        plain_args, plain_kwargs = tree_map(tensor_of, (args, kwargs), is_leaf=_is_value)
        return target(*plain_args, **plain_kwargs)

    def _pixels(self, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Arguments of a pointwise operation as [N, H, W, C], when one is an image and the others are of its shape."""
        shapes = [a.shape for a in args if isinstance(a, Image)]
        if not shapes:
            return None
        for value in args:
            if isinstance(value, Tensor | Transposed) and len(value.shape) not in (0, 4):
                return None
            if isinstance(value, Tensor | Image) and len(value.shape) == 4 and tuple(value.shape) != shapes[0]:
                return None
        return tuple(image_of(a).pixels if isinstance(a, Image) or _rank(a) == 4 else a for a in args)


def _require_known_type(node: fx.Node) -> None:
    value = node.meta.get("val")
    for item in value if isinstance(value, list | tuple) else [value]:
        if isinstance(item, Tensor) and item.dtype not in _TYPES:
            name = str(node.target).removeprefix("aten.")
            advice = alternative(name)
            raise ExportRefused(
                layer_of(node),
                f"operation {name} computes in {item.dtype}",
                instead="float32" if advice == SUPPORTED else advice,
            )


def _rank(value: Any) -> int:
    return len(value.shape) if isinstance(value, Tensor) else -1


def _is_value(value: Any) -> bool:
    return isinstance(value, Image | Transposed | SparseWeight)
