"""From raw values to what a program is fed: scale, mean and deviation of an artifact's input."""

from __future__ import annotations

import numpy as np

from edge.contracts.manifest import InputSpec


def normalised(x: np.ndarray, spec: InputSpec) -> np.ndarray:
    """Program inputs of examples that fit: ``(x * scale - mean) / std`` per channel, C-contiguous; symbols as they are.

    Args:
        x: [B, *input.shape] in the input's dtype; written to.
    """
    if spec.dtype != "float32":
        return np.ascontiguousarray(x)
    per_channel = (-1,) + (1,) * (len(spec.shape) - 1) if spec.layout == "chw" else (-1,)
    # One pass each, in place: a batch is held once.
    if spec.scale != 1.0:
        x *= np.float32(spec.scale)
    if any(spec.mean):
        x -= np.asarray(spec.mean, np.float32).reshape(per_channel)
    if any(value != 1.0 for value in spec.std):
        x /= np.asarray(spec.std, np.float32).reshape(per_channel)
    return np.ascontiguousarray(x)
