"""The frozen base of a language model in its precision: what travels once, and is mapped on devices.

A matrix ``<path>.weight`` [outputs, inputs] is held by its precision; norms, biases and position tables are float32.
``<name>#scale`` is the step of a quantised one: [outputs] for ``int8`` (symmetric, the largest magnitude is 127),
[outputs, inputs / 64] for ``int4`` (values 0 to 15 that stand for -8 to 7 steps, two to a byte, the even input in the
low half).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edge.contracts.tensors import TensorSpec
from export.language.additions import is_beside_base
from export.language.architecture import INT4_BLOCK, Precision
from export.language.causal_model import CausalModel

SCALE = "#scale"
"""``<name>#scale`` holds the steps of quantised tensor ``<name>``."""

_INT8_LARGEST = 127.0
_INT4_LARGEST, _INT4_ZERO = 7.0, 8


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
    if precision == "int4":
        return _blocks(name, value)
    scale = np.abs(value).max(axis=1) / _INT8_LARGEST
    step = np.where(scale > 0, scale, 1.0).astype(np.float32)
    return {name: np.rint(value / step[:, None]).astype(np.int8), name + SCALE: step}


def dequantised(name: str, base: Mapping[str, np.ndarray]) -> np.ndarray:
    """Tensor ``name`` of a base file, float32: exactly what a device computes with."""
    value = base[name]
    if value.dtype == np.int8:
        return value.astype(np.float32) * base[name + SCALE][:, None]
    if value.dtype == np.uint8:
        steps = np.stack([value & 15, value >> 4], axis=-1).astype(np.float32) - _INT4_ZERO
        blocks = steps.reshape(len(value), -1, INT4_BLOCK) * base[name + SCALE][:, :, None]
        return blocks.reshape(len(value), -1)
    return value.astype(np.float32)


def base_specs(module: CausalModel) -> tuple[TensorSpec, ...]:
    """Every tensor of the base file, role ``mapped``, in the module's order.

    Raises:
        ValueError: ``int4``, and a matrix whose inputs are no whole blocks.
    """
    found = []
    held_so = matrices(module)
    named = {n: tuple(v.shape) for n, v in module.named_parameters() if not is_beside_base(n)}
    for name, shape in named.items():
        precision = module.base_precision if name in held_so else "float32"
        if precision == "int4":
            packed, scales = _block_shapes(name, shape)
            found += [
                TensorSpec(name, packed, "uint8", "mapped"),
                TensorSpec(name + SCALE, scales, "float32", "mapped"),
            ]
            continue
        found.append(TensorSpec(name, shape, precision, "mapped"))
        if precision == "int8":
            found.append(TensorSpec(name + SCALE, shape[:1], "float32", "mapped"))
    return tuple(found)


def _block_shapes(name: str, shape: tuple[int, ...]) -> tuple[tuple[int, int], tuple[int, int]]:
    outputs, inputs = shape
    if inputs % INT4_BLOCK:
        raise ValueError(f"'{name}' has {inputs} inputs, int4 holds blocks of {INT4_BLOCK}; choose int8 for this model")
    return (outputs, inputs // 2), (outputs, inputs // INT4_BLOCK)


def _blocks(name: str, value: np.ndarray) -> dict[str, np.ndarray]:
    packed, scales = _block_shapes(name, value.shape)
    blocks = np.ascontiguousarray(value, np.float32).reshape(*scales, INT4_BLOCK)
    largest = np.abs(blocks).max(axis=2) / _INT4_LARGEST
    step = np.where(largest > 0, largest, 1.0).astype(np.float32)
    whole = (np.rint(blocks / step[:, :, None]) + _INT4_ZERO).astype(np.uint8).reshape(len(value), -1)
    return {name: (whole[:, 0::2] | (whole[:, 1::2] << 4)).reshape(packed), name + SCALE: step}
