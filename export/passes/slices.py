"""A tensor taken apart along a dimension, and such parts joined again."""

from __future__ import annotations

from typing import Any

import torch

from export.passes.rewriter import rewrites
from export.passes.values import tensor_of

ATEN = torch.ops.aten


@rewrites(ATEN.unbind.int)
def parts(x: Any, dim: int = 0) -> Any:
    """One copy a part; torch's own form cuts each part out and drops the dimension after it."""
    tensor = tensor_of(x)
    return tuple(tensor.select(dim, place) for place in range(tensor.shape[dim]))


@rewrites(ATEN.stack.default)
def stack(tensors: Any, dim: int = 0) -> Any:
    """One after the other in memory where the new dimension is the first, as for query, key and value."""
    plain = [tensor_of(tensor) for tensor in tensors]
    if dim % (plain[0].dim() + 1) != 0 or plain[0].dim() == 0:
        return NotImplemented
    return torch.cat(plain, 0).reshape([len(plain), *plain[0].shape])


@rewrites(ATEN.select_scatter.default)
def select_scatter(x: Any, part: Any, dim: int, index: int) -> Any:
    """``x`` with ``part`` in one place of a dimension; torch's own form compares every place with that one."""
    whole = tensor_of(x)
    place = index % int(whole.shape[dim])
    return torch.slice_scatter(whole, tensor_of(part).unsqueeze(dim), dim, place, place + 1)
