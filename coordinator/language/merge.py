"""What a run has trained, merged into the base: W + u v of every layer with factors, one tensor at a time."""

# Dims: O outputs, I inputs, R rank.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from edge.contracts.errors import PlanError
from export.language.architecture import Architecture, Precision
from export.language.base_weights import dequantised, held, matrices
from export.language.causal_model import meta_model

Factors = dict[str, tuple[np.ndarray, np.ndarray]]
"""Path of a linear layer -> u [O, R] and v [R, I]."""


def factors_of(tensors: Mapping[str, np.ndarray], architecture: Architecture) -> Factors:
    """The pairs of factors in a run's state, ``<path>.u`` and ``<path>.v``, in the order of the blocks.

    Raises:
        PlanError: a tensor that is no factor, one without the other, or shapes that are not the layer's.
    """
    shapes = {path: size for block in range(architecture.layers) for path, size in architecture.linears(block).items()}
    found: Factors = {}
    unknown = set(tensors)
    for path, (outputs, inputs) in shapes.items():
        u, v = tensors.get(f"{path}.u"), tensors.get(f"{path}.v")
        if u is None and v is None:
            continue
        unknown -= {f"{path}.u", f"{path}.v"}
        if u is None or v is None or u.ndim != 2 or v.ndim != 2 or u.shape[1] != v.shape[0] \
                or (u.shape[0], v.shape[1]) != (outputs, inputs):  # fmt: skip
            sides = [None if side is None else tuple(side.shape) for side in (u, v)]
            raise PlanError(
                f"layer '{path}': factors u {sides[0]} and v {sides[1]}, [{outputs}, rank] and [rank, {inputs}] "
                "expected; give the state of a run of this model"
            )
        found[path] = u, v
    if unknown:
        raise PlanError(f"'{min(unknown)}' is no factor of a {architecture.family} model; give the state of its run")
    return found


def base_values(
    values: Iterable[tuple[str, np.ndarray]], architecture: Architecture, precision: Precision
) -> Iterator[tuple[str, np.ndarray]]:
    """Every tensor as devices compute with it: rounded to the precision of the base file, float32 again."""
    quantised = matrices(meta_model(architecture))
    for name, value in values:
        yield name, dequantised(name, held(name, value, precision)) if name in quantised else value


def merged(values: Iterable[tuple[str, np.ndarray]], factors: Factors) -> Iterator[tuple[str, np.ndarray]]:
    """(Name, float32 array) of every tensor, its factors' product added in float64."""
    for name, value in values:
        pair = factors.get(name.removesuffix(".weight")) if name.endswith(".weight") else None
        if pair is not None:
            u_OR, v_RI = (side.astype(np.float64) for side in pair)
            value = (value + u_OR @ v_RI).astype(np.float32)
        yield name, value
