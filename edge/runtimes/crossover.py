"""When a layer is faster with its kept weights alone: what a runtime with sparse kernels measures."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edge.runtimes.base import Runtime


def sparse_below(chosen: Runtime) -> dict[str, float]:
    """Density below which a layer's step is faster with its kept weights alone, by kind of layer, measured now.

    Empty for a runtime without sparse kernels.
    """
    measure = getattr(chosen, "sparse_below", None)
    return dict(measure()) if measure is not None else {}
