"""Updates in fewer bits: the difference to the weights an order came with, as float16 or as int8 with scales.

Only trained parameters travel so; statistics, accumulators and whole numbers stay as they are. A tensor ``w`` of int8
has ``w#scale`` beside it: one float32 for each entry of its first dimension where a row has at least
:data:`ROW_ENTRIES` entries, otherwise one for all. What rounding loses stays on the device and is added to its next
difference (error feedback), so that it is sent later instead of never.

Source: error feedback, Seide et al. (Interspeech 2014), section 2, and Karimireddy et al. (ICML 2019), Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from edge.contracts.errors import UpdateRejected
from edge.contracts.plan import Precision
from edge.contracts.tensors import TensorSpec

if TYPE_CHECKING:
    import numpy as np

SCALE = "#scale"
LEVELS = 127
"""Values of int8 on each side of zero."""
ROW_ENTRIES = 16
FLOAT16_MAX = 65504.0


def is_coded(spec: TensorSpec) -> bool:
    """Whether a tensor of an update travels in fewer bits where an order asks for it."""
    return spec.role == "parameter" and spec.dtype == "float32"


def scale_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the scales of an int8 tensor of ``shape``."""
    rows = shape[0] if len(shape) > 1 else 0
    entries = 1
    for size in shape[1:]:
        entries *= size
    return (rows,) if rows and entries >= ROW_ENTRIES else ()


def scales_of(difference: np.ndarray) -> np.ndarray:
    """float32 scales [first dimension] or [] that bring ``difference`` into the range of int8; 0 where it is all 0."""
    import numpy as np

    size = np.abs(difference)
    rows = scale_shape(difference.shape)
    largest = size.reshape(len(difference), -1).max(axis=1) if rows else size.max(initial=0.0)
    return np.asarray(largest / LEVELS, np.float32)


def encoded(difference: np.ndarray, precision: Precision) -> np.ndarray:
    """``difference`` (float32) as float16 or, by :func:`scales_of`, as int8; rounded to nearest, ties to even.

    Args:
        precision: ``fp16`` or ``int8``.
    """
    import numpy as np

    if precision == "fp16":
        # Beyond float16's range the rest is fed back like any other error.
        halves: np.ndarray = np.clip(difference, -FLOAT16_MAX, FLOAT16_MAX).astype(np.float16)
        return halves
    scale = _spread(scales_of(difference), difference.ndim)
    steps = np.divide(difference, scale, out=np.zeros_like(difference), where=scale > 0)
    levels: np.ndarray = np.clip(np.rint(steps), -LEVELS, LEVELS).astype(np.int8)
    return levels


def decoded(value: np.ndarray, scales: np.ndarray | None) -> np.ndarray:
    """The float32 difference that :func:`encoded` gave as ``value``."""
    import numpy as np

    difference: np.ndarray = value.astype(np.float32)
    return difference if scales is None else difference * _spread(scales, value.ndim)


def restored(
    tensors: Mapping[str, np.ndarray],
    received: Mapping[str, np.ndarray],
    *,
    where: str,
) -> dict[str, np.ndarray]:
    """An update with its trained values in place of coded differences; the others are passed on unchanged.

    A device may send whole float32 values whatever it was asked for.

    Args:
        tensors: what the update's file holds.
        received: the order's weights, by the same names.

    Raises:
        UpdateRejected: a coded tensor that has no such weights, or not their shape or scales.
    """
    import numpy as np

    result: dict[str, np.ndarray] = {}
    for name, value in tensors.items():
        base = name.removesuffix(SCALE)
        if name != base and base in tensors and tensors[base].dtype == np.int8:
            continue
        if value.dtype.name not in ("float16", "int8"):
            result[name] = value
            continue
        before, scales = received.get(name), tensors.get(name + SCALE)
        if before is None or before.dtype != np.float32 or before.shape != value.shape:
            found = "none" if before is None else f"{before.dtype} {before.shape}"
            raise UpdateRejected(
                f"{where}: '{name}' is a difference of shape {value.shape}, the weights: {found}; re-plan the device"
            )
        if value.dtype == np.int8:
            expected = scale_shape(value.shape)
            if scales is None or scales.dtype != np.float32 or scales.shape != expected:
                found = "none" if scales is None else f"{scales.dtype} {scales.shape}"
                raise UpdateRejected(f"{where}: int8 '{name}' needs float32 scales {expected}, {found} found")
        result[name] = before + decoded(value, scales if value.dtype == np.int8 else None)
    return result


def _spread(scales: np.ndarray, dims: int) -> np.ndarray:
    return scales.reshape(scales.shape + (1,) * (dims - 1)) if scales.ndim else scales
