"""The frozen base of a language model in its precision: what travels once, and is mapped on devices.

A matrix ``<path>.weight`` [outputs, inputs] is held by its precision; norms, biases and tables of positions are float32.
``<name>#scale`` is the step of a quantised one: [outputs] for ``int8`` (symmetric, the largest magnitude is 127).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from edge.contracts.tensors import TensorSpec
from export.language.architecture import Precision
from export.language.causal_model import CausalModel

SCALE = "#scale"
"""``<name>#scale`` holds the steps of quantised tensor ``<name>``."""

_INT8_LARGEST = 127.0


def matrices(module: CausalModel) -> dict[str, tuple[int, int]]:
    """Names and shapes of what the precision is of: linear weights, the embedding and an untied head."""
    return {
        name: (value.shape[0], value.shape[1])
        for name, value in module.named_parameters()
        if value.ndim == 2 and name.endswith(".weight") and not name.startswith("positions.")
    }


def held(name: str, value: np.ndarray, precision: Precision) -> dict[str, np.ndarray]:
    """Matrix ``name`` [outputs, inputs], float32, as the base file holds it."""
    if precision == "float32":
        return {name: np.ascontiguousarray(value, np.float32)}
    if precision == "float16":
        return {name: value.astype(np.float16)}
    if precision != "int8":
        raise NotImplementedError(precision)
    scale = np.abs(value).max(axis=1) / _INT8_LARGEST
    step = np.where(scale > 0, scale, 1.0).astype(np.float32)
    return {name: np.rint(value / step[:, None]).astype(np.int8), name + SCALE: step}


def dequantised(name: str, base: Mapping[str, np.ndarray]) -> np.ndarray:
    """Tensor ``name`` of a base file, float32: exactly what a device computes with."""
    value = base[name]
    if value.dtype == np.int8:
        return value.astype(np.float32) * base[name + SCALE][:, None]
    return value.astype(np.float32)


def base_specs(module: CausalModel) -> tuple[TensorSpec, ...]:
    """Every tensor of the base file, role ``mapped``, in the module's order."""
    found = []
    held_so = matrices(module)
    with torch.device("meta"):
        named = {n: tuple(v.shape) for n, v in module.named_parameters() if not n.endswith((".u", ".v"))}
    dtypes = {"float32": "float32", "float16": "float16", "int8": "int8"}
    for name, shape in named.items():
        if name not in held_so:
            found.append(TensorSpec(name, shape, "float32", "mapped"))
            continue
        found.append(TensorSpec(name, shape, dtypes[module.base_precision], "mapped"))  # type: ignore[arg-type]
        if module.base_precision == "int8":
            found.append(TensorSpec(name + SCALE, shape[:1], "float32", "mapped"))
    return tuple(found)
