"""A part set in its place of a dimension."""

from __future__ import annotations

from typing import Any

import torch

from export.passes.rewriter import rewrites
from export.passes.values import tensor_of

ATEN = torch.ops.aten


@rewrites(ATEN.select_scatter.default)
def select_scatter(x: Any, part: Any, dim: int, index: int) -> Any:
    """``x`` with ``part`` in one place of a dimension; torch's own form compares every place with that one."""
    whole = tensor_of(x)
    place = index % int(whole.shape[dim])
    return torch.slice_scatter(whole, tensor_of(part).unsqueeze(dim), dim, place, place + 1)
