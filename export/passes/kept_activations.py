"""Activations that wait for the backward pass in float16."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from export.forms.kept_activations import NARROWED, OPERATORS, WIDENED
from export.passes.operators import NATIVE, define
from export.passes.rewriter import rewrites
from export.passes.values import Image, tensor_of

ATEN = torch.ops.aten

define(
    "narrowed(Tensor x)",
    1,
    lambda x: torch.empty_like(x, dtype=torch.float16, memory_format=torch.contiguous_format),
    lambda x: OPERATORS.narrowed(x),
)
define(
    "widened(Tensor x)",
    1,
    lambda x: torch.empty_like(x, dtype=torch.float32, memory_format=torch.contiguous_format),
    lambda x: OPERATORS.widened(x),
)


@rewrites(NARROWED)
def narrowed(x: Any) -> Any:
    """The nearest float16."""
    return Image(NATIVE.narrowed(x.pixels)) if isinstance(x, Image) else NATIVE.narrowed(tensor_of(x))


@rewrites(WIDENED)
def widened(x: Any) -> Any:
    """The same in float32."""
    return Image(NATIVE.widened(x.pixels)) if isinstance(x, Image) else NATIVE.widened(tensor_of(x))


def with_whole_maxima(graph: fx.Graph) -> None:
    """Let the backward pass of a max-pool read what was pooled, and the ReLU before it, too.

    It finds the maxima again, and of two values that round to one the first would be taken for the maximum.
    """
    for node in graph.find_nodes(op="call_function", target=ATEN.max_pool2d_with_indices_backward.default):
        rounded = node.args[1]
        if rounded.target is not WIDENED or rounded.args[0].target is not NARROWED:
            continue
        kept = rounded.args[0]
        for reader in [reader for wide in kept.users for reader in wide.users]:
            if reader is node or reader.target is ATEN.threshold_backward.default:
                reader.update_arg(1, kept.args[0])
    graph.eliminate_dead_code()
